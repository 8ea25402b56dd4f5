//! Texts of an endpoint, as they may be shown. Pure.

/// Characters shown of an error's message.
pub(crate) const MESSAGE_CHARS_MAX: usize = 200;

/// Without what commands a terminal, and without what turns the direction of the text around it; lines are joined.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(shown).collect()
}

fn shown(letter: char) -> char {
    match letter {
        '\n' | '\r' | '\t' | '\u{2028}' | '\u{2029}' => ' ',
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            '\u{fffd}'
        }
        letter if letter.is_control() => '\u{fffd}',
        letter => letter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_replaced_and_words_stay() {
        assert_eq!(
            clean("a\u{1b}[2Jb\r\nc\u{202e}d"),
            "a\u{fffd}[2Jb  c\u{fffd}d"
        );
        assert_eq!(clean("größer 模型 نموذج"), "größer 模型 نموذج");
    }
}
