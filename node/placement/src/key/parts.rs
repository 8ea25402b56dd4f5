//! A key taken apart: what another replica needs to make the same decision, without the text's links.

use super::{Key, Link, MARKS_MAX};

/// All of a [`Key`] that decisions look at; any values, checked by [`Key::from_parts`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyParts {
    /// As [`Key::model`].
    pub model: u64,
    /// As [`Key::group`].
    pub group: Option<Link>,
    /// As [`Key::home`].
    pub home: u64,
    /// As [`Key::session`].
    pub session: Option<u64>,
    /// Key of the user that the client named.
    pub user: Option<u64>,
    /// As [`Key::stable_tokens`]: at most `prompt_tokens`.
    pub stable_tokens: u32,
    /// As [`Key::prompt_tokens`].
    pub prompt_tokens: u32,
    /// As [`Key::marks`]: at most [`MARKS_MAX`], tokens rising from mark to mark, none beyond `prompt_tokens`.
    pub marks: Vec<Link>,
}

/// Why parts are not those of a key. The sender's fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPartsError {
    /// More than [`MARKS_MAX`] marks.
    TooManyMarks(usize),
    /// The mark at this position does not add tokens to the one before it.
    MarksNotRising(usize),
    /// A mark, the group or the stable tokens lie beyond the prompt's end.
    BeyondPrompt,
}

impl std::fmt::Display for KeyPartsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooManyMarks(marks) => write!(f, "{marks} marks are more than {MARKS_MAX}"),
            Self::MarksNotRising(at) => write!(f, "mark {at} adds no tokens to the one before it"),
            Self::BeyondPrompt => f.write_str("tokens beyond the end of the prompt"),
        }
    }
}

impl std::error::Error for KeyPartsError {}

impl Key {
    /// What another replica needs to decide as this one does.
    pub fn parts(&self) -> KeyParts {
        KeyParts {
            model: self.model,
            group: self.group,
            home: self.home,
            session: self.session,
            user: self.user,
            stable_tokens: self.stable_tokens,
            prompt_tokens: self.prompt_tokens,
            marks: self.marks.clone(),
        }
    }

    /// The key with these parts. It has no links, which no decision looks at.
    /// Errors: the first rule that no built key breaks.
    pub fn from_parts(parts: KeyParts) -> Result<Self, KeyPartsError> {
        let KeyParts {
            model,
            group,
            home,
            session,
            user,
            stable_tokens,
            prompt_tokens,
            marks,
        } = parts;
        if marks.len() > MARKS_MAX {
            return Err(KeyPartsError::TooManyMarks(marks.len()));
        }
        let is_rising = |pair: &[Link]| pair[0].tokens < pair[1].tokens;
        if let Some(before) = marks.windows(2).position(|pair| !is_rising(pair)) {
            return Err(KeyPartsError::MarksNotRising(before + 1));
        }
        let ends = [group.as_ref(), marks.last()].into_iter().flatten();
        let greatest = ends.map(|link| link.tokens).fold(stable_tokens, u32::max);
        if greatest > prompt_tokens {
            return Err(KeyPartsError::BeyondPrompt);
        }
        Ok(Self {
            links: Vec::new(),
            marks,
            model,
            group,
            home,
            session,
            user,
            stable_tokens,
            prompt_tokens,
            // Who decides anew records nothing.
            leaves_nothing: false,
        })
    }
}
