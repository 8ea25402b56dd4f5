//! What a client may say in a session that is not free: a `session.update` names a model, and a worker may serve more
//! of them than the client's key is for, or than it knows by the name that the client has for one.
//!
//! Only sessions are watched whose key is limited to some models, or all where there are aliases; all others'
//! frames pass unread. Watched, the client's handshake offers no extensions, so that frames are as the standard has
//! them. A message waits until its `type` is known, mostly with its first bytes, and then passes on as it came; it
//! is read to its end all the same, because the worker may take another `type` that stands further behind. Only a
//! `session.update` waits for its end. What has passed cannot be taken back: where it turns out that it must not
//! have, the session ends before the message does.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::frames::{self, CloseCode, Head, Opcode};
use super::kind::KindScan;
use crate::api::error::ErrorKind;
use crate::cluster::Cluster;
use crate::proxy::caller::Caller;
use crate::tenants::ApiKey;
use crate::upstream::Worker;

/// Bytes of a message that wait for its `type`, or of a `session.update` for its end.
const HELD_BYTES_MAX: usize = 64 * 1024;
/// A refusal answers a message; a client that reads none of them gets no more.
const REFUSALS_BYTES_MAX: usize = 16 * 1024;

/// What a session may say: to which cluster, with which key, about which model.
#[derive(Debug)]
pub(in crate::proxy) struct SessionScope {
    cluster: Arc<Cluster>,
    key: Option<Arc<ApiKey>>,
    /// The model that the session was let in for.
    model: String,
}

impl SessionScope {
    /// None where there is nothing to watch for.
    pub(in crate::proxy) fn of(
        cluster: &Arc<Cluster>,
        key: Option<&Arc<ApiKey>>,
        model: &str,
    ) -> Option<Self> {
        let is_limited = key.is_some_and(|key| key.is_limited());
        let has_aliases = cluster.settings().models.aliases().next().is_some();
        (is_limited || has_aliases).then(|| Self {
            cluster: Arc::clone(cluster),
            key: key.cloned(),
            model: model.to_owned(),
        })
    }

    /// Watches what is said to this worker.
    pub(super) fn watch(self, worker: Arc<Worker>) -> Watch {
        Watch::new(Box::new(move |asked| {
            self.name_of(asked, &worker).map(str::to_owned)
        }))
    }

    /// The name under which the worker knows a model; none if the client may not have it.
    fn name_of<'a>(&'a self, asked: &'a str, worker: &Worker) -> Option<&'a str> {
        if asked == self.model {
            return Some(asked);
        }
        let caller = self.key.as_deref().map_or(Caller::Anybody, Caller::Keyed);
        caller.may_ask_for(Some(asked)).ok()?;
        let Some(targets) = self.cluster.settings().models.targets_of(asked) else {
            return Some(asked);
        };
        // The worker is chosen already: among the alias's models it is the session's own, or one that is there.
        let served = worker.models.load();
        let is_there = |name: &&str| served.iter().any(|model| model.as_str() == *name);
        let names = || targets.iter().map(|target| target.model.as_str());
        let own = names().find(|name| *name == self.model);
        own.or_else(|| names().find(is_there))
            // A worker knows no alias: the name in its refusal is one that an operator finds.
            .or_else(|| names().next())
            .or(Some(asked))
    }
}

/// The name under which the worker knows a model that a client asks for; none if it may not have it.
pub(super) type NameOf = Box<dyn Fn(&str) -> Option<String> + Send>;

/// Watches what one client says.
pub(super) struct Watch {
    name_of: NameOf,
    head: Head,
    /// Of the frame that is being read.
    frame: Option<Frame>,
    message: Option<PartialMessage>,
    /// Frames to the client.
    refusals: Vec<u8>,
    /// What they say, while nobody has counted it.
    uncounted: Vec<ErrorKind>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Watch")
            .field("frame", &self.frame)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Frame {
    opcode: Opcode,
    is_last: bool,
    mask: [u8; 4],
    read: usize,
    rest: u64,
}

/// A message of the client whose end has not come.
#[derive(Debug)]
struct PartialMessage {
    scan: KindScan,
    fate: Fate,
}

#[derive(Debug)]
enum Fate {
    /// Nothing of it has passed: its frames as they came, and its text.
    Held { frames: Vec<u8>, text: Vec<u8> },
    /// It passes.
    Passes,
    /// It was refused.
    Dropped,
}

impl Watch {
    fn new(name_of: NameOf) -> Self {
        Self {
            name_of,
            head: Head::default(),
            frame: None,
            message: None,
            refusals: Vec::new(),
            uncounted: Vec::new(),
        }
    }

