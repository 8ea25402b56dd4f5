//! A stream whose worker died goes on from another one: what the client has read, what to ask the next worker
//! for, and how the next worker's events become a part of the same answer.
//!
//! Pure: bytes of a worker go in, bytes for the client come out, no clock and no socket. The relay feeds it and
//! asks it for the next request when a worker fails; `failover` finds the worker.
//!
//! - **Only whole events reach the client**, so what it has read is known to the letter. An event that had not
//!   come completely is said again by the next worker.
//! - **The next worker continues the text**: its prompt is the first one's with the text behind it (see [`Ask`]).
//! - **The client sees one answer**: `id`, `created` and `model` of the first worker, one role, counts of all
//!   workers together, one end mark.
//!
//! Events of the first worker pass unchanged and uncopied; they are parsed for their text. Memory: the text, at
//! most `text_bytes`, and one incomplete event.

mod ask;
mod blocks;
mod event;
mod join;
mod reason;
#[cfg(test)]
mod tests;
mod wanted;

use bytes::Bytes;

use self::blocks::{Blocks, data_of, split};
use self::event::{Event, Seen};
use self::join::{AnswerIdentity, Change};
use crate::http::sse::Usage;

pub use self::ask::Ask;
pub use self::reason::Reason;
pub use self::wanted::Failovers;

/// How much of a stream may be kept.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Bytes of its text.
    pub text_bytes: usize,
    /// Bytes of an event that is not complete.
    pub event_bytes: usize,
}

/// A stream that can be continued.
#[derive(Debug)]
pub struct Continuation {
    ask: Ask,
    room: Room,
    blocks: Blocks,
    /// Workers that broke off before the one that is read.
    moves: u32,
    /// What stands against another move.
    against: Option<Reason>,
    /// All text that was passed.
    said: String,
    /// Blanks at its end that the worker may say again.
    seam: String,
    identity: Option<AnswerIdentity>,
    role_passed: bool,
    /// The reason for the end was passed.
    finished: bool,
    usage_passed: bool,
    tokens: Tokens,
    /// The event in which the first worker said that it failed, and what came with it.
    complaint: Bytes,
}

/// Token counts of one answer over several workers.
#[derive(Debug, Default)]
struct Tokens {
    /// Of the client's prompt, as soon as a worker reported them.
    prompt: Option<u64>,
    cached: Option<u64>,
    /// Produced by earlier workers.
    before: u64,
    /// Of these, in the present worker's prompt.
    carried: u64,
    /// Produced by the present worker: as it reports, else one an event.
    here: u64,
    /// The present worker reports them in every event.
    reported: bool,
}

/// What becomes of some bytes of a worker.
#[derive(Debug)]
pub struct Passage {
    /// Bytes for the client.
    pub pass: Bytes,
    /// What follows them.
    pub then: Then,
    /// With [`Then::Failed`]: what the worker said of it.
    pub said: Bytes,
}

/// What follows some bytes of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The next bytes.
    More,
    /// Another worker: this one says that it failed.
    Failed,
    /// Nothing: this worker's answer is no continuation, and the client has read a part of it.
    Lost(Reason),
}

/// What ends or continues a stream whose worker broke off.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// All that was missing were these bytes.
    End(Bytes),
    /// Another worker is to answer this body.
    Ask(Bytes),
}

impl Continuation {
    /// A stream that has not begun.
    pub fn new(ask: Ask, room: Room) -> Self {
        Self {
            ask,
            room,
            blocks: Blocks::default(),
            moves: 0,
            against: None,
            said: String::new(),
            seam: String::new(),
            identity: None,
            role_passed: false,
            finished: false,
            usage_passed: false,
            tokens: Tokens::default(),
            complaint: Bytes::new(),
        }
    }

