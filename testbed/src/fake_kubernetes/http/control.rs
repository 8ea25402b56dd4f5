//! `/fake/*`, on a port of its own: a test outside the process commands faults and reads counts.
//!
//! | request | effect |
//! | --- | --- |
//! | `POST /fake/faults` | adds a rule ([`Rule`]); the first that fits a request is used |
//! | `GET`, `DELETE /fake/faults` | lists, removes all rules |
//! | `POST /fake/compact` | forgets the history: older watches get 410, older continue tokens too |
//! | `POST /fake/revisions` `{"count":N}` | N writes of other resources pass |
//! | `POST /fake/bookmark` | each watch that takes bookmarks gets one |
//! | `POST /fake/stall` `{"on":true}` | watches send no byte and do not end, until `false` |
//! | `POST /fake/half-open` | connections that are open now fall silent for ever |
//! | `POST /fake/reset` | connections that are open now are reset |
//! | `POST /fake/network` `{"state":"open"\|"refusing"\|"silent"}` | for open and new connections |
//! | `POST /fake/token` `{"write":true}` | a new token; the file has it if `write` |
//! | `POST /fake/grants` `{"grants":[...]}` | what the user may do ([`Grant`]); `null`: everything |
//! | `GET /fake/stats` | counts ([`Stats`](super::super::Stats)) |

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::{Body, json as json_answer};
use crate::fake_kubernetes::access::Grant;
use crate::fake_kubernetes::fault::{Network, Rule};
use crate::fake_kubernetes::files::Files;
use crate::fake_kubernetes::state::State;

/// Connections that command at once.
const CONNECTIONS_MAX: usize = 32;
/// Bytes of a command.
const COMMAND_BYTES_MAX: usize = 64 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Count {
    count: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Switch {
    on: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Lines {
    state: Network,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rotation {
    write: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Grants {
    grants: Option<Vec<Grant>>,
}

/// Serves commands until it is dropped.
pub(in crate::fake_kubernetes) async fn serve(
    state: Arc<State>,
    files: Arc<Files>,
    listener: TcpListener,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Ok((stream, _)) = listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                let (state, files) = (Arc::clone(&state), Arc::clone(&files));
                let service = service_fn(move |request| {
                    command(Arc::clone(&state), Arc::clone(&files), request)
                });
                let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                connections.spawn(async {
                    if let Err(e) = connection.await {
                        tracing::debug!("a command's connection ended: {e}");
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn command(
    state: Arc<State>,
    files: Arc<Files>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let body = Limited::new(request.into_body(), COMMAND_BYTES_MAX);
    let done = match body.collect().await {
        Ok(body) => obey(&state, &files, method.as_str(), &path, &body.to_bytes()),
        Err(_) => Err(format!("a command has at most {COMMAND_BYTES_MAX} bytes")),
    };
    Ok(match done {
        Ok(Some(said)) => json_answer(200, &said),
        Ok(None) => json_answer(404, &json!({ "error": "no such command" })),
        Err(error) => json_answer(400, &json!({ "error": error })),
    })
}

fn obey(
    state: &State,
    files: &Files,
    method: &str,
    path: &str,
    body: &Bytes,
) -> Result<Option<Value>, String> {
    match (method, path.trim_start_matches("/fake/")) {
        ("POST", "faults") => state.lock().rules.add(read::<Rule>(body)?)?,
        ("GET", "faults") => return Ok(Some(json!({ "rules": state.lock().rules.list() }))),
        ("DELETE", "faults") => state.lock().rules.clear(),
        ("POST", "compact") => state.compact(),
        ("POST", "revisions") => {
            let Count { count } = read(body)?;
            state.write(|store| store.pass_revisions(count));
        }
        ("POST", "bookmark") => state.bookmarks.send_modify(|count| *count += 1),
        ("POST", "stall") => {
            state.stalled.send_replace(read::<Switch>(body)?.on);
        }
        ("POST", "half-open") => state.silence(),
        ("POST", "reset") => state.reset(),
        ("POST", "network") => state.set_network(read::<Lines>(body)?.state),
        ("POST", "token") => {
            let Rotation { write } = read(body)?;
            let token = state.rotate();
            if write {
                files.write_token(&token).map_err(|e| format!("{e:#}"))?;
            }
        }
        ("POST", "grants") => state.grant(read::<Grants>(body)?.grants)?,
        ("GET", "stats") => return Ok(Some(json!(state.stats()))),
        _ => return Ok(None),
    }
    Ok(Some(json!({})))
}

fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_kubernetes::config::Config;

    #[test]
    fn a_command_that_is_refused_changes_no_token() {
        let state = State::new(Config::default()).expect("a state");
        let (files, _) = Files::new(None).expect("a folder");
        let token = || state.lock().access.token.clone();
        let before = token();
        let command = |body: &'static str| {
            let body = Bytes::from_static(body.as_bytes());
            obey(&state, &files, "POST", "/fake/token", &body)
        };
        assert!(command("{}").is_err());
        assert_eq!(token(), before);
        assert!(command(r#"{"write":true}"#).is_ok());
        assert_ne!(token(), before);
    }
}
