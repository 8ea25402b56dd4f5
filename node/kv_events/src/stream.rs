//! Order in one publisher's messages, and what is known of it.
//!
//! vLLM numbers its messages from 0 in each process and drops what a slow subscriber does not take. It tells no contents:
//! whoever missed a message asks the replay socket, which has the last ones (10,000 by default), or begins anew.
//!
//! A restarted process counts from 0 again, and may have gone past the number that was heard last when it is reached
//! again. So a replay is asked for from the *last* message that was applied, not from the next one: if it comes back as it
//! was, the process is the same and what follows is complete. Otherwise all that is known is forgotten, and the replay is
//! asked for from 0. Without a replay socket everything is forgotten at each gap and each new connection.
//!
//! Connections end with their process. Where something between keeps one open, a process that goes on with exactly the next
//! number is not noticed here; the one that drives the stream begins a new one when it hears of a restart otherwise.
//!
//! Pure: messages are given in, [`Step`]s come out, in the order in which they are to be done. The one that drives it keeps
//! one replay under way at most: a new [`Step::Ask`] ends the one before.
//!
//! Invariant, tested against a model under loss, repeats and restarts: what was applied since the last [`Step::Forget`] is
//! a run of one process's messages without a hole: from its first one on, or from a later one, as [`Step::Begin`] says.

use std::collections::VecDeque;

/// The number that ends a replay: -1. No message has it.
pub const END: u64 = u64::MAX;

/// What a stream may keep at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Messages that wait for a replay. Default 4,096. Beyond it the replay is given up.
    pub waiting_messages: usize,
    /// Their bytes. Default 16 MiB.
    pub waiting_bytes: usize,
    /// Messages of which a repetition is recognised. Default 64. A repetition of an older one looks like a restart.
    pub remembered: usize,
    /// Replays in a row that bring nothing new, or something else than what was heard. Default 3. Then what is missing
    /// counts as lost, and what was heard as right.
    pub vain_replays: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            waiting_messages: 4_096,
            waiting_bytes: 16 << 20,
            remembered: 64,
            vain_replays: 3,
        }
    }
}

/// The fingerprint of a payload. Payloads have the time in them, so those of two messages differ.
pub fn fingerprint(payload: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(payload)
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<P> {
    /// Its number.
    pub sequence: u64,
    /// A hash of its payload: tells messages with the same number apart.
    pub fingerprint: u64,
    /// Bytes of its payload.
    pub bytes: usize,
    /// Its payload.
    pub payload: P,
}

impl<P> Message<P> {
    /// Its place in the stream.
    pub fn mark(&self) -> Mark {
        Mark {
            sequence: self.sequence,
            fingerprint: self.fingerprint,
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<P> {
    /// These events happened next.
    Apply(P),
    /// What is applied from here on is a process's first message and all behind it (true), or begins later (false).
    Begin {
        /// A process begins with an empty cache, so all of it will be known.
        is_first: bool,
    },
    /// All that is known of the publisher may be wrong.
    Forget(Cause),
    /// A replay is to be asked for, from this number.
    Ask(u64),
}

/// Why something is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Another process speaks.
    Restart,
    /// Messages are missing and cannot be had any more.
    Gap,
}

impl Cause {
    /// Its name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Gap => "gap",
        }
    }
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that were applied.
    pub applied: u64,
    /// Times that a number was missing.
    pub gaps: u64,
    /// Messages that had come before.
    pub repeated: u64,
    /// Replays that were asked for.
    pub asked: u64,
    /// Times that a process was not the one before.
    pub restarts: u64,
}

/// One that was applied: where a stream can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its number.
    pub sequence: u64,
    /// Its fingerprint.
    pub fingerprint: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody to hear.
    Apart,
    /// Messages are applied as they come.
    Live,
    /// A replay is under way.
    Replay(First),
}

