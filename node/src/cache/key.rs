//! What an answer is kept under: everything that may change it, and the clients that may see it.

use http::{HeaderMap, HeaderValue, Method, header};
use ring::digest::{Context, SHA256};

use super::canonical::{self, Digest, finished};
use super::rules::{self, Bypass};

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
    /// The client's key, unless it was checked already and `tenant` stands for it: a worker may answer by it.
    pub authorization: Option<&'a HeaderValue>,
    /// The client's body.
    pub body: &'a [u8],
}

/// SHA-256 of all that an answer depends on; no two requests share one that are not the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CacheKey(Digest);

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
        let header =
            |name: header::HeaderName| asked.headers.get(name).map(|value| value.as_bytes());
        let mut context = Context::new(&SHA256);
        for part in [
            Some(asked.path.as_bytes()),
            asked.query.map(str::as_bytes),
            Some(asked.model.as_bytes()),
            Some(asked.tenant),
            // A worker that checks keys must have let this very key pass.
            asked.authorization.map(HeaderValue::as_bytes),
            // By this a worker chooses the headers that let a browser read the answer, and whether it reads the body.
            header(header::ORIGIN),
            header(header::CONTENT_TYPE),
            Some(&body.digest),
        ] {
            context.update(&[part.is_some().into()]);
            let part = part.unwrap_or_default();
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        Ok(Self(finished(context)))
    }
}

#[cfg(test)]
mod tests {
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
            authorization: headers.get(header::AUTHORIZATION),
            body: BODY,
        }
    }

    fn headers(pairs: &[(header::HeaderName, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().cloned();
        pairs
            .map(|(name, value)| (name, HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn everything_that_may_change_an_answer_changes_its_key() {
        let none = HeaderMap::new();
        let [one, two] =
            ["Bearer 1", "Bearer 2"].map(|value| headers(&[(header::AUTHORIZATION, value)]));
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
            asked(&one),
            asked(&two),
            asked(&origin),
            asked(&text),
        ];
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
        let authorized = headers(&[(header::AUTHORIZATION, "Bearer 1"), (header::ACCEPT, "*/*")]);
        let checked = Asked {
            authorization: None,
            ..asked(&authorized)
        };
        assert_eq!(key(base), key(checked));
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
