//! Every endpoint with a body is for one model: the request reaches a worker of that model, whatever else is
//! in the body.

use std::collections::BTreeSet;

use grapevine_testbed::fake_worker::{Config, Fault, Rule};
use grapevine_tests::chat::{MODEL, distinct};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1;
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::{Value, json};

use crate::errors::{assert_anthropic_error, assert_error};
use crate::house::{House, quick};

/// Every path that takes JSON.
const JSON_PATHS: [&str; 28] = [
    "/v1/completions",
    "/v1/embeddings",
    "/v2/embed",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/score",
    "/v1/score",
    "/generative_scoring",
    "/classify",
    "/v1/classify",
    "/pooling",
    "/tokenize",
    "/v1/tokenize",
    "/detokenize",
    "/v1/detokenize",
    "/v1/chat/completions/render",
    "/v1/chat/completions/batch",
    "/generate",
    "/inference/v1/generate",
    "/invocations",
    "/v1/audio/speech",
    "/v1/images/generations",
    "/v1/decisions",
    "/v1/systemone",
];

/// A model of its own, and one that all have.
fn serving(model: &str) -> Config {
    let models = vec![model.to_owned(), MODEL.to_owned()];
    Config { models, ..quick() }
}

/// One worker for each of two models.
async fn two_models(plan: Plan) -> House {
    House::of(plan, vec![serving("a"), serving("b")]).await
}

