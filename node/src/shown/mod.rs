//! What the admin API answers, as people read it: on the command line and on the page. Pure.

pub mod summary;

use serde_json::Value;

/// One field as a person reads it.
pub fn field(row: &Value, name: &str) -> String {
    match row.get(name) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(value) => plain(value),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(","),
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap_or_default();
            format!("{}", (number * 10.0).round() / 10.0)
        }
        other => other.to_string(),
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
    }
}
