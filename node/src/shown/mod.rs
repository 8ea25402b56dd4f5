//! What the admin API answers, as people read it: on the command line and on the page. Pure.

pub mod add_command;
pub mod difference;
pub mod links;
pub mod models;
pub mod summary;
pub mod tenants;
pub mod trouble;
pub mod words;

use std::borrow::Cow;

use serde_json::Value;

/// How `why` of a worker begins that does not let a replica ask for its models.
pub const KEY_REFUSED: &str = "it refuses the key";

/// What `why` of a worker has of names of models that it lists and that are left out.
pub const NAMES_LEFT_OUT: &str = "of its models cannot be used";

/// How `why` of a worker begins that is a replica of its own cluster.
pub const IS_REPLICA: &str = "it is a replica of this cluster";

/// One field as a person reads it.
pub fn field(row: &Value, name: &str) -> String {
    match row.get(name) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(value) => plain_to(value, decimals(name)),
    }
}

/// Decimals of a fraction: a weight is shown as it was written, in thousandths at the most; others are measured.
fn decimals(name: &str) -> u32 {
    match name {
        "weight" => 3,
        _ => 1,
    }
}

/// A text from outside without what a terminal would obey, and without what turns the direction of the text around it:
/// names of models, workers and labels are whatever somebody chose.
pub fn clean(text: &str) -> Cow<'_, str> {
    let is_dangerous = |letter: char| {
        letter.is_control()
            || matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2028}' | '\u{2029}'
                | '\u{2066}'..='\u{2069}')
    };
    match text.contains(is_dangerous) {
        true => Cow::Owned(text.replace(is_dangerous, "\u{fffd}")),
        false => Cow::Borrowed(text),
    }
}

/// A value as text.
pub fn plain(value: &Value) -> String {
    plain_to(value, 1)
}

fn plain_to(value: &Value, decimals: u32) -> String {
    match value {
        Value::String(text) => clean(text).into_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(","),
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap_or_default();
            let parts = f64::from(10_u32.pow(decimals));
            format!("{}", (number * parts).round() / parts)
        }
        other => other.to_string(),
    }
}

/// As people say it: `40 s`, `12 min`, `3 h`, `5 d`.
pub fn seconds(for_s: u64) -> String {
    match for_s {
        0..120 => format!("{for_s} s"),
        120..7_200 => format!("{} min", for_s / 60),
        7_200..172_800 => format!("{} h", for_s / 3_600),
        _ => format!("{} d", for_s / 86_400),
    }
}

/// The list under a key of an answer; empty where there is none.
pub fn rows<'a>(answer: &'a Value, key: &str) -> &'a [Value] {
    let list = answer.get(key).and_then(Value::as_array);
    list.map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_shown_for_people() {
        let row = json!({"id": "w1", "models": ["a", "b"], "ready": true, "zone": null, "load": 3, "in_flight": 2.0, "cost": 0.75});
        let check = |name, expected| assert_eq!(field(&row, name), expected);
        check("id", "w1");
        check("models", "a,b");
        check("ready", "yes");
        check("zone", "-");
        check("nothing", "-");
        check("load", "3");
        check("in_flight", "2");
        check("cost", "0.8");
        for (weight, expected) in [(0.04, "0.04"), (0.001, "0.001"), (1.0, "1"), (2.5, "2.5")] {
            assert_eq!(field(&json!({ "weight": weight }), "weight"), expected);
        }
    }

    #[test]
    fn names_cannot_command_a_terminal() {
        let row = json!({ "models": ["a\u{1b}[2Jb", "c\nd"], "id": "\u{202e}live", "plain": "größer 模型 نموذج" });
        assert_eq!(field(&row, "models"), "a\u{fffd}[2Jb,c\u{fffd}d");
        assert_eq!(field(&row, "id"), "\u{fffd}live");
        assert_eq!(field(&row, "plain"), "größer 模型 نموذج");
    }
}
