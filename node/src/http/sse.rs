//! Reads along in a stream of server-sent events without holding it up or keeping it.
//!
//! Bytes pass through untouched; this only counts `data:` events, finds the end mark and the last usage, and
//! notices an error event. State per stream is a few bytes, and the last 4 KiB of a line that comes in pieces: a line is
//! never collected.
//! WHATWG HTML, section 9.2.6 gives the line rules; vLLM sends `data: <json>\n\n`, and for `/v1/responses` and
//! `/v1/messages` a line `event: <name>` before it. Those two have no `[DONE]`: the name of the last event ends them.
//! `/v1/responses` begins with events that vLLM sends before its engine has the request: they show nothing of it.

use std::sync::LazyLock;

use memchr::memchr;
use memchr::memmem::{Finder, FinderRev};
use serde::Deserialize;

use super::tail::Tail;

/// Enough of a line to know it by: `data: {"error"`, `data: [DONE]`, `event: response.incomplete`.
const LINE_HEAD_BYTES: usize = 32;
/// Of the end of a line that comes in pieces. The counts of an answer have some hundred, and little follows them.
const LINE_END_BYTES: usize = 4 * 1024;
/// Names of events after which nothing follows.
const LAST_EVENTS: [&[u8]; 3] = [
    b"message_stop",
    b"response.completed",
    b"response.incomplete",
];
/// Names of events that repeat what was asked for, before an engine has taken it.
const EARLY_EVENTS: [&[u8]; 3] = [
    b"response.created",
    b"response.queued",
    b"response.in_progress",
];
/// Begins an answer in Anthropic's protocol: its usage counts the prompt, and of the answer as good as nothing.
const MESSAGE_START: &[u8] = b"message_start";
/// Is named like a piece of text, and has the reason for the end and the counts of an answer in Anthropic's protocol.
const MESSAGE_DELTA: &[u8] = b"message_delta";
/// Names of events that say that the worker failed.
const ERROR_EVENTS: [&[u8]; 2] = [b"error", b"response.failed"];

/// What the counts follow. To make a search ready takes longer than to look through an event, so it is done once.
pub(super) const USAGE: &[u8] = b"\"usage\":";
static LAST_USAGE: LazyLock<FinderRev<'static>> = LazyLock::new(|| FinderRev::new(USAGE));
pub(super) static FIRST_USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(USAGE));
/// Usage that comes as an event of its own (`stream_options.include_usage`) has no choice beside it.
static CHOICES: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"choices\":"));

/// More tokens than any request has: what says more is no count, and would make counters turn over.
const TOKENS_MAX: u64 = u32::MAX as u64;

/// Token counts of a finished request, as vLLM reports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// `usage.prompt_tokens`: all of the prompt, cached or not.
    pub prompt_tokens: u64,
    /// `usage.completion_tokens`.
    pub completion_tokens: u64,
    /// `usage.prompt_tokens_details.cached_tokens`, when the worker reports it.
    pub cached_tokens: Option<u64>,
}

/// Finds `usage` in a plain answer or one event, by its last mention: an answer is not parsed for three
/// numbers. A mention inside of generated text is escaped, so it does not match. None where a count is none.
pub fn usage_of(json: &[u8]) -> Option<Usage> {
    #[derive(Deserialize)]
    struct RawUsage {
        // No aliases of one field: some engines say both names, and two values of one field are an error.
        prompt_tokens: Option<u64>,
        input_tokens: Option<u64>,
        completion_tokens: Option<u64>,
        output_tokens: Option<u64>,
        prompt_tokens_details: Option<Details>,
        input_tokens_details: Option<Details>,
        cache_read_input_tokens: Option<u64>,
        cache_creation_input_tokens: Option<u64>,
    }
    #[derive(Deserialize)]
    struct Details {
        cached_tokens: Option<u64>,
    }
    let value = LAST_USAGE.rfind(json)? + USAGE.len();
    let mut values = serde_json::Deserializer::from_slice(&json[value..]).into_iter::<RawUsage>();
    let usage = values.next()?.ok()?;
    let completion_tokens = usage.completion_tokens.or(usage.output_tokens);
    let details = usage.prompt_tokens_details.or(usage.input_tokens_details);
    // Anthropic's `input_tokens` are those that were neither read from the cache nor written into it; those of OpenAI's
    // responses, which have details, are all.
    let beside = match details {
        Some(_) => [None; 2],
        None => [
            usage.cache_read_input_tokens,
            usage.cache_creation_input_tokens,
        ],
    };
    let input_tokens = usage.input_tokens.map(|input| {
        let beside = beside.into_iter().flatten();
        beside.fold(input, u64::saturating_add)
    });
    let prompt_tokens = usage.prompt_tokens.or(input_tokens);
    let usage = Usage {
        prompt_tokens: prompt_tokens.unwrap_or(0),
        completion_tokens: completion_tokens.unwrap_or(0),
        cached_tokens: details
            .and_then(|d| d.cached_tokens)
            .or(usage.cache_read_input_tokens),
    };
    let cached = usage.cached_tokens.unwrap_or(0);
    let most = usage.prompt_tokens.max(usage.completion_tokens).max(cached);
    (most <= TOKENS_MAX).then_some(usage)
}