    /// Takes the next bytes of the worker.
    pub fn take(&mut self, chunk: Bytes) -> Passage {
        if self.moves == 0 && self.against.is_some() {
            return Passage::more(chunk);
        }
        let whole = self.blocks.push(chunk);
        let mut rewritten = Vec::new();
        for (at, block) in split(&whole) {
            let then = self.read(block, &mut rewritten);
            if then != Then::More {
                let pass = self.pass(whole.slice(..at), rewritten);
                let said = whole.slice(at..);
                self.complaint = match (then, self.moves) {
                    (Then::Failed, 0) => said.clone(),
                    _ => Bytes::new(),
                };
                return Passage { pass, then, said };
            }
            if self.moves == 0 && self.against.is_some() {
                return self.let_go(whole.clone());
            }
        }
        if self.blocks.len() > self.room.event_bytes {
            if self.moves > 0 {
                let pass = self.pass(whole, rewritten);
                let then = Then::Lost(Reason::Answer);
                let said = Bytes::new();
                return Passage { pass, then, said };
            }
            self.against = Some(Reason::Answer);
            return self.let_go(whole);
        }
        Passage::more(self.pass(whole, rewritten))
    }

    /// Why nothing more of the first worker is read: its bytes pass as they come.
    pub fn left_alone(&self) -> Option<Reason> {
        self.against.filter(|_| self.moves == 0)
    }

    /// Gives what is held at the end of a stream that is not continued.
    pub fn flush(&mut self) -> Bytes {
        let held = self.blocks.flush();
        if self.moves == 0 { held } else { Bytes::new() }
    }

    /// What the first worker said of its failure, in place of words of ours; empty if a later one failed, whose events
    /// belong to an answer that the client does not read.
    pub fn complaint(&mut self) -> Bytes {
        std::mem::take(&mut self.complaint)
    }

    /// The worker broke off: what now? Another worker's events are expected after [`Next::Ask`].
    /// Errors: why the stream cannot be continued.
    pub fn go_on(&mut self) -> Result<Next, Reason> {
        // Events of a first worker that cannot be left are no longer read.
        if self.finished && (self.moves > 0 || self.against.is_none()) {
            return self.end().map(Next::End);
        }
        if let Some(reason) = self.against {
            return Err(reason);
        }
        let carried = self.ask.carried(&self.said);
        let produced = self.tokens.before + self.tokens.here;
        let body = self.ask.rest(carried, produced)?;
        self.seam = self.said[carried.len()..].to_owned();
        self.tokens.carried = if carried.is_empty() { 0 } else { produced };
        self.tokens.before = produced;
        self.tokens.here = 0;
        self.tokens.reported = false;
        self.blocks = Blocks::default();
        self.moves += 1;
        Ok(Next::Ask(body))
    }

    fn end(&self) -> Result<Bytes, Reason> {
        const DONE: &[u8] = b"data: [DONE]\n\n";
        if !self.ask.wants_usage() || self.usage_passed {
            return Ok(Bytes::from_static(DONE));
        }
        let tokens = &self.tokens;
        let known = tokens.prompt.filter(|_| tokens.reported);
        let usage = known.map(|prompt_tokens| Usage {
            prompt_tokens,
            completion_tokens: tokens.before + tokens.here,
            cached_tokens: tokens.cached,
        });
        let identity = self.identity.as_ref();
        let event = usage.and_then(|usage| identity?.usage_event(&usage));
        let mut bytes = Vec::new();
        write_event(&mut bytes, &event.ok_or(Reason::UsageLost)?);
        bytes.extend_from_slice(DONE);
        Ok(bytes.into())
    }

    /// Bytes of the first worker pass as they are, those of a later one as they were rewritten.
    fn pass(&self, whole: Bytes, rewritten: Vec<u8>) -> Bytes {
        if self.moves == 0 {
            whole
        } else {
            rewritten.into()
        }
    }

    /// From here on the first worker's bytes pass unread.
    fn let_go(&mut self, whole: Bytes) -> Passage {
        self.said = String::new();
        let held = self.blocks.flush();
        Passage::more(match (whole.is_empty(), held.is_empty()) {
            (_, true) => whole,
            (true, false) => held,
            (false, false) => [whole, held].concat().into(),
        })
    }