/// What the first message of a replay must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    /// This one, which was applied last: it shows that the process is the same.
    Proof(Mark),
    /// Any; nothing is known, or the proof has come.
    Any,
    /// Any, and then what is known is replaced: a replay that failed before left a hole.
    Better,
}

/// The messages of one publisher.
#[derive(Clone, Debug)]
pub struct Stream<P> {
    limits: Limits,
    has_replay: bool,
    state: State,
    /// The last ones applied, oldest first; the last of them is what a replay begins with.
    applied: VecDeque<Mark>,
    waiting: VecDeque<Message<P>>,
    waiting_bytes: usize,
    /// Replays in a row that brought nothing new.
    vain: u32,
    /// Replays in a row that were asked for since a message is not the one that was known by its number.
    contradicted: u32,
    /// The replay under way brought something new.
    is_fruitful: bool,
    /// The replay under way was asked for though nothing was missing, and has brought nothing so far.
    is_look: bool,
    /// A replay failed, so there may be more to know than is known.
    has_failed: bool,
    /// The last replay broke off, and nothing has shown since that no message is missing behind what is known.
    is_short: bool,
    /// The connection is another one than that of the messages that are known, and nothing has shown yet that the process
    /// is the same.
    is_unproven: bool,
    /// What is known begins with a process's first message.
    is_whole: bool,
    counts: Counts,
}

impl<P> Stream<P> {
    /// Of a publisher with a replay socket or without.
    pub fn new(has_replay: bool, limits: Limits) -> Self {
        Self {
            limits,
            has_replay,
            state: State::Apart,
            applied: VecDeque::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            vain: 0,
            contradicted: 0,
            is_fruitful: false,
            is_look: false,
            has_failed: false,
            is_short: false,
            is_unproven: false,
            is_whole: false,
            counts: Counts::default(),
        }
    }

    /// Of a publisher of which somebody else has applied everything up to here, and has given it to us. The first replay
    /// shows whether it is the same process still. `is_whole`: from its first message on.
    pub fn behind(mark: Mark, is_whole: bool, has_replay: bool, limits: Limits) -> Self {
        Self {
            applied: VecDeque::from([mark]),
            is_whole,
            ..Self::new(has_replay, limits)
        }
    }

    /// Whether the publisher is heard and nothing is known to be missing. Otherwise blocks may have left since.
    pub fn is_current(&self) -> bool {
        self.is_look || self.state == State::Live && !self.is_short
    }

    /// The number of the message that was applied last.
    pub fn last(&self) -> Option<u64> {
        self.applied.back().map(|mark| mark.sequence)
    }

