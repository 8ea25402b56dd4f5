//! Reads a request's body: bounded, at a pace that a drip does not keep, into one buffer where its length is known.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::inflate::{Fault, Inflater, SLICE_BYTES};
use super::pace::Pace;
use crate::admission::byte_budget::{ByteBudget, Reserved};
use crate::api::endpoint::Form;
use crate::api::error::{ApiError, ErrorKind};
use crate::config::{Coding, LimitConfig, TimeoutConfig};
use crate::http::client_body::{self, ClientBody};
use crate::lag::read_until;
use crate::metrics::refusals::RefusalMetrics;

/// Limits of one body.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// Most bytes.
    pub bytes: u64,
    /// The name of that limit.
    pub limit: &'static str,
    /// Longest time below the slowest pace.
    pub progress: Duration,
    /// How it is compressed, where such bodies are taken; `bytes` then holds for both of its lengths.
    pub coding: Option<Coding>,
}

impl BodyLimits {
    /// Files may be longer than prompts; no body may be longer than all together.
    pub fn of(form: Form, limits: &LimitConfig, timeouts: &TimeoutConfig) -> Self {
        let (bytes, limit) = match form {
            Form::Multipart => (limits.upload_bytes, "upload_bytes"),
            Form::Json | Form::Any | Form::Nothing => (limits.body_bytes, "body_bytes"),
        };
        Self {
            bytes: bytes.min(limits.body_bytes_total).0,
            limit,
            progress: timeouts.body_progress,
            coding: None,
        }
    }
}

/// A body and its part of the budget, which lasts as long as the body is kept.
#[derive(Debug)]
pub struct HeldBody {
    /// The bytes as they came.
    pub bytes: Bytes,
    /// Given back when the request no longer needs the body.
    pub reserved: Reserved,
}

/// Which limit ended the reading, for its counter.
#[derive(Debug)]
pub struct BodyError {
    /// What the client gets.
    pub error: ApiError,
    /// The limit's name, when it was a limit.
    pub limit: Option<&'static str>,
}

impl From<ApiError> for BodyError {
    fn from(error: ApiError) -> Self {
        Self { error, limit: None }
    }
}

impl BodyError {
    /// What the client gets, once its limit is counted.
    pub fn counted(self, refusals: &RefusalMetrics) -> ApiError {
        if let Some(limit) = self.limit {
            refusals.limit_reached(limit);
        }
        self.error
    }
}

impl BodyLimits {
    /// Errors: 413 for a body that is announced as longer than any may be.
    pub fn check(&self, announced: Option<u64>) -> Result<(), BodyError> {
        match announced {
            Some(bytes) if bytes > self.bytes => Err(self.too_large()),
            _ => Ok(()),
        }
    }

    fn too_large(&self) -> BodyError {
        let message = format!("the body is larger than {} bytes", self.bytes);
        refused(ErrorKind::TooLarge, self.limit, message)
    }

    /// What the client gets for a body that cannot be inflated.
    fn error_of(&self, fault: Fault) -> BodyError {
        match fault {
            Fault::TooLong => self.too_large(),
            Fault::NoRoom => no_room(),
            Fault::Malformed => malformed(
                "the body is not in the coding that its Content-Encoding names, or it breaks off",
            ),
        }
    }
}

fn refused(kind: ErrorKind, limit: &'static str, message: String) -> BodyError {
    BodyError {
        error: ApiError::new(kind, message),
        limit: Some(limit),
    }
}

fn no_room() -> BodyError {
    let message = "this replica holds too many request bodies; try again".to_owned();
    refused(ErrorKind::Overloaded, "body_bytes_total", message)
}

fn malformed(message: &'static str) -> BodyError {
    ApiError::new(ErrorKind::InvalidRequest, message).into()
}

/// Once so much has come, room is made for all that is announced: to grow step by step would hold a large body twice, and
/// of room that is not used yet no page is in memory.
const AHEAD_BYTES: usize = 256 * 1024;

/// A body that is not compressed, as far as it has come. One that comes in one piece is not copied.
struct Pieces {
    first: Bytes,
    /// All of them, once there are several.
    all: BytesMut,
    /// Length of the body as its head says, at most the limit.
    announced: Option<u64>,
    reserved: Reserved,
}

impl Pieces {
    /// Reads what comes next; how many bytes, none at the end. Cancel safe.
    async fn read(&mut self, incoming: &mut ClientBody) -> Result<Option<usize>, BodyError> {
        if incoming.is_end_stream() {
            return Ok(None);
        }
        if self.first.is_empty() && self.all.is_empty() {
            self.first = match next_data(incoming).await? {
                Some(piece) => piece,
                None => return Ok(None),
            };
            return Ok(Some(self.first.len()));
        }
        if self.announced.is_none() {
            let Some(piece) = next_data(incoming).await? else {
                return Ok(None);
            };
            self.gather(piece.len());
            self.all.extend_from_slice(&piece);
            return Ok(Some(piece.len()));
        }
        self.gather(self.missing());
        match incoming.read_into(&mut self.all).await {
            Ok(read) => Ok(Some(read).filter(|read| *read > 0)),
            Err(error) => Err(broken(error).await),
        }
    }

    /// Bytes that are still to come, as far as its head says.
    fn missing(&self) -> usize {
        let announced = usize::try_from(self.announced.unwrap_or(0)).unwrap_or(usize::MAX);
        announced.saturating_sub(self.so_far().len())
    }

