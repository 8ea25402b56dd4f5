//! Keeps web pages off the admin and metrics ports: what a browser can be made to send is refused. Pure.
//!
//! Any page that an operator opens can have the browser send requests to loopback and to the network around it.
//! It reads no answer of another origin, but a change is made all the same (cross-site request forgery, CWE-352).
//! And a name of the page's own that resolves to loopback a moment later makes this port the page's own origin,
//! answers included (DNS rebinding, CWE-350). So:
//!
//! | asked | of | because |
//! |---|---|---|
//! | `Sec-Fetch-Site`, `Origin` | every request | a browser adds them, and a page cannot change them |
//! | `Host` | every request that no token proves, on loopback | a rebound name shows there, and nowhere else |
//! | `Content-Type` | every request with a body, every change that has one | a form, or a script that needs no permission, cannot say `application/json` |
//!
//! The page of this port (`pages/`) lets two things more through, and they change nothing: a link from anywhere may lead
//! to it, and its own forms may be forms, if their `Origin` says that they are its own.
//!
//! With a token `Host` may be anything: a browser adds no token by itself, so a page that rebinds a name has none;
//! and beyond loopback, where a token is required, replicas are reached by names that cannot be known here. For the
//! same reason the metrics port asks for `Host` on loopback only: beyond it its scrapers use names, and any client that
//! reaches it may read it. `/healthz` and `/readyz` are not asked for `Host`: balancers send any, or none.

use std::net::IpAddr;

use http::header::{CONTENT_TYPE, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, Method};
use url::Url;

use crate::config::AllowedHost;
use crate::http::headers::SEC_FETCH_SITE;

/// Which clients may have sent a request to one port.
#[derive(Debug, Clone)]
pub struct Gate {
    bound: IpAddr,
    names: Vec<AllowedHost>,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum GateRefusal {
    /// The browser reports that a page of another site asked.
    #[error("a page of another site may not use this port (Sec-Fetch-Site)")]
    CrossSite,
    /// The page is of another origin, or hides its own.
    #[error(
        "a page of another origin may not use this port; a page that may has its host in admin.allowed_hosts"
    )]
    Origin,
    /// A form that does not say from which page it comes.
    #[error(
        "a form says from which page it comes, as browsers do: send `Origin` with the address of this port (`Origin: http://HOST:PORT`)"
    )]
    NoOrigin,
    /// The port was reached under a name that is not its own.
    #[error(
        "this port is reached by its address or as localhost; any other name has to be in admin.allowed_hosts"
    )]
    Host,
    /// The body is what a form can send.
    #[error(
        "send the body as `Content-Type: application/json` (or `application/merge-patch+json`): what a form can send is not accepted"
    )]
    ContentType,
}

impl GateRefusal {
    /// Label of the counter.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::CrossSite => "cross_site",
            Self::Origin | Self::NoOrigin => "origin",
            Self::Host => "host",
            Self::ContentType => "content_type",
        }
    }
}

impl Gate {
    /// Of a port bound to this address, that is also reached under these names.
    pub fn new(bound: IpAddr, names: Vec<AllowedHost>) -> Self {
        Self { bound, names }
    }

    /// Refuses what a page of another origin had a browser send.
    pub(super) fn check_page(&self, headers: &HeaderMap) -> Result<(), GateRefusal> {
        for site in headers.get_all(&SEC_FETCH_SITE) {
            // `none`: a person typed the address.
            if site != "same-origin" && site != "none" {
                return Err(GateRefusal::CrossSite);
            }
        }
        let own = only(headers, &HOST).and_then(host_of);
        for origin in headers.get_all(ORIGIN) {
            let origin = origin.to_str().ok().and_then(|text| Url::parse(text).ok());
            if !origin.is_some_and(|origin| self.is_own_page(&origin, own.as_ref())) {
                return Err(GateRefusal::Origin);
            }
        }
        Ok(())
    }

