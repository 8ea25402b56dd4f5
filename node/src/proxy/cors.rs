//! CORS: which web pages may read what the data port answers, by the Fetch standard.
//!
//! The router's word alone counts: what workers say about it is dropped (`headers::clean_response`), so nothing is
//! said twice, and a page that is not allowed here reads nothing, whatever a worker allows (vLLM: all). A preflight is
//! answered before keys are asked for, because browsers send it without one; it shows nothing of what is served.
//! `*` for methods and headers is answered with what was asked for: the `*` of a header covers neither
//! `Authorization` nor anything that comes with credentials. Answers of the guard, given to bytes that are no
//! request, know of no origin.
//!
//! A page that may read nothing can ask all the same: what forms can send, a browser sends without a preflight. Where no
//! key is asked for, such a request of another site is refused ([`check_unasked`]).
//!
//! Not a library's layer: the one that is well kept answers every `OPTIONS` itself and leaves a worker's word to pages
//! that are not allowed.

use http::header::{self, HeaderMap, HeaderName};
use http::uri::Authority;
use http::{HeaderValue, Method, Response, StatusCode, Uri};

use super::response::ResponseBody;
use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::config::{CorsConfig, WebOrigin, Wild};
use crate::http::headers::SEC_FETCH_SITE;
use crate::media_type::is_of_type;

/// Media types that a page may send to another origin without a preflight (Fetch standard, 2.2.2).
const WITHOUT_PREFLIGHT: [&str; 3] = [
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data",
];

/// Which pages may read what; made once.
#[derive(Debug)]
pub struct Cors {
    /// None: by all.
    origins: Option<Vec<HeaderValue>>,
    /// None: what is asked for.
    methods: Option<HeaderValue>,
    /// None: what is asked for.
    headers: Option<HeaderValue>,
    exposed: Option<HeaderValue>,
    credentials: bool,
    max_age_s: u64,
}

impl Cors {
    /// None where no origin is allowed: then nothing is said.
    pub fn of(config: &CorsConfig) -> Option<Self> {
        if config.allowed_origins.is_empty() {
            return None;
        }
        Some(Self {
            origins: ones(&config.allowed_origins)
                .map(|origins| origins.map(WebOrigin::value).cloned().collect()),
            methods: ones(&config.allowed_methods).map(|names| joined(names.map(Method::as_str))),
            headers: ones(&config.allowed_headers)
                .map(|names| joined(names.map(HeaderName::as_str))),
            exposed: Some(&config.exposed_headers)
                .filter(|names| !names.is_empty())
                .map(|names| joined(names.iter().map(HeaderName::as_str))),
            credentials: config.allow_credentials,
            max_age_s: config.max_age.as_secs(),
        })
    }

    /// The answer to a browser that asks whether a page may send a request; none if it is no such question.
    /// Errors: 403 for a page that is not allowed; to its browser every answer without our word says the same.
    pub fn preflight(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Option<Result<Response<ResponseBody>, ApiError>> {
        if *method != Method::OPTIONS {
            return None;
        }
        let origin = headers.get(header::ORIGIN)?;
        let asked = headers.get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
        if !self.allows(origin) {
            let message = "this origin is not among cors.allowed_origins";
            return Some(Err(ApiError::new(ErrorKind::PermissionDenied, message)));
        }
        let mut response = Response::new(ResponseBody::Full(None, None));
        *response.status_mut() = StatusCode::NO_CONTENT;
        let out = response.headers_mut();
        let methods = self.methods.as_ref().unwrap_or(asked);
        out.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods.clone());
        let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS);
        if let Some(names) = self.headers.as_ref().or(asked) {
            out.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
        }
        out.insert(header::ACCESS_CONTROL_MAX_AGE, self.max_age_s.into());
        Some(Ok(response))
    }

    /// Writes on an answer which page may read it. `origin`: the request's.
    pub fn tell(&self, origin: Option<&HeaderValue>, out: &mut HeaderMap) {
        if self.origins.is_none() {
            // One answer for all, so that caches need not tell origins apart.
            let any = HeaderValue::from_static("*");
            out.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, any);
        } else {
            vary_by_origin(out);
            let Some(origin) = origin.filter(|origin| self.allows(origin)) else {
                return;
            };
            out.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        }
        if self.credentials {
            let yes = HeaderValue::from_static("true");
            out.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, yes);
        }
        if let Some(exposed) = &self.exposed {
            out.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed.clone());
        }
    }

    /// Byte for byte, as the Fetch standard compares.
    pub(super) fn allows(&self, origin: &HeaderValue) -> bool {
        let listed = |origins: &Vec<HeaderValue>| origins.contains(origin);
        self.origins.as_ref().is_none_or(listed)
    }
}

