//! Label selectors (equality and sets) and field selectors, parsed and matched as the API server does.
//!
//! Pure. A watch evaluates its selector on both sides of a change, so matching takes the whole object.

use serde_json::Value;

use crate::fake_kubernetes::refusal::Refusal;

/// Longest selector in bytes; more than any list of labels needs.
const SELECTOR_BYTES_MAX: usize = 16 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
}

/// Which objects a list or watch shows. The default shows all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::fake_kubernetes) struct Selector {
    labels: Vec<(String, Rule)>,
    /// Path of a field, the value, and whether it must be equal (or must not).
    fields: Vec<(&'static str, String, bool)>,
}

/// Fields of a pod by which the real server selects.
const FIELDS: [(&str, &str); 5] = [
    ("metadata.name", "/metadata/name"),
    ("metadata.namespace", "/metadata/namespace"),
    ("spec.nodeName", "/spec/nodeName"),
    ("status.phase", "/status/phase"),
    ("status.podIP", "/status/podIP"),
];

impl Selector {
    /// Reads `labelSelector` and `fieldSelector`; empty texts select everything.
    pub(in crate::fake_kubernetes) fn parse(labels: &str, fields: &str) -> Result<Self, Refusal> {
        if labels.len().max(fields.len()) > SELECTOR_BYTES_MAX {
            return Err(Refusal::bad_request("selector is too long"));
        }
        let labels = requirements(labels).map(|one| {
            label_rule(one).ok_or_else(|| {
                let what = format!("unable to parse requirement: `{one}` is no label selector");
                Refusal::bad_request(what)
            })
        });
        let fields = fields.split(',').filter(|one| !one.trim().is_empty());
        Ok(Self {
            labels: labels.collect::<Result<_, _>>()?,
            fields: fields.map(field_rule).collect::<Result<_, _>>()?,
        })
    }

    pub(in crate::fake_kubernetes) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(in crate::fake_kubernetes) fn matches(&self, object: &Value) -> bool {
        let labels = object.pointer("/metadata/labels");
        let label = |key: &str| labels.and_then(|labels| labels.get(key)?.as_str());
        let labels = self.labels.iter().all(|(key, rule)| match rule {
            Rule::In(values) => label(key).is_some_and(|has| values.iter().any(|v| v == has)),
            // A label that is not there has none of the values.
            Rule::NotIn(values) => label(key).is_none_or(|has| values.iter().all(|v| v != has)),
            Rule::Exists => label(key).is_some(),
            Rule::Absent => label(key).is_none(),
        });
        let mut fields = self.fields.iter();
        labels
            && fields.all(|(path, value, equal)| {
                let has = object.pointer(path).and_then(Value::as_str);
                (has.unwrap_or_default() == value) == *equal
            })
    }
}

/// Splits at commas that are not inside parentheses.
fn requirements(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    let parts = text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty())
}

fn label_rule(text: &str) -> Option<(String, Rule)> {
    let rule = if let Some(key) = text.strip_prefix('!') {
        (key, Rule::Absent)
    } else if let Some((key, value)) = text.split_once("!=") {
        (key, Rule::NotIn(vec![value.trim().to_owned()]))
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (key, Rule::In(vec![value.trim().to_owned()]))
    } else if let Some((key, set)) = text.split_once(" notin ") {
        (key, Rule::NotIn(values(set)?))
    } else if let Some((key, set)) = text.split_once(" in ") {
        (key, Rule::In(values(set)?))
    } else {
        (text, Rule::Exists)
    };
    let key = rule.0.trim();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    (!key.is_empty() && key.chars().all(is_plain)).then(|| (key.to_owned(), rule.1))
}

fn values(set: &str) -> Option<Vec<String>> {
    let inner = set.trim().strip_prefix('(')?.strip_suffix(')')?;
    Some(inner.split(',').map(|one| one.trim().to_owned()).collect())
}

fn field_rule(text: &str) -> Result<(&'static str, String, bool), Refusal> {
    let parsed = if let Some((field, value)) = text.split_once("!=") {
        Some((field, value, false))
    } else {
        let pair = text.split_once("==").or_else(|| text.split_once('='));
        pair.map(|(field, value)| (field, value, true))
    };
    let Some((field, value, equal)) = parsed else {
        let what = format!("invalid selector: '{text}'; can't understand '{text}'");
        return Err(Refusal::bad_request(what));
    };
    let known = FIELDS.iter().find(|(name, _)| *name == field.trim());
    let Some((_, path)) = known else {
        let what = format!("field label not supported: {}", field.trim());
        return Err(Refusal::bad_request(what));
    };
    Ok((path, value.trim().to_owned(), equal))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_match_as_kubernetes_documents_them() {
        let pod = json!({
            "metadata": { "name": "a", "labels": { "app": "vllm", "tier": "gold" } },
            "status": { "phase": "Running" },
        });
        let cases = [
            ("", "", true),
            ("app=vllm", "", true),
            ("app==vllm,tier=gold", "", true),
            ("app!=vllm", "", false),
            ("zone!=b", "", true),
            ("tier in (gold, silver)", "", true),
            ("tier notin (gold, silver),app", "", false),
            ("zone notin (b)", "", true),
            ("app", "", true),
            ("!zone", "", true),
            ("!app", "", false),
            ("", "metadata.name=a", true),
            ("", "metadata.name!=a", false),
            ("app=vllm", "status.phase=Running,metadata.name=a", true),
            ("app=vllm", "status.phase=Pending", false),
        ];
        for (labels, fields, expected) in cases {
            let selector = Selector::parse(labels, fields).expect("valid");
            assert_eq!(selector.matches(&pod), expected, "{labels} {fields}");
        }
    }

    #[test]
    fn what_is_no_selector_is_refused() {
        for (labels, fields) in [
            ("a b c", ""),
            ("a in gold", ""),
            ("", "spec.x=1"),
            ("", "name"),
        ] {
            assert_eq!(
                Selector::parse(labels, fields)
                    .expect_err("no selector")
                    .code,
                400
            );
        }
    }
}
