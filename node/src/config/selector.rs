//! The syntax of Kubernetes' label selectors, as far as a mistake can be found without a cluster.
//!
//! `key`, `!key`, `key=value`, `key==value`, `key!=value`, `key in (a,b)`, `key notin (a,b)`, with commas between them.
//! <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors>

/// What is wrong with a selector; nothing if a server would take it.
/// Errors: the first part that is none, with what to write.
pub(super) fn check(selector: &str) -> Result<(), String> {
    for part in parts(selector)? {
        requirement(part.trim())?;
    }
    Ok(())
}

/// Parts between commas outside of parentheses.
fn parts(selector: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut begin, mut is_inside) = (Vec::new(), 0, false);
    for (at, character) in selector.char_indices() {
        match character {
            '(' if is_inside => {
                return Err(format!("{selector:?} has a parenthesis within another"));
            }
            '(' => is_inside = true,
            ')' if !is_inside => {
                return Err(format!(
                    "{selector:?} closes a parenthesis that is not open"
                ));
            }
            ')' => is_inside = false,
            ',' if !is_inside => {
                parts.push(&selector[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    if is_inside {
        return Err(format!("{selector:?} does not close a parenthesis"));
    }
    parts.push(&selector[begin..]);
    Ok(parts)
}

fn requirement(part: &str) -> Result<(), String> {
    if part.is_empty() {
        return Err(
            "there is nothing between two commas, or at an end; write key=value".to_owned(),
        );
    }
    if let Some(name) = part.strip_prefix('!') {
        return key(name.trim());
    }
    if let Some(list) = part.strip_suffix(')') {
        let (head, values) = list.split_once('(').unwrap_or((list, ""));
        let mut words = head.split_whitespace();
        let (name, operator) = (words.next().unwrap_or_default(), words.next());
        if !matches!(operator, Some("in" | "notin")) || words.next().is_some() {
            return Err(format!(
                "{part:?} is no part of a selector: write key in (a,b) or key notin (a,b)"
            ));
        }
        key(name)?;
        return values.split(',').try_for_each(|one| value(one.trim()));
    }
    for operator in ["!=", "==", "="] {
        if let Some((name, text)) = part.split_once(operator) {
            key(name.trim())?;
            return value(text.trim());
        }
    }
    for operator in ['>', '<'] {
        if let Some((name, number)) = part.split_once(operator) {
            key(name.trim())?;
            let is_number = number.trim().parse::<i64>().is_ok();
            return is_number
                .then_some(())
                .ok_or_else(|| format!("{part:?} compares with what is no whole number"));
        }
    }
    key(part)
}

/// A label's name, with its prefix if it has one.
fn key(text: &str) -> Result<(), String> {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let is_domain = |prefix: &str| {
        let is_part = |part: &str| is_word(part) && !part.contains(['_', '.']);
        let is_lower = !prefix.bytes().any(|byte| byte.is_ascii_uppercase());
        prefix.len() <= 253 && is_lower && prefix.split('.').all(is_part)
    };
    if is_word(name) && prefix.is_none_or(is_domain) {
        return Ok(());
    }
    Err(format!(
        "{text:?} is no name of a label: letters, digits, '-', '_' and '.', at most 63, after a domain and '/' if it has one"
    ))
}

/// A label's value, which may be empty.
fn value(text: &str) -> Result<(), String> {
    if text.is_empty() || is_word(text) {
        return Ok(());
    }
    Err(format!(
        "{text:?} is no value of a label: letters, digits, '-', '_' and '.', at most 63"
    ))
}

/// 1 to 63 letters, digits, `-`, `_` and `.`, of which the first and the last are letters or digits.
fn is_word(text: &str) -> bool {
    let is_edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let is_inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    bytes.len() <= 63
        && is_edge(bytes.first())
        && is_edge(bytes.last())
        && bytes.iter().all(is_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_of_kubernetes_are_taken() {
        for good in [
            "app=vllm",
            "app==vllm,tier!=test",
            "tier in (a, b),!spare,gpu",
            "example.com/role notin (decode),x= ",
            "cards>4",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn mistakes_are_told() {
        for (bad, part) in [
            ("app=vllm,", "nothing between"),
            ("app=two words", "no value"),
            ("a b=c", "no name"),
            ("tier in (a", "does not close"),
            ("tier,in,(a,b)", "no part of a selector"),
            ("tier is (a)", "no part of a selector"),
            ("-app=x", "no name"),
            ("Example.com/role=x", "no name"),
            ("cards>many", "whole number"),
            ("app=a)b", "not open"),
        ] {
            let error = check(bad).expect_err(bad);
            assert!(error.contains(part), "{bad}: {error}");
        }
    }
}