/// Refuses a request that a page of another site had a browser send without asking first: the page could not read the
/// answer, but workers would compute it. Only browsers say from where they ask, so no other client is looked at: by
/// `Sec-Fetch-Site`, or, since they send that to HTTPS and loopback alone, by an `Origin` that is not the `Host`.
///
/// # Errors
/// 403 for a page that `cors` does not allow.
pub(super) fn check_unasked(
    cors: Option<&Cors>,
    method: &Method,
    target: &Uri,
    headers: &HeaderMap,
) -> Result<(), ApiError> {
    // HTTP/2 says it in the target.
    let host = || {
        let host = headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok());
        host.or_else(|| target.authority().map(Authority::as_str))
    };
    let is_of_another = || match headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes) {
        Some(b"cross-site") => true,
        Some(b"same-origin" | b"none") => false,
        // Another port of one host is the same site, too.
        _ => {
            let origin = headers.get(header::ORIGIN);
            origin
                .zip(host())
                .is_some_and(|(origin, host)| !is_at(origin, host))
        }
    };
    let is_unasked = || {
        let mut kinds = WITHOUT_PREFLIGHT.iter();
        !headers.contains_key(header::CONTENT_TYPE) || kinds.any(|kind| is_of_type(headers, kind))
    };
    if *method != Method::POST || !is_of_another() || !is_unasked() {
        return Ok(());
    }
    let is_allowed = |cors: &Cors| match headers.get(header::ORIGIN) {
        Some(origin) => cors.allows(origin),
        None => cors.origins.is_none(),
    };
    match cors.is_some_and(is_allowed) {
        true => Ok(()),
        false => Err(ApiError::new(
            ErrorKind::PermissionDenied,
            "a page of another site may not send this; its origin has to be in cors.allowed_origins",
        )),
    }
}

/// Whether an origin, `scheme://host[:port]` or `null`, is this `Host`, which may name the port that goes without saying.
fn is_at(origin: &HeaderValue, host: &str) -> bool {
    let origin = origin.to_str().ok();
    let Some((scheme, at)) = origin.and_then(|origin| origin.split_once("://")) else {
        return false;
    };
    let unsaid = if scheme == "https" { ":443" } else { ":80" };
    let host = host.strip_suffix(unsaid).unwrap_or(host);
    at.eq_ignore_ascii_case(host)
}

/// The listed ones; none if all are meant.
fn ones<T>(list: &[Wild<T>]) -> Option<impl Iterator<Item = &T>> {
    let one = |wild| match wild {
        &Wild::Any => None,
        Wild::One(one) => Some(one),
    };
    let has_any = list.iter().any(|wild| matches!(wild, Wild::Any));
    (!has_any).then(|| list.iter().filter_map(one))
}

fn joined<'a>(names: impl Iterator<Item = &'a str>) -> HeaderValue {
    crate::http::headers::value_of(&names.collect::<Vec<_>>().join(", "))
}

/// Without it a cache in between would give one page's answer, or one for no page, to another page.
fn vary_by_origin(out: &mut HeaderMap) {
    let has_it = |value: &HeaderValue| {
        let mut names = value.as_bytes().split(|byte| *byte == b',');
        names.any(|name| {
            matches!(name.trim_ascii(), b"*") || name.trim_ascii().eq_ignore_ascii_case(b"origin")
        })
    };
    if !out.get_all(header::VARY).iter().any(has_it) {
        out.append(header::VARY, HeaderValue::from_static("origin"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_host_with_the_port_that_goes_without_saying() {
        for (origin, host, expected) in [
            ("http://10.0.0.1:8080", "10.0.0.1:8080", true),
            ("http://10.0.0.1", "10.0.0.1", true),
            ("http://10.0.0.1", "10.0.0.1:80", true),
            ("https://Router.example", "router.example:443", true),
            ("http://[::1]:8080", "[::1]:8080", true),
            ("http://10.0.0.1:8081", "10.0.0.1:8080", false),
            ("https://router.example", "router.example:80", false),
            ("http://evil.example", "10.0.0.1:8080", false),
            ("null", "null", false),
        ] {
            let origin = HeaderValue::from_static(origin);
            assert_eq!(is_at(&origin, host), expected, "{origin:?} {host}");
        }
    }
}
