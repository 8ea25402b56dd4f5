//! What an answer is kept under: everything that may change it, and the clients that may see it.

use http::{HeaderMap, HeaderName, Method, header};
use ring::digest::{Context, SHA256};

use super::canonical::{self, Digest, finished};
use super::rules::{self, Bypass};
use crate::http::credentials;
use crate::tenants::KEY_HEADERS;

/// Fields of a body that name the client, not what is asked: vLLM answers the same whatever they hold.
const LEFT_OUT: [&str; 4] = ["model", "user", "metadata", "safety_identifier"];

/// A request, as far as its answer depends on it.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The client's method.
    pub method: &'a Method,
    /// Path of the target.
    pub path: &'a str,
    /// Query of the target.
    pub query: Option<&'a str>,
    /// The client's headers.
    pub headers: &'a HeaderMap,
    /// The model's name at the workers: aliases and splits are resolved. Empty when there is none.
    pub model: &'a str,
    /// The tenant that asks; empty without tenants. No tenant gets another's answers.
    pub tenant: &'a [u8],
    /// The client's key was checked here, goes no further, and `tenant` stands for it.
    pub key_is_checked: bool,
    /// The client's body.
    pub body: &'a [u8],
}

/// SHA-256 of all that an answer depends on; no two requests share one that are not the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CacheKey(pub(super) Digest);

impl CacheKey {
    /// The key of a request whose right answers are all the same.
    pub(super) fn of(asked: &Asked<'_>, body_bytes_max: usize) -> Result<Self, Bypass> {
        if asked.method != Method::POST {
            return Err(Bypass::Endpoint);
        }
        if asked.model.is_empty() {
            return Err(Bypass::NoModel);
        }
        if asked.body.len() > body_bytes_max {
            return Err(Bypass::TooLarge);
        }
        rules::check(asked.path, asked.body)?;
        let body = canonical::read(asked.body, &LEFT_OUT).map_err(|_| Bypass::Unreadable)?;
        if body.refers_elsewhere {
            return Err(Bypass::Elsewhere);
        }
        let header = |name: HeaderName| asked.headers.get(name).map(|value| value.as_bytes());
        let mut context = Context::new(&SHA256);
        for name in who_asks(asked) {
            digest_part(&mut context, Some(name.as_str().as_bytes()));
            // As many as there are, and an end of them.
            for value in asked.headers.get_all(name) {
                digest_part(&mut context, Some(value.as_bytes()));
            }
            digest_part(&mut context, None);
        }
        digest_part(&mut context, None);
        for part in [
            Some(asked.path.as_bytes()),
            asked.query.map(str::as_bytes),
            Some(asked.model.as_bytes()),
            Some(asked.tenant),
            // By this a worker chooses the headers that let a browser read the answer, and whether it reads the body.
            header(header::ORIGIN),
            header(header::CONTENT_TYPE),
            Some(&body.digest),
        ] {
            digest_part(&mut context, part);
        }
        Ok(Self(finished(context)))
    }
}

/// By these headers a worker, or what stands before it, may know the client: what it must have let pass are these very
/// values. In one order, whichever the client chose.
fn who_asks<'a>(asked: &Asked<'a>) -> Vec<&'a HeaderName> {
    let goes_on = |name: &HeaderName| !asked.key_is_checked || !KEY_HEADERS.contains(name);
    let names = asked.headers.keys();
    let mut names: Vec<&HeaderName> = names
        .filter(|name| credentials::name_client(name) && goes_on(name))
        .collect();
    names.sort_unstable_by_key(|name| name.as_str());
    names
}

