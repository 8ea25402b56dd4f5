//! Batches in MessagePack, byte for byte as vLLM's encoder has them, but for token ids. Pure, apart from the time.

use crate::engine::Change;

/// Runs of blocks that were stored one behind the other are one event; each removed block is one.
///
/// `session_of`: the session id of a sequence, if it has one; arrays, of earlier releases, do not have it.
pub(super) fn batch<'a>(
    changes: &[Change],
    block_tokens: u32,
    rank: u32,
    arrays: bool,
    session_of: impl Fn(u64) -> Option<&'a str>,
) -> Vec<u8> {
    let events = events(changes);
    let mut out = vec![0x93, 0xcb];
    let time = super::super::ledger::unix_us() as f64 / 1e6;
    out.extend_from_slice(&time.to_be_bytes());
    array(&mut out, events.len());
    for event in &events {
        match event {
            Event::Stored {
                parent,
                blocks,
                owner,
            } => {
                let session = session_of(*owner).filter(|_| !arrays);
                stored(&mut out, *parent, blocks, block_tokens, arrays, session);
            }
            Event::Removed(block) => removed(&mut out, *block, arrays),
        }
    }
    integer(&mut out, u64::from(rank));
    out
}

enum Event {
    Stored {
        parent: Option<u64>,
        blocks: Vec<u64>,
        owner: u64,
    },
    Removed(u64),
}

fn events(changes: &[Change]) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    for change in changes {
        match (*change, events.last_mut()) {
            (Change::Removed(block), _) => events.push(Event::Removed(block)),
            (
                Change::Stored {
                    parent,
                    block,
                    owner,
                },
                Some(Event::Stored {
                    blocks, owner: of, ..
                }),
            ) if parent.is_some() && parent == blocks.last().copied() && owner == *of => {
                blocks.push(block);
            }
            (
                Change::Stored {
                    parent,
                    block,
                    owner,
                },
                _,
            ) => events.push(Event::Stored {
                parent,
                blocks: vec![block],
                owner,
            }),
        }
    }
    events
}

fn stored(
    out: &mut Vec<u8>,
    parent: Option<u64>,
    blocks: &[u64],
    block_tokens: u32,
    arrays: bool,
    session: Option<&str>,
) {
    begin(out, "BlockStored", 7 + u8::from(session.is_some()), arrays);
    name(out, "block_hashes", arrays);
    array(out, blocks.len());
    blocks.iter().for_each(|block| integer(out, *block));
    name(out, "parent_block_hash", arrays);
    match parent {
        Some(parent) => integer(out, parent),
        None => out.push(0xc0),
    }
    name(out, "token_ids", arrays);
    let tokens = blocks.len() * block_tokens as usize;
    array(out, tokens);
    out.resize(out.len() + tokens, 0);
    name(out, "block_size", arrays);
    integer(out, u64::from(block_tokens));
    name(out, "lora_id", arrays);
    out.push(0xc0);
    name(out, "medium", arrays);
    text(out, "GPU");
    name(out, "lora_name", arrays);
    out.push(0xc0);
    if let Some(session) = session {
        name(out, "session_id", arrays);
        long_text(out, session);
    }
}

fn removed(out: &mut Vec<u8>, block: u64, arrays: bool) {
    begin(out, "BlockRemoved", 2, arrays);
    name(out, "block_hashes", arrays);
    array(out, 1);
    integer(out, block);
    name(out, "medium", arrays);
    text(out, "GPU");
}

/// The type is a field of its own in a map, and the first item of an array.
fn begin(out: &mut Vec<u8>, kind: &str, fields: u8, arrays: bool) {
    out.push(if arrays { 0x90 } else { 0x80 } | (fields + 1));
    name(out, "type", arrays);
    text(out, kind);
}

fn name(out: &mut Vec<u8>, name: &str, arrays: bool) {
    if !arrays {
        text(out, name);
    }
}

fn array(out: &mut Vec<u8>, length: usize) {
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(length @ 0..16), _) => out.push(0x90 | length),
        (_, Ok(length)) => {
            out.push(0xdc);
            out.extend_from_slice(&length.to_be_bytes());
        }
        _ => {
            out.push(0xdd);
            out.extend_from_slice(&(length as u32).to_be_bytes());
        }
    }
}

fn integer(out: &mut Vec<u8>, number: u64) {
    match number {
        0..128 => out.push(number as u8),
        128..0x100 => out.extend_from_slice(&[0xcc, number as u8]),
        0x100..0x1_0000 => {
            out.push(0xcd);
            out.extend_from_slice(&(number as u16).to_be_bytes());
        }
        0x1_0000..0x1_0000_0000 => {
            out.push(0xce);
            out.extend_from_slice(&(number as u32).to_be_bytes());
        }
        _ => {
            out.push(0xcf);
            out.extend_from_slice(&number.to_be_bytes());
        }
    }
}

/// Of at most 255 bytes.
fn long_text(out: &mut Vec<u8>, text: &str) {
    let text = &text.as_bytes()[..text.len().min(255)];
    out.extend_from_slice(&[0xd9, text.len() as u8]);
    out.extend_from_slice(text);
}

/// Of fewer than 32 bytes.
fn text(out: &mut Vec<u8>, text: &str) {
    out.push(0xa0 | text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}
