//! Credentials of workers that register themselves: each is good for one worker.
//!
//! A message authentication code of the worker's id (HMAC-SHA256, RFC 2104) under the cluster's secret, so that no
//! replica has to know the workers beforehand, and every replica checks for itself.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use grapevine_gossip::worker::WorkerId;
use ring::hmac;

use crate::config::Secret;

/// What every credential begins with, so that people and scanners of secrets recognise it.
const PREFIX: &str = "gvw1_";

/// Makes and checks credentials.
#[derive(Debug)]
pub struct Credentials(hmac::Key);

impl Credentials {
    /// Those of this secret.
    pub fn new(secret: &Secret) -> Self {
        let secret = secret.reveal().as_bytes();
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// The credential with which this worker, and no other, is registered, renewed, drained and removed.
    pub fn of(&self, worker: &WorkerId) -> String {
        let tag = hmac::sign(&self.0, worker.as_str().as_bytes());
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(tag))
    }

    /// Whether it is this worker's. Takes the same time for every wrong one.
    pub fn is_of(&self, worker: &WorkerId, credential: &[u8]) -> bool {
        let Some(encoded) = credential.strip_prefix(PREFIX.as_bytes()) else {
            return false;
        };
        let tag = URL_SAFE_NO_PAD.decode(encoded).unwrap_or_default();
        hmac::verify(&self.0, worker.as_str().as_bytes(), &tag).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> WorkerId {
        name.parse().expect("an id")
    }

    fn of_secret(text: &str) -> Credentials {
        Credentials::new(&Secret::new(text).expect("a secret"))
    }

    #[test]
    fn a_credential_is_good_for_one_worker() {
        let credentials = of_secret("sixteen-characters");
        let of_one = credentials.of(&id("w1"));
        assert!(of_one.starts_with("gvw1_"), "{of_one}");
        assert!(credentials.is_of(&id("w1"), of_one.as_bytes()));
        assert!(!credentials.is_of(&id("w2"), of_one.as_bytes()));
        let others = of_secret("another-secret");
        assert!(!others.is_of(&id("w1"), of_one.as_bytes()));
        for wrong in [
            "",
            "gvw1_",
            "gvw1_!",
            &of_one[5..],
            &of_one[..of_one.len() - 1],
        ] {
            assert!(!credentials.is_of(&id("w1"), wrong.as_bytes()), "{wrong:?}");
        }
    }
}
