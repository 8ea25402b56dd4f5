//! Events in both of their shapes.

use super::reader::{Kind, Reader};
use super::{BadBatch, Event, Limits, Lora, Removed, Stored};
use crate::{BlockHash, Tier};

/// Kinds of groups whose blocks are of use only with all blocks before them; vLLM's `KVCacheSpecKind`.
const FULL_ATTENTION: [&str; 4] = [
    "full_attention",
    "mla_attention",
    "sink_full_attention",
    "unknown",
];

/// What is left of the limits.
pub(super) struct Room {
    events: usize,
    hashes: usize,
    tokens: usize,
    text_bytes: usize,
}

impl Room {
    pub(super) fn of(limits: &Limits) -> Self {
        Self {
            events: limits.events,
            hashes: limits.hashes,
            tokens: limits.tokens,
            text_bytes: limits.text_bytes,
        }
    }
}

fn take(room: &mut usize, count: usize, what: &'static str) -> Result<(), BadBatch> {
    *room = room.checked_sub(count).ok_or(BadBatch::TooMany(what))?;
    Ok(())
}

/// All events, and how many are of an unknown type.
pub(super) fn read_all(
    reader: &mut Reader<'_>,
    room: &mut Room,
) -> Result<(Vec<Event>, usize), BadBatch> {
    let count = reader.array()?;
    take(&mut room.events, count, "events")?;
    let mut events = Vec::with_capacity(count);
    let mut unknown = 0;
    for _ in 0..count {
        match read(reader, room)? {
            Some(event) => events.push(event),
            None => unknown += 1,
        }
    }
    Ok((events, unknown))
}

/// What is known of an event's fields, whatever its type and shape.
#[derive(Default)]
struct Fields<'a> {
    kind: Option<&'a str>,
    hashes: Option<Vec<BlockHash>>,
    parent: Option<BlockHash>,
    tokens: Option<Vec<u32>>,
    block_tokens: Option<u32>,
    lora_id: Option<u64>,
    lora_name: Option<&'a str>,
    medium: Option<&'a str>,
    group: Option<u32>,
    attention: Option<&'a str>,
    session: Option<&'a str>,
}

/// Fields of events in arrays, behind the type, in the order of their declaration. Later ones are not needed.
const STORED: [&str; 11] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
];
const REMOVED: [&str; 3] = ["block_hashes", "medium", "group_idx"];

/// One event; none for one of an unknown type.
fn read(reader: &mut Reader<'_>, room: &mut Room) -> Result<Option<Event>, BadBatch> {
    let mut fields = Fields::default();
    match reader.kind()? {
        Kind::Map => {
            for _ in 0..reader.map()? {
                let name = reader.text()?;
                fields.read(name, reader, room)?;
            }
        }
        Kind::Array => {
            let count = reader.array()?;
            if count == 0 {
                return Err(BadBatch::Malformed);
            }
            let kind = reader.text()?;
            fields.kind = Some(kind);
            let names: &[&str] = match kind {
                "BlockStored" => &STORED,
                "BlockRemoved" => &REMOVED,
                _ => &[],
            };
            for at in 0..count - 1 {
                fields.read(names.get(at).unwrap_or(&""), reader, room)?;
            }
        }
        _ => return Err(BadBatch::Malformed),
    }
    fields.event(room)
}

impl<'a> Fields<'a> {
    /// Reads the value of this field; of an unknown one it passes over it. A field that comes twice is refused, so that
    /// nothing is allocated twice.
    fn read(
        &mut self,
        name: &str,
        reader: &mut Reader<'a>,
        room: &mut Room,
    ) -> Result<(), BadBatch> {
        match name {
            "type" => set(&mut self.kind, reader.optional_text()?),
            "block_hashes" => {
                let hashes = hashes(reader, room)?;
                set(&mut self.hashes, Some(hashes))
            }
            "parent_block_hash" if reader.is_nil()? => Ok(()),
            "parent_block_hash" => set(&mut self.parent, Some(hash(reader)?)),
            "token_ids" => {
                let tokens = tokens(reader, room)?;
                set(&mut self.tokens, Some(tokens))
            }
            "block_size" => set(&mut self.block_tokens, Some(reader.u32()?)),
            "lora_id" if reader.is_nil()? => Ok(()),
            "lora_id" => set(&mut self.lora_id, Some(reader.bits()?)),
            "lora_name" => set(&mut self.lora_name, reader.optional_text()?),
            "medium" => set(&mut self.medium, reader.optional_text()?),
            "group_idx" => set(&mut self.group, reader.optional_u32()?),
            "kv_cache_spec_kind" => set(&mut self.attention, reader.optional_text()?),
            "session_id" => set(&mut self.session, reader.optional_text()?),
            _ => reader.skip(),
        }
    }

    fn event(self, room: &Room) -> Result<Option<Event>, BadBatch> {
        let kind = self.kind.ok_or(BadBatch::Malformed)?;
        if !["BlockStored", "BlockRemoved", "AllBlocksCleared"].contains(&kind) {
            return Ok(None);
        }
        if kind == "AllBlocksCleared" {
            return Ok(Some(Event::Cleared));
        }
        let hashes = self.hashes.ok_or(BadBatch::Malformed)?;
        let tier = Tier::of(self.medium);
        let group = self.group.unwrap_or(0);
        if kind == "BlockRemoved" {
            return Ok(Some(Event::Removed(Removed {
                hashes,
                tier,
                group,
            })));
        }
        let lora = match (self.lora_name, self.lora_id) {
            (Some(name), _) if name.len() > room.text_bytes => {
                return Err(BadBatch::TooMany("bytes of a text"));
            }
            (Some(name), _) => Some(Lora::Name(name.to_owned())),
            (None, number) => number.map(Lora::Number),
        };
        Ok(Some(Event::Stored(Stored {
            hashes,
            parent: self.parent,
            tokens: self.tokens.ok_or(BadBatch::Malformed)?,
            block_tokens: self.block_tokens.ok_or(BadBatch::Malformed)?,
            tier,
            lora,
            group,
            text: self.session.and_then(|session| session.parse().ok()),
            is_full_attention: self
                .attention
                .is_none_or(|kind| FULL_ATTENTION.contains(&kind)),
        })))
    }
}

fn set<T>(field: &mut Option<T>, value: Option<T>) -> Result<(), BadBatch> {
    if field.is_some() {
        return Err(BadBatch::Malformed);
    }
    *field = value;
    Ok(())
}

fn hash(reader: &mut Reader<'_>) -> Result<BlockHash, BadBatch> {
    match reader.kind()? {
        Kind::Bytes => BlockHash::of_bytes(reader.bytes()?).ok_or(BadBatch::Malformed),
        _ => reader.bits().map(BlockHash),
    }
}

fn hashes(reader: &mut Reader<'_>, room: &mut Room) -> Result<Vec<BlockHash>, BadBatch> {
    let count = reader.array()?;
    take(&mut room.hashes, count, "hashes")?;
    let mut hashes = Vec::with_capacity(count);
    for _ in 0..count {
        hashes.push(hash(reader)?);
    }
    Ok(hashes)
}

fn tokens(reader: &mut Reader<'_>, room: &mut Room) -> Result<Vec<u32>, BadBatch> {
    let count = reader.array()?;
    take(&mut room.tokens, count, "tokens")?;
    let mut tokens = Vec::with_capacity(count);
    for _ in 0..count {
        tokens.push(reader.u32()?);
    }
    Ok(tokens)
}
