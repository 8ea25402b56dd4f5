//! A worker's KV events, from the payload to the index.

use grapevine_kv_events::batch::{Batch, Event, Limits};
use grapevine_kv_events::index::{self, Index};
use grapevine_kv_events::publisher::Publisher;

/// Small, so that inputs reach them.
const LIMITS: Limits = Limits {
    payload_bytes: 4_096,
    events: 64,
    hashes: 128,
    tokens: 1_024,
    text_bytes: 64,
};
const INDEX_BYTES: usize = 16_384;

/// The payload of one message.
///
/// # Panics More was read, or is kept, than the limits allow.
pub fn kv_events(data: &[u8]) {
    let Ok(batch) = Batch::read(data, &LIMITS) else {
        return;
    };
    let sizes = batch.events.iter().map(|event| match event {
        Event::Stored(event) => (event.hashes.capacity(), event.tokens.capacity()),
        Event::Removed(event) => (event.hashes.capacity(), 0),
        Event::Cleared => (0, 0),
    });
    let (hashes, tokens) = sizes.fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1));
    assert!(batch.events.capacity() <= LIMITS.events);
    assert!(hashes <= LIMITS.hashes && tokens <= LIMITS.tokens);
    let limits = index::Limits {
        bytes: INDEX_BYTES,
        ..index::Limits::default()
    };
    let mut index = Index::new(limits, 7);
    let mut publisher = Publisher::default();
    publisher.apply(&batch, &mut index);
    publisher.apply(&batch, &mut index);
    // A second copy is a note beside the table, which has a limit of its own.
    assert!(index.bytes() <= INDEX_BYTES + LIMITS.hashes * 2 * 48);
    publisher.forget(&mut index);
    index.sweep(256);
    assert_eq!(
        index.blocks(),
        0,
        "blocks are left of a publisher that was forgotten"
    );
}
