//! MessagePack, value by value, from a slice. Allocates nothing.

use rmp::Marker;
use rmp::decode;

use super::BadBatch;

/// Reads from the front of a slice.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

type Read<T> = Result<T, BadBatch>;

/// What a value is, before it is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Nil,
    Integer,
    Bytes,
    Text,
    Array,
    Map,
    Other,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn kind(&self) -> Read<Kind> {
        let first = self.rest.first().ok_or(BadBatch::Malformed)?;
        Ok(match Marker::from_u8(*first) {
            Marker::Null => Kind::Nil,
            Marker::FixPos(_) | Marker::FixNeg(_) => Kind::Integer,
            Marker::U8 | Marker::U16 | Marker::U32 | Marker::U64 => Kind::Integer,
            Marker::I8 | Marker::I16 | Marker::I32 | Marker::I64 => Kind::Integer,
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => Kind::Bytes,
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => Kind::Text,
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => Kind::Array,
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => Kind::Map,
            _ => Kind::Other,
        })
    }

    /// Length of an array whose items follow; at most the bytes that are left, since each item has one at least.
    pub(super) fn array(&mut self) -> Read<usize> {
        let length = decode::read_array_len(&mut self.rest).map_err(malformed)?;
        self.fits(u64::from(length))
    }

    /// Number of pairs of a map that follow.
    pub(super) fn map(&mut self) -> Read<usize> {
        let length = decode::read_map_len(&mut self.rest).map_err(malformed)?;
        self.fits(2 * u64::from(length))?;
        self.fits(u64::from(length))
    }

    fn fits(&self, values: u64) -> Read<usize> {
        let values = usize::try_from(values).ok();
        let values = values.filter(|values| *values <= self.rest.len());
        values.ok_or(BadBatch::Malformed)
    }

    /// An integer of 64 bits; a negative one as the bits that it has.
    pub(super) fn bits(&mut self) -> Read<u64> {
        let mut ahead = self.rest;
        if let Ok(number) = decode::read_int::<u64, _>(&mut ahead) {
            self.rest = ahead;
            return Ok(number);
        }
        let number: i64 = decode::read_int(&mut self.rest).map_err(malformed)?;
        Ok(number.cast_unsigned())
    }

    pub(super) fn u32(&mut self) -> Read<u32> {
        decode::read_int(&mut self.rest).map_err(malformed)
    }

    /// A floating number, or an integer in its place.
    pub(super) fn number(&mut self) -> Read<f64> {
        match self.kind()? {
            Kind::Integer => Ok(self.bits()? as f64),
            _ => decode::read_f64(&mut self.rest).map_err(malformed),
        }
    }

    pub(super) fn optional_u32(&mut self) -> Read<Option<u32>> {
        if self.is_nil()? {
            return Ok(None);
        }
        self.u32().map(Some)
    }

    /// Whether the value is nil, which is then taken.
    pub(super) fn is_nil(&mut self) -> Read<bool> {
        let is_nil = self.kind()? == Kind::Nil;
        if is_nil {
            self.rest = &self.rest[1..];
        }
        Ok(is_nil)
    }

    pub(super) fn text(&mut self) -> Read<&'a str> {
        let (text, rest) = decode::read_str_from_slice(self.rest).map_err(malformed)?;
        self.rest = rest;
        Ok(text)
    }

    pub(super) fn optional_text(&mut self) -> Read<Option<&'a str>> {
        if self.is_nil()? {
            return Ok(None);
        }
        self.text().map(Some)
    }

    pub(super) fn bytes(&mut self) -> Read<&'a [u8]> {
        let length = decode::read_bin_len(&mut self.rest).map_err(malformed)?;
        self.take(u64::from(length))
    }

    fn take(&mut self, count: u64) -> Read<&'a [u8]> {
        let count = self.fits(count)?;
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        Ok(taken)
    }

    /// Passes over one value with all that is in it. A count of the values still to come stands for the nesting.
    pub(super) fn skip(&mut self) -> Read<()> {
        let mut values: u64 = 1;
        while values > 0 {
            self.fits(values)?;
            values -= 1;
            let marker = decode::read_marker(&mut self.rest).map_err(|_| BadBatch::Malformed)?;
            let (bytes, inside) = self.behind(marker)?;
            self.take(bytes)?;
            values = values.saturating_add(inside);
        }
        Ok(())
    }

    /// Bytes of a value behind its marker and its length, and values inside of it.
    fn behind(&mut self, marker: Marker) -> Read<(u64, u64)> {
        let mut length = |bytes: u64| -> Read<u64> {
            let digits = self.take(bytes)?;
            Ok(digits.iter().fold(0, |sum, b| sum << 8 | u64::from(*b)))
        };
        Ok(match marker {
            Marker::FixPos(_) | Marker::FixNeg(_) => (0, 0),
            Marker::Null | Marker::True | Marker::False => (0, 0),
            Marker::Reserved => return Err(BadBatch::Malformed),
            Marker::U8 | Marker::I8 => (1, 0),
            Marker::U16 | Marker::I16 => (2, 0),
            Marker::U32 | Marker::I32 | Marker::F32 => (4, 0),
            Marker::U64 | Marker::I64 | Marker::F64 => (8, 0),
            Marker::FixStr(bytes) => (u64::from(bytes), 0),
            Marker::Str8 | Marker::Bin8 => (length(1)?, 0),
            Marker::Str16 | Marker::Bin16 => (length(2)?, 0),
            Marker::Str32 | Marker::Bin32 => (length(4)?, 0),
            Marker::FixArray(items) => (0, u64::from(items)),
            Marker::Array16 => (0, length(2)?),
            Marker::Array32 => (0, length(4)?),
            Marker::FixMap(pairs) => (0, 2 * u64::from(pairs)),
            Marker::Map16 => (0, 2 * length(2)?),
            Marker::Map32 => (0, 2 * length(4)?),
            // The kind of extension is a byte of its own.
            Marker::FixExt1 => (2, 0),
            Marker::FixExt2 => (3, 0),
            Marker::FixExt4 => (5, 0),
            Marker::FixExt8 => (9, 0),
            Marker::FixExt16 => (17, 0),
            Marker::Ext8 => (1 + length(1)?, 0),
            Marker::Ext16 => (1 + length(2)?, 0),
            Marker::Ext32 => (1 + length(4)?, 0),
        })
    }
}

fn malformed<E>(_: E) -> BadBatch {
    BadBatch::Malformed
}
