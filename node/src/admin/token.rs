//! The token of the admin API.

use http::request::Parts as Head;

use super::Admin;
use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::config::Secret;
use crate::tenants::bearer;

impl Admin {
    /// A client with the token may call this port by any name; without it the name has to be the port's own.
    pub(super) fn check_caller(&self, head: &Head) -> Result<(), ApiError> {
        let token = self.token.now();
        let Some(token) = &*token else {
            let gate = self.admin_gate.now();
            let checked = gate.check_host(&head.headers, head.uri.authority());
            return checked.map_err(|refused| self.refusal(refused));
        };
        if has_token(head, token) {
            return Ok(());
        }
        self.refused("token");
        Err(ApiError::new(
            ErrorKind::Unauthorized,
            "the admin API needs its token as `Authorization: Bearer <token>`",
        ))
    }
}

/// Whether a caller has the token.
pub(super) fn has_token(head: &Head, token: &Secret) -> bool {
    let sent = bearer(&head.headers).unwrap_or_default();
    is_equal(token.reveal().as_bytes(), sent)
}

/// Takes as long for a nearly right token as for a wrong one.
pub(super) fn is_equal(token: &[u8], sent: &[u8]) -> bool {
    let differing = token
        .iter()
        .zip(sent)
        .fold(0, |differing, (a, b)| differing | (a ^ b));
    token.len() == sent.len() && differing == 0
}
