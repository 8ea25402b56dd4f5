//! Signing in and out: the token comes in a form, once, and a session stands for it from then on.

use bytes::Bytes;
use http::request::Parts as Head;
use http::{HeaderValue, StatusCode, header};

use super::Notice;
use crate::admin::Admin;
use crate::admin::answer::{Answer, text};
use crate::admin::token::is_equal;
use crate::page::html::encoded;

/// Largest cookie header that is looked at, in bytes.
const COOKIE_BYTES_MAX: usize = 8 << 10;

/// A field of a form, as it was typed: browsers send the end of a line as CRLF, whatever it was.
pub(super) fn field(form: &[u8], name: &str) -> Option<String> {
    let mut fields = url::form_urlencoded::parse(form);
    fields
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.replace("\r\n", "\n"))
}

impl Admin {
    pub(super) fn sign_in(&self, head: &Head, form: &Bytes) -> Answer {
        let token = self.token.now();
        let Some(token) = &*token else {
            return to_overview(None);
        };
        let sent = field(form, "token").unwrap_or_default();
        if !is_equal(token.reveal().as_bytes(), sent.trim().as_bytes()) {
            self.refused("token");
            return self.login_page(head, Notice::Wrong);
        }
        let session = self.pages.sessions.open(token);
        to_overview(session.map(|id| self.cookie(&id, "")))
    }

    pub(super) fn sign_out(&self, head: &Head) -> Answer {
        if let Some(id) = self.session_id(head) {
            self.pages.sessions.end(&id);
        }
        let mut answer = self.login_page(head, Notice::Ended);
        set_cookie(&mut answer, Some(self.cookie("", "; Max-Age=0")));
        answer
    }

    /// The session that a request names.
    pub(super) fn session_id(&self, head: &Head) -> Option<String> {
        let name = self.cookie_name();
        let cookies = head.headers.get_all(header::COOKIE).iter();
        let cookies = cookies.filter_map(|value| value.to_str().ok());
        let mut pairs = cookies
            .filter(|value| value.len() <= COOKIE_BYTES_MAX)
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        let (_, id) = pairs.find(|(key, _)| *key == name)?;
        Some(id.to_owned())
    }

    fn cookie(&self, id: &str, end: &str) -> String {
        let name = self.cookie_name();
        format!("{name}={id}; Path=/; HttpOnly; SameSite=Strict{end}")
    }

    /// Of this replica: a browser does not tell ports apart, and replicas may share an address.
    fn cookie_name(&self) -> String {
        format!("grapevine_{}", encoded(&self.replica))
    }
}

fn to_overview(cookie: Option<String>) -> Answer {
    let mut answer = text(StatusCode::SEE_OTHER, "");
    let to = HeaderValue::from_static("/");
    answer.headers_mut().insert(header::LOCATION, to);
    set_cookie(&mut answer, cookie);
    answer
}

fn set_cookie(answer: &mut Answer, cookie: Option<String>) {
    if let Some(cookie) = cookie.and_then(|cookie| HeaderValue::try_from(cookie).ok()) {
        answer.headers_mut().insert(header::SET_COOKIE, cookie);
    }
}