/// Workers that got a request since the last call.
fn asked(house: &House) -> BTreeSet<usize> {
    let workers = house.workers.iter().enumerate();
    let seen = workers.filter(|(_, worker)| !worker.log().is_empty());
    let seen = seen.map(|(index, _)| index).collect();
    house.workers.iter().for_each(|worker| worker.reset());
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_reaches_a_worker_of_its_model_whatever_else_it_says() {
    let aliases = r#"[{ name = "alias", targets = ["b"] }]"#;
    let house = two_models(Plan::default().set("model", aliases)).await;
    let forms = [
        r#""input":"x","prompt":{"id":"pmpt_1"}"#,
        r#""prompt":{"id":"pmpt_1"},"input":"x""#,
        r#""input":[{"role":"user","content":7}]"#,
        r#""messages":7,"stream":"yes""#,
        r#""messages":[{"role":7}],"tools":"x""#,
        r#""session_params":7,"user":{},"cache_salt":[]"#,
        r#""system":{"a":[1]},"instructions":[1]"#,
        r#""text":{},"query":[{}],"prompt":[[[]]]"#,
    ];
    for path in JSON_PATHS {
        for form in forms {
            for (model, worker) in [("a", 0), ("b", 1), ("alias", 1)] {
                for body in [
                    format!(r#"{{"model":"{model}",{form}}}"#),
                    format!(r#"{{{form},"model":"{model}"}}"#),
                ] {
                    let answer =
                        http1::exchange(house.data(), "POST", path, &[], body.as_bytes()).await;
                    assert_eq!(
                        asked(&house),
                        BTreeSet::from([worker]),
                        "{path} {body} {}",
                        answer.text()
                    );
                }
            }
        }
        for (body, status, code) in [
            (
                r#"{"input":"x","prompt":{"id":"p"},"model":"nobody"}"#,
                404,
                "model_not_found",
            ),
            (
                r#"{"model":"a","input":"x","model":"b"}"#,
                400,
                "invalid_request",
            ),
            (r#"{"model":7,"input":"x"}"#, 400, "invalid_request"),
            (r#"{"input":"x"}"#, 400, "invalid_request"),
            (r#"{"model":null,"input":"x"}"#, 400, "invalid_request"),
            (r#"{"model":"a","input":NaN}"#, 400, "invalid_request"),
            (r#"["a"]"#, 400, "invalid_request"),
            ("", 400, "invalid_request"),
        ] {
            let answer = http1::exchange(house.data(), "POST", path, &[], body.as_bytes()).await;
            if path.starts_with("/v1/messages") {
                let name = if status == 404 {
                    "not_found_error"
                } else {
                    "invalid_request_error"
                };
                assert_anthropic_error(&answer, status, name);
            } else {
                assert_error(&answer, status, code);
            }
            assert_eq!(asked(&house), BTreeSet::new(), "{path} {body}");
        }
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_model_need_not_be_named() {
    let house = House::of(Plan::default(), vec![quick()]).await;
    for body in [
        r#"{"prompt":"x","max_tokens":1}"#,
        r#"{"model":null,"prompt":"x","max_tokens":1}"#,
    ] {
        let answer = http1::exchange(
            house.data(),
            "POST",
            "/v1/completions",
            &[],
            body.as_bytes(),
        )
        .await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        assert_eq!(answer.json::<Value>()["model"], MODEL, "as vLLM has it");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_one_plain_answer_is_answered_by_a_worker_of_its_model() {
    let house = two_models(Plan::default()).await;
    let checks: [(&str, &str, &str); 5] = [
        ("/classify", r#""input":["x","y"]"#, "/data/1/label"),
        ("/pooling", r#""input":"x""#, "/data/0/data/15"),
        ("/generate", r#""prompt":"x","max_tokens":3"#, "/text/0"),
        (
            "/rerank",
            r#""query":"x","documents":["x","y"]"#,
            "/results/1/relevance_score",
        ),
        ("/score", r#""text_1":"x","text_2":["y"]"#, "/data/0/score"),
    ];
    for (path, form, place) in checks {
        for (model, worker) in [("a", 0), ("b", 1)] {
            let body = format!(r#"{{"model":"{model}",{form}}}"#);
            let answer = http1::exchange(house.data(), "POST", path, &[], body.as_bytes()).await;
            assert_eq!(answer.head.status, 200, "{path}: {}", answer.text());
            let json: Value = answer.json();
            assert!(json.pointer(place).is_some(), "{path}: {json}");
            assert_eq!(asked(&house), BTreeSet::from([worker]), "{path}");
            // Its faults are scripted as for other endpoints.
            house.workers[worker]
                .add_rule(Rule::next(1, Fault::status(400)))
                .expect("room for a rule");
            let refused = http1::exchange(house.data(), "POST", path, &[], body.as_bytes()).await;
            assert_eq!(refused.head.status, 400, "{path}: the worker's own word");
            assert_eq!(asked(&house), BTreeSet::from([worker]), "{path}");
        }
    }
    house.close().await;
}

/// Text that is only tokenized is in no cache, and takes the place of nothing that is.
#[tokio::test(flavor = "multi_thread")]
async fn what_leaves_nothing_in_a_cache_is_not_expected_there() {
    let house = House::new(1).await;
    let admin = house.cluster.replicas[0].admin();
    let [first, second]: [Value; 2] = distinct(2).try_into().expect("two");
    let ask = async |path, body: &Value| {
        let answer = http1::post(house.data(), path, body).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    };
    let entries = async |wanted: &dyn Fn(f64) -> bool| {
        let (found, _) = eventually(LIMIT, "the prefix index", async || {
            let metrics = admin.metrics().await;
            let found = metrics.count("grapevine_prefix_index_entries", "");
            wanted(found)
                .then_some(found)
                .ok_or_else(|| format!("{found} entries"))
        })
        .await;
        found
    };
    ask("/v1/chat/completions", &first).await;
    let of_chat = entries(&|found| found > 0.0).await;
    for number in 0..40 {
        let text = format!("text {number} ").repeat(7_000);
        let body = json!({ "model": MODEL, "prompt": text });
        ask("/tokenize", &body).await;
    }
    // Counted after them: those of a chat that is as long.
    ask("/v1/chat/completions", &second).await;
    entries(&|found| found == 2.0 * of_chat).await;
    for explained in admin.explain(&[first, second]).await {
        assert!(explained.expected_tokens > 0, "{explained:?}");
    }
    house.close().await;
}
