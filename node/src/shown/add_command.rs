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
    words.push(body.get("url").map_or_else(|| "URL".to_owned(), plain));
    words.extend(id.map(|id| format!("--id {id}")));
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
        words.extend(values.into_iter().map(|value| format!("--{flag} {value}")));
    }
    words.join(" ")
}

/// As it is written on a command line: whole weights without a point.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
        other => other.to_string(),
    }
}
