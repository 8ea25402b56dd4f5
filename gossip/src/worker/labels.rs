//! What is known of a worker beyond its description: small texts by name.
//!
//! Pure. What a label means is the business of those who write and read it: here they are carried. In a registry
//! entry, and on the wire, a worker's labels stand where other sources name its models, as `name=value`: a release
//! that does not know labels carries them unchanged, since they keep its limits.

use std::collections::{BTreeMap, BTreeSet};

use super::{MODEL_BYTES_MAX, MODELS_BYTES_MAX, MODELS_MAX, WorkerError};

/// Greatest number of labels of one worker.
pub const LABELS_MAX: usize = 48;
/// Greatest length of a label's name in bytes.
pub const LABEL_NAME_BYTES_MAX: usize = 32;
/// Greatest length of a label's value in bytes.
pub const LABEL_VALUE_BYTES_MAX: usize = 200;
/// Greatest length of all labels of one worker as `name=value` together, in bytes.
pub const LABELS_BYTES_MAX: usize = 4096;

// Labels travel where an earlier release expects models.
const _: () = assert!(
    LABELS_MAX <= MODELS_MAX
        && LABELS_BYTES_MAX <= MODELS_BYTES_MAX
        && LABEL_NAME_BYTES_MAX + 1 + LABEL_VALUE_BYTES_MAX <= MODEL_BYTES_MAX
);

/// Labels of one worker, within every limit, sorted by name.
///
/// Names are 1 to 32 of `a-z`, `0-9`, `.`, `_` and `-`; values are 1 to 200 visible ASCII characters. At most 48 labels
/// and 4,096 bytes together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// Labels from names and values; of two of one name, the last is kept.
    /// Errors: the first limit that they break.
    pub fn new<N, V>(labels: impl IntoIterator<Item = (N, V)>) -> Result<Self, WorkerError>
    where
        N: Into<String>,
        V: Into<String>,
    {
        let mut checked = BTreeMap::new();
        for (name, value) in labels {
            let (name, value) = (name.into(), value.into());
            check(&name, &value)?;
            checked.insert(name, value);
        }
        Self(checked).within_limits()
    }

    /// Labels from texts of the form `name=value`.
    /// Errors: the first that is not of that form, or limit that they break.
    pub fn from_texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, WorkerError> {
        let split = |text: &'a str| {
            text.split_once('=')
                .ok_or_else(|| WorkerError::Label(shortened(text)))
        };
        let pairs: Result<Vec<_>, _> = texts.into_iter().map(split).collect();
        Self::new(pairs?)
    }

    /// The value of a label, if there is one of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let labels = self.0.iter();
        labels.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether each of `others` is one of these, with the same value.
    pub fn contain(&self, others: &Self) -> bool {
        others
            .iter()
            .all(|(name, value)| self.get(name) == Some(value))
    }

    /// These labels, with `others` added, and in place of those of the same name.
    /// Errors: there would be too many of them.
    pub fn overlaid_with(&self, others: &Self) -> Result<Self, WorkerError> {
        let mut all = self.0.clone();
        all.extend(others.0.clone());
        Self(all).within_limits()
    }

    /// As an entry of the registry carries them: `name=value`, in the order in which it has models.
    pub(crate) fn to_texts(&self) -> Vec<String> {
        let texts = self.iter().map(|(name, value)| format!("{name}={value}"));
        BTreeSet::from_iter(texts).into_iter().collect()
    }

    /// What can be read of the labels that an entry carries. The entry came from a peer and was checked as others are:
    /// what a later release allows beyond these limits is carried on, and not read here.
    pub(crate) fn read(texts: &[String]) -> Self {
        let pairs = texts.iter().filter_map(|text| text.split_once('='));
        let known = pairs.filter(|(name, value)| check(name, value).is_ok());
        let labels = known.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self(labels.take(LABELS_MAX).collect())
    }

    fn within_limits(self) -> Result<Self, WorkerError> {
        let bytes = self
            .iter()
            .map(|(name, value)| name.len() + 1 + value.len());
        let bytes = bytes.sum::<usize>();
        if self.0.len() > LABELS_MAX {
            Err(WorkerError::Labels(self.0.len()))
        } else if bytes > LABELS_BYTES_MAX {
            Err(WorkerError::LabelBytes(bytes))
        } else {
            Ok(self)
        }
    }
}

