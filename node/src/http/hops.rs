//! Whether a request has been here before, so that a replica that was added as a worker is no endless loop.
//!
//! A gateway names itself in `Via` of what it sends on (RFC 9110, section 7.6.3), checks of workers included. All
//! replicas of a cluster have one name: a replica that is a worker of its cluster fails the checks of every replica, and
//! one that is asked in a circle refuses what the cluster sent itself.

use std::sync::OnceLock;

use http::header::{HeaderMap, HeaderValue, VIA};
use ring::digest;

use crate::api::error::{ApiError, ErrorKind};

/// `1.1` and the name.
static OWN: OnceLock<HeaderValue> = OnceLock::new();

/// Takes the name of a cluster: replicas that trust the same authorities and are of the cluster with this id are in one.
/// To be called before anything is sent; who never calls it has a name that no other process has.
pub(crate) fn join<'a>(cluster: &str, authorities: impl Iterator<Item = &'a [u8]>) {
    // The first name stays: what was sent under it must be known when it is back.
    let _ = OWN.get_or_init(|| name_of(cluster, authorities));
}

fn name_of<'a>(cluster: &str, authorities: impl Iterator<Item = &'a [u8]>) -> HeaderValue {
    let mut hash = digest::Context::new(&digest::SHA256);
    hash.update(cluster.as_bytes());
    // Their files may have them in any order.
    let mut authorities: Vec<_> = authorities.collect();
    authorities.sort_unstable();
    for authority in authorities {
        hash.update(authority);
    }
    let hash = hash.finish();
    let (start, _) = hash.as_ref().split_first_chunk().expect("32 bytes");
    name(u64::from_be_bytes(*start))
}

fn name(number: u64) -> HeaderValue {
    HeaderValue::try_from(format!("1.1 grapevine-{number:016x}")).expect("plain ASCII")
}

/// What this process says of itself to workers.
pub(crate) fn own() -> HeaderValue {
    OWN.get_or_init(|| name(rand::random())).clone()
}

/// Adds this process to those that a request came through.
pub(crate) fn sign(headers: &mut HeaderMap) {
    headers.append(VIA, own());
}

/// Refuses a request that this process, or another replica of its cluster, has sent to a worker.
///
/// # Errors
/// 508: sent on once more it would come back once more.
pub(crate) fn check(headers: &HeaderMap) -> Result<(), ApiError> {
    if !headers.contains_key(VIA) {
        return Ok(());
    }
    let own = own();
    let mut hops = headers.get_all(VIA).into_iter();
    // A proxy in between may have put all names into one line.
    let is_back = hops.any(|hop| {
        hop.as_bytes()
            .split(|byte| *byte == b',')
            .any(|hop| hop.trim_ascii() == own.as_bytes())
    });
    if !is_back {
        return Ok(());
    }
    let message = "this replica, or another one of its cluster, sent this request itself: one of the workers is a \
                   replica, or asks one";
    Err(ApiError::new(ErrorKind::Loop, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_of_one_cluster_have_one_name_and_others_another() {
        let name = |cluster, authorities: &[&[u8]]| name_of(cluster, authorities.iter().copied());
        let ours = name("c", &[b"one"]);
        assert_eq!(ours, name("c", &[b"one"]));
        assert_ne!(ours, name("d", &[b"one"]));
        assert_ne!(ours, name("c", &[b"two"]));
        assert_eq!(name("c", &[b"one", b"two"]), name("c", &[b"two", b"one"]));
    }

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
