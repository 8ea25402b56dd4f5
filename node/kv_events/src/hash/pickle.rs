//! Python's pickle, protocol 5, of what vLLM hashes, byte for byte as CPython's C module writes it.
//!
//! Each object that could be met again is noted in a memo, so tuples, texts and bytes have a mark behind them; texts that
//! are the same object are written once and then named by their place in the memo. Of ours, only the tag of a key could be,
//! and no two keys of a block have the same.
//!
//! Frames: a frame closes once it has 64 KiB, so what a block of some 10,000 tokens or less has is one frame.

use super::ExtraKey;

const PROTOCOL: [u8; 2] = [0x80, 5];
const FRAME: u8 = 0x95;
const MEMOIZE: u8 = 0x94;
const STOP: u8 = b'.';

pub(super) fn seed(out: &mut Vec<u8>, seed: &str) {
    framed(out, |out| text(out, seed));
}

/// `(parent, (token, ...), ((key, value), ...) or None)`.
pub(super) fn block(out: &mut Vec<u8>, parent: &[u8], tokens: &[u32], extra: &[ExtraKey<'_>]) {
    framed(out, |out| {
        out.push(b'C');
        out.push(u8::try_from(parent.len()).expect("a digest is short"));
        out.extend_from_slice(parent);
        out.push(MEMOIZE);
        tuple(out, tokens.len(), |out| {
            tokens.iter().for_each(|token| integer(out, *token));
        });
        if extra.is_empty() {
            out.push(b'N');
        } else {
            tuple(out, extra.len(), |out| {
                for key in extra {
                    tuple(out, key.texts().count(), |out| {
                        key.texts().for_each(|part| text(out, part));
                    });
                }
            });
        }
        out.extend_from_slice(&[0x87, MEMOIZE]);
    });
}

fn framed(out: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&PROTOCOL);
    let header = out.len();
    out.push(FRAME);
    out.extend_from_slice(&[0; 8]);
    let start = out.len();
    content(out);
    out.push(STOP);
    let length = (out.len() - start) as u64;
    out[header + 1..start].copy_from_slice(&length.to_le_bytes());
}

fn tuple(out: &mut Vec<u8>, length: usize, items: impl FnOnce(&mut Vec<u8>)) {
    // The empty one is always the same object, and has no mark.
    match length {
        0 => return out.push(b')'),
        1..=3 => items(out),
        _ => {
            out.push(b'(');
            items(out);
        }
    }
    match length {
        1 => out.push(0x85),
        2 => out.push(0x86),
        3 => out.push(0x87),
        _ => out.push(b't'),
    }
    out.push(MEMOIZE);
}

fn integer(out: &mut Vec<u8>, number: u32) {
    if let Ok(number) = u8::try_from(number) {
        out.extend_from_slice(&[b'K', number]);
    } else if let Ok(number) = u16::try_from(number) {
        out.push(b'M');
        out.extend_from_slice(&number.to_le_bytes());
    } else if let Ok(number) = i32::try_from(number) {
        out.push(b'J');
        out.extend_from_slice(&number.to_le_bytes());
    } else {
        // Beyond 31 bits: a long, little-endian, with a byte for its sign.
        out.extend_from_slice(&[0x8a, 5]);
        out.extend_from_slice(&number.to_le_bytes());
        out.push(0);
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    match u8::try_from(text.len()) {
        Ok(length) => out.extend_from_slice(&[0x8c, length]),
        Err(_) => {
            out.push(b'X');
            let length = u32::try_from(text.len()).expect("texts are short");
            out.extend_from_slice(&length.to_le_bytes());
        }
    }
    out.extend_from_slice(text.as_bytes());
    out.push(MEMOIZE);
}
