//! What one replica tells, as another one takes it.

use std::time::Duration;

use grapevine_kv_events::handover::{self, Blocks, Page, Piece, Question};
use grapevine_kv_events::texts::{Speaker, TextName};
use grapevine_kv_events::{BlockHash, Tier};
use tokio::time::Instant;

use super::super::tests::Scene;
use super::taking::Taking;
use super::{Failure, telling};
use crate::config::KvEventsConfig;

fn told(from: &Scene, question: &Question) -> Vec<Vec<u8>> {
    match question {
        Question::Engines(after) => telling::engines(from.caches(), after.as_ref()),
        Question::Texts(after) => telling::texts(from.caches(), *after),
    }
}

fn in_time() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

/// All that a replica knows, told to another one.
fn hand_over(from: &Scene, to: &Scene) {
    let mut taking = Taking::default();
    let mut question = Some(Question::Engines(None));
    while let Some(asked) = question {
        let frames = told(from, &asked);
        let next = taking.take(to.caches(), &frames, in_time());
        question = next.expect("a page");
    }
}

fn engine(number: u32) -> Piece {
    Piece::Engine(handover::Engine {
        worker: format!("w{number}"),
        rank: 0,
        number,
        kind: number,
        mark: (0, 0),
        is_whole: true,
        group: None,
        block_tokens: 16,
    })
}

fn blocks(blocks: &[u64]) -> Piece {
    let blocks: Vec<_> = blocks.iter().copied().map(BlockHash).collect();
    Piece::Blocks(0, Blocks::from(blocks.as_slice()))
}

fn page(pieces: impl IntoIterator<Item = Piece>) -> Vec<Vec<u8>> {
    let mut page = Page::default();
    pieces.into_iter().for_each(|piece| page.push(&piece));
    page.into_frames(None)
}

#[test]
fn engines_that_the_peer_does_not_hear_any_more_make_no_kinds_one() {
    let peer = Scene::of(3);
    let engines = peer.begin();
    engines.iter().for_each(|engine| engine.begin(true));
    // What the first and the last one taught before a gap.
    peer.tell(&engines[0], 1, None, &[1, 2, 3]);
    peer.tell(&engines[2], 2, None, &[11, 12, 13]);
    for (engine, block) in engines.iter().zip([100, 200, 300]) {
        peer.lose(engine);
        peer.tell(engine, block, None, &[block]);
    }
    let replica = Scene::of(3);
    hand_over(&peer, &replica);
    assert!(replica.knows(1) && replica.knows(2));
    let engines = replica.begin();
    replica.tell(&engines[0], 3, Some(3), &[4]);
    replica.tell(&engines[1], 4, Some(3), &[5]);
    replica.tell(&engines[2], 5, Some(13), &[14]);
    assert!(replica.are_alike(&engines[0], &engines[1]));
    assert!(!replica.are_alike(&engines[0], &engines[2]));
    // So that the odd one is found.
    replica.contradict([&engines[0], &engines[2]]);
    assert_eq!([0, 1, 2].map(|of| replica.is_odd(of)), [false, false, true]);
}

/// A page may take long, and its engine is looked at by others meanwhile.
#[tokio::test]
async fn while_an_engine_is_told_of_its_listener_waits_and_nobody_else() {
    let peer = Scene::of(1);
    let engines = peer.begin();
    engines[0].begin(true);
    peer.tell(&engines[0], 1, None, &[1, 2]);
    let still = engines[0].stands_still();
    let mut changes = std::pin::pin!(engines[0].changes());
    let at_once = tokio::time::timeout(Duration::ZERO, &mut changes).await;
    assert!(at_once.is_err());
    peer.caches().show([]);
    engines[0].stands(true, true, Some(0));
    drop(still);
    drop(changes.await);
}

