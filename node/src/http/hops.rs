//! Whether a request has been here before, so that a replica that was added as a worker is no endless loop.
//!
//! A gateway names itself in `Via` of what it sends on (RFC 9110, section 7.6.3), checks of workers included. All
//! replicas of a cluster have one name: a replica that is a worker of its cluster fails the checks of every replica, and
//! one that is asked in a circle refuses what the cluster sent itself.
//!
//! The name is that of an authority. While one authority replaces the other, some replicas sign with the name of the new
//! one and others with that of the old one, so a process knows the names of all that it has trusted since it began.

use std::sync::LazyLock;

use arc_swap::ArcSwap;
use http::Version;
use http::header::{HeaderMap, HeaderValue, VIA};
use ring::digest;

use crate::api::error::{ApiError, ErrorKind};

/// Of a process that joins no cluster: a name that no other process has.
static KNOWN: LazyLock<ArcSwap<Names>> =
    LazyLock::new(|| ArcSwap::from_pointee(Names(vec![Name::new(rand::random())])));

/// The names of this cluster, at least one. The first one signs.
#[derive(Debug, PartialEq)]
struct Names(Vec<Name>);

impl Names {
    /// With these in front; without any, the same. Former names stay: others, and what is on its way, have them still.
    fn joined_by(&self, now: &[Name]) -> Self {
        let former = self.0.iter().filter(|name| !now.contains(name));
        let all = now.iter().chain(former).take(NAMES_MAX);
        Self(all.cloned().collect())
    }

    fn own(&self) -> &Name {
        &self.0[0]
    }

    /// Whether a hop has one of them.
    fn has(&self, hop: &[u8]) -> bool {
        self.0.iter().any(|name| name.is_of(hop))
    }
}

/// A name, as a line of `Via`, by the version of the request that was received.
#[derive(Debug, Clone, PartialEq)]
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

/// Takes the names of a cluster: replicas that trust one of these authorities and are of the cluster with this id are in
/// it. To be called before anything is sent, and whenever other authorities are trusted; the first one signs.
pub(crate) fn join<'a>(cluster: &str, authorities: impl Iterator<Item = &'a [u8]>) {
    let now: Vec<_> = authorities
        .map(|authority| name_of(cluster, authority))
        .collect();
    KNOWN.rcu(|known| known.joined_by(&now));
}

fn name_of(cluster: &str, authority: &[u8]) -> Name {
    let mut hash = digest::Context::new(&digest::SHA256);
    hash.update(cluster.as_bytes());
    hash.update(authority);
    let hash = hash.finish();
    let (start, _) = hash.as_ref().split_first_chunk().expect("32 bytes");
    Name::new(u64::from_be_bytes(*start))
}

/// Adds this process to those that a request came through; `received`: the version in which it came here, or in which
/// it is made.
pub(crate) fn sign(headers: &mut HeaderMap, received: Version) {
    let known = KNOWN.load();
    let own = known.own();
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
    let known = KNOWN.load();
    let mut hops = headers.get_all(VIA).into_iter();
    // A proxy in between may have put all names into one line.
    let is_back = hops.any(|line| {
        let mut hops = line.as_bytes().split(|byte| *byte == b',');
        hops.any(|hop| known.has(hop))
    });
    if !is_back {
        return Ok(());
    }
    let message = "this replica, or another one of its cluster, sent this request itself: one of the workers is a \
                   replica, or asks one";
    Err(ApiError::new(ErrorKind::Loop, message))
}

/// Of a process whose authorities are replaced more often than anybody replaces them, the oldest ones are forgotten.
const NAMES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_of_one_cluster_have_one_name_and_others_another() {
        let ours = name_of("c", b"one");
        assert_eq!(ours, name_of("c", b"one"));
        assert_ne!(ours, name_of("d", b"one"));
        assert_ne!(ours, name_of("c", b"two"));
    }

    /// One process goes through all steps, one starts afterwards, and one has only the old authority yet.
    #[test]
    fn replicas_know_each_other_while_one_authority_replaces_the_other() {
        let [old, new] = [b"old", b"new"].map(|authority| name_of("c", authority));
        let trusting = |names: &[&Name]| Names(names.iter().map(|&name| name.clone()).collect());
        let knows = |one: &Names, other: &Names| {
            let line = other.own().over_http11.as_bytes().to_vec();
            one.has(&line)
        };
        let behind = trusting(&[&old]);
        // Its certificate is of the old authority until it gets another one.
        let mut steps = vec![trusting(&[&old])];
        for now in [vec![&old, &new], vec![&new, &old], vec![&new]] {
            let now: Vec<_> = now.into_iter().cloned().collect();
            let next = steps.last().expect("the first").joined_by(&now);
            assert_eq!(next.own(), &now[0]);
            steps.push(next);
        }
        let fresh = trusting(&[&new]);
        for step in &steps {
            assert!(knows(step, &behind) && knows(step, step));
        }
        assert!(knows(&behind, &steps[1]), "the bundle comes to one by one");
        assert!(knows(&fresh, &steps[2]) && knows(&fresh, &steps[3]));
        assert!(knows(&steps[1], &fresh), "both are known there");
        assert_eq!(steps[3].joined_by(&[]), steps[3]);
        let many: Vec<_> = (0..100).map(Name::new).collect();
        assert_eq!(steps[3].joined_by(&many).0.len(), NAMES_MAX);
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
        let known = KNOWN.load();
        let line = known.own().over_http2.to_str().expect("ASCII");
        let joined = format!("1.1 a ,HTTP/{line} (x)\t, 1.1 b");
        headers.append(VIA, joined.parse().expect("a value"));
        assert_eq!(
            check(&headers).map_err(|error| error.kind),
            Err(ErrorKind::Loop)
        );
    }
}