fn check(name: &str, value: &str) -> Result<(), WorkerError> {
    let is_named = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
    if !(1..=LABEL_NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_named) {
        return Err(WorkerError::Label(shortened(name)));
    }
    let is_visible = value.bytes().all(|b| b.is_ascii_graphic());
    if !(1..=LABEL_VALUE_BYTES_MAX).contains(&value.len()) || !is_visible {
        return Err(WorkerError::LabelValue(name.to_owned()));
    }
    Ok(())
}

fn shortened(text: &str) -> String {
    text.chars().take(LABEL_NAME_BYTES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels<const N: usize>(pairs: [(&str, &str); N]) -> Labels {
        Labels::new(pairs).expect("valid")
    }

    #[test]
    fn limits_refuse_with_their_reason() {
        let long = "n".repeat(LABEL_NAME_BYTES_MAX + 1);
        for name in ["", "Kv", "kv port", "kv=port", "ä", &long] {
            let refused = Labels::new([(name, "1")]);
            let kept = name.chars().take(LABEL_NAME_BYTES_MAX).collect();
            assert_eq!(refused, Err(WorkerError::Label(kept)), "{name:?}");
        }
        let long = "v".repeat(LABEL_VALUE_BYTES_MAX + 1);
        for value in ["", "a b", "a\n", "ä", &long] {
            let refused = Labels::new([("kv.port", value)]);
            let expected = Err(WorkerError::LabelValue("kv.port".into()));
            assert_eq!(refused, expected, "{value:?}");
        }
        let many = |count: usize, value: &str| {
            Labels::new((0..count).map(|n| (format!("{n:02}"), value.to_owned())))
        };
        assert!(many(LABELS_MAX, "v").is_ok());
        assert_eq!(many(49, "v"), Err(WorkerError::Labels(49)));
        // Two for the name, one for `=`.
        let value = "v".repeat(LABEL_VALUE_BYTES_MAX);
        assert!(many(20, &value).is_ok());
        assert_eq!(many(21, &value), Err(WorkerError::LabelBytes(21 * 203)));
    }

    #[test]
    fn texts_are_read_back() {
        let some = labels([("kv.port", "1=2"), ("a", "~"), ("kv", "x")]);
        assert_eq!(some.to_texts(), ["a=~", "kv.port=1=2", "kv=x"]);
        assert_eq!(Labels::read(&some.to_texts()), some);
        let texts = some.to_texts();
        let again = Labels::from_texts(texts.iter().map(String::as_str));
        assert_eq!(again, Ok(some));
        let formless = Labels::from_texts(["kv.port"]);
        assert_eq!(formless, Err(WorkerError::Label("kv.port".into())));
    }

    #[test]
    fn what_breaks_a_limit_in_an_entry_is_not_read() {
        let texts = ["a=1", "B=2", "none", "c=", "d=4"].map(String::from);
        assert_eq!(Labels::read(&texts), labels([("a", "1"), ("d", "4")]));
    }

    #[test]
    fn others_are_laid_over() {
        let known = labels([("a", "1"), ("b", "2")]);
        assert!(known.contain(&Labels::default()));
        assert!(known.contain(&labels([("b", "2")])));
        assert!(!known.contain(&labels([("b", "3")])));
        assert!(!known.contain(&labels([("c", "3")])));
        let over = known.overlaid_with(&labels([("b", "3"), ("c", "4")]));
        assert_eq!(over, Ok(labels([("a", "1"), ("b", "3"), ("c", "4")])));
        let full = (0..LABELS_MAX).map(|n| (format!("x{n}"), "v"));
        let full = Labels::new(full).expect("valid");
        assert_eq!(known.overlaid_with(&full), Err(WorkerError::Labels(50)));
    }
}
