//! The name of a text, as a request's session id has it.

use std::fmt;
use std::str::FromStr;

/// What every name begins with; session ids that do not are others' own.
const PREFIX: &str = "gv1-";
/// Digits of a hash in hexadecimal.
const DIGITS: usize = 14;

/// Names a request's text to all who hear which blocks it became.
///
/// As text `gv1-WHOLE` or `gv1-WHOLE-COMMON`, 14 hexadecimal digits each, small letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextName {
    /// Hash of the whole prompt; its lowest 56 bits count.
    pub whole: u64,
    /// Hash of the longest beginning of it that was sent before, to any worker.
    pub common: Option<u64>,
}

/// Not a text's name: somebody's own session id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no text's name: gv1- and one or two numbers of 14 hexadecimal digits")]
pub struct TextNameError;

impl fmt::Display for TextName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LOW: u64 = (1 << (4 * DIGITS)) - 1;
        write!(f, "{PREFIX}{:0DIGITS$x}", self.whole & LOW)?;
        match self.common {
            Some(common) => write!(f, "-{:0DIGITS$x}", common & LOW),
            None => Ok(()),
        }
    }
}

impl FromStr for TextName {
    type Err = TextNameError;

    fn from_str(text: &str) -> Result<Self, TextNameError> {
        let hashes = text.strip_prefix(PREFIX).ok_or(TextNameError)?;
        let (whole, common) = match hashes.split_once('-') {
            Some((whole, common)) => (whole, Some(common)),
            None => (hashes, None),
        };
        Ok(Self {
            whole: hash(whole)?,
            common: common.map(hash).transpose()?,
        })
    }
}

fn hash(digits: &str) -> Result<u64, TextNameError> {
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if digits.len() != DIGITS || !digits.bytes().all(is_digit) {
        return Err(TextNameError);
    }
    u64::from_str_radix(digits, 16).map_err(|_| TextNameError)
}