    /// As [`Gate::check_page`], for paths of the page of this port: a link on another site may lead there. The browser
    /// shows what comes to the person alone, in a window of its own; whose page has the link learns nothing.
    pub(super) fn check_visit(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<(), GateRefusal> {
        let is = |name: &HeaderName, value: &str| only(headers, name) == Some(value);
        let is_link = *method == Method::GET
            && is(&SEC_FETCH_MODE, "navigate")
            && is(&SEC_FETCH_DEST, "document")
            && !headers.contains_key(ORIGIN);
        if is_link {
            Ok(())
        } else {
            self.check_page(headers)
        }
    }

    /// Refuses a name that is not this port's, on loopback; beyond it any may be.
    pub(super) fn check_host(
        &self,
        headers: &HeaderMap,
        target: Option<&Authority>,
    ) -> Result<(), GateRefusal> {
        if !self.bound.is_loopback() {
            return Ok(());
        }
        let own = |host: &str| host_of(host).is_some_and(|host| self.is_own(host.host()));
        // A target in absolute form names the host, too.
        let target = target.map(Authority::as_str);
        if only(headers, &HOST).is_some_and(own) && target.is_none_or(own) {
            Ok(())
        } else {
            Err(GateRefusal::Host)
        }
    }

    fn is_own_page(&self, origin: &Url, own: Option<&Authority>) -> bool {
        let Some(host) = origin.host_str() else {
            return false; // `null`, a file, an extension
        };
        let is_same = own.is_some_and(|own| {
            let port = own.port_u16().or(default_port(origin.scheme()));
            own.host().eq_ignore_ascii_case(host) && port == origin.port_or_known_default()
        });
        is_same || self.is_listed(host)
    }

    fn is_own(&self, host: &str) -> bool {
        let name = host.strip_suffix('.').unwrap_or(host);
        let is_loopback = address(host).is_some_and(|address| address.is_loopback());
        is_loopback || name.eq_ignore_ascii_case("localhost") || self.is_listed(name)
    }

    fn is_listed(&self, host: &str) -> bool {
        let address = address(host);
        let host = host.to_ascii_lowercase();
        self.names.iter().any(|entry| match entry {
            AllowedHost::Net(net) => address.is_some_and(|address| net.contains(&address)),
            AllowedHost::Host(name) => *name == host,
            AllowedHost::Below(domain) => host.ends_with(domain.as_str()),
        })
    }
}

/// Refuses a body that does not say it is JSON.
pub(super) fn check_body(
    method: &Method,
    headers: &HeaderMap,
    has_body: bool,
) -> Result<(), GateRefusal> {
    if method.is_safe() || (!has_body && !headers.contains_key(CONTENT_TYPE)) {
        return Ok(());
    }
    check_type(
        headers,
        &["application/json", "application/merge-patch+json"],
    )
}

/// Refuses a form that is not of the page of this port: where it comes from has to be said, and
/// [`Gate::check_visit`] has compared it by then.
pub(super) fn check_form(headers: &HeaderMap) -> Result<(), GateRefusal> {
    if !headers.contains_key(ORIGIN) {
        return Err(GateRefusal::NoOrigin);
    }
    check_type(headers, &["application/x-www-form-urlencoded"])
}

fn check_type(headers: &HeaderMap, wanted: &[&str]) -> Result<(), GateRefusal> {
    let kind = only(headers, &CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    match wanted
        .iter()
        .any(|wanted| kind.eq_ignore_ascii_case(wanted))
    {
        true => Ok(()),
        false => Err(GateRefusal::ContentType),
    }
}

/// The value of a header that is there once, as text.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok(),
        _ => None,
    }
}

/// The host and port that a text is (RFC 9110, 7.2): without user information, and with nothing behind the host but a
/// colon and a port. The parser of [`Authority`] alone takes `localhost:evil` and `[::1].evil`, too.
fn host_of(text: &str) -> Option<Authority> {
    let authority: Authority = text.parse().ok()?;
    let rest = text.strip_prefix(authority.host())?;
    let is_port =
        |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    let is_whole = rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
    is_whole.then_some(authority)
}

/// The address that a host of a URL is, with or without brackets.
fn address(host: &str) -> Option<IpAddr> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

