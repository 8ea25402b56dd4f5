//! A frame of our own planes between replicas.

use grapevine_gossip::wire;

/// The bytes of one frame. They are also tried with a right checksum, behind which only the codec checks
/// them.
///
/// # Panics A message that was read cannot be written, or is written differently after it was read back.
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
    let header = received.header;
    let write = |message| {
        let mut bytes = Vec::new();
        wire::encode(&mut bytes, header.generation, header.seq, message)
            .expect("it was read from a frame");
        bytes
    };
    let written = write(&message);
    let again = wire::decode(&written).expect("it was just written");
    assert_eq!(again.refused, 0, "what was accepted once is accepted again");
    let again = again.message.expect("a known kind");
    // Slots at zero may be written or left out: which form is shorter depends on the other slots.
    let has_load = matches!(message, wire::Message::Load(_) | wire::Message::Snapshot(_));
    assert!(
        has_load || written == write(&again),
        "{message:?} became {again:?}"
    );
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
