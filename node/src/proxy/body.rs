//! Reads a request's body: bounded, at a pace that a drip does not keep, copied at most once.

use std::sync::Arc;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use super::inflate::{Fault, Inflater, SLICE_BYTES};
use crate::admission::byte_budget::{ByteBudget, Reserved};
use crate::api::endpoint::Form;
use crate::api::error::{ApiError, ErrorKind};
use crate::config::{Coding, LimitConfig, TimeoutConfig};

/// Slowest body that is waited for, in bytes a second; below it for `progress` it ends in 408.
const BODY_BYTES_PER_SECOND_MIN: u64 = 1024;

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

/// Whether a body keeps up. Looks at one stretch after the other, each at most `progress` long: a body that came fast
/// for a while has no right to be silent for longer afterwards.
#[derive(Debug)]
struct Pace {
    progress: Duration,
    since: Instant,
    bytes: u64,
}

impl Pace {
    fn new(progress: Duration, now: Instant) -> Self {
        Self {
            progress,
            since: now,
            bytes: 0,
        }
    }

    /// When it is too slow unless more comes.
    fn deadline(&self) -> Instant {
        self.since + self.progress
    }

    fn received(&mut self, bytes: u64, now: Instant) {
        self.bytes += bytes;
        let enough = BODY_BYTES_PER_SECOND_MIN as f64 * self.progress.as_secs_f64();
        if self.bytes as f64 >= enough {
            *self = Self::new(self.progress, now);
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

impl BodyLimits {
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

/// The pieces of a body that is not compressed. One that comes in one piece is not copied at all.
struct Pieces {
    first: Bytes,
    /// All of them, once there are several.
    all: BytesMut,
    /// Length of the body as its head says, at most the limit.
    announced: Option<u64>,
    bytes_max: u64,
    reserved: Reserved,
}

impl Pieces {
    /// Adds a piece; all bytes so far.
    ///
    /// # Errors
    /// The budget is used up.
    fn push(&mut self, piece: Bytes) -> Result<&[u8], BodyError> {
        if !self.reserved.grow(piece.len() as u64) {
            return Err(no_room());
        }
        if self.first.is_empty() {
            self.first = piece;
            return Ok(&self.first);
        }
        if self.all.is_empty() {
            let so_far = (self.first.len() + piece.len()) as u64;
            let expected = self.announced.unwrap_or(2 * so_far).min(self.bytes_max);
            self.all.reserve(usize::try_from(expected).unwrap_or(0));
            self.all.extend_from_slice(&self.first);
        }
        self.all.extend_from_slice(&piece);
        Ok(&self.all)
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
/// (of a compressed body only the whole), and may end it.
///
/// # Errors
/// What `look` returns, 413 above the limit and 503 when the budget is used up (both at once when `Content-Length`
/// shows it), 408 when the client stalls or drips, 400 when the body breaks off or is not in its coding.
pub async fn read(
    mut incoming: Incoming,
    limits: BodyLimits,
    budget: &Arc<ByteBudget>,
    mut look: impl FnMut(&[u8]) -> Result<(), ApiError>,
) -> Result<HeldBody, BodyError> {
    let announced = incoming.size_hint().exact();
    if announced.is_some_and(|bytes| bytes > limits.bytes) {
        return Err(limits.too_large());
    }
    if !budget.has_room(announced.unwrap_or(0)) {
        return Err(no_room());
    }
    let mut pieces = Pieces {
        first: Bytes::new(),
        all: BytesMut::new(),
        announced,
        bytes_max: limits.bytes,
        // Taken as it arrives: announcing a body must not keep others out.
        reserved: budget.reserve(),
    };
    let fault = |fault| limits.error_of(fault);
    // On the heap: few bodies need its room.
    let inflater = |coding| Inflater::new(coding, limits.bytes, budget.reserve()).map(Box::new);
    let mut inflater = limits.coding.map(inflater).transpose().map_err(fault)?;
    let mut pace = Pace::new(limits.progress, Instant::now());
    let mut received = 0_u64;
    while let Some(piece) = next_piece(&mut incoming, pace.deadline()).await? {
        received += piece.len() as u64;
        pace.received(piece.len() as u64, Instant::now());
        if received > limits.bytes {
            return Err(limits.too_large());
        }
        let Some(inflater) = &mut inflater else {
            look(pieces.push(piece)?)?;
            continue;
        };
        for slice in piece.chunks(SLICE_BYTES) {
            inflater.feed(slice).map_err(fault)?;
            yield_now().await;
        }
    }
    let Some(inflater) = inflater else {
        return Ok(pieces.whole());
    };
    let (plain, reserved) = inflater.finish().map_err(fault)?;
    look(&plain)?;
    Ok(HeldBody {
        bytes: plain.into(),
        reserved,
    })
}

/// The next bytes of a body; none at its end. Trailers are passed over.
async fn next_piece(
    incoming: &mut Incoming,
    deadline: Instant,
) -> Result<Option<Bytes>, BodyError> {
    loop {
        let frame = timeout_at(deadline, incoming.frame()).await.map_err(|_| {
            let message = "the body did not arrive in time".to_owned();
            refused(ErrorKind::RequestTimeout, "body_progress", message)
        })?;
        let Some(frame) = frame else {
            return Ok(None);
        };
        let broken = |_| malformed("the body broke off, or its chunks are malformed");
        if let Ok(data) = frame.map_err(broken)?.into_data() {
            return Ok(Some(data));
        }
    }
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

    /// When a body that gets these many bytes each second, in turn, is given up.
    fn ended(each_second: impl IntoIterator<Item = u64>) -> u64 {
        let began = Instant::now();
        let mut pace = Pace::new(Duration::from_secs(30), began);
        for (second, bytes) in (1..).zip(each_second) {
            let now = began + Duration::from_secs(second);
            if now > pace.deadline() {
                break;
            }
            pace.received(bytes, now);
        }
        (pace.deadline() - began).as_secs()
    }

    #[test]
    fn silence_and_drips_end_after_the_limit() {
        assert_eq!(ended([]), 30);
        assert_eq!(ended(vec![1; 600]), 30);
        assert_eq!(ended(vec![1_000; 600]), 30);
        // Enough, and then silence: a new stretch begins with the second that completed the last one.
        assert_eq!(ended([16 << 20, 0]), 31);
        assert_eq!(ended([vec![1_024; 60], vec![1; 600]].concat()), 90);
        assert!(ended(vec![1_024; 600]) > 600);
    }
}
