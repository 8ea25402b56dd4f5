//! Answers that never end: what an honest replica takes of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use grapevine_gossip::hlc::Stamp;
use grapevine_gossip::registry::Entry;
use grapevine_gossip::wire::{Message, Snapshot};
use grapevine_gossip::worker::{RawWorker, Source, WorkerSpec};

use super::rogue::now_ms;
use super::scene::{Honest, Scene, resident_kib};

/// Frames of 512 entries; without a limit of entries all of them would be kept until the last one has come.
const FRAMES: usize = 400;
/// Answers of that kind, before one that may be used.
const LIES: usize = 3;

/// A replica that starts asks whoever is connected for everything. One of them answers with four registries' entries, small
/// on the wire and thirty times as large in memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_more_entries_than_any_registry_is_not_read_on() {
    let mut scene = Scene::new().await;
    let rogue = scene.rogue("liar");
    let spec = WorkerSpec::new(RawWorker {
        models: (0..64u8)
            .map(|model| char::from(b'0' + model).to_string())
            .collect(),
        ..RawWorker::at("http://w:1")
    });
    let spec = Arc::new(spec.expect("valid"));
    let entry = move |n: usize| Entry {
        id: format!("w{n}").parse().expect("an id"),
        source: Source::Admin,
        stamp: Stamp::at_ms(now_ms()),
        writer: Some("liar".parse().expect("an id")),
        spec: Some(spec.clone()),
        unused_ms: 0,
    };
    let piece = Snapshot {
        entries: (0..512).map(entry).collect(),
        load: None,
        last: false,
        alone: Some(Duration::ZERO),
    };
    let whole = Snapshot {
        entries: Vec::new(),
        last: true,
        ..piece.clone()
    };
    let asked = AtomicUsize::new(0);
    rogue.answers(Arc::new(move |question| {
        let all = matches!(question, Message::SnapshotRequest);
        all.then(|| match asked.fetch_add(1, Ordering::Relaxed) {
            0..LIES => vec![Message::Snapshot(piece.clone()); FRAMES],
            _ => vec![Message::Snapshot(whole.clone())],
        })
    }));
    let before = resident_kib();
    // The liar is the only one that it knows.
    let newcomer = Honest::start(&scene.authority, "h4", vec![rogue.address().to_string()]).await;
    let grown = resident_kib() - before;
    let cut = newcomer.sum("gossip_dropped_total", "answer_too_long");
    println!("{cut} answers not read on, memory {grown:+} KiB");
    assert_eq!(cut, LIES as f64);
    assert_eq!(newcomer.refused("malformed"), 0.0, "no lie for certain");
    assert!(newcomer.agent.view().workers().is_empty());
    drop(newcomer);
    scene.still_works("answers without an end").await;
}