    /// Reads bytes of the client; adds to `out` what the worker gets.
    /// Errors: the session has to end, for this reason.
    pub(super) fn read(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), CloseCode> {
        while !bytes.is_empty() {
            if self.frame.is_none() {
                let (taken, is_whole) = self.head.read(bytes);
                bytes = &bytes[taken..];
                if is_whole {
                    self.begin(out)?;
                }
            }
            if let Some(frame) = &self.frame {
                let content = usize::try_from(frame.rest).unwrap_or(usize::MAX);
                let (content, others) = bytes.split_at(content.min(bytes.len()));
                bytes = others;
                self.content(content, out)?;
            }
        }
        Ok(())
    }

    /// Frames to be put in between two messages to the client.
    pub(super) fn take_refusals(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.refusals)
    }

    /// What was refused since this was asked last.
    pub(super) fn take_uncounted(&mut self) -> Vec<ErrorKind> {
        std::mem::take(&mut self.uncounted)
    }

    /// A frame's head is whole.
    fn begin(&mut self, out: &mut Vec<u8>) -> Result<(), CloseCode> {
        let head = std::mem::take(&mut self.head);
        let (Some(opcode), Some(mask), false) = (head.opcode(), head.mask(), head.is_extended())
        else {
            return Err(CloseCode::Protocol);
        };
        match (opcode, &self.message) {
            (Opcode::Control, _) | (Opcode::Continuation, Some(_)) => {}
            (Opcode::Message, None) => {
                self.message = Some(PartialMessage {
                    scan: KindScan::default(),
                    fate: Fate::Held {
                        frames: Vec::new(),
                        text: Vec::new(),
                    },
                });
            }
            _ => return Err(CloseCode::Protocol),
        }
        match (opcode, &mut self.message) {
            (Opcode::Control, _) => out.extend_from_slice(head.bytes()),
            (_, Some(message)) => message.pass(head.bytes(), out),
            (_, None) => {}
        }
        self.frame = Some(Frame {
            opcode,
            is_last: head.is_last(),
            mask,
            read: 0,
            rest: head.length(),
        });
        // A frame may be empty.
        self.content(&[], out)
    }

    /// A piece of the frame's content, up to its end at most.
    fn content(&mut self, content: &[u8], out: &mut Vec<u8>) -> Result<(), CloseCode> {
        let frame = self.frame.as_mut().expect("it has a head");
        let turn = frame.read % 4;
        frame.read = (frame.read + content.len()) % 4;
        frame.rest -= content.len() as u64;
        let has_ended = frame.rest == 0;
        let is_last = has_ended && frame.is_last;
        if frame.opcode == Opcode::Control {
            out.extend_from_slice(content);
        } else {
            let mask = frame.mask;
            let keys = mask.iter().cycle().skip(turn);
            let text: Vec<u8> = content
                .iter()
                .zip(keys)
                .map(|(byte, key)| byte ^ key)
                .collect();
            let message = self
                .message
                .as_mut()
                .expect("only control frames have none");
            message.pass(content, out);
            message.read(&text, is_last, out)?;
            if is_last {
                self.end(out)?;
            }
        }
        if has_ended {
            self.frame = None;
        }
        Ok(())
    }

    /// The message is whole.
    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), CloseCode> {
        let message = self.message.take().expect("it has just ended");
        match message.fate {
            Fate::Passes => {}
            Fate::Dropped => self.refuse(&MessageRefused::TooLong)?,
            Fate::Held { frames, .. } if !message.scan.is_update() => {
                out.extend_from_slice(&frames)
            }
            Fate::Held { frames, text } => match self.judge(&text) {
                Ok(None) => out.extend_from_slice(&frames),
                Ok(Some(renamed)) => frame_of_client(&renamed, out),
                Err(refused) => self.refuse(&refused)?,
            },
        }
        Ok(())
    }

    /// A `session.update`: as it came, with other names for its models, or not at all.
    fn judge(&self, text: &[u8]) -> Result<Option<Vec<u8>>, MessageRefused> {
        let text = std::str::from_utf8(text).map_err(|_| MessageRefused::Unreadable)?;
        let mut renamed = Vec::new();
        let mut copied = 0;
        for (asked, at) in models_in(text).map_err(|_| MessageRefused::Unreadable)? {
            let name =
                (self.name_of)(&asked).ok_or_else(|| MessageRefused::Model(asked.clone()))?;
            if name != asked {
                renamed.extend_from_slice(&text.as_bytes()[copied..at.start]);
                renamed.extend_from_slice(serde_json::Value::from(name).to_string().as_bytes());
                copied = at.end;
            }
        }
        if copied == 0 {
            return Ok(None);
        }
        renamed.extend_from_slice(&text.as_bytes()[copied..]);
        Ok(Some(renamed))
    }

    fn refuse(&mut self, why: &MessageRefused) -> Result<(), CloseCode> {
        let (kind, message, param) = match why {
            MessageRefused::Model(model) => (
                ErrorKind::ModelNotFound,
                format!("the model `{model}` is not served"),
                "model",
            ),
            MessageRefused::Unreadable => (
                ErrorKind::InvalidRequest,
                "a session.update is a JSON object that names each field once".to_owned(),
                "session",
            ),
            MessageRefused::TooLong => (
                ErrorKind::InvalidRequest,
                format!("a session.update has at most {HELD_BYTES_MAX} bytes"),
                "session",
            ),
        };
        let event = serde_json::json!({
            "type": "error",
            "event_id": format!("event_{:016x}", rand::random::<u64>()),
            "error": {
                "type": "invalid_request_error", "code": kind.code(), "message": message, "param": param, "event_id": null,
            },
        });
        frame_of_server(event.to_string().as_bytes(), &mut self.refusals);
        self.uncounted.push(kind);
        if self.refusals.len() > REFUSALS_BYTES_MAX {
            return Err(CloseCode::Policy);
        }
        Ok(())
    }
}

