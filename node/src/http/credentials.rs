//! Which headers of a request say who asks: by words of their names, since every gateway has names of its own, and a list
//! of them would always lack one. Pure.
//!
//! A name too many costs little: an answer is computed once more, or a refusal is not tried elsewhere. One too few gives a
//! client what another one may have. So names that only sound alike count, too, but for those that are known to say
//! nothing of the kind.

use http::HeaderName;

/// In names of headers that prove who asks.
const PROOFS: [&str; 9] = [
    "auth",
    "api-key",
    "apikey",
    "access-key",
    "subscription-key",
    "token",
    "cookie",
    "jwt",
    "secret",
];
/// In names of headers that tell who asks, as those of a proxy that has let a client in.
const NAMES: [&str; 24] = [
    "key",
    "cred",
    "cert",
    "ssl",
    "tls",
    "sign",
    "oidc",
    "saml",
    "access",
    "user",
    "email",
    "login",
    "account",
    "customer",
    "consumer",
    "client-id",
    "identity",
    "principal",
    "subject",
    "group",
    "role",
    "tenant",
    "org",
    "project",
];
/// Ends of names that have such a word and mean something else: the program, one request, the place of a conversation.
const OTHERS: [&str; 3] = ["user-agent", "idempotency-key", "routing-key"];

/// Whether a header of this name proves who asks: a key, a token, a session of a browser.
#[must_use]
pub fn proves(name: &HeaderName) -> bool {
    has_one(name, &PROOFS)
}

/// Whether a header of this name says who asks, with a proof or by the word of a proxy.
#[must_use]
pub fn name_client(name: &HeaderName) -> bool {
    has_one(name, &PROOFS) || has_one(name, &NAMES)
}

fn has_one(name: &HeaderName, words: &[&str]) -> bool {
    let name = name.as_str();
    // A browser's own words about a request, which no page can write.
    let is_other = || name.starts_with("sec-") || OTHERS.iter().any(|end| name.ends_with(end));
    words.iter().any(|word| name.contains(word)) && !is_other()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_is_known_by_words_of_names() {
        let proofs = [
            "authorization",
            "proxy-authorization",
            "x-api-key",
            "api-key",
            "x-goog-api-key",
            "ocp-apim-subscription-key",
            "x-auth-token",
            "x-amz-security-token",
            "x-goog-iap-jwt-assertion",
            "cookie",
        ];
        let names = [
            "x-forwarded-user",
            "x-forwarded-email",
            "x-forwarded-groups",
            "x-forwarded-client-cert",
            "remote-user",
            "x-consumer-username",
            "x-ms-client-principal",
            "x-amzn-oidc-identity",
            "x-tenant-id",
            "openai-organization",
            "signature",
        ];
        let neither = [
            "host",
            "accept",
            "accept-encoding",
            "content-type",
            "content-length",
            "user-agent",
            "origin",
            "referer",
            "cache-control",
            "forwarded",
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-request-id",
            "x-session-id",
            "x-smg-routing-key",
            "idempotency-key",
            "traceparent",
            "tracestate",
            "baggage",
            "sec-fetch-user",
            "sec-fetch-site",
            "x-stainless-lang",
            "x-stainless-package-version",
            "x-stainless-retry-count",
            "openai-beta",
            "anthropic-version",
        ];
        let named = |name: &str| {
            let name: HeaderName = name.parse().expect("a name");
            (proves(&name), name_client(&name))
        };
        for name in proofs {
            assert_eq!(named(name), (true, true), "{name}");
        }
        for name in names {
            assert_eq!(named(name), (false, true), "{name}");
        }
        for name in neither {
            assert_eq!(named(name), (false, false), "{name}");
        }
    }
}