impl Usage {
    /// What a later event of the same stream reports. Anthropic's protocol tells of the prompt in `message_start`, and of
    /// the answer in `message_delta`.
    fn after(self, before: Option<Self>) -> Self {
        let Some(before) = before.filter(|_| self.prompt_tokens == 0) else {
            return self;
        };
        Self {
            prompt_tokens: before.prompt_tokens,
            cached_tokens: self.cached_tokens.or(before.cached_tokens),
            ..self
        }
    }
}

/// Whether it names usage that is not `null`, as of each event but the last. vLLM writes JSON without blanks; others do not.
fn has_counts(json: &[u8]) -> bool {
    let value = FIRST_USAGE.find(json).map(|at| &json[at + USAGE.len()..]);
    value.is_some_and(|value| value.trim_ascii_start().starts_with(b"{"))
}

fn has_no_choices(json: &[u8]) -> bool {
    let value = CHOICES
        .find(json)
        .map(|at| &json[at + CHOICES.needle().len()..]);
    let value = value.and_then(|value| value.trim_ascii_start().strip_prefix(b"["));
    value.is_some_and(|value| value.trim_ascii_start().starts_with(b"]"))
}

/// What has been seen of one stream.
#[derive(Debug, Default)]
pub struct Scan {
    /// `data:` events so far, the end mark included.
    pub events: u64,
    /// The end mark `data: [DONE]` came.
    pub done: bool,
    /// An event that is an error came.
    pub error: bool,
    /// The last usage that an event reported.
    pub usage: Option<Usage>,
    /// That was before the answer, so it counts the prompt alone.
    pub counts_prompt_alone: bool,
    /// Events have names.
    pub named: bool,
    /// Events whose name is that of a piece of text.
    deltas: u64,
    /// Events that hold usage, or an error, and no text.
    without_text: u64,
    /// `data:` events that came before an engine had the request.
    early: u64,
    /// The event in progress is one of those.
    is_early: bool,
    /// It begins an answer.
    is_start: bool,
    /// The last whole line was not blank.
    in_event: bool,
    head: [u8; LINE_HEAD_BYTES],
    head_len: usize,
    /// Of the line in progress, if it began in an earlier chunk.
    tail: Tail<LINE_END_BYTES>,
}

impl Scan {
    /// Reads the next chunk; true when at least one `data:` line ended in it.
    pub fn read(&mut self, chunk: &[u8]) -> bool {
        let before = self.events;
        let mut rest = chunk;
        while let Some(end) = memchr(b'\n', rest) {
            let (line, starts_here) = (&rest[..end], self.head_len == 0);
            self.keep_head(line);
            if starts_here {
                self.line_ended(line);
            } else {
                let mut tail = std::mem::take(&mut self.tail);
                tail.keep(line);
                self.line_ended(tail.bytes());
            }
            rest = &rest[end + 1..];
        }
        self.keep_head(rest);
        self.tail.keep(rest);
        self.events > before
    }

    /// Has an event come that shows that the worker's engine has the request?
    pub fn has_begun(&self) -> bool {
        self.events > self.early
    }

