//! Which host a request is for: it says that once, and as hosts are written, over every version of HTTP (RFC 9110, section
//! 7.2). The router goes by no host; who stands before it or behind it may, and must not read another one. Pure.

use http::{HeaderMap, HeaderValue, Uri, header};

/// Over HTTP/1 the header is missing, or there are two.
pub const NOT_ONE: &str = "a request needs exactly one Host header";
/// What is written there is no host.
pub const NO_HOST: &str = "a Host is a name or an address, and a port";
const NONE_IN_HTTP2: &str = "a request needs `:authority`, or one Host header";
const TWO_IN_HTTP2: &str =
    "a request has one Host header at most, and no other host in `:authority`";

/// Whether a host and its port may be written so (RFC 3986, section 3.2.2). Whoever reads on may take another host from what
/// has more in it, such as a slash or an `@` (RFC 9112, section 3.2).
pub fn is_host(value: &[u8]) -> bool {
    let is_of_one =
        |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(byte);
    value.iter().all(is_of_one)
}

/// Checks a head of HTTP/2, where `:authority` says the host, or `host` does in a request that was HTTP/1 before (RFC 9113,
/// section 8.3.1). Heads of HTTP/1 are checked line by line as they are read.
///
/// # Errors
/// No host, two, or one that is written as none.
pub fn check_http2(target: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
    let authority = target.authority().map(|host| host.as_str().as_bytes());
    let mut hosts = headers
        .get_all(header::HOST)
        .iter()
        .map(HeaderValue::as_bytes);
    let (host, another) = (hosts.next(), hosts.next());
    let differs = |host: &[u8]| authority.is_some_and(|own| !own.eq_ignore_ascii_case(host));
    if another.is_some() || host.is_some_and(differs) {
        return Err(TWO_IN_HTTP2);
    }
    match authority.or(host) {
        None => Err(NONE_IN_HTTP2),
        Some(host) if is_host(host) => Ok(()),
        Some(_) => Err(NO_HOST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_of_http2_names_one_host() {
        for (target, hosts, expected) in [
            ("http://a:1/x", &[][..], Ok(())),
            ("http://a:1/x", &["A:1"], Ok(())),
            ("http://[::1]:1/x", &[], Ok(())),
            ("/x", &["a"], Ok(())),
            ("/x", &[], Err(NONE_IN_HTTP2)),
            ("/x", &["a", "a"], Err(TWO_IN_HTTP2)),
            ("http://a/x", &["b"], Err(TWO_IN_HTTP2)),
            ("http://a/x", &["a", "b"], Err(TWO_IN_HTTP2)),
            ("http://a/x", &["a:80"], Err(TWO_IN_HTTP2)),
            ("http://b@a/x", &[], Err(NO_HOST)),
            ("/x", &["a/b"], Err(NO_HOST)),
            ("/x", &["a b"], Err(NO_HOST)),
        ] {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, HeaderValue::from_static(host));
            }
            let target = target.parse().expect("a target");
            assert_eq!(
                check_http2(&target, &headers),
                expected,
                "{target} {hosts:?}"
            );
        }
    }
}
