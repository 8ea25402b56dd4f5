//! Truths in bodies, as vLLM reads them: pydantic takes words and numbers for them, too. What only some readers take for
//! one is none here, and the worker refuses it.

use super::json::Text;

/// Whether a word in a form or in a JSON string is a truth that holds.
pub(super) fn is_true_word(word: &str) -> bool {
    const WORDS: [&str; 6] = ["true", "1", "on", "yes", "t", "y"];
    WORDS.iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// Whether a JSON value is one.
pub(super) fn is_true(json: &str) -> bool {
    match json {
        "true" => true,
        "false" | "null" => false,
        word if word.starts_with('"') => {
            serde_json::from_str::<Text<'_>>(word).is_ok_and(|word| is_true_word(&word.0))
        }
        number => number.parse::<f64>().is_ok_and(|number| number == 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_are_truths() {
        for json in [
            "true",
            "1",
            "1.0",
            "1e0",
            r#""true""#,
            r#""True""#,
            r#""\u0074rue""#,
            r#""1""#,
            r#""on""#,
            r#""YES""#,
            r#""t""#,
            r#""y""#,
        ] {
            assert!(is_true(json), "{json}");
        }
        for json in [
            "false",
            "null",
            "0",
            "2",
            "-1",
            "[]",
            "[1]",
            "{}",
            r#""""#,
            r#""false""#,
            r#""0""#,
            r#""1.0""#,
            r#"" true""#,
            r#""no""#,
            r#""truth""#,
        ] {
            assert!(!is_true(json), "{json}");
        }
    }
}
