//! A question to a peer, and its answer: read frame by frame, within what an honest peer would say.
//!
//! What becomes of an answer is not decided here.

use quinn::Connection;
use tokio::time::timeout;

use super::super::stream::{StreamError, read_frame, write_all};
use super::super::{Shared, limits, now};
use crate::frame::FrameError;
use crate::peers::Reason;
use crate::plane::RequestError;
use crate::replica::ReplicaId;
use crate::wire::{self, Kind, Message, Rate, Received};

/// Sends one request on a bi stream and reads the answer to its end. An answer that no honest peer gives counts against it.
/// Errors: `Slow`: the answer did not end in time. `Broken`: it is damaged, more than an answer may be, or above the
/// peer's share.
pub(in super::super) async fn request(
    shared: &Shared,
    to: &ReplicaId,
    connection: &Connection,
    message: &Message,
) -> Result<Vec<Received>, RequestError> {
    let asking = Asking {
        shared,
        to,
        question: message.kind(),
    };
    timeout(limits::REQUEST, asking.exchange(connection, message))
        .await
        .unwrap_or(Err(RequestError::Slow))
}

/// One question to one peer.
struct Asking<'a> {
    shared: &'a Shared,
    to: &'a ReplicaId,
    question: &'static Kind,
}

impl Asking<'_> {
    async fn exchange(
        &self,
        connection: &Connection,
        message: &Message,
    ) -> Result<Vec<Received>, RequestError> {
        let bytes = self.shared.encode(message).ok_or(RequestError::Broken)?;
        let opened = connection.open_bi().await;
        let (mut send, mut receive) = opened.map_err(|_| RequestError::Broken)?;
        let written = write_all(&mut send, &bytes).await;
        written.map_err(|_| RequestError::Broken)?;
        self.shared.metrics.sent(self.question.plane, bytes.len());
        let mut answer = Vec::new();
        let mut extent = Extent::default();
        loop {
            let frame = match read_frame(&mut receive).await {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(answer),
                Err(StreamError::Frame(error)) => return Err(self.damaged(&error)),
                Err(_) => return Err(RequestError::Broken),
            };
            let received = self.frame(&frame, &mut extent)?;
            answer.push(received);
        }
    }

    /// Takes one frame of the answer apart, if it and those before it are not too much.
    fn frame(&self, frame: &[u8], extent: &mut Extent) -> Result<Received, RequestError> {
        if !extent.takes(frame.len(), self.question.answer_frames()) {
            return Err(self.too_much());
        }
        // Before it is decoded: what is in it may become many times as much.
        let is_within = {
            let mut table = self.shared.peer_table.lock();
            table.may_bring(self.to, frame.len(), now())
        };
        if !is_within {
            self.shared.metrics.dropped("answer_flood");
            return Err(RequestError::Broken);
        }
        self.shared
            .metrics
            .received(self.question.plane, frame.len());
        let received =
            wire::decode_with(frame, &self.shared.kinds).map_err(|error| self.damaged(&error))?;
        self.shared.count_left_out(&received);
        let Some(message) = &received.message else {
            return Ok(received);
        };
        if !message.kind().answers(self.question) {
            return Err(self.lie());
        }
        if !extent.takes_entries(message.entries()) {
            return Err(self.too_much());
        }
        Ok(received)
    }

    fn damaged(&self, error: &FrameError) -> RequestError {
        match error {
            // A later release may speak another version.
            FrameError::Version(_) => RequestError::Broken,
            _ => self.lie(),
        }
    }

    /// A registry may have grown beyond its limit where several replicas wrote at once; nothing else may.
    fn too_much(&self) -> RequestError {
        if self.question.rate != Rate::Registry {
            return self.lie();
        }
        self.shared.metrics.dropped("answer_too_long");
        RequestError::Broken
    }

    fn lie(&self) -> RequestError {
        let address = self.shared.peers.lock().address(self.to);
        let address = address.unwrap_or(self.shared.address);
        self.shared.strike(self.to, address, Reason::Malformed);
        RequestError::Broken
    }
}

/// How much of an answer was read.
#[derive(Default)]
struct Extent {
    frames: usize,
    bytes: usize,
    entries: usize,
}

impl Extent {
    /// Counts a frame of so many bytes; false if it is more than an answer of at most so many frames may have.
    fn takes(&mut self, bytes: usize, frames_max: usize) -> bool {
        self.frames += 1;
        self.bytes += bytes;
        self.frames <= frames_max && self.bytes <= limits::ANSWER_BYTES
    }

    /// Counts registry entries; false if no registry holds as many.
    fn takes_entries(&mut self, entries: usize) -> bool {
        self.entries += entries;
        self.entries <= limits::ANSWER_ENTRIES
    }
}