    /// Puts all of it into one buffer, with room for more.
    fn gather(&mut self, more: usize) {
        let so_far = self.so_far().len();
        if self.all.capacity() > self.all.len() && self.all.len() == so_far {
            return;
        }
        let ahead = match so_far < AHEAD_BYTES {
            true => more.min(AHEAD_BYTES),
            false => more,
        };
        self.all.reserve(self.first.len() + ahead);
        self.all.extend_from_slice(&std::mem::take(&mut self.first));
    }

    /// All bytes that have come.
    fn so_far(&self) -> &[u8] {
        match self.all.is_empty() {
            true => &self.first,
            false => &self.all,
        }
    }

    fn whole(self) -> HeldBody {
        HeldBody {
            bytes: match self.all.is_empty() {
                true => self.first,
                false => self.all.freeze(),
            },
            reserved: self.reserved,
        }
    }
}

/// Reads all of it, and inflates it where it is compressed. `look` sees all bytes so far, each time that some have come
/// (of a compressed body only the whole), and may end it. `is_crowded`: whether others wait to be read.
/// Errors: what `look` returns, 413 above the limit and 503 when the budget is used up (both at once when
/// `Content-Length` shows it), 408 when the client stalls or drips, 400 when the body breaks off or is not in its
/// coding.
pub async fn read(
    incoming: ClientBody,
    limits: BodyLimits,
    budget: &Arc<ByteBudget>,
    is_crowded: impl Fn() -> bool,
    mut look: impl FnMut(&[u8]) -> Result<(), ApiError>,
) -> Result<HeldBody, BodyError> {
    let announced = incoming.size_hint().exact();
    limits.check(announced)?;
    if !budget.has_room(announced.unwrap_or(0)) {
        return Err(no_room());
    }
    let pace = Pace::new(limits.progress, Instant::now(), is_crowded);
    match limits.coding {
        None => {
            let pieces = Pieces {
                first: Bytes::new(),
                all: BytesMut::new(),
                announced,
                // Taken as it arrives: announcing a body must not keep others out.
                reserved: budget.reserve(),
            };
            read_plain(incoming, limits, pieces, pace, look).await
        }
        Some(coding) => {
            let inflater = Inflater::new(coding, limits.bytes, budget.reserve());
            let inflater = inflater.map_err(|fault| limits.error_of(fault))?;
            // On the heap: few bodies need its room.
            let held = Box::pin(read_compressed(incoming, limits, inflater, pace)).await?;
            look(&held.bytes)?;
            Ok(held)
        }
    }
}

async fn read_plain(
    mut incoming: ClientBody,
    limits: BodyLimits,
    mut pieces: Pieces,
    mut pace: Pace<impl Fn() -> bool>,
    mut look: impl FnMut(&[u8]) -> Result<(), ApiError>,
) -> Result<HeldBody, BodyError> {
    while let Some(bytes) = in_time(&mut pace, pieces.read(&mut incoming)).await? {
        pace.received(bytes as u64, Instant::now());
        if pieces.so_far().len() as u64 > limits.bytes {
            return Err(limits.too_large());
        }
        if !pieces.reserved.grow(bytes as u64) {
            return Err(no_room());
        }
        look(pieces.so_far())?;
    }
    Ok(pieces.whole())
}

async fn read_compressed(
    mut incoming: ClientBody,
    limits: BodyLimits,
    mut inflater: Inflater,
    mut pace: Pace<impl Fn() -> bool>,
) -> Result<HeldBody, BodyError> {
    let fault = |fault| limits.error_of(fault);
    let mut received = 0_u64;
    while let Some(piece) = in_time(&mut pace, next_data(&mut incoming)).await? {
        received += piece.len() as u64;
        pace.received(piece.len() as u64, Instant::now());
        if received > limits.bytes {
            return Err(limits.too_large());
        }
        for slice in piece.chunks(SLICE_BYTES) {
            inflater.feed(slice).map_err(fault)?;
            yield_now().await;
        }
    }
    let (plain, reserved) = inflater.finish().map_err(fault)?;
    Ok(HeldBody {
        bytes: plain.into(),
        reserved,
    })
}

async fn in_time<T>(
    pace: &mut Pace<impl Fn() -> bool>,
    reading: impl Future<Output = Result<T, BodyError>>,
) -> Result<T, BodyError> {
    let mut reading = pin!(reading);
    // Mostly it came with the head: no timer is needed.
    if let Poll::Ready(read) = poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await {
        return read;
    }
    loop {
        match read_until(pace.deadline(), reading.as_mut()).await {
            Some(read) => return read,
            None if pace.is_too_slow(Instant::now()) => {
                let message = "the body did not arrive in time".to_owned();
                return Err(refused(ErrorKind::RequestTimeout, "body_progress", message));
            }
            None => {}
        }
    }
}

/// The next bytes of a body; none at its end. Trailers are passed over. Cancel safe.
async fn next_data(incoming: &mut ClientBody) -> Result<Option<Bytes>, BodyError> {
    while let Some(frame) = incoming.frame().await {
        let data = match frame {
            Ok(frame) => frame.into_data(),
            Err(error) => return Err(broken(error).await),
        };
        if let Ok(data) = data {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// Nobody reads an answer to a client that has left: whoever serves its connection sees that, too, and drops the request.
async fn broken(error: client_body::BodyError) -> BodyError {
    if let client_body::BodyError::Left = error {
        std::future::pending::<()>().await;
    }
    malformed("the body broke off, or its chunks are malformed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_given_back() {
        let budget = Arc::new(ByteBudget::new(10));
        let mut one = budget.reserve();
        assert!(one.grow(7));
        let mut two = budget.reserve();
        assert!(!two.grow(4));
        assert!(two.grow(3));
        drop(one);
        assert!(two.grow(7));
        assert!(!budget.has_room(1) && budget.has_room(0));
        drop(two);
        assert!(budget.is_unused());
    }
}