/// W3C Fetch Metadata Request Headers; sent to trustworthy addresses, of which loopback is one.
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(list: &[(HeaderName, &'static str)]) -> HeaderMap {
        let value = |(name, value): &(HeaderName, &'static str)| {
            (name.clone(), HeaderValue::from_static(value))
        };
        list.iter().map(value).collect()
    }

    fn gate(bound: &str, names: &[&str]) -> Gate {
        let entry = |text: &&str| AllowedHost::new(text).expect("an entry");
        Gate::new(
            bound.parse().expect("an address"),
            names.iter().map(entry).collect(),
        )
    }

    #[test]
    fn on_loopback_a_foreign_name_is_refused() {
        let gate = gate("127.0.0.1", &["ops.example", "*.lab", "10.0.0.0/8"]);
        for (host, expected) in [
            ("127.0.0.1:30001", true),
            ("127.0.0.1", true),
            ("127.9.9.9:1", true),
            ("[::1]:30001", true),
            ("[::ffff:127.0.0.1]:30001", true),
            ("localhost:30001", true),
            ("LocalHost", true),
            ("localhost.:30001", true),
            ("ops.example:30001", true),
            ("OPS.example.", true),
            ("gpu.lab", true),
            ("10.1.2.3:30001", true),
            ("attacker.example:30001", false),
            ("localhost.attacker.example", false),
            ("127.0.0.1.attacker.example", false),
            ("ops.example.attacker.example", false),
            ("192.168.0.1:30001", false),
            ("0.0.0.0:30001", false),
            ("evil-lab", false),
            ("user@127.0.0.1", false),
            ("127.0.0.1@attacker.example", false),
            ("127.0.0.1:30001.attacker.example", false),
            ("localhost:attacker", false),
            ("localhost:", false),
            ("localhost:+1", false),
            ("localhost:65536", false),
            ("[::1].attacker.example", false),
            ("[::1]attacker:30001", false),
            ("[::1]", true),
            ("", false),
        ] {
            let found = gate.check_host(&headers(&[(HOST, host)]), None).is_ok();
            assert_eq!(found, expected, "{host:?}");
        }
        let own = (HOST, "127.0.0.1");
        let twice = headers(&[own.clone(), (HOST, "attacker.example")]);
        assert_eq!(gate.check_host(&twice, None), Err(GateRefusal::Host));
        assert_eq!(gate.check_host(&headers(&[]), None), Err(GateRefusal::Host));
        for target in ["attacker.example", "127.0.0.1:x"] {
            let target = target.parse().expect("an authority, to its parser");
            let found = gate.check_host(&headers(std::slice::from_ref(&own)), Some(&target));
            assert_eq!(found, Err(GateRefusal::Host), "{target}");
        }
    }

    #[test]
    fn beyond_loopback_a_name_proves_nothing() {
        let gate = gate("0.0.0.0", &[]);
        let named = headers(&[(HOST, "router-1:30001")]);
        assert_eq!(gate.check_host(&named, None), Ok(()));
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let gate = gate("127.0.0.1", &["ops.example"]);
        let check = |list: &[(HeaderName, &'static str)], expected: Result<(), GateRefusal>| {
            let list = [&[(HOST, "127.0.0.1:30001")], list].concat();
            assert_eq!(gate.check_page(&headers(&list)), expected, "{list:?}");
        };
        check(&[], Ok(()));
        for site in ["same-origin", "none"] {
            check(&[(SEC_FETCH_SITE, site)], Ok(()));
        }
        for site in ["cross-site", "same-site", "", "Same-Origin"] {
            check(&[(SEC_FETCH_SITE, site)], Err(GateRefusal::CrossSite));
        }
        for origin in [
            "http://127.0.0.1:30001",
            "https://ops.example",
            "https://ops.example:8443",
        ] {
            check(&[(ORIGIN, origin)], Ok(()));
        }
        for origin in [
            "null",
            "",
            "http://attacker.example",
            "http://127.0.0.1",
            "http://127.0.0.1:3000",
            "http://localhost:30001",
            "https://ops.example.attacker.example",
            "file:///etc/passwd",
            "chrome-extension://abc",
        ] {
            check(&[(ORIGIN, origin)], Err(GateRefusal::Origin));
        }
        let own = (ORIGIN, "http://127.0.0.1:30001");
        check(&[own, (ORIGIN, "null")], Err(GateRefusal::Origin));
    }

    #[test]
    fn a_link_leads_to_the_page_and_nothing_else_of_another_site_does() {
        let gate = gate("127.0.0.1", &[]);
        let check = |method: Method, list: &[(HeaderName, &'static str)], expected| {
            let list = [
                &[(HOST, "127.0.0.1:1"), (SEC_FETCH_SITE, "cross-site")],
                list,
            ]
            .concat();
            let found = gate.check_visit(&method, &headers(&list));
            assert_eq!(found.is_ok(), expected, "{method} {list:?}");
        };
        let (mode, dest) = (SEC_FETCH_MODE, SEC_FETCH_DEST);
        let link = [(mode.clone(), "navigate"), (dest.clone(), "document")];
        check(Method::GET, &link, true);
        check(Method::POST, &link, false);
        check(Method::GET, &[], false);
        check(Method::GET, &[(mode.clone(), "navigate")], false);
        check(
            Method::GET,
            &[(mode.clone(), "no-cors"), (dest.clone(), "script")],
            false,
        );
        check(
            Method::GET,
            &[(mode.clone(), "cors"), (dest.clone(), "document")],
            false,
        );
        for frame in ["iframe", "frame", "object", "embed", "empty"] {
            check(
                Method::GET,
                &[(mode.clone(), "navigate"), (dest.clone(), frame)],
                false,
            );
        }
        let origin = (ORIGIN, "http://attacker.example");
        check(
            Method::GET,
            &[link[0].clone(), link[1].clone(), origin],
            false,
        );
    }

    #[test]
    fn a_form_says_where_it_comes_from() {
        let form = (CONTENT_TYPE, "application/x-www-form-urlencoded");
        let origin = (ORIGIN, "http://127.0.0.1:1");
        let check = |list: &[(HeaderName, &'static str)]| check_form(&headers(list));
        assert_eq!(check(&[form.clone(), origin.clone()]), Ok(()));
        assert_eq!(check(&[form]), Err(GateRefusal::NoOrigin));
        let json = (CONTENT_TYPE, "application/json");
        assert_eq!(
            check(&[json, origin.clone()]),
            Err(GateRefusal::ContentType)
        );
        assert_eq!(check(&[origin]), Err(GateRefusal::ContentType));
    }

    #[test]
    fn an_origin_without_a_port_has_that_of_its_scheme() {
        let gate = gate("0.0.0.0", &[]);
        for (host, origin, expected) in [
            ("ops.example", "https://ops.example", true),
            ("ops.example:443", "https://ops.example", true),
            ("ops.example", "http://ops.example", true),
            ("ops.example:443", "http://ops.example", false),
            ("ops.example", "http://other.example", false),
            ("ops.example:x", "http://ops.example", false),
        ] {
            let found = gate.check_page(&headers(&[(HOST, host), (ORIGIN, origin)]));
            assert_eq!(found.is_ok(), expected, "{host} {origin}");
        }
    }

    #[test]
    fn a_body_says_that_it_is_json() {
        let check = |method: Method, kind: Option<&'static str>, has_body, expected: bool| {
            let list = kind.map(|kind| (CONTENT_TYPE, kind));
            let found = check_body(&method, &headers(&Vec::from_iter(list)), has_body);
            assert_eq!(found.is_ok(), expected, "{method} {kind:?} {has_body}");
        };
        check(Method::POST, Some("application/json"), true, true);
        check(
            Method::PATCH,
            Some("application/merge-patch+json"),
            true,
            true,
        );
        check(
            Method::PATCH,
            Some("Application/JSON; charset=utf-8"),
            true,
            true,
        );
        check(Method::POST, None, false, true);
        check(Method::DELETE, None, false, true);
        check(Method::GET, Some("text/plain"), false, true);
        // A script needs no permission to send bytes without a type, either.
        check(Method::POST, None, true, false);
        for form in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "text/plain; application/json",
            "application/jsonp",
            "",
        ] {
            check(Method::POST, Some(form), true, false);
            check(Method::POST, Some(form), false, false);
            check(Method::DELETE, Some(form), false, false);
        }
    }
}