    fn read(&mut self, block: &[u8], rewritten: &mut Vec<u8>) -> Then {
        let mut comment = true;
        for data in data_of(block) {
            comment = false;
            match event::read(data) {
                Seen::Done => write_event(rewritten, data),
                Seen::Failed => return Then::Failed,
                Seen::Beyond(reason) if self.moves > 0 => return Then::Lost(reason),
                Seen::Beyond(reason) => self.against = Some(reason),
                Seen::Event(event) if self.moves == 0 => self.note(&event, &event.text),
                Seen::Event(event) => match self.join(data, &event) {
                    Ok(Some(data)) => write_event(rewritten, &data),
                    Ok(None) => {}
                    Err(reason) => return Then::Lost(reason),
                },
            }
        }
        if comment {
            rewritten.extend_from_slice(block);
        }
        Then::More
    }

    /// A later worker's event as the client gets it; none when it says nothing new.
    fn join(&mut self, data: &[u8], event: &Event<'_>) -> Result<Option<Vec<u8>>, Reason> {
        let text = self.behind_seam(&event.text);
        let without_role = event.begins && self.role_passed;
        let changed = text.len() < event.text.len();
        self.note(event, text);
        let silent = text.is_empty() && !event.finishes && (without_role || changed);
        if silent {
            return Ok(None);
        }
        let change = Change {
            text: changed.then_some(text),
            without_role,
            usage: event.usage.map(|usage| self.tokens.together(&usage)),
        };
        let identity = self.identity.as_ref().ok_or(Reason::Answer)?;
        let data = identity.rewritten(data, &change);
        data.map(Some).ok_or(Reason::Answer)
    }

    /// The text without the blanks that the client has already.
    fn behind_seam<'t>(&mut self, text: &'t str) -> &'t str {
        let pairs = self.seam.char_indices().zip(text.chars());
        let same: usize = pairs
            .take_while(|((_, ours), theirs)| ours == theirs)
            .map(|(_, theirs)| theirs.len_utf8())
            .sum();
        if same == text.len() {
            self.seam.drain(..same);
        } else {
            self.seam.clear();
        }
        &text[same..]
    }

    /// Remembers what the client has read with this event.
    fn note(&mut self, event: &Event<'_>, text: &str) {
        let identity = self.identity.get_or_insert_with(|| AnswerIdentity {
            shared: event.identity.map(|value| value.map(ToOwned::to_owned)),
            fingerprint: None,
        });
        if identity.fingerprint.is_none() {
            identity.fingerprint = event.fingerprint.map(ToOwned::to_owned);
        }
        self.role_passed |= event.begins;
        self.finished |= event.finishes;
        self.usage_passed |= event.usage.is_some() && !event.speaks;
        self.tokens.note(event);
        if self.said.len() + text.len() > self.room.text_bytes {
            self.against = Some(Reason::TooLong);
            self.said = String::new();
        } else if self.against.is_none() {
            self.said.push_str(text);
        }
    }
}

impl Tokens {
    fn note(&mut self, event: &Event<'_>) {
        match &event.usage {
            Some(usage) => {
                self.prompt = Some(self.together(usage).prompt_tokens);
                // A later worker's cache says nothing about the client's prompt.
                if self.before == 0 {
                    self.cached = usage.cached_tokens.or(self.cached);
                }
                self.here = usage.completion_tokens;
                self.reported = true;
            }
            None if self.reported => {}
            None if event.speaks && !(event.begins && event.text.is_empty()) => self.here += 1,
            None => {}
        }
    }

    /// The counts of the whole answer, by what its present worker reports of its part.
    fn together(&self, part: &Usage) -> Usage {
        let of_part = part.prompt_tokens.saturating_sub(self.carried);
        Usage {
            prompt_tokens: self.prompt.unwrap_or(of_part),
            completion_tokens: self.before + part.completion_tokens,
            cached_tokens: self.cached,
        }
    }
}

impl Passage {
    fn more(pass: Bytes) -> Self {
        Self {
            pass,
            then: Then::More,
            said: Bytes::new(),
        }
    }
}

fn write_event(out: &mut Vec<u8>, data: &[u8]) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\n\n");
}
