//! Whether a request has been here before, so that a replica that was added as a worker is no endless loop.
//!
//! A gateway names itself in `Via` of what it sends on (RFC 9110, section 7.6.3), checks of workers included. All
//! replicas of a cluster have one name: a replica that is a worker of its cluster fails the checks of every replica, and
//! one that is asked in a circle refuses what the cluster sent itself.

use std::sync::OnceLock;

use http::Version;
use http::header::{HeaderMap, HeaderValue, VIA};
use ring::digest;

use crate::api::error::{ApiError, ErrorKind};

static OWN: OnceLock<Name> = OnceLock::new();

/// A name, as a line of `Via`, by the version of the request that was received.
#[derive(Debug, PartialEq)]
struct Name {
    over_http10: HeaderValue,
    over_http11: HeaderValue,
    over_http2: HeaderValue,
}

impl Name {
    fn new(number: u64) -> Self {
        let over = |version| {
            let line = format!("{version} grapevine-{number:016x}");
            HeaderValue::try_from(line).expect("plain ASCII")
        };
        Self {
            over_http10: over("1.0"),
            over_http11: over("1.1"),
            over_http2: over("2"),
        }
    }

    /// Whether a hop has it, over whatever version.
    fn is_of(&self, hop: &[u8]) -> bool {
        name_in(hop) == name_in(self.over_http11.as_bytes())
    }
}

/// The second word of a hop, behind the version.
fn name_in(hop: &[u8]) -> Option<&[u8]> {
    let words = hop.split(u8::is_ascii_whitespace);
    words.filter(|word| !word.is_empty()).nth(1)
}

/// Takes the name of a cluster: replicas that trust the same authorities and are of the cluster with this id are in one.
/// To be called before anything is sent; who never calls it has a name that no other process has.
pub(crate) fn join<'a>(cluster: &str, authorities: impl Iterator<Item = &'a [u8]>) {
    // The first name stays: what was sent under it must be known when it is back.
    let _ = OWN.get_or_init(|| name_of(cluster, authorities));
}

fn name_of<'a>(cluster: &str, authorities: impl Iterator<Item = &'a [u8]>) -> Name {
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
    Name::new(u64::from_be_bytes(*start))
}

fn own() -> &'static Name {
    OWN.get_or_init(|| Name::new(rand::random()))
}

/// Adds this process to those that a request came through; `received`: the version in which it came here, or in which
/// it is made.
pub(crate) fn sign(headers: &mut HeaderMap, received: Version) {
    let own = own();
    let line = match received {
        Version::HTTP_2 => &own.over_http2,
        Version::HTTP_10 => &own.over_http10,
        _ => &own.over_http11,
    };
    headers.append(VIA, line.clone());
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
    let is_back = hops.any(|line| {
        let mut hops = line.as_bytes().split(|byte| *byte == b',');
        hops.any(|hop| own.is_of(hop))
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
        for (version, said) in [
            (Version::HTTP_10, "1.0 grapevine-"),
            (Version::HTTP_11, "1.1 grapevine-"),
            (Version::HTTP_2, "2 grapevine-"),
        ] {
            let mut sent = headers.clone();
            sign(&mut sent, version);
            let line = sent.get_all(VIA).iter().next_back().expect("signed");
            assert!(line.as_bytes().starts_with(said.as_bytes()), "{line:?}");
            assert_eq!(
                check(&sent).map_err(|error| error.kind),
                Err(ErrorKind::Loop)
            );
        }
        let line = own().over_http2.to_str().expect("ASCII");
        let joined = format!("1.1 a ,HTTP/{line} (x)\t, 1.1 b");
        headers.append(VIA, joined.parse().expect("a value"));
        assert_eq!(
            check(&headers).map_err(|error| error.kind),
            Err(ErrorKind::Loop)
        );
    }
}