#[test]
fn no_more_engines_are_taken_than_the_index_may_have() {
    let replica = Scene::of(1);
    let room = replica.caches().index().limits().holders as u32;
    let pieces = (0..room + 10).flat_map(|number| [engine(number), blocks(&[number.into()])]);
    let mut taking = Taking::default();
    let next = taking.take(replica.caches(), &page(pieces), in_time());
    assert_eq!(next.expect("a page"), None);
    let counts = taking.counts();
    let taken = (counts.engines, counts.blocks, counts.left_out);
    assert_eq!(taken, (room as usize, room.into(), 10));
    assert_eq!(replica.caches().offers().len(), room as usize);
    assert_eq!(replica.caches().index().blocks(), room as usize);
    // The next page has no more room.
    let next = taking.take(replica.caches(), &page([engine(room + 10)]), in_time());
    assert_eq!(next.expect("a page"), None);
    assert_eq!(replica.caches().offers().len(), room as usize);
}

#[test]
fn copies_of_what_an_engine_does_not_hold_are_not_taken() {
    let replica = Scene::of(1);
    let mut some = Page::default();
    some.push(&engine(0));
    some.push(&blocks(&[1]));
    some.push_copies(&[
        (Tier::Gpu, BlockHash(1), u32::MAX),
        (Tier::Gpu, BlockHash(2), 1),
        (Tier::Host, BlockHash(1), 1),
    ]);
    let mut taking = Taking::default();
    let next = taking.take(replica.caches(), &some.into_frames(None), in_time());
    assert_eq!(next.expect("a page"), None);
    let offers = replica.caches().offers();
    let holder = offers
        .values()
        .next()
        .and_then(|offer| offer.publisher.holder());
    let index = replica.caches().index();
    let copies: Vec<_> = index.copies(holder.expect("it holds a block")).collect();
    assert_eq!(copies, [(Tier::Gpu, BlockHash(1), 4_096)]);
    assert_eq!(index.blocks(), 1);
}

#[test]
fn what_takes_too_long_or_breaks_off_leaves_no_engine_half_told() {
    let replica = Scene::of(1);
    let caches = replica.caches();
    let one = page([engine(0), blocks(&[1, 2])]);
    let late = Taking::default().take(caches, &one, Instant::now());
    assert!(matches!(late, Err(Failure::Late)));
    assert_eq!((caches.offers().len(), caches.index().blocks()), (0, 0));
    let two = [engine(0), blocks(&[1, 2]), engine(1), blocks(&[3])];
    let mut broken = page(two);
    broken.push(vec![99]);
    let taken = Taking::default().take(caches, &broken, in_time());
    assert!(matches!(taken, Err(Failure::Frame(_))));
    let offered: Vec<_> = caches.offers().keys().cloned().collect();
    assert_eq!(offered, [("w0".into(), 0)]);
    caches.index_mut().sweep(256);
    assert_eq!(caches.index().blocks(), 2);
}

#[test]
fn a_page_of_texts_ends_at_its_size_and_one_run_more() {
    const RUN: u64 = 60_000;
    let config = KvEventsConfig {
        text_blocks: 3_000_000,
        ..KvEventsConfig::default()
    };
    let peer = Scene::with(1, &config);
    for run in 0..30 {
        let chain: Vec<_> = (run * RUN..(run + 1) * RUN).map(BlockHash).collect();
        let speaker = Speaker {
            engine: 0,
            may_teach: true,
        };
        let text = TextName {
            whole: run,
            common: None,
        };
        let mut texts = peer.caches().texts();
        texts.learn(speaker, Some(text), None, &chain);
    }
    let frames = told(&peer, &Question::Texts(None));
    let bytes: usize = frames.iter().map(Vec::len).sum();
    let most = handover::PAGE_BYTES + 9 * RUN as usize;
    assert!((handover::PAGE_BYTES..most).contains(&bytes), "{bytes}");
    let replica = Scene::with(1, &config);
    hand_over(&peer, &replica);
    let texts = replica.caches().texts();
    assert_eq!((texts.names(), texts.blocks()), (30, 30 * RUN as usize));
}
