//! Sessions of people who gave the token. They live here alone: the browser holds a number drawn at random.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::time::Instant;

use crate::config::Secret;

/// Sessions at once; with one more the one that was used longest ago ends.
const SESSIONS_MAX: usize = 64;
/// A session ends so long after it began.
const LASTS: Duration = Duration::from_secs(12 * 60 * 60);
/// And so long after it was used.
const RESTS: Duration = Duration::from_secs(60 * 60);
/// Bytes of the number that stands for a session.
const ID_BYTES: usize = 32;

type Sum = [u8; 32];

/// The sessions that are open, by the sum of their ids: what is looked up is no secret.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<HashMap<Sum, Session>>);

#[derive(Debug)]
struct Session {
    /// Of the token that opened it: another token ends it.
    token: Sum,
    began: Instant,
    used: Instant,
}

impl Session {
    fn is_open(&self, now: Instant) -> bool {
        now.duration_since(self.began) < LASTS && now.duration_since(self.used) < RESTS
    }
}

impl Sessions {
    /// Opens one, and returns its id. None without random numbers.
    pub(super) fn open(&self, token: &Secret) -> Option<String> {
        let mut id = [0; ID_BYTES];
        SystemRandom::new().fill(&mut id).ok()?;
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let now = Instant::now();
        let mut sessions = self.0.lock();
        sessions.retain(|_, session| session.is_open(now));
        if sessions.len() >= SESSIONS_MAX {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.used);
            let oldest = oldest.map(|(sum, _)| *sum);
            oldest.and_then(|sum| sessions.remove(&sum));
        }
        let session = Session {
            token: sum_of(token.reveal()),
            began: now,
            used: now,
        };
        sessions.insert(sum_of(&id), session);
        Some(id)
    }

    /// Whether it is open; it counts as used.
    pub(super) fn is_known(&self, id: &str, token: &Secret) -> bool {
        let now = Instant::now();
        let mut sessions = self.0.lock();
        let Some(session) = sessions.get_mut(&sum_of(id)) else {
            return false;
        };
        let is_open = session.is_open(now) && session.token == sum_of(token.reveal());
        session.used = now;
        if !is_open {
            sessions.remove(&sum_of(id));
        }
        is_open
    }

    /// Ends it.
    pub(super) fn end(&self, id: &str) {
        self.0.lock().remove(&sum_of(id));
    }
}

fn sum_of(text: &str) -> Sum {
    let digest = digest(&SHA256, text.as_bytes());
    let mut sum = Sum::default();
    sum.copy_from_slice(digest.as_ref());
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Secret {
        Secret::new(text).expect("a secret")
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_by_itself_and_with_its_token() {
        let sessions = Sessions::default();
        let good = token("sixteen-characters");
        let open = || sessions.open(&good).expect("random numbers");
        let id = open();
        assert_ne!(id, open());
        assert!(sessions.is_known(&id, &good) && !sessions.is_known("", &good));
        assert!(!sessions.is_known(&id, &token("another-sixteen-ch")));
        assert!(!sessions.is_known(&id, &good), "it ended with its token");
        let id = open();
        sessions.end(&id);
        assert!(!sessions.is_known(&id, &good));
        let (unused, used) = (open(), open());
        for _ in 0..23 {
            tokio::time::advance(RESTS / 2).await;
            assert!(sessions.is_known(&used, &good));
        }
        assert!(!sessions.is_known(&unused, &good));
        tokio::time::advance(RESTS / 2).await;
        assert!(!sessions.is_known(&used, &good), "twelve hours are over");
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_is_bounded_and_the_one_unused_for_longest_goes() {
        let sessions = Sessions::default();
        let good = token("sixteen-characters");
        let mut ids = Vec::new();
        for _ in 0..SESSIONS_MAX + 1 {
            tokio::time::advance(Duration::from_secs(1)).await;
            ids.push(sessions.open(&good).expect("random numbers"));
            assert!(sessions.is_known(&ids[0], &good));
        }
        assert_eq!(sessions.0.lock().len(), SESSIONS_MAX);
        assert!(!sessions.is_known(&ids[1], &good));
        assert!(sessions.is_known(&ids[2], &good));
    }
}