/// With its length, so that no part reads as a piece of its neighbour.
fn digest_part(context: &mut Context, part: Option<&[u8]>) {
    context.update(&[part.is_some().into()]);
    let part = part.unwrap_or_default();
    context.update(&(part.len() as u64).to_le_bytes());
    context.update(part);
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const BODY: &[u8] = br#"{"model":"alias","temperature":0,"user":"u","messages":[]}"#;

    fn asked(headers: &HeaderMap) -> Asked<'_> {
        Asked {
            method: &Method::POST,
            path: "/v1/chat/completions",
            query: None,
            headers,
            model: "m",
            tenant: b"",
            key_is_checked: false,
            body: BODY,
        }
    }

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().cloned();
        pairs
            .map(|(name, value)| (name, HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn everything_that_may_change_an_answer_changes_its_key() {
        let none = HeaderMap::new();
        let clients: Vec<HeaderMap> = [
            "authorization",
            "proxy-authorization",
            "x-api-key",
            "api-key",
            "x-goog-api-key",
            "x-auth-token",
            "cookie",
            "x-forwarded-user",
            "x-forwarded-email",
            "x-auth-request-user",
            "remote-user",
        ]
        .into_iter()
        .flat_map(|name| {
            let name = HeaderName::from_static(name);
            let [one, two] = [(name.clone(), "1"), (name, "2")];
            // A second value may be the one that counts.
            [vec![one.clone()], vec![two.clone()], vec![one, two]]
        })
        .map(|pairs| headers(&pairs))
        .collect();
        let origin = headers(&[(header::ORIGIN, "https://x")]);
        let text = headers(&[(header::CONTENT_TYPE, "text/plain")]);
        let base = asked(&none);
        let different = [
            base,
            Asked {
                path: "/v1/completions",
                ..base
            },
            Asked {
                query: Some(""),
                ..base
            },
            Asked {
                query: Some("a"),
                ..base
            },
            Asked {
                model: "m2",
                ..base
            },
            Asked {
                tenant: b"acme",
                ..base
            },
            Asked {
                body: br#"{"temperature":0,"messages":[],"cache_salt":"s"}"#,
                ..base
            },
            Asked {
                body: br#"{"temperature":0,"messages":[],"stream":true}"#,
                ..base
            },
            asked(&origin),
            asked(&text),
        ];
        let clients = clients.iter().map(asked);
        let different: Vec<Asked<'_>> = different.into_iter().chain(clients).collect();
        let mut keys: Vec<[u8; 32]> = different
            .iter()
            .map(|asked| CacheKey::of(asked, 1_000).expect("deterministic").0)
            .collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), different.len());
    }

    #[test]
    fn who_asks_does_not_count_where_workers_do_not_look() {
        let none = HeaderMap::new();
        let base = asked(&none);
        let key = |asked: Asked<'_>| CacheKey::of(&asked, 1_000).expect("deterministic");
        let other = br#"{"messages":[],"user":"v","metadata":{"a":1},"temperature":0,"model":"m"}"#;
        assert_eq!(
            key(base),
            key(Asked {
                body: other,
                ..base
            })
        );
        let checked = |headers| Asked {
            key_is_checked: true,
            ..asked(headers)
        };
        let authorized = headers(&[
            (header::AUTHORIZATION, "Bearer 1"),
            (crate::tenants::X_API_KEY, "1"),
            (header::ACCEPT, "*/*"),
        ]);
        assert_eq!(key(base), key(checked(&authorized)));
        let session = headers(&[(header::COOKIE, "session=1")]);
        assert_ne!(key(base), key(checked(&session)), "workers get it");
        let of_request = headers(&[
            (header::USER_AGENT, "OpenAI/Python"),
            (HeaderName::from_static("x-stainless-retry-count"), "1"),
            (HeaderName::from_static("idempotency-key"), "1"),
            (HeaderName::from_static("x-request-id"), "1"),
            (HeaderName::from_static("traceparent"), "1"),
        ]);
        assert_eq!(key(base), key(asked(&of_request)));
        let (user, role) = ("x-forwarded-user", "x-forwarded-role");
        let one = |names: [&'static str; 2]| {
            headers(&names.map(|name| (HeaderName::from_static(name), "1")))
        };
        let [here, there] = [one([user, role]), one([role, user])];
        assert_eq!(key(asked(&here)), key(asked(&there)), "in any order");
    }

    #[test]
    fn what_cannot_be_kept_says_why() {
        let none = HeaderMap::new();
        let base = asked(&none);
        let image =
            br#"{"temperature":0,"messages":[{"content":[{"image_url":{"url":"http://x"}}]}]}"#;
        for (asked, expected) in [
            (
                Asked {
                    method: &Method::PUT,
                    ..base
                },
                Bypass::Endpoint,
            ),
            (Asked { model: "", ..base }, Bypass::NoModel),
            (
                Asked {
                    body: &[b' '; 1_001],
                    ..base
                },
                Bypass::TooLarge,
            ),
            (
                Asked {
                    body: image,
                    ..base
                },
                Bypass::Elsewhere,
            ),
            (
                Asked {
                    body: br#"{"temperature":0,"a":1,"a":2}"#,
                    ..base
                },
                Bypass::Unreadable,
            ),
        ] {
            assert_eq!(CacheKey::of(&asked, 1_000), Err(expected));
        }
    }
}
