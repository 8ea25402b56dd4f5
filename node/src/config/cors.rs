//! Settings of CORS: which web pages may read what the data port answers.

use std::fmt;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};
use url::Url;

use super::setting::{HOUR, Setting, Value, secs};
use super::table::section;

section! {
    /// CORS on the data port: which web pages may read its answers. Off until an origin is allowed.
    ///
    /// Off, no page of another origin can read anything: CORS headers of workers are dropped. Programs other
    /// than browsers are not concerned.
    [cors] CorsConfig {
        /// Origins of pages that may ask, such as "https://chat.example.com"; `"*"` is every page.
        allowed_origins: Vec<Wild<Origin>> = Vec::new(), flag "cors-allowed-origins" List alias "allowed-origins", live now;
        /// Methods that such a page may use; `"*"`: those that it asks for.
        allowed_methods: Vec<Wild<Method>> = vec![Wild::Any], flag "allowed-methods" List, live now;
        /// Headers that such a page may send; `"*"`: those that it asks for, `Authorization` among them.
        allowed_headers: Vec<Wild<HeaderName>> = vec![Wild::Any], flag "allowed-headers" List, live now;
        /// Pages may send cookies and client certificates. Not together with the origin `"*"`.
        ///
        /// A key in `Authorization` that the page's own code writes needs it not.
        allow_credentials: bool = false, flag "allow-credentials" On, live now;
        /// Headers of answers that such a page may read beside the few that it always may.
        exposed_headers: Vec<HeaderName> = vec![
            HeaderName::from_static("x-request-id"),
            HeaderName::from_static("retry-after"),
        ], live now;
        /// How long a browser need not ask again whether a request is allowed.
        ///
        /// Longer: fewer questions. Shorter: a change takes effect sooner. Browsers shorten it, to 2 h or less.
        max_age: Duration = secs(600), in Duration::ZERO..=HOUR * 24, live now;
    }
}

/// One of many, or all of them: `"*"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wild<T> {
    /// All.
    Any,
    /// This one.
    One(T),
}

impl<T: Setting> Setting for Wild<T> {
    const VALUE_NAME: &'static str = T::VALUE_NAME;

    fn parse(value: &Value) -> Result<Self, String> {
        match value.text() {
            Some("*") => Ok(Self::Any),
            _ => T::parse(value).map(Self::One),
        }
    }

    fn show(&self) -> Option<String> {
        match self {
            Self::Any => Some("\"*\"".to_owned()),
            Self::One(one) => one.show(),
        }
    }
}

/// Where a page comes from, written as browsers write it: scheme, host, and the port if it is not the scheme's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(HeaderValue);

impl Origin {
    /// None for what no browser would send, such as a path behind the host; `null` is no origin but that of many.
    pub fn new(text: &str) -> Option<Self> {
        let url = Url::parse(text).ok()?;
        let is_bare = matches!(url.path(), "" | "/")
            && url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none();
        if !url.has_host() || !is_bare {
            return None;
        }
        let origin = url.origin();
        let written = if origin.is_tuple() {
            origin.ascii_serialization()
        } else {
            // An application's own scheme, such as `chrome-extension`.
            text.trim_end_matches('/').to_owned()
        };
        HeaderValue::from_str(&written).ok().map(Self)
    }

    /// As it stands in a header.
    pub fn value(&self) -> &HeaderValue {
        &self.0
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.0.to_str().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_written_as_browsers_write_them() {
        for (text, expected) in [
            ("https://Chat.Example.com", Some("https://chat.example.com")),
            (
                "https://chat.example.com:443/",
                Some("https://chat.example.com"),
            ),
            ("http://127.0.0.1:3000", Some("http://127.0.0.1:3000")),
            (
                "chrome-extension://abcdef",
                Some("chrome-extension://abcdef"),
            ),
            ("https://chat.example.com/app", None),
            ("https://user@chat.example.com", None),
            ("chat.example.com", None),
            ("null", None),
        ] {
            let origin = Origin::new(text).map(|origin| origin.to_string());
            assert_eq!(origin.as_deref(), expected, "{text}");
        }
    }
}
