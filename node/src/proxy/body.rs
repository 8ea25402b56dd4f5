//! Reads a request's body: bounded, at a pace that a drip does not keep, copied at most once.

use std::sync::Arc;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use super::byte_budget::{ByteBudget, Reserved};
use super::inflate::{Fault, Inflater, SLICE_BYTES};
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
    /// Files may be longer than prompts; more than all bodies together nobody may send.
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

fn refused(kind: ErrorKind, limit: &'static str, message: String) -> BodyError {
    BodyError {
        error: ApiError::new(kind, message),
        limit: Some(limit),
    }
}

/// Reads all of it, and inflates it where it is compressed. `look` sees all bytes so far, each time that some have come
/// (of a compressed body only the whole), and may end it.
///
/// # Errors
/// What `look` says, 413 above the limit and 503 when the budget is used up (both at once when `Content-Length` tells),
/// 408 when the client stalls or drips, 400 when the body breaks off or is not in its coding.
pub async fn read(
    mut incoming: Incoming,
    limits: BodyLimits,
    budget: &Arc<ByteBudget>,
    mut look: impl FnMut(&[u8]) -> Result<(), ApiError>,
) -> Result<HeldBody, BodyError> {
    let too_large = || {
        let message = format!("the body is larger than {} bytes", limits.bytes);
        refused(ErrorKind::TooLarge, limits.limit, message)
    };
    let no_room = || {
        let message = "this replica holds too many request bodies; try again".to_owned();
        refused(ErrorKind::Overloaded, "body_bytes_total", message)
    };
    let announced = incoming.size_hint().exact();
    if announced.is_some_and(|bytes| bytes > limits.bytes) {
        return Err(too_large());
    }
    if !budget.has_room(announced.unwrap_or(0)) {
        return Err(no_room());
    }
    // Taken as it arrives: announcing a body must not keep others out.
    let mut reserved = budget.reserve();
    let fault = |fault| match fault {
        Fault::TooLong => too_large(),
        Fault::NoRoom => no_room(),
        Fault::Malformed => BodyError {
            error: ApiError::new(
                ErrorKind::InvalidRequest,
                "the body is not in the coding that its Content-Encoding names, or it breaks off",
            ),
            limit: None,
        },
    };
    // On the heap: few bodies need its room.
    let inflater = |coding| Inflater::new(coding, limits.bytes, budget.reserve()).map(Box::new);
    let mut inflater = limits.coding.map(inflater).transpose().map_err(fault)?;
    let mut pace = Pace::new(limits.progress, Instant::now());
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    let mut received = 0_u64;
    loop {
        let frame = timeout_at(pace.deadline(), incoming.frame())
            .await
            .map_err(|_| {
                let message = "the body did not arrive in time".to_owned();
                refused(ErrorKind::RequestTimeout, "body_progress", message)
            })?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_| BodyError {
            error: ApiError::new(
                ErrorKind::InvalidRequest,
                "the body broke off, or its chunks are malformed",
            ),
            limit: None,
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        received += data.len() as u64;
        pace.received(data.len() as u64, Instant::now());
        if received > limits.bytes {
            return Err(too_large());
        }
        if let Some(inflater) = &mut inflater {
            for slice in data.chunks(SLICE_BYTES) {
                inflater.feed(slice).map_err(fault)?;
                yield_now().await;
            }
            continue;
        }
        if !reserved.grow(data.len() as u64) {
            return Err(no_room());
        }
        // A body that came in one piece is not copied at all.
        if received == data.len() as u64 {
            first = data;
            look(&first)?;
            continue;
        }
        if all.is_empty() {
            let expected = announced.unwrap_or(2 * received).min(limits.bytes);
            all.reserve(usize::try_from(expected).unwrap_or(0));
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&data);
        look(&all)?;
    }
    if let Some(inflater) = inflater {
        let (plain, reserved) = inflater.finish().map_err(fault)?;
        look(&plain)?;
        return Ok(HeldBody {
            bytes: plain.into(),
            reserved,
        });
    }
    let bytes = if all.is_empty() { first } else { all.freeze() };
    Ok(HeldBody { bytes, reserved })
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
