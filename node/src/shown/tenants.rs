//! Whose prompt an explanation is about, as people read it. Pure.

use serde_json::Value;

use super::field;

/// No tenant was named, though prompts are those of tenants.
pub const MISSING: &str = "missing";
/// No key is of the tenant that was named.
pub const UNKNOWN: &str = "unknown";

/// What is to be said of an answer of `POST /explain` that is about no client's prompt; `how` a tenant is named.
pub fn note(answer: &Value, how: &str) -> Option<String> {
    match answer["tenant_is"].as_str()? {
        MISSING => Some(format!(
            "this is for no tenant's key: where clients have keys, or a header names their tenant, each tenant's prompts go by \
             themselves; {how}"
        )),
        UNKNOWN => Some(format!(
            "no key is of the tenant {}, so no client's prompt goes this way; {how}",
            field(answer, "tenant")
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_for_nobody_says_so() {
        let of = |tenant_is: &str| {
            note(
                &json!({ "tenant": "acme", "tenant_is": tenant_is }),
                "name one",
            )
        };
        let missing = of(MISSING).expect("a note");
        assert!(
            missing.contains("no tenant's key") && missing.ends_with("name one"),
            "{missing}"
        );
        let unknown = of(UNKNOWN).expect("a note");
        assert!(
            unknown.starts_with("no key is of the tenant acme"),
            "{unknown}"
        );
        assert_eq!((of("known"), of("none")), (None, None));
        assert_eq!(note(&json!({}), "name one"), None, "of an earlier release");
    }
}
