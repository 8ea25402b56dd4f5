//! The session id of a request to a worker: it comes back with the KV events of the blocks that the request stores.

use grapevine_kv_events::texts::TextName;
use http::{HeaderMap, HeaderValue};

use crate::api::text::SESSION;
use crate::cluster::RecordedPlacement;
use crate::http::headers;

/// Says in the session id which text this is. A client that has one of its own keeps it; an empty one is none.
pub(super) fn name_text(recorded: Option<&RecordedPlacement>, headers: &mut HeaderMap) {
    let is_ours = |id: &HeaderValue| {
        let id = id.to_str().ok();
        id.is_some_and(|id| id.is_empty() || id.parse::<TextName>().is_ok())
    };
    if !headers.get(SESSION).is_none_or(is_ours) {
        return;
    }
    match recorded.and_then(RecordedPlacement::text_name) {
        Some(name) => {
            let name = headers::value_of(&name.to_string());
            headers.insert(SESSION, name);
        }
        // An attempt before this one was at a worker that publishes.
        None => {
            headers.remove(SESSION);
        }
    }
}
