//! `/v1/models`: the union of what all workers serve, from the cluster's own registry.
//!
//! Answered without asking a worker, so that every replica gives the same answer and a slow worker delays nobody.

use bytes::Bytes;
use serde_json::json;

fn model_object(id: &str) -> serde_json::Value {
    // OpenAI's client requires `created`; the registry does not know when a model was made.
    json!({"id": id, "object": "model", "created": 0, "owned_by": "grapevine", "root": id, "parent": null})
}

/// Body of `GET /v1/models`. `ids` are sorted and distinct.
pub fn list<'a>(ids: impl Iterator<Item = &'a str>) -> Bytes {
    let data: Vec<_> = ids.map(model_object).collect();
    json!({"object": "list", "data": data}).to_string().into()
}

/// Body of `GET /v1/models/{id}`.
pub fn one(id: &str) -> Bytes {
    model_object(id).to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_has_openai_shape() {
        let value: serde_json::Value =
            serde_json::from_slice(&list(["a", "b"].into_iter())).expect("JSON");
        assert_eq!(value["object"], "list");
        assert_eq!(value["data"][1]["id"], "b");
        assert_eq!(value["data"][1]["object"], "model");
        assert!(value["data"][0]["created"].is_i64() || value["data"][0]["created"].is_u64());
    }
}
