//! A frame of our own planes between replicas.

use grapevine_gossip::wire;

/// The bytes of one frame. They are also tried with a right checksum, behind which nothing but the codec guards.
///
/// # Panics
/// What was read cannot be written, or reads back differently.
pub fn frame(data: &[u8]) {
    read(data);
    read(&with_checksum(data));
}

fn read(data: &[u8]) {
    let Ok(received) = wire::decode(data) else {
        return;
    };
    let Some(message) = received.message else {
        return;
    };
    let mut written = Vec::new();
    let header = received.header;
    wire::encode(&mut written, header.generation, header.seq, &message)
        .expect("it was read from a frame");
    let again = wire::decode(&written).expect("it was just written");
    assert_eq!(again.refused, 0, "what was accepted once is accepted again");
    let again = again.message.expect("a known kind");
    assert_eq!(format!("{message:?}"), format!("{again:?}"));
}

/// Length and checksum as a sender would have written them.
fn with_checksum(data: &[u8]) -> Vec<u8> {
    use grapevine_gossip::frame::HEADER_BYTES;

    let mut bytes = data.to_vec();
    bytes.resize(bytes.len().max(HEADER_BYTES + 4), 0);
    let body = bytes.len() - HEADER_BYTES - 4;
    let length = u32::try_from(body).unwrap_or(u32::MAX).to_le_bytes();
    bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&length);
    let sum = crc32fast::hash(&bytes[..HEADER_BYTES + body]);
    bytes[HEADER_BYTES + body..].copy_from_slice(&sum.to_le_bytes());
    bytes
}
