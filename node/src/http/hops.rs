//! Whether a request has been here before, so that a replica that was added as a worker is no endless loop.
//!
//! A gateway names itself in `Via` of what it sends on (RFC 9110, section 7.6.3), checks of workers included: a replica
//! that is its own worker fails its own checks, and one that is asked in a circle refuses what it sent itself.

use std::sync::LazyLock;

use http::header::{HeaderMap, HeaderValue, VIA};

use crate::api::error::{ApiError, ErrorKind};

/// `1.1` and a name that no other process has.
static OWN: LazyLock<HeaderValue> = LazyLock::new(|| {
    let own = format!("1.1 grapevine-{:016x}", rand::random::<u64>());
    HeaderValue::try_from(own).expect("plain ASCII")
});

/// What this process says of itself to workers.
pub(crate) fn own() -> HeaderValue {
    OWN.clone()
}

/// Adds this process to those that a request came through.
pub(crate) fn sign(headers: &mut HeaderMap) {
    headers.append(VIA, own());
}

/// Refuses a request that this process has sent to a worker.
///
/// # Errors
/// 508: sent on once more it would come back once more.
pub(crate) fn check(headers: &HeaderMap) -> Result<(), ApiError> {
    let own = OWN.as_bytes();
    let mut hops = headers.get_all(VIA).into_iter();
    // A proxy in between may have put all names into one line.
    let is_back = hops.any(|hop| {
        hop.as_bytes()
            .split(|byte| *byte == b',')
            .any(|hop| hop.trim_ascii() == own)
    });
    if !is_back {
        return Ok(());
    }
    let message =
        "this replica sent this request itself: one of its workers is the replica, or asks it";
    Err(ApiError::new(ErrorKind::Loop, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_through_here_is_known_however_it_is_written() {
        let mut headers = HeaderMap::new();
        assert!(check(&headers).is_ok());
        for other in ["1.1 grapevine-0", "HTTP/1.1 cdn, 1.0 fred (x)", ""] {
            headers.append(VIA, HeaderValue::from_static(other));
        }
        assert!(check(&headers).is_ok());
        let mut sent = headers.clone();
        sign(&mut sent);
        assert_eq!(
            check(&sent).map_err(|error| error.kind),
            Err(ErrorKind::Loop)
        );
        let joined = format!("1.1 a ,{}\t, 1.1 b", own().to_str().expect("ASCII"));
        headers.append(VIA, joined.parse().expect("a value"));
        assert_eq!(
            check(&headers).map_err(|error| error.kind),
            Err(ErrorKind::Loop)
        );
    }
}
