//! Ids of stored responses that carry their tenant, so that every replica knows whose one is, also after all have
//! restarted, and nothing has to be sent or remembered. Pure.
//!
//! vLLM and SGLang take `request_id` of `POST /v1/responses` for the id of the response, so the router chooses one for a
//! caller with a key: 16 random bytes, and behind them 8 of the SHA-256 of these and the tenant's number. There is no
//! secret in it. Nobody gains by making such an id up: a worker has only those that were chosen here, and a client that
//! brings one of this form is refused.

use std::fmt::Write as _;

use ring::digest::{SHA256, digest};

/// What they begin with: vLLM's own beginning, and the form of what follows.
const BEGINS: &str = "resp_g1";
/// Bytes that tell one from another.
const RANDOM_BYTES: usize = 16;
/// Bytes that tell the tenant.
const TAG_BYTES: usize = 8;

/// A new id of this tenant's.
pub(super) fn new(tenant: u64) -> String {
    of(rand::random(), tenant)
}

/// Whether an id has this form.
pub(super) fn has_form(id: &str) -> bool {
    random_in(id).is_some()
}

/// Whether it is this tenant's; none for an id of another form.
pub(super) fn is_of(id: &str, tenant: u64) -> Option<bool> {
    random_in(id).map(|random| of(random, tenant) == id)
}

fn of(random: [u8; RANDOM_BYTES], tenant: u64) -> String {
    let hashed = [&b"grapevine response 1"[..], &random, &tenant.to_be_bytes()].concat();
    let hash = digest(&SHA256, &hashed);
    let mut id = BEGINS.to_owned();
    for byte in random.iter().chain(&hash.as_ref()[..TAG_BYTES]) {
        write!(id, "{byte:02x}").expect("a text takes it");
    }
    id
}

fn random_in(id: &str) -> Option<[u8; RANDOM_BYTES]> {
    let digits = id.strip_prefix(BEGINS)?;
    let is_plain = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if digits.len() != 2 * (RANDOM_BYTES + TAG_BYTES) || !digits.bytes().all(is_plain) {
        return None;
    }
    let mut random = [0; RANDOM_BYTES];
    for (at, byte) in random.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(random)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replicas of all releases have to read it alike.
    #[test]
    fn an_id_is_the_same_in_every_release() {
        let random = std::array::from_fn(|at| at as u8);
        let id = of(random, 0x0102_0304_0506_0708);
        assert_eq!(
            id,
            "resp_g1000102030405060708090a0b0c0d0e0f5820c21ed6d55fcc"
        );
        assert_eq!(is_of(&id, 0x0102_0304_0506_0708), Some(true));
        assert_eq!(is_of(&id, 7), Some(false));
    }

    #[test]
    fn an_id_is_its_tenants_and_no_others() {
        let (mine, again) = (new(1), new(1));
        assert_ne!(mine, again);
        assert!(crate::api::endpoint::is_id(&mine));
        for (id, tenant, expected) in [
            (mine.as_str(), 1, Some(true)),
            (&mine, 2, Some(false)),
            // Another tag, of the same random bytes.
            (&format!("{}{}", &mine[..39], &again[39..]), 1, Some(false)),
            (&mine[..mine.len() - 1], 1, None),
            (&format!("{mine}0"), 1, None),
            (&mine.to_uppercase(), 1, None),
            (&mine.replacen("g1", "g2", 1), 1, None),
            ("resp_0123456789abcdef0123456789abcdef", 1, None),
            ("", 1, None),
        ] {
            assert_eq!(is_of(id, tenant), expected, "{id}");
            assert_eq!(has_form(id), expected.is_some(), "{id}");
        }
    }
}
