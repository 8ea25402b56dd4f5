//! Sets of holders, for blocks that several have: bits, in pieces of one size.

/// Sets of a piece.
const PIECE: usize = 1_024;

/// All sets. A set is known by its number.
#[derive(Debug)]
pub(super) struct Sets {
    /// Words of 64 bits of a set.
    words: usize,
    pieces: Vec<Box<[u64]>>,
    free: Vec<u32>,
}

impl Sets {
    pub(super) fn new() -> Self {
        Self {
            words: 1,
            pieces: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn words(&self) -> usize {
        self.words
    }

    pub(super) fn bytes(&self) -> usize {
        self.pieces.len() * self.piece_bytes()
    }

    /// Bytes by which another set would make this greater.
    pub(super) fn growth(&self) -> usize {
        if self.free.is_empty() {
            self.piece_bytes()
        } else {
            0
        }
    }

    /// Bytes after [`Sets::widen`].
    pub(super) fn bytes_with(&self, words: usize) -> usize {
        self.pieces.len() * (PIECE * words * size_of::<u64>() + PIECE * size_of::<u32>())
    }

    fn piece_bytes(&self) -> usize {
        // With the number of each set, while it is free.
        PIECE * self.words * size_of::<u64>() + PIECE * size_of::<u32>()
    }

    /// Makes every set so wide.
    pub(super) fn widen(&mut self, words: usize) {
        for piece in &mut self.pieces {
            let mut wide = vec![0; PIECE * words].into_boxed_slice();
            let narrow = piece.chunks_exact(self.words);
            for (to, from) in wide.chunks_exact_mut(words).zip(narrow) {
                to[..self.words].copy_from_slice(from);
            }
            *piece = wide;
        }
        self.words = words;
    }

    /// A set of two.
    pub(super) fn pair(&mut self, one: u16, other: u16) -> u32 {
        if self.free.is_empty() {
            let first = (self.pieces.len() * PIECE) as u32;
            self.pieces
                .push(vec![0; PIECE * self.words].into_boxed_slice());
            self.free.extend((first..first + PIECE as u32).rev());
        }
        let set = self.free.pop().expect("there is a free one now");
        let bits = self.bits_mut(set);
        bits.fill(0);
        add(bits, one);
        add(bits, other);
        set
    }

    pub(super) fn free(&mut self, set: u32) {
        self.free.push(set);
    }

    pub(super) fn bits(&self, set: u32) -> &[u64] {
        let (piece, at) = (set as usize / PIECE, set as usize % PIECE * self.words);
        &self.pieces[piece][at..at + self.words]
    }

    pub(super) fn bits_mut(&mut self, set: u32) -> &mut [u64] {
        let (piece, at) = (set as usize / PIECE, set as usize % PIECE * self.words);
        &mut self.pieces[piece][at..at + self.words]
    }
}

pub(super) fn add(bits: &mut [u64], holder: u16) {
    bits[usize::from(holder) / 64] |= 1 << (holder % 64);
}

pub(super) fn take_out(bits: &mut [u64], holder: u16) {
    bits[usize::from(holder) / 64] &= !(1 << (holder % 64));
}

pub(super) fn contains(bits: &[u64], holder: u16) -> bool {
    bits[usize::from(holder) / 64] >> (holder % 64) & 1 == 1
}

/// All that are in it.
pub(super) fn all(bits: &[u64]) -> impl Iterator<Item = u16> + '_ {
    bits.iter().enumerate().flat_map(|(at, word)| {
        let mut word = *word;
        std::iter::from_fn(move || {
            let bit = (word != 0).then(|| word.trailing_zeros())?;
            word &= word - 1;
            Some((at * 64) as u16 + bit as u16)
        })
    })
}

/// The only one that is in it.
pub(super) fn only(bits: &[u64]) -> Option<u16> {
    let mut holders = all(bits);
    let only = holders.next()?;
    holders.next().is_none().then_some(only)
}
