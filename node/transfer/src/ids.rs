//! Ids of a pair: one random number becomes whatever id its connector needs.

/// Markers of the addresses that vLLM's engines read out of a request id.
const PEER_MARKERS: [&str; 2] = ["___prefill_addr_", "___decode_addr_"];

/// What the ids of one try of one pair are made of. The same for both legs; another try has another random number.
#[derive(Clone, Copy, Debug)]
pub struct Ids<'a> {
    /// The request's id: the client's, or the router's.
    pub request_id: &'a str,
    /// Drawn for this try.
    pub random: u128,
}

/// Whether an id names the addresses of engines, as P2P NCCL and MoRI-IO read them. A client's id that does would send
/// blocks to an address of its choice, so it is refused where workers have roles.
pub fn names_peers(request_id: &str) -> bool {
    PEER_MARKERS.iter().any(|mark| request_id.contains(mark))
}

impl Ids<'_> {
    /// 32 hexadecimal digits of a random UUID (version 4).
    pub(crate) fn hex(&self) -> String {
        let version = (self.random & !(0xf << 76)) | (0x4 << 76);
        let variant = (version & !(0x3 << 62)) | (0x2 << 62);
        format!("{variant:032x}")
    }

    /// The same UUID with its dashes.
    pub(crate) fn uuid(&self) -> String {
        let hex = self.hex();
        let parts = [
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..],
        ];
        parts.join("-")
    }

    /// A transfer's name for Mooncake, and for NIXL where the prefill worker pushes.
    pub(crate) fn transfer(&self) -> String {
        format!("xfer-{}", self.uuid())
    }

    /// The request's id, and what no other try of any request has: engines that match their legs by request id must not
    /// depend on ids that clients choose.
    pub(crate) fn unique_request(&self) -> String {
        format!("{}-{}", self.request_id, self.hex())
    }

    /// The request id that tells both engines each other's address. In place of the request's own, which an engine could
    /// read as part of an address.
    pub(crate) fn with_peers(&self, prefill: &str, decode: &str) -> String {
        format!(
            "___prefill_addr_{prefill}___decode_addr_{decode}_{}",
            self.hex()
        )
    }

    /// A room of SGLang's: 0 to 2^63 - 1. With several ranks SGLang's prefill computes it at the room's remainder, so
    /// the room is one whose remainder is `rank`, if that is given.
    pub(crate) fn room(&self, ranks: u32, rank: Option<u32>) -> u64 {
        // The low 63 bits; the cast drops the others.
        let room = (self.random as u64) >> 1;
        let ranks = u64::from(ranks.max(1));
        match rank {
            // Rounded down first, so the sum stays below 2^63.
            Some(rank) if u64::from(rank) < ranks && ranks > 1 => {
                let whole = room - room % ranks;
                let room = whole + u64::from(rank);
                if room > i64::MAX as u64 {
                    room - ranks
                } else {
                    room
                }
            }
            _ => room,
        }
    }
}
