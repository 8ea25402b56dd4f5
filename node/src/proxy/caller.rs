//! Whose question it is: which tenant its prompts belong to, and which models it may ask for.

use http::HeaderMap;

use super::question::no_such_model;
use crate::api::error::{ApiError, ErrorKind};
use crate::tenants::Key;

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub enum Caller<'a> {
    /// Somebody without a key: the tenant is what the request says.
    Anybody,
    /// A client with a key: its tenant is the key's, whatever the request says.
    Keyed(&'a Key),
    /// An operator who asks on behalf of a tenant.
    Tenant(&'a str),
}

/// A tenant's name, and where it was written, for messages.
pub(super) type NamedTenant<'a> = (&'a [u8], &'a str);

impl<'a> Caller<'a> {
    /// `header`: where requests without a key name their tenant.
    pub(super) fn tenant(
        self,
        header: Option<&'a str>,
        headers: &'a HeaderMap,
    ) -> Option<NamedTenant<'a>> {
        match self {
            Self::Keyed(key) => Some((key.tenant().name().as_bytes(), "the key")),
            Self::Tenant(name) => Some((name.as_bytes(), "the query")),
            Self::Anybody => {
                let name = header?;
                Some((headers.get(name)?.as_bytes(), name))
            }
        }
    }

    /// May it have what a key of this tenant had made? `None`: it is not known whose it is.
    pub(super) fn is_of(self, tenant: Option<u64>) -> bool {
        match self {
            // Without keys nobody's word about a tenant is checked.
            Self::Anybody | Self::Tenant(_) => true,
            Self::Keyed(key) => tenant.is_none_or(|tenant| key.tenant().number() == tenant),
        }
    }

    /// `model`: the name that the request asks for, if it names one.
    pub(super) fn may_ask_for(self, model: Option<&str>) -> Result<(), ApiError> {
        match (self, model) {
            (Self::Anybody | Self::Tenant(_), _) => Ok(()),
            (Self::Keyed(key), _) if key.may_ask_for(model) => Ok(()),
            (Self::Keyed(_), Some(model)) => Err(no_such_model(model)),
            (Self::Keyed(_), None) => Err(ApiError::new(
                ErrorKind::PermissionDenied,
                "this key is for some models only, so a request has to name one of them as `model`",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_configured_header_names_a_tenant() {
        let mut headers = HeaderMap::new();
        headers.insert("x-tenant", "a".parse().expect("a value"));
        let named = |header| Caller::Anybody.tenant(header, &headers);
        assert_eq!(named(None), None);
        assert_eq!(named(Some("x-tenant")), Some((&b"a"[..], "x-tenant")));
        assert_eq!(named(Some("x-other")), None);
        let asked = Caller::Tenant("b").tenant(Some("x-tenant"), &headers);
        assert_eq!(asked, Some((&b"b"[..], "the query")));
    }
}
