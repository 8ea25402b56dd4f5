//! Timings and limits of every connection, and how long to pause between attempts.

use std::sync::Arc;
use std::time::Duration;

use quinn::{IdleTimeout, TransportConfig, VarInt};

use super::window::Floored;
use crate::frame::FRAME_BYTES_MAX;
use crate::registry::MERGED_ENTRIES_MAX;
use crate::wire::REGISTRY_ANSWER_FRAMES;

/// Settings of both roles.
pub(super) fn quic() -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config
        .max_idle_timeout(Some(
            IdleTimeout::try_from(IDLE).expect("5 s fit a VarInt of milliseconds"),
        ))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .initial_rtt(INITIAL_RTT)
        .congestion_controller_factory(Arc::new(Floored::default()))
        .max_concurrent_uni_streams(VarInt::from_u32(UNI_STREAMS))
        .max_concurrent_bidi_streams(VarInt::from_u32(BI_STREAMS))
        .stream_receive_window(VarInt::from_u32(FRAME_BYTES_MAX as u32))
        .receive_window(VarInt::from_u32(CONNECTION_BYTES))
        .send_window(u64::from(CONNECTION_BYTES))
        .datagram_receive_buffer_size(Some(DATAGRAM_BYTES))
        .datagram_send_buffer_size(DATAGRAM_BYTES);
    Arc::new(config)
}

/// Pause before the next attempt to reach an address that has not answered for `silent`.
///
/// A hundredth of the silence: someone missed for a minute is tried again within 0.6 s, so that a
/// healed partition is noticed within two seconds, and someone gone for good costs one attempt every
/// [`PAUSE_MAX`]. `draw` (0 to 1) spreads the attempts of many replicas by half up and down.
pub(super) fn pause(silent: Duration, draw: f64) -> Duration {
    (silent / 100)
        .clamp(PAUSE_MIN, PAUSE_MAX)
        .mul_f64(0.5 + draw)
}

/// A connection without a packet for this long is over.
pub(super) const IDLE: Duration = Duration::from_secs(5);
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Assumed before the first measurement; the library's 333 ms make a lost first packet expensive.
const INITIAL_RTT: Duration = Duration::from_millis(100);
const PAUSE_MIN: Duration = Duration::from_millis(100);
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Until a process that was refused because another one runs under its id asks again.
pub(super) const TWIN_PAUSE: Duration = Duration::from_secs(1);
/// How long a connection lasts at least before it is replaced by another one under new certificates.
pub(super) const RENEW_PAUSE: Duration = Duration::from_secs(1);

/// From the first packet to the peer's HELLO-ACK. QUIC alone would wait for the idle timeout.
pub(super) const CONNECT: Duration = Duration::from_secs(1);
/// One message on a stream, from opening to its last byte.
pub(super) const STREAM: Duration = Duration::from_secs(2);
/// One request and its whole answer.
pub(super) const REQUEST: Duration = Duration::from_secs(5);
/// Streams that one peer may have open towards us.
const UNI_STREAMS: u32 = 64;
const BI_STREAMS: u32 = 16;
/// Bytes that each stream counts for besides its own, so that none is free.
pub(super) const STREAM_COST: usize = 512;
/// Bytes that a stream counts for besides that was reset before its end: up to a whole frame of it may have come, which
/// nobody reads. An honest sender gives up a message after [`STREAM`]: at worst each of [`UNI_STREAMS`] in that time, a
/// quarter of what a peer may send.
pub(super) const RESET_COST: usize = 64 << 10;
/// Accepted connections of one peer: one in use, others while it asks as a seed or reconnects.
pub(super) const CONNECTIONS_PER_PEER: usize = 4;
/// Bytes on their way in one connection.
const CONNECTION_BYTES: u32 = 2 << 20;
const DATAGRAM_BYTES: usize = 128 << 10;
/// Open connections with peers, in both directions together: two for each of 256 replicas, and some that are replaced.
pub(super) const CONNECTIONS: usize = 600;
/// Everything that QUIC remembers, those that ended a moment ago among it. It keeps them for as long as packets of them may
/// come, on a slow path several times as long as a handshake takes, which anybody may begin: so they must not count as
/// peers. More than end in that time of all handshakes that may be under way.
pub(super) const CONNECTIONS_REMEMBERED: usize = 4096;
/// Messages waiting for one peer; chitchat sends a handful each round.
pub(super) const URGENT_QUEUE: usize = 32;
/// Frames of evidence waiting for one peer; the rest waits in the log, which is shared by all peers.
pub(super) const BULK_QUEUE: usize = 16;
/// Parts of peer states waiting for one peer: the six of one sending.
pub(super) const LATEST_QUEUE: usize = 6;
/// A datagram that fits every path (1,162 B at the guaranteed 1,200), with a margin.
pub(crate) const DATAGRAM_FRAME_MAX: usize = 1150;
/// Longest message of chitchat: it fills 65,507 bytes and miscounts its header by 3.
pub(crate) const CHITCHAT_BYTES_MAX: usize = 66_000;
/// Bytes of one answer: the most frames of the registry, each full with 128 KiB and its sums, and a whole frame on top.
pub(super) const ANSWER_BYTES: usize = REGISTRY_ANSWER_FRAMES * (129 << 10) + FRAME_BYTES_MAX;
/// Registry entries of one answer: no registry holds more. The frames may be far more than their bytes where entries are
/// many and short, so neither the number of frames nor that of bytes bounds what they become.
pub(super) const ANSWER_ENTRIES: usize = MERGED_ENTRIES_MAX;
/// How long a proven peer that does not answer is still dialled: as long as tombstones live.
pub(super) const PROVEN_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a dial hint that never answered is tried, and then not tried again; the same for replicas that left.
/// Longer than others still report the dead (half of chitchat's grace of 60 s).
pub(super) const HINT_FOR: Duration = Duration::from_secs(40);
/// Dial hints that are tried at once; proven peers always get in.
pub(super) const HINTED: usize = 32;
/// Replicas that are remembered as not there.
pub(super) const ABSENT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_silence_and_stay_bounded() {
        let at = |seconds| pause(Duration::from_secs(seconds), 0.5);
        assert_eq!(at(0), PAUSE_MIN);
        assert_eq!(at(60), Duration::from_millis(600));
        assert_eq!(at(86_400), PAUSE_MAX);
        assert_eq!(pause(Duration::ZERO, 0.0), PAUSE_MIN / 2);
        assert_eq!(pause(Duration::MAX, 1.0), PAUSE_MAX.mul_f64(1.5));
    }
}
