//! A worker's stream of events, as the relay reads it.

use grapevine::http::sse::{FirstEvent, Scan, first_event, usage_of};

/// The first two bytes choose where the stream is cut, the rest is the stream.
///
/// # Panics The events that are seen depend on how the stream was cut into chunks.
pub fn sse(data: &[u8]) {
    let [first, second, stream @ ..] = data else {
        return;
    };
    let mut whole = Scan::default();
    whole.read(stream);
    let mut parts = Scan::default();
    let steps = [usize::from(*first) + 1, usize::from(*second) + 1];
    let mut rest = stream;
    for step in steps.into_iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (chunk, more) = rest.split_at(step.min(rest.len()));
        parts.read(chunk);
        rest = more;
    }
    let seen = |scan: &Scan| (scan.events, scan.done, scan.error, scan.is_mid_event());
    assert_eq!(seen(&whole), seen(&parts));
    match first_event(stream) {
        FirstEvent::Waiting => assert_eq!(whole.events, 0, "an event went unseen"),
        FirstEvent::Data | FirstEvent::Error(_) => {
            assert!(whole.events > 0, "an event was made up")
        }
    }
    usage_of(stream);
}
