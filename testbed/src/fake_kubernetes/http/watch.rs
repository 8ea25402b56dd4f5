//! The stream of a watch: events as they happen, bookmarks while nothing does, and an end at its time.
//!
//! A watch is a cursor into the store's history. It holds no queue, so a slow reader costs nothing.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::Response;
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Body;
use super::route::Query;
use crate::fake_kubernetes::fault::Fault;
use crate::fake_kubernetes::refusal::Refusal;
use crate::fake_kubernetes::state::State;
use crate::fake_kubernetes::store::{ListQuery, Selector};

/// Events in one chunk at most.
const CHUNK_EVENTS: usize = 256;
/// Mark of the bookmark after which a streamed list is complete.
const INITIAL_END: &str = "k8s.io/initial-events-end";

struct Watch {
    state: Arc<State>,
    namespace: Option<String>,
    selector: Selector,
    /// Everything up to this revision was sent.
    cursor: u64,
    /// What exists is sent first, as ADDED; with a marked bookmark, if that is asked for.
    initial: Option<bool>,
    wants_bookmarks: bool,
    stalls: bool,
    is_over: bool,
    ends: Instant,
    next_bookmark: Instant,
    revision: watch::Receiver<u64>,
    bookmarks: watch::Receiver<u64>,
    stalled: watch::Receiver<bool>,
}

/// Opens a watch as the query asks for it.
pub(super) fn open(
    state: &Arc<State>,
    namespace: Option<String>,
    query: &Query,
    fault: Option<Fault>,
) -> Result<Response<Body>, Refusal> {
    let from = query
        .number("resourceVersion")?
        .filter(|revision| *revision > 0);
    let streams_list = query.flag("sendInitialEvents");
    let wants_bookmarks = query.flag("allowWatchBookmarks");
    if streams_list && query.text("resourceVersionMatch") != "NotOlderThan" {
        let message = "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: \
             sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        return Err(Refusal::new(422, "Invalid", message));
    }
    let lasts = query
        .number("timeoutSeconds")?
        .filter(|seconds| *seconds > 0);
    let lasts = lasts.map_or(state.config.watch_for, Duration::from_secs);
    match fault {
        Some(Fault::GoneEvent) => {
            let gone = Refusal::too_old(from.unwrap_or(1), from.unwrap_or(1) + 1);
            return Ok(head(
                Full::new(line("ERROR", &gone.status())).boxed_unsync(),
            ));
        }
        Some(Fault::CutLine) => {
            let half = Bytes::from_static(br#"{"type":"ADDED","object":{"kind":"Po"#);
            return Ok(head(Full::new(half).boxed_unsync()));
        }
        _ => {}
    }
    let now = Instant::now();
    let none_yet = query.text("sendInitialEvents") != "false" && from.is_none();
    let watch = Watch {
        state: Arc::clone(state),
        namespace,
        selector: query.selector()?,
        cursor: from.unwrap_or_else(|| state.lock().store.revision()),
        initial: (streams_list || none_yet).then_some(streams_list && wants_bookmarks),
        wants_bookmarks,
        stalls: fault == Some(Fault::Stall),
        is_over: false,
        ends: now + lasts,
        next_bookmark: now + state.config.bookmark_every,
        revision: state.revision.subscribe(),
        bookmarks: state.bookmarks.subscribe(),
        stalled: state.stalled.subscribe(),
    };
    state.open_watches.fetch_add(1, Ordering::SeqCst);
    let events = stream::unfold(watch, async |mut watch| {
        let bytes = watch.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(bytes)), watch))
    });
    Ok(head(StreamBody::new(events).boxed_unsync()))
}

fn head(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn line(kind: &str, object: &Value) -> Bytes {
    let mut text = json!({ "type": kind, "object": object }).to_string();
    text.push('\n');
    Bytes::from(text)
}

impl Watch {
    /// The next bytes; none when the watch has ended.
    async fn next(&mut self) -> Option<Bytes> {
        if self.stalls {
            std::future::pending::<()>().await;
        }
        loop {
            // A stalled watch does not end, either.
            self.stalled.wait_for(|stalled| !stalled).await.ok()?;
            if self.is_over {
                return None;
            }
            if let Some(marked) = self.initial.take() {
                let bytes = self.existing(marked);
                if !bytes.is_empty() {
                    return Some(bytes);
                }
            }
            // Seen before the look: a write in between wakes the next wait.
            self.revision.borrow_and_update();
            let bytes = self.changes();
            if !bytes.is_empty() {
                return Some(bytes);
            }
            tokio::select! {
                _ = self.revision.changed() => {}
                _ = self.stalled.changed() => {}
                Ok(()) = self.bookmarks.changed(), if self.wants_bookmarks => {
                    return Some(self.bookmark(false));
                }
                () = tokio::time::sleep_until(self.next_bookmark), if self.wants_bookmarks => {
                    self.next_bookmark += self.state.config.bookmark_every;
                    return Some(self.bookmark(false));
                }
                () = tokio::time::sleep_until(self.ends) => {
                    self.is_over = true;
                    return self.wants_bookmarks.then(|| self.bookmark(false));
                }
            }
        }
    }

    /// Everything that is there, as ADDED.
    fn existing(&mut self, marked: bool) -> Bytes {
        let query = ListQuery {
            namespace: self.namespace.clone(),
            selector: self.selector.clone(),
            ..ListQuery::default()
        };
        let page = self.state.lock().store.list(&query);
        let page = page.expect("the present state can be listed");
        self.cursor = page.revision;
        let mut bytes: Vec<u8> = Vec::new();
        for pod in &page.items {
            bytes.extend_from_slice(&line("ADDED", pod));
        }
        if marked {
            bytes.extend_from_slice(&self.bookmark(true));
        }
        bytes.into()
    }

    /// Changes since the cursor, or the refusal of one that is too old.
    fn changes(&mut self) -> Bytes {
        let inner = self.state.lock();
        let changes = match inner.store.changes_after(self.cursor) {
            Ok(changes) => changes,
            Err(refusal) => {
                self.is_over = true;
                return line("ERROR", &refusal.status());
            }
        };
        let mut bytes = Vec::new();
        let mut cursor = inner.store.revision().max(self.cursor);
        for (count, change) in changes.enumerate() {
            if count == CHUNK_EVENTS {
                cursor = change.revision - 1;
                break;
            }
            if let Some((kind, pod)) = change.event(self.namespace.as_deref(), &self.selector) {
                bytes.extend_from_slice(&line(kind, &pod));
            }
        }
        self.cursor = cursor;
        bytes.into()
    }

    fn bookmark(&self, ends_initial: bool) -> Bytes {
        let mut metadata = json!({ "resourceVersion": self.cursor.to_string() });
        if ends_initial {
            metadata["annotations"] = json!({ INITIAL_END: "true" });
        }
        line(
            "BOOKMARK",
            &json!({ "kind": "Pod", "apiVersion": "v1", "metadata": metadata }),
        )
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.state.open_watches.fetch_sub(1, Ordering::SeqCst);
    }
}
