//! `/_control/*`: a test outside the process scripts faults and reads what the worker saw.
//!
//! | request | effect |
//! | --- | --- |
//! | `POST /_control/faults` | adds a rule, or `{"rules":[...]}`; first match wins |
//! | `GET`, `DELETE /_control/faults` | lists, removes all rules |
//! | `POST /_control/freeze`, `/_control/unfreeze` | stops, resumes the engine behind a healthy HTTP server |
//! | `POST /_control/restart` | empties the cache and moves `process_start_time_seconds`, as a restart does |
//! | `GET /_control/holds` | blocks kept for other workers (`Hold`), and how many of them now |
//! | `POST /_control/expire` | they all expire now |
//! | `POST /_control/side-channel` | `{"state":"open"}`, `"closed"` or `"silent"` |
//! | `GET`, `DELETE /_control/log` | what was seen (`Entry`), oldest first; forgets it |
//! | `GET`, `DELETE /_control/stats` | totals (`Stats`); zeroes them (engine totals go on) |

use serde::Deserialize;
use serde_json::{Value, json};

use super::connection::Request;
use super::fault::Rule;
use super::reply::{Ended, JSON, Reply};
use super::transfer::{HoldState, SideChannelState};
use super::worker::Worker;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Many {
    rules: Vec<Rule>,
}

/// Serves one control request.
pub(super) async fn serve(
    worker: &Worker,
    request: &Request,
    reply: &mut Reply<'_>,
) -> Result<(), Ended> {
    let (status, answer) = answer(worker, request);
    reply
        .plain(status, JSON, answer.to_string().as_bytes())
        .await
}

fn answer(worker: &Worker, request: &Request) -> (u16, Value) {
    let topic = request.path().trim_start_matches("/_control/");
    match (request.method.as_str(), topic) {
        ("POST", "faults") => match add_rules(worker, &request.body) {
            Ok(count) => (200, json!({ "added": count })),
            Err(message) => (400, json!({ "error": message })),
        },
        ("GET", "faults") => (200, json!({ "rules": worker.rules().list() })),
        ("DELETE", "faults") => {
            worker.rules().clear();
            (200, json!({}))
        }
        ("POST", "freeze" | "unfreeze") => {
            worker.freeze(topic == "freeze");
            (200, json!({ "frozen": topic == "freeze" }))
        }
        ("POST", "restart") => (200, json!({ "process_start_us": worker.restart() })),
        ("GET", "log") => (200, json!({ "entries": worker.ledger.entries() })),
        ("DELETE", "log") => {
            worker.ledger.clear_entries();
            (200, json!({}))
        }
        ("GET", "holds") => (200, holds(worker)),
        ("POST", "expire") => {
            let transfer = worker.transfer.as_ref();
            let expired = transfer.map_or(0, |transfer| transfer.shelf.expire_all());
            (200, json!({ "expired": expired }))
        }
        ("POST", "side-channel") => match side_channel(worker, &request.body) {
            Ok(answer) => (200, answer),
            Err(message) => (400, json!({ "error": message })),
        },
        ("GET", "stats") => (200, json!(worker.stats())),
        ("DELETE", "stats") => {
            worker.ledger.clear_stats();
            (200, json!({}))
        }
        _ => (404, json!({ "error": "no such control" })),
    }
}

fn holds(worker: &Worker) -> Value {
    let transfer = worker.transfer.as_ref();
    let holds = transfer.map_or_else(Vec::new, |transfer| transfer.shelf.holds());
    let held = || holds.iter().filter(|hold| hold.state == HoldState::Held);
    let blocks: usize = held().map(|hold| hold.blocks.len()).sum();
    json!({ "held": held().count(), "held_blocks": blocks, "holds": holds })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SideChannel {
    state: SideChannelState,
}

fn side_channel(worker: &Worker, body: &[u8]) -> Result<Value, String> {
    let SideChannel { state } = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    let transfer = worker.transfer.as_ref();
    let transfer = transfer.ok_or("this worker has no side channel")?;
    transfer.side_channel.set(state);
    Ok(json!({ "state": state }))
}

fn add_rules(worker: &Worker, body: &[u8]) -> Result<usize, String> {
    // Parsed by hand, because the error of an untagged enum does not name the wrong field.
    let value: Value = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    let rules = if value.get("rules").is_some() {
        serde_json::from_value::<Many>(value).map(|many| many.rules)
    } else {
        serde_json::from_value::<Rule>(value).map(|rule| vec![rule])
    };
    let rules = rules.map_err(|e| e.to_string())?;
    let count = rules.len();
    worker.rules().add(rules)?;
    Ok(count)
}
