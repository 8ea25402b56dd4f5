//! The stream of a page: the parts that changed, each two seconds, for a bounded number of viewers.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts as Head;
use http::{HeaderValue, Response, header};
use http_body::{Body, Frame};
use http_body_util::Either;
use serde_json::json;
use std::convert::Infallible;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{MissedTickBehavior, interval};

use super::rendered::What;
use super::{Outgoing, Visitor};
use crate::admin::Admin;
use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::http::progress::InProgress;
use crate::page::html::Part;

/// Between two looks for changes.
const EVERY: Duration = Duration::from_secs(2);
/// Streams at once.
const VIEWERS_MAX: usize = 32;
/// Events that wait for a slow viewer; then nothing is made for it until it has taken one.
const WAITING_MAX: usize = 2;

/// Places for viewers.
#[derive(Debug)]
pub(super) struct Viewers(Arc<Semaphore>);

impl Default for Viewers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(VIEWERS_MAX)))
    }
}

/// What a viewer gets, as it is made.
#[derive(Debug)]
pub(in crate::admin) struct LiveBody {
    events: mpsc::Receiver<Bytes>,
    /// While it is there its connection is no idle one, which would be closed.
    in_progress: Option<InProgress>,
}

impl LiveBody {
    /// The request is in progress until its stream has ended.
    pub(in crate::admin) fn hold(&mut self, in_progress: InProgress) {
        self.in_progress = Some(in_progress);
    }
}

impl Body for LiveBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.events.poll_recv(cx);
        next.map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

impl Admin {
    /// A stream of the parts of a page that change.
    pub(super) fn live(
        self: &Arc<Self>,
        head: &Head,
        what: What,
    ) -> Result<Response<Outgoing>, ApiError> {
        let places = Arc::clone(&self.pages.viewers.0);
        let Ok(place) = places.try_acquire_owned() else {
            self.metrics.refusals.limit_reached("page_viewers");
            let full = "too many look at pages of this replica; this one shows what it was when it was loaded";
            return Err(ApiError::new(ErrorKind::Overloaded, full));
        };
        let (events, body) = mpsc::channel(WAITING_MAX);
        let (admin, head) = (Arc::clone(self), without_body(head));
        self.tasks.spawn(async move {
            let _place: OwnedSemaphorePermit = place;
            tokio::select! {
                () = admin.phase.closed() => {}
                () = admin.tell(&head, &what, events) => {}
            }
        });
        let mut response = Response::new(Either::Right(LiveBody {
            events: body,
            in_progress: None,
        }));
        let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        Ok(response)
    }

    /// Sends what changed until the viewer has left or its session has ended.
    async fn tell(self: &Arc<Self>, head: &Head, what: &What, events: mpsc::Sender<Bytes>) {
        let mut due = interval(EVERY);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut known: Arc<[Part]> = Arc::default();
        loop {
            tokio::select! {
                () = events.closed() => return,
                _ = due.tick() => {}
            }
            if !matches!(self.visitor(head), Ok(visitor) if visitor != Visitor::Stranger) {
                return;
            }
            let now = self.parts_of(what).await.parts;
            if events.send(changes(&known, &now)).await.is_err() {
                return;
            }
            known = now;
        }
    }
}

/// An event for each part that changed, and one that says that the replica lives.
fn changes(before: &[Part], now: &[Part]) -> Bytes {
    let mut events = String::new();
    for part in now.iter().filter(|part| !before.contains(part)) {
        let data = json!({ "id": part.id, "html": part.html });
        // JSON has no line ends of its own, so an event is one line of data.
        events.push_str(&format!("event: part\ndata: {data}\n\n"));
    }
    events.push_str("event: heard\ndata: 1\n\n");
    events.into()
}

/// What shows who asked.
fn without_body(head: &Head) -> Head {
    let mut request = http::Request::new(());
    (*request.method_mut(), *request.uri_mut()) = (head.method.clone(), head.uri.clone());
    request.headers_mut().clone_from(&head.headers);
    request.into_parts().0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changed_is_sent_and_no_text_can_end_an_event() {
        let part = |id, html: &str| Part {
            id,
            html: html.to_owned(),
        };
        let before = [part("a", "1"), part("b", "1")];
        let now = [part("a", "1"), part("b", "2\n\nevent: part\r\ndata: x")];
        let sent = changes(&before, &now);
        let sent = String::from_utf8(sent.to_vec()).expect("text");
        assert_eq!(sent.matches("event: part\n").count(), 1, "{sent}");
        assert_eq!(sent.lines().filter(|line| line.is_empty()).count(), 2);
        assert!(sent.ends_with("event: heard\ndata: 1\n\n"));
        let nothing = changes(&now, &now);
        assert_eq!(nothing, "event: heard\ndata: 1\n\n");
    }
}