    /// Tokens of the answer so far, an event taken for one, but for errors and usage: engines may put several into one, and
    /// none into the last.
    pub fn tokens(&self) -> u64 {
        match self.named {
            true => self.deltas,
            false => {
                let others = self.without_text + u64::from(self.done);
                self.events.saturating_sub(others)
            }
        }
    }

    /// Has an event begun that no blank line has ended? What comes next would belong to it.
    pub fn is_mid_event(&self) -> bool {
        self.head_len > 0 || self.in_event
    }

    fn keep_head(&mut self, part: &[u8]) {
        let room = LINE_HEAD_BYTES - self.head_len;
        let taken = part.len().min(room);
        self.head[self.head_len..self.head_len + taken].copy_from_slice(&part[..taken]);
        self.head_len += taken;
    }

    /// `end` is the line when it lay in one chunk, as vLLM writes an event, else the last bytes of it.
    fn line_ended(&mut self, end: &[u8]) {
        let head = &self.head[..self.head_len];
        self.in_event = !matches!(head, [] | b"\r");
        if let Some(name) = head.strip_prefix(b"event:") {
            let name = name.trim_ascii();
            self.named = true;
            self.is_early = EARLY_EVENTS.contains(&name);
            self.is_start = name == MESSAGE_START;
            self.error |= ERROR_EVENTS.contains(&name);
            self.done |= LAST_EVENTS.contains(&name);
            let is_delta = end.trim_ascii_end().ends_with(b"delta") && name != MESSAGE_DELTA;
            self.deltas += u64::from(is_delta);
        } else if let Some(value) = head.strip_prefix(b"data:") {
            let value = value.trim_ascii();
            self.events += 1;
            self.early += u64::from(self.is_early);
            self.done |= value == b"[DONE]";
            let is_error = value.starts_with(b"{\"error\"");
            self.error |= is_error;
            let mut is_text = !is_error;
            if has_counts(end) {
                if let Some(usage) = usage_of(end) {
                    self.usage = Some(usage.after(self.usage));
                    self.counts_prompt_alone = self.is_start;
                }
                is_text &= !has_no_choices(end);
            }
            self.without_text += u64::from(!is_text);
        }
        self.is_early &= self.in_event;
        self.is_start &= self.in_event;
        self.head_len = 0;
    }
}

/// The first `data:` event of what has arrived, for a look before anything reaches the client.
#[derive(Debug, PartialEq, Eq)]
pub enum FirstEvent<'a> {
    /// None that says something is complete yet.
    Waiting,
    /// An ordinary event, or the end mark.
    Data,
    /// An error instead of an answer, with its JSON.
    Error(&'a [u8]),
}