    /// The fingerprint of the message that was applied last.
    pub fn last_fingerprint(&self) -> Option<u64> {
        self.applied.back().map(|mark| mark.fingerprint)
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// A connection to the publisher is open, and subscribed.
    pub fn connected(&mut self, steps: &mut Vec<Step<P>>) {
        self.clear_waiting();
        (self.vain, self.contradicted) = (0, 0);
        if self.has_replay {
            self.is_unproven = !self.applied.is_empty();
            self.ask(steps);
        } else {
            // Messages may have been missed, and the process may be another.
            if !self.applied.is_empty() {
                self.forget(Cause::Gap, steps);
            }
            self.state = State::Live;
        }
    }

    /// The connection is gone. What is known stays, and is not current.
    pub fn disconnected(&mut self) {
        self.clear_waiting();
        self.is_look = false;
        self.state = State::Apart;
    }

    /// Nothing has come for long: asks whether something was missed. Nothing without a replay socket.
    pub fn verify(&mut self, steps: &mut Vec<Step<P>>) {
        if !self.has_replay || self.state != State::Live {
            return;
        }
        // That nothing was missed is no vain replay: the next gap is asked for.
        self.vain = 0;
        self.ask(steps);
        self.is_look = !self.is_short;
        if self.has_failed && !self.is_whole && !self.applied.is_empty() {
            self.state = State::Replay(First::Better);
            steps.pop();
            steps.push(Step::Ask(0));
        }
        self.has_failed = false;
    }

    /// A message came by the subscription.
    pub fn heard(&mut self, message: Message<P>, steps: &mut Vec<Step<P>>) {
        match self.state {
            State::Apart => {}
            State::Live => self.live(message, steps),
            State::Replay(_) => self.wait(message, steps),
        }
    }

    /// A replay is under way, and its messages are wanted.
    pub fn is_replaying(&self) -> bool {
        matches!(self.state, State::Replay(_))
    }

    /// A message of the replay came.
    pub fn replayed(&mut self, message: Message<P>, steps: &mut Vec<Step<P>>) {
        let State::Replay(first) = self.state else {
            return;
        };
        self.state = State::Replay(First::Any);
        match first {
            First::Proof(proof) => {
                if proof.sequence < message.sequence {
                    // It is out of the publisher's buffer: more has passed meanwhile than that holds. A gap that was heard of
                    // has been counted.
                    self.counts.gaps += u64::from(self.is_unproven);
                    self.begin_anew(Cause::Gap, steps);
                } else if proof.sequence != message.sequence
                    || proof.fingerprint != message.fingerprint
                {
                    self.begin_anew(Cause::Restart, steps);
                }
                self.is_unproven = false;
                return;
            }
            First::Better => self.forget(Cause::Gap, steps),
            First::Any => {}
        }
        match self.next() {
            Some(next) if message.sequence < next => self.counts.repeated += 1,
            Some(next) if message.sequence > next => {
                self.counts.gaps += 1;
                if self.is_fruitful {
                    // ZeroMQ drops what a socket's queue does not take, of a long replay, too: it goes on from here.
                    self.ask(steps);
                } else {
                    self.forget(Cause::Gap, steps);
                    self.apply(message, steps);
                }
            }
            _ => self.apply(message, steps),
        }
    }

    /// The replay is over.
    pub fn replay_ended(&mut self, steps: &mut Vec<Step<P>>) {
        let State::Replay(first) = self.state else {
            return;
        };
        if let First::Proof(_) = first {
            // The message applied last is not there any more, or not yet.
            self.begin_anew(Cause::Restart, steps);
            return;
        }
        self.vain = if self.is_fruitful { 0 } else { self.vain + 1 };
        self.state = State::Live;
        (self.is_look, self.is_short) = (false, false);
        self.take_waiting(steps);
        if self.state == State::Live {
            self.contradicted = 0;
        }
    }

    /// The replay could not be had, or broke off. What is known so far holds, unless the process may be another one; what
    /// is missing is asked for again, and counts as lost after some replays that bring nothing. Until then what is known
    /// is not current: the rest of the replay may have been the removal of it.
    pub fn replay_failed(&mut self, steps: &mut Vec<Step<P>>) {
        if !matches!(self.state, State::Replay(_)) {
            return;
        }
        // A look was asked for though nothing was missing.
        self.is_short |= !self.is_look && !self.applied.is_empty();
        let was_fruitful = self.is_fruitful;
        let vain = if was_fruitful { 0 } else { self.vain + 1 };
        self.give_up(vain, steps);
        // Nobody may publish for long, and then nothing else shows that there is more.
        if was_fruitful && self.is_short && self.state == State::Live {
            self.ask(steps);
        }
    }

    fn give_up(&mut self, vain: u32, steps: &mut Vec<Step<P>>) {
        if self.is_unproven {
            self.forget(Cause::Gap, steps);
        }
        self.has_failed = true;
        self.is_look = false;
        self.state = State::Live;
        self.vain = vain;
        self.take_waiting(steps);
    }

    /// The number that should come next; none if any may.
    fn next(&self) -> Option<u64> {
        self.last().map(|last| last.saturating_add(1))
    }

    /// Whether it is the one with this number; none for a number that is not remembered.
    fn is_remembered(&self, message: &Message<P>) -> Option<bool> {
        let mut marks = self.applied.iter();
        let mark = marks.find(|mark| mark.sequence == message.sequence)?;
        Some(mark.fingerprint == message.fingerprint)
    }

    fn live(&mut self, message: Message<P>, steps: &mut Vec<Step<P>>) {
        let next = self.next();
        match next {
            Some(next) if message.sequence > next => {
                self.counts.gaps += 1;
                if self.has_replay && self.vain < self.limits.vain_replays {
                    self.ask(steps);
                    self.wait(message, steps);
                } else {
                    self.vain = 0;
                    self.forget(Cause::Gap, steps);
                    self.apply(message, steps);
                }
            }
            Some(next) if message.sequence < next => {
                if self.is_remembered(&message) == Some(true) {
                    self.counts.repeated += 1;
                } else if self.has_replay
                    && self.vain.max(self.contradicted) < self.limits.vain_replays
                {
                    // It waits, and is compared again with what the replay brings.
                    self.contradicted += 1;
                    self.begin_anew(Cause::Restart, steps);
                    self.wait(message, steps);
                } else {
                    (self.vain, self.contradicted) = (0, 0);
                    self.counts.restarts += 1;
                    self.forget(Cause::Restart, steps);
                    self.apply(message, steps);
                }
            }
            // The first that is heard at all, while a replay may have more.
            None if message.sequence > 0
                && self.has_replay
                && self.vain < self.limits.vain_replays =>
            {
                self.ask(steps);
                self.wait(message, steps);
            }
            _ => self.apply(message, steps),
        }
    }

    fn apply(&mut self, message: Message<P>, steps: &mut Vec<Step<P>>) {
        if self.applied.is_empty() {
            let is_first = message.sequence == 0;
            self.is_whole = is_first;
            steps.push(Step::Begin { is_first });
        }
        if self.applied.len() >= self.limits.remembered.max(1) {
            self.applied.pop_front();
        }
        self.applied.push_back(message.mark());
        self.counts.applied += 1;
        (self.is_look, self.is_short) = (false, false);
        self.is_fruitful = true;
        steps.push(Step::Apply(message.payload));
    }

    fn wait(&mut self, message: Message<P>, steps: &mut Vec<Step<P>>) {
        self.is_look = false;
        self.waiting_bytes += message.bytes;
        self.waiting.push_back(message);
        let is_too_much = self.waiting.len() > self.limits.waiting_messages
            || self.waiting_bytes > self.limits.waiting_bytes;
        if is_too_much {
            self.give_up(self.limits.vain_replays, steps);
        }
    }

    /// What waited comes to its turn, until one of them needs another replay.
    fn take_waiting(&mut self, steps: &mut Vec<Step<P>>) {
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        for message in waiting {
            match self.state {
                // It was replayed, too, perhaps before those that are remembered.
                State::Live
                    if self.next().is_some_and(|next| message.sequence < next)
                        && self.is_remembered(&message) != Some(false) =>
                {
                    self.counts.repeated += 1;
                }
                _ => self.heard(message, steps),
            }
        }
    }

    fn clear_waiting(&mut self) {
        self.waiting.clear();
        self.waiting_bytes = 0;
    }

    fn ask(&mut self, steps: &mut Vec<Step<P>>) {
        let last = self.applied.back().copied();
        self.counts.asked += 1;
        self.is_look = false;
        self.is_fruitful = false;
        self.state = State::Replay(last.map_or(First::Any, First::Proof));
        steps.push(Step::Ask(last.map_or(0, |mark| mark.sequence)));
    }

    /// Forgets everything, and asks for all that there is.
    fn begin_anew(&mut self, cause: Cause, steps: &mut Vec<Step<P>>) {
        self.counts.restarts += u64::from(cause == Cause::Restart);
        self.forget(cause, steps);
        self.ask(steps);
    }

    fn forget(&mut self, cause: Cause, steps: &mut Vec<Step<P>>) {
        self.applied.clear();
        (self.is_unproven, self.is_whole) = (false, false);
        steps.push(Step::Forget(cause));
    }
}
