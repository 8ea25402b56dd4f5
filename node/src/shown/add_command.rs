//! The command that adds a worker as it was described. Pure.

use serde_json::{Map, Value};

/// Members of `POST /workers`, and the flag of `grapevine workers add` for each.
const FLAGS: [(&str, &str); 10] = [
    ("models", "model"),
    ("weight", "weight"),
    ("role", "role"),
    ("dp_size", "dp-size"),
    ("max_in_flight", "max-in-flight"),
    ("zone", "zone"),
    ("kv_connector", "kv-connector"),
    ("bootstrap_port", "bootstrap-port"),
    ("kv_address", "kv-address"),
    ("labels", "label"),
];

/// `grapevine workers add URL --id ID --role prefill`, of the members of a body; other members are passed over. `id`: where
/// it is not the one of the address.
pub fn add_command(id: Option<&str>, body: &Map<String, Value>) -> String {
    let mut words = vec!["grapevine workers add".to_owned()];
    let url = body.get("url").map(plain);
    words.push(url.map_or_else(|| "URL".to_owned(), |url| quoted(&url)));
    words.extend(id.map(|id| format!("--id {}", quoted(id))));
    for (member, flag) in FLAGS {
        let values = match body.get(member) {
            None => Vec::new(),
            Some(Value::Array(values)) => values.iter().map(plain).collect(),
            Some(Value::Object(pairs)) => {
                let pairs = pairs.iter();
                pairs
                    .map(|(name, of)| format!("{name}={}", plain(of)))
                    .collect()
            }
            Some(value) => vec![plain(value)],
        };
        words.extend(
            values
                .into_iter()
                .map(|value| format!("--{flag} {}", quoted(&value))),
        );
    }
    words.join(" ")
}

/// As a shell takes it for one word and nothing else: a model may be called as somebody likes.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "@%+=:,./_-".contains(letter);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// As it is written on a command line: whole weights without a point.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_shell_reads_each_value_as_one_word() {
        let body = json!({ "url": "http://a:1@2", "models": ["org/m-1", "it's $(me)"], "labels": { "a": "x;y" } });
        let body = body.as_object().expect("an object");
        let expected = r"grapevine workers add http://a:1@2 --id '[w]' --model org/m-1 --model 'it'\''s $(me)' --label 'a=x;y'";
        assert_eq!(add_command(Some("[w]"), body), expected);
    }
}