/// Looks for the first complete `data:` line; comments and other fields before it do not count, nor do events that come
/// before an engine has the request.
pub fn first_event(held: &[u8]) -> FirstEvent<'_> {
    let mut rest = held;
    let mut name: &[u8] = b"";
    while let Some(end) = memchr(b'\n', rest) {
        let line = rest[..end].trim_ascii_end();
        if let Some(named) = line.strip_prefix(b"event:") {
            name = named.trim_ascii();
        } else if let Some(value) = line.strip_prefix(b"data:") {
            let value = value.trim_ascii();
            if ERROR_EVENTS.contains(&name) || value.starts_with(b"{\"error\"") {
                return FirstEvent::Error(value);
            }
            if !EARLY_EVENTS.contains(&name) {
                return FirstEvent::Data;
            }
        } else if line.is_empty() {
            name = b"";
        }
        rest = &rest[end + 1..];
    }
    FirstEvent::Waiting
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STREAM: &[u8] = b": keep-alive\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"data: [DONE]\\n\"}}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";

    #[test]
    fn counts_events_and_finds_usage() {
        let mut scan = Scan::default();
        assert!(scan.read(STREAM));
        assert_eq!((scan.events, scan.done, scan.error), (3, true, false));
        assert_eq!(
            scan.usage,
            Some(Usage {
                prompt_tokens: 7,
                completion_tokens: 2,
                cached_tokens: Some(4)
            })
        );
    }

    #[test]
    fn events_with_text_are_taken_for_tokens() {
        for (stream, tokens) in [
            // Its usage is no token.
            (STREAM, 1),
            (b"data: {}\n\ndata: {}\n\n".as_slice(), 2),
            (b"data: [DONE]\n\n", 0),
            (b"data: {}\n\ndata: {\"error\":{}}\n\ndata: [DONE]\n\n", 1),
            (b"", 0),
            (
                b"event: response.created\ndata: {}\n\nevent: response.reasoning_summary_text.delta\ndata: {}\n\n\
                  event: response.reasoning_summary_text.done\ndata: {}\n\nevent: content_block_delta\ndata: {}\n\n",
                2,
            ),
            (
                b"event: message_start\ndata: {}\n\nevent: content_block_delta\ndata: {}\n\n\
                  event: content_block_stop\ndata: {}\n\nevent: message_delta\ndata: {}\n\nevent: message_stop\ndata: {}\n\n",
                1,
            ),
        ] {
            let mut scan = Scan::default();
            scan.read(stream);
            assert_eq!(scan.tokens(), tokens, "{}", stream.escape_ascii());
        }
    }

    #[test]
    fn usage_is_found_without_parsing_the_answer() {
        let table: &[(&[u8], Option<u64>)] = &[
            (
                br#"{"id":"x","usage":{"prompt_tokens":3,"total_tokens":4},"metrics":null}"#,
                Some(3),
            ),
            (
                br#"{"text":"\"usage\":{","usage": {"prompt_tokens":3}}"#,
                Some(3),
            ),
            (br#"{"usage":null}"#, None),
            (br#"{"usage":{"prompt_tokens":"#, None),
            (br#"{"usage":{"prompt_tokens":4294967295}}"#, Some(4_294_967_295)),
            (br#"{"usage":{"prompt_tokens":4294967296}}"#, None),
            (br#"{"usage":{"prompt_tokens":3,"completion_tokens":18446744073709551600}}"#, None),
            (br#"{"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":1000000000000000000}}}"#, None),
            (br#"{"usage":{"prompt_tokens":null,"input_tokens":5}}"#, Some(5)),
            (b"no answer", None),
        ];
        for (json, expected) in table {
            assert_eq!(usage_of(json).map(|usage| usage.prompt_tokens), *expected);
        }
    }

    #[test]
    fn of_counts_that_have_both_names_each_is_taken_once() {
        let json = br#"{"usage":{"input_tokens":7,"prompt_tokens":9,"output_tokens":3,"completion_tokens":3,
            "input_tokens_details":{"cached_tokens":4},"prompt_tokens_details":{"cached_tokens":4}}}"#;
        let expected = Usage {
            prompt_tokens: 9,
            completion_tokens: 3,
            cached_tokens: Some(4),
        };
        assert_eq!(usage_of(json), Some(expected));
    }

    /// As vLLM 0.32 answers where it tells of its cache: `input_tokens` are what the cache has nothing to do with.
    #[test]
    fn tokens_of_anthropics_prompts_are_all_of_them() {
        let of = |counts: &str| {
            let usage = usage_of(format!("{{\"usage\":{{{counts}}}}}").as_bytes())?;
            Some((usage.prompt_tokens, usage.cached_tokens))
        };
        let warm = "\"input_tokens\":12,\"output_tokens\":4,\"cache_read_input_tokens\":1472,\"cache_creation_input_tokens\":16";
        assert_eq!(of(warm), Some((1_500, Some(1_472))));
        let cold = "\"input_tokens\":17,\"output_tokens\":4,\"cache_creation_input_tokens\":480";
        assert_eq!(of(cold), Some((497, None)));
        let whole = "\"input_tokens\":0,\"output_tokens\":4,\"cache_read_input_tokens\":480,\"cache_creation_input_tokens\":17";
        assert_eq!(of(whole), Some((497, Some(480))));
        let untold = "\"input_tokens\":497,\"output_tokens\":4";
        assert_eq!(of(untold), Some((497, None)));
        let absurd = "\"input_tokens\":1,\"cache_read_input_tokens\":18446744073709551615";
        assert_eq!(of(absurd), None);
        let both = "\"prompt_tokens\":497,\"input_tokens\":17,\"cache_creation_input_tokens\":480";
        assert_eq!(of(both), Some((497, None)));
    }

    #[test]
    fn named_events_end_without_a_mark() {
        for (stream, done, error, counts) in [
            (
                "event: response.created\ndata: {\"type\":\"response.created\"}\n\nevent: response.completed\n\
                 data: {\"response\":{\"usage\":{\"input_tokens\":7,\"input_tokens_details\":{\"cached_tokens\":3},\
                 \"output_tokens\":2}}}\n\n",
                true,
                false,
                Some((7, Some(3))),
            ),
            (
                "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":7,\"output_tokens\":1,\
                 \"cache_read_input_tokens\":5}}}\n\nevent: message_delta\ndata: {\"usage\":{\"output_tokens\":2}}\n\n\
                 event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
                true,
                false,
                Some((12, Some(5))),
            ),
            (
                "event: message_delta\ndata: {\"usage\":{\"input_tokens\":7,\"output_tokens\":2,\
                 \"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":5}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
                true,
                false,
                Some((12, Some(5))),
            ),
            (
                "event: response.incomplete\r\ndata: {}\r\n\r\n",
                true,
                false,
                None,
            ),
            (
                "event: error\ndata: {\"type\":\"error\"}\n\n",
                false,
                true,
                None,
            ),
            ("event: response.failed\ndata: {}\n\n", false, true, None),
            ("event: message_stopped\ndata: {}\n\n", false, false, None),
        ] {
            let mut scan = Scan::default();
            scan.read(stream.as_bytes());
            assert_eq!(
                (scan.done, scan.error, scan.named),
                (done, error, true),
                "{stream}"
            );
            let usage = scan.usage.filter(|usage| usage.completion_tokens == 2);
            let of_prompt = usage.map(|usage| (usage.prompt_tokens, usage.cached_tokens));
            assert_eq!(of_prompt, counts, "{stream}");
        }
        let start = "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":7,\"output_tokens\":0}}}\n\n";
        let delta = "event: content_block_delta\ndata: {}\n\n";
        let last = "data: {\"usage\":{\"output_tokens\":2}}\n\n";
        for (behind, alone) in [
            (String::new(), true),
            (delta.into(), true),
            (last.into(), false),
        ] {
            let mut scan = Scan::default();
            scan.read(format!("{start}{behind}").as_bytes());
            let prompt = scan.usage.map(|usage| usage.prompt_tokens);
            assert_eq!(
                (prompt, scan.counts_prompt_alone),
                (Some(7), alone),
                "{behind}"
            );
        }
        let refused = b"event: error\ndata: {\"type\":\"error\",\"error\":{}}\n\n";
        assert!(matches!(first_event(refused), FirstEvent::Error(_)));
        let begun = b"event: message_start\ndata: {\"type\":\"message_start\"}\n\n";
        assert_eq!(first_event(begun), FirstEvent::Data);
    }

    #[test]
    fn comments_are_not_progress() {
        let mut scan = Scan::default();
        assert!(!scan.read(b": keep-alive\n\n"));
        assert!(!scan.read(b"data: half an event"));
        assert!(scan.read(b" that ends\n"));
    }

    #[test]
    fn done_inside_content_is_content() {
        let mut scan = Scan::default();
        scan.read(b"data: {\"text\":\"data: [DONE]\"}\n\n");
        assert!(!scan.done);
    }

    #[test]
    fn an_event_lasts_until_its_blank_line() {
        for (stream, is_mid_event) in [
            ("", false),
            ("data: 1", true),
            ("data: 1\n", true),
            ("data: 1\r\n", true),
            ("data: 1\n\n", false),
            ("data: 1\r\n\r\n", false),
            ("data: 1\n\nevent: x\n", true),
            (": 1\n", true),
        ] {
            let mut scan = Scan::default();
            scan.read(stream.as_bytes());
            assert_eq!(scan.is_mid_event(), is_mid_event, "{stream:?}");
        }
    }

    #[test]
    fn events_before_the_engine_has_the_request_show_nothing() {
        let early = "event: response.created\ndata: {\"response\":{\"id\":\"r\"}}\n\n\
            event: response.queued\r\ndata: {}\r\n\r\nevent: response.in_progress\ndata: {}\n\n";
        for (behind, first, has_begun) in [
            ("", FirstEvent::Waiting, false),
            (
                "event: response.output_item.added\n",
                FirstEvent::Waiting,
                false,
            ),
            (
                "event: response.output_item.added\ndata: {}\n\n",
                FirstEvent::Data,
                true,
            ),
            ("data: {}\n\n", FirstEvent::Data, true),
            (
                "event: response.incomplete\ndata: {}\n\n",
                FirstEvent::Data,
                true,
            ),
            (
                "event: error\ndata: {\"code\":503}\n\n",
                FirstEvent::Error(b"{\"code\":503}"),
                true,
            ),
        ] {
            let stream = format!("{early}{behind}");
            assert_eq!(first_event(stream.as_bytes()), first, "{behind}");
            let mut scan = Scan::default();
            stream.as_bytes().chunks(7).for_each(|piece| {
                scan.read(piece);
            });
            assert_eq!(scan.has_begun(), has_begun, "{behind}");
        }
    }

    #[test]
    fn usage_is_read_with_blanks_and_without() {
        for (last, expected) in [
            (
                r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}"#,
                Some(7),
            ),
            (
                r#"{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}"#,
                Some(7),
            ),
            (r#"{"choices": [{}], "usage": null}"#, None),
        ] {
            let mut scan = Scan::default();
            scan.read(
                format!("data: {{\"choices\": [{{}}], \"usage\": null}}\n\ndata: {last}\n\n")
                    .as_bytes(),
            );
            assert_eq!(
                scan.usage.map(|usage| usage.prompt_tokens),
                expected,
                "{last}"
            );
            let without_text = u64::from(expected.is_some());
            assert_eq!(scan.tokens(), 2 - without_text, "{last}");
        }
    }

    /// `response.completed` repeats the whole response, and a read takes some KiB.
    #[test]
    fn usage_behind_a_long_answer_is_found_in_pieces() {
        let text = "x".repeat(20_000);
        let last = format!(
            "event: response.completed\ndata: {{\"response\":{{\"output\":\"{text}\",\"usage\":{{\"input_tokens\":7,\
             \"output_tokens\":2}},\"user\":null}}}}\n\n"
        );
        for size in [1, 100, 2_048, 19_999] {
            let mut scan = Scan::default();
            last.as_bytes().chunks(size).for_each(|piece| {
                scan.read(piece);
            });
            let usage = scan.usage.expect("it is told");
            assert_eq!(
                (usage.prompt_tokens, usage.completion_tokens),
                (7, 2),
                "{size}"
            );
            assert!(
                scan.tail.bytes().is_empty(),
                "nothing is kept of a whole line"
            );
        }
    }

    #[test]
    fn first_event_is_classified() {
        let table: &[(&[u8], FirstEvent<'_>)] = &[
            (b"", FirstEvent::Waiting),
            (b": c\n\n", FirstEvent::Waiting),
            (b"data: {\"id\":1", FirstEvent::Waiting),
            (b"data: {\"id\":1}\n", FirstEvent::Data),
            (b": c\r\n\r\ndata: [DONE]\r\n", FirstEvent::Data),
            (
                b"data: {\"error\":{\"code\":503}}\n\n",
                FirstEvent::Error(b"{\"error\":{\"code\":503}}"),
            ),
        ];
        for (held, expected) in table {
            assert_eq!(first_event(held), *expected);
        }
    }

    proptest! {
        #[test]
        fn events_do_not_depend_on_how_the_stream_is_cut(cuts in prop::collection::vec(0..STREAM.len(), 0..8)) {
            let mut cuts = cuts;
            cuts.push(0);
            cuts.push(STREAM.len());
            cuts.sort_unstable();
            let mut scan = Scan::default();
            for pair in cuts.windows(2) {
                scan.read(&STREAM[pair[0]..pair[1]]);
            }
            prop_assert_eq!((scan.events, scan.done, scan.error), (3, true, false));
            let usage = Usage { prompt_tokens: 7, completion_tokens: 2, cached_tokens: Some(4) };
            prop_assert_eq!((scan.usage, scan.tokens()), (Some(usage), 1));
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut scan = Scan::default();
            scan.read(&bytes);
            first_event(&bytes);
        }
    }
}
