//! A request that a worker has answered to the end is never sent to another one, and one of which tokens were streamed is
//! only ever continued, marked as such. A prompt that was computed for another worker is no answer.

use std::collections::HashMap;

use grapevine_testbed::fake_worker::{Entry, FakeWorker, Leg};

/// Header that marks a continuation for a worker, with the number of workers that broke off before.
const CONTINUATION: &str = "x-grapevine-continuation";

pub(super) fn for_every_request(workers: &[FakeWorker]) {
    let mut by_id: HashMap<String, Vec<Entry>> = HashMap::new();
    for entry in workers.iter().flat_map(FakeWorker::log) {
        let id = entry.request_id.clone();
        let id = id.expect("the router names every request");
        by_id.entry(id).or_default().push(entry);
    }
    for (id, mut entries) in by_id {
        entries.sort_by_key(|entry| entry.start_us);
        let is_answer = |entry: &&Entry| entry.leg != Some(Leg::Prefill) && !looks_for(entry);
        let not_given_up = |entry: &&Entry| !is_given_up(entry, &entries);
        let answers = entries.iter().filter(is_answer).filter(not_given_up);
        let answers: Vec<&Entry> = answers.collect();
        let Some((_last, earlier)) = answers.split_last() else {
            continue;
        };
        let answered = earlier
            .iter()
            .find(|e| e.complete && e.status == Some(200) && e.tokens > 0);
        assert!(
            answered.is_none(),
            "{id} was answered and sent again: {entries:#?}"
        );
        for pair in answers.windows(2) {
            let goes_on = continuation(pair[1]) > continuation(pair[0]);
            assert!(
                pair[0].streamed == 0 || goes_on,
                "{id} was sent again after tokens of its answer: {entries:#?}"
            );
        }
        let numbers: Vec<u32> = entries.iter().map(continuation).collect();
        assert!(
            numbers.is_sorted(),
            "{id} was sent from its beginning after a continuation: {entries:#?}"
        );
    }
}

/// Whether it is the answer of a pair which ended without a token because its prompt was refused. Where both legs are sent
/// at once, its worker may read it after that of the next attempt has begun: when it was read says nothing of when it was
/// sent. A refused prompt is not known by its leg: whoever refuses has not looked at it.
fn is_given_up(answer: &Entry, entries: &[Entry]) -> bool {
    let is_refused = |e: &Entry| e.leg != Some(Leg::Decode) && e.tokens == 0;
    answer.leg == Some(Leg::Decode)
        && answer.tokens == 0
        && !answer.complete
        && entries.iter().any(is_refused)
}

/// Whether it asked if the worker has a response: many workers are asked at once for the sake of one request, and one may
/// read that after another has answered the request.
fn looks_for(entry: &Entry) -> bool {
    entry.method == "GET" && entry.path.starts_with("/v1/responses/")
}

/// Workers that broke off before this one was asked; 0 for a request from its beginning.
fn continuation(entry: &Entry) -> u32 {
    let mut headers = entry.headers.iter();
    let header = headers.find(|(name, _)| name.eq_ignore_ascii_case(CONTINUATION));
    header.map_or(0, |(_, number)| number.parse().expect("a number"))
}