/// Why a message does not pass.
#[derive(Debug)]
enum MessageRefused {
    Model(String),
    Unreadable,
    TooLong,
}

impl PartialMessage {
    /// Bytes of its frames, heads included, go where it goes.
    fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        match &mut self.fate {
            Fate::Held { frames, .. } => frames.extend_from_slice(bytes),
            Fate::Passes => out.extend_from_slice(bytes),
            Fate::Dropped => {}
        }
    }

    /// Reads on, and decides where it goes as soon as that is known. `is_last`: this is its end.
    fn read(&mut self, piece: &[u8], is_last: bool, out: &mut Vec<u8>) -> Result<(), CloseCode> {
        self.scan.read(piece);
        let is_update = self.scan.is_update();
        let Fate::Held { frames, text } = &mut self.fate else {
            let has_passed = matches!(self.fate, Fate::Passes);
            return match is_update && has_passed {
                true => Err(CloseCode::Policy),
                false => Ok(()),
            };
        };
        text.extend_from_slice(piece);
        // Frames without content are bytes, too.
        let is_too_long = text.len().max(frames.len()) > HELD_BYTES_MAX;
        if is_update && is_too_long {
            self.fate = Fate::Dropped;
        } else if !is_update && !is_last && (is_too_long || self.scan.is_known()) {
            out.append(frames);
            self.fate = Fate::Passes;
        }
        Ok(())
    }
}

/// The models that a `session.update` names, each with its place, in their order: as vLLM has it, and as OpenAI has it.
fn models_in(text: &str) -> serde_json::Result<Vec<(String, Range<usize>)>> {
    // A field that stands there twice is an error: readers differ about which one counts.
    #[derive(Deserialize)]
    struct Update<'a> {
        #[serde(borrow, default)]
        model: Option<&'a RawValue>,
        #[serde(borrow, default)]
        session: Option<&'a RawValue>,
        #[serde(rename = "type")]
        _type: String,
    }
    #[derive(Deserialize)]
    struct Session<'a> {
        #[serde(borrow, default)]
        model: Option<&'a RawValue>,
    }
    let update: Update<'_> = serde_json::from_str(text)?;
    let session = update.session.filter(|value| value.get().starts_with('{'));
    let inner = session.map(|value| serde_json::from_str::<Session<'_>>(value.get()));
    let inner = inner.transpose()?.and_then(|session| session.model);
    let mut found = Vec::new();
    for value in update.model.into_iter().chain(inner) {
        // They borrow from the text, so where they begin is where they stand.
        let start = value.get().as_ptr() as usize - text.as_ptr() as usize;
        found.push((
            serde_json::from_str(value.get())?,
            start..start + value.get().len(),
        ));
    }
    found.sort_by_key(|(_, at)| at.start);
    Ok(found)
}

/// A text message in one frame, as clients write it.
fn frame_of_client(text: &[u8], out: &mut Vec<u8>) {
    let mask: [u8; 4] = rand::random();
    frames::text_head(text.len(), 0x80, out);
    out.extend_from_slice(&mask);
    out.extend(
        text.iter()
            .zip(mask.iter().cycle())
            .map(|(byte, key)| byte ^ key),
    );
}

/// The same as servers write it.
fn frame_of_server(text: &[u8], out: &mut Vec<u8>) {
    frames::text_head(text.len(), 0, out);
    out.extend_from_slice(text);
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
