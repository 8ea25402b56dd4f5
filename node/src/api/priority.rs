//! How urgent a request is, and what a client may claim.

use grapevine_placement::named;
use http::{HeaderMap, HeaderName};

named! {
    /// Class of a request in a queue; greater is more urgent. A class is at its own index in [`Self::ALL`].
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Priority {
        /// Work that can wait, such as batches.
        Low = "low",
        /// What says nothing.
        #[default]
        Normal = "normal",
        /// A person waits for the answer.
        High = "high",
    }
}

impl Priority {
    /// Its place in [`Self::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its value in vLLM's `X-Vllm-Priority`, where lower is more urgent.
    #[must_use]
    pub const fn in_engines(self) -> &'static str {
        match self {
            Self::Low => "1",
            Self::Normal => "0",
            Self::High => "-1",
        }
    }

    /// Reads a claim: a word, or an integer as in vLLM's `priority`, where lower is more urgent and 0 is normal.
    pub fn claimed(text: &str) -> Option<Self> {
        let text = text.trim();
        let word = Self::ALL
            .into_iter()
            .find(|class| text.eq_ignore_ascii_case(class.as_str()));
        word.or_else(|| {
            Some(match text.parse::<i64>().ok()? {
                ..0 => Self::High,
                0 => Self::Normal,
                1.. => Self::Low,
            })
        })
    }

    /// The class of a request: what its first header of these names claims, at most `most`; `usual` without a claim.
    ///
    /// A claim that cannot be read is none: a client of another router may use the header for its own words.
    pub fn of(headers: &HeaderMap, names: &[HeaderName], usual: Self, most: Self) -> Self {
        let claim = names
            .iter()
            .find_map(|name| headers.get(name))
            .and_then(|value| Self::claimed(value.to_str().ok()?));
        claim.unwrap_or(usual).min(most)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn claims_are_read_and_bounded() {
        let names = [
            HeaderName::from_static("x-priority"),
            HeaderName::from_static("x-smg-priority"),
        ];
        for (first, second, expected) in [
            (None, None, Priority::Normal),
            (Some("high"), None, Priority::Normal),
            (Some("LOW"), None, Priority::Low),
            (Some(" low "), Some("normal"), Priority::Low),
            (None, Some("low"), Priority::Low),
            (Some("5"), None, Priority::Low),
            (Some("-1"), None, Priority::Normal),
            (Some("0"), None, Priority::Normal),
            (Some("whatever"), None, Priority::Normal),
            (Some(""), None, Priority::Normal),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in names.iter().zip([first, second]) {
                if let Some(value) = value {
                    headers.insert(name, HeaderValue::from_static(value));
                }
            }
            let found = Priority::of(&headers, &names, Priority::Normal, Priority::Normal);
            assert_eq!(found, expected, "{first:?} {second:?}");
        }
        assert_eq!(Priority::claimed("high"), Some(Priority::High));
        assert_eq!(Priority::claimed("-7"), Some(Priority::High));
    }

    #[test]
    fn a_class_is_at_its_index() {
        for (index, class) in Priority::ALL.into_iter().enumerate() {
            assert_eq!(class.index(), index);
        }
    }
}
