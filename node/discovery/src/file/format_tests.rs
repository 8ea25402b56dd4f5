//! Tests of the three forms: what they say of workers, and how they name what is wrong.

use super::*;

fn read(format: Format, text: &str) -> Listed {
    format.read(text).expect(text)
}

fn fault(format: Format, text: &str) -> String {
    format.read(text).expect_err(text)
}

const JSON: &str = r#"[
  {"targets": ["10.0.0.1:8000", "https://W2:8443"],
   "labels": {"model": "a, b", "role": "prefill", "weight": "2", "zone": "z", "max_in_flight": "7", "job": "vllm"}},
  {"targets": ["w3"], "labels": {"id": "third", "zone": "rack", "grapevine_zone": "z9", "__scheme__": "https"}},
  {"targets": []}
]"#;

const YAML: &str = "# Workers\n- targets: ['10.0.0.1:8000', 'https://W2:8443']\n  labels:\n    model: a, b\n    \
role: prefill\n    weight: 2\n    zone: z\n    max_in_flight: 7\n    job: vllm\n- targets:\n  - w3\n  labels:\n    \
id: third\n    grapevine_zone: z9\n    zone: rack\n    __scheme__: https\n- targets: []\n";

const TOML: &str = r#"
[[worker]]
url = "http://10.0.0.1:8000"
models = ["a", "b"]
role = "prefill"
weight = 2
zone = "z"
max_in_flight = 7

[[worker]]
url = "https://W2:8443"
models = ["b", "a"]
role = "prefill"
weight = 2.0
zone = "z"
max_in_flight = 7

[[worker]]
url = "https://w3"
id = "third"
zone = "z9"
"#;

#[test]
fn three_forms_say_the_same() {
    let json = read(Format::Json, JSON);
    let ids: Vec<&str> = json.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, ["http://10.0.0.1:8000", "https://w2:8443", "third"]);
    let spec = json[0].1.spec();
    assert_eq!(spec.models(), ["a", "b"]);
    assert_eq!((spec.weight_milli(), spec.zone()), (2000, Some("z")));
    assert_eq!(spec.role(), grapevine_gossip::worker::Role::Prefill);
    assert_eq!(spec.max_in_flight(), Some(7));
    let third = json[2].1.spec();
    assert_eq!(third.url().base(), "https://w3:443");
    assert_eq!(third.zone(), Some("z9"), "the prefix is stronger");
    assert_eq!(read(Format::Yaml, YAML), json);
    assert_eq!(read(Format::Toml, TOML), json);
}

#[test]
fn no_workers_are_written_as_an_empty_list() {
    for (format, text) in [
        (Format::Json, "[]"),
        (Format::Yaml, "[]"),
        (Format::Toml, "worker = []"),
    ] {
        assert_eq!(read(format, text), []);
    }
    for format in [Format::Json, Format::Yaml, Format::Toml] {
        let why = fault(format, " \n");
        assert!(why.contains("the file is empty"), "{why}");
    }
    for (format, text) in [(Format::Yaml, "# soon\n"), (Format::Toml, "# soon\n")] {
        fault(format, text);
    }
}

#[test]
fn what_is_wrong_is_named_with_line_and_key() {
    for (format, text, place, key, what) in [
        (Format::Json, "[\n{\"targets\": [\"w:1\"]", "2:", "", "EOF"),
        (Format::Json, "[] x", "1:4: ", "", "trailing"),
        (
            Format::Json,
            "{\"targets\": []}",
            "1:",
            "",
            "expected a sequence",
        ),
        (Format::Json, "[{\"labels\": {}}]", "1:", "[0]", "`targets`"),
        (
            Format::Json,
            "[\n{\"targets\": [],\n\"label\": {}}]",
            "3:",
            "[0].label",
            "`labels`",
        ),
        (
            Format::Json,
            "[{\"targets\":\n[\"w:1\",\n\"w:0\"]}]",
            "3:",
            "[0].targets[1]",
            "port 0",
        ),
        (
            Format::Json,
            "[{\"targets\": [\"ftp://w\"]}]",
            "1:",
            "[0].targets[0]",
            "it does not begin with http",
        ),
        (
            Format::Json,
            "[{\"targets\": [],\n\"labels\": {\"weight\": 2}}]",
            "2:",
            "[0].labels.weight",
            "expected a string",
        ),
        (
            Format::Json,
            "[{\"targets\": [],\n\"labels\":\n{\"weight\": \"heavy\",\n\"a\": \"b\"}}]",
            "3:",
            "[0].labels.weight",
            "not a number",
        ),
        (
            Format::Json,
            "[{\"targets\": [\"a\", \"b\"], \"labels\": {\"id\": \"x\"}}]",
            "1:",
            "[0]",
            "has 2 targets",
        ),
        (Format::Yaml, "- targets: [w:1\n", "1:12: ", "", "unclosed"),
        (
            Format::Yaml,
            "- targets: []\n  label: {}\n",
            "2:",
            "[0].label",
            "unknown field",
        ),
        (
            Format::Yaml,
            "- targets: []\n  labels:\n    zone: [z]\n",
            "3:",
            "[0].labels.zone",
            "string",
        ),
        (
            Format::Yaml,
            "- targets: []\n  labels:\n    job: x\n    role: both\n    zone: z\n",
            "4:",
            "[0].labels.role",
            "any, prefill or decode",
        ),
        (
            Format::Yaml,
            "- targets: []\n  labels:\n    weight: 0\n",
            "3:",
            "[0].labels.weight",
            "0.001 to 100",
        ),
        (
            Format::Yaml,
            "- targets: ['u@w']\n",
            "1:",
            "[0].targets[0]",
            "user information",
        ),
        (Format::Yaml, "a: &a [x]\nb: *c\n", "", "", ""),
        (
            Format::Toml,
            "[[worker]]\nurl = \"http://w\"\nweigth = 2\n",
            "3:",
            "worker[0].weigth",
            "`weight`",
        ),
        (
            Format::Toml,
            "[[worker]]\nurl = \"http://w\"\nweight = \"2\"\n",
            "3:",
            "worker[0].weight",
            "string",
        ),
        (
            Format::Toml,
            "[[worker]]\nurl = \"w\"\n",
            "2:7: ",
            "worker[0].url",
            "it has no scheme",
        ),
        (
            Format::Toml,
            "[[worker]]\nid = \"x\"\n",
            "1:",
            "worker[0]",
            "`url`",
        ),
        (
            Format::Toml,
            "[worker]\nurl = \"http://w\"\n",
            "1:",
            "worker",
            "sequence",
        ),
        (
            Format::Toml,
            "[[worker]]\nurl = \"http://w\"\napi_key = \"k\"\n",
            "3:",
            "worker[0].api_key",
            "unknown field",
        ),
        (
            Format::Toml,
            "[[worker]]\nurl = \"http://w\"\nmax_in_flight = 0\n",
            "3:",
            "worker[0].max_in_flight",
            "max_in_flight is 0",
        ),
        (Format::Toml, "[[worker]]\nurl = \"http", "2:", "", ""),
    ] {
        let why = fault(format, text);
        println!("{why}");
        assert!(why.starts_with(place), "{text}: {why}");
        assert!(why.contains(what), "{text}: {why}");
        if !key.is_empty() {
            assert!(why.contains(&format!("{key}: ")), "{text}: {why}");
        }
        assert!(!why.contains('\n'), "{text}: {why}");
    }
}

#[test]
fn more_workers_than_a_source_has_are_refused_before_they_are_made() {
    let targets: Vec<String> = (0..=WORKERS_MAX).map(|n| format!("\"w{n}\"")).collect();
    let text = |count: usize| format!("[{{\"targets\": [{}]}}]", targets[..count].join(","));
    assert_eq!(read(Format::Json, &text(WORKERS_MAX)).len(), WORKERS_MAX);
    assert_eq!(read(Format::Yaml, &text(WORKERS_MAX)).len(), WORKERS_MAX);
    let why = fault(Format::Json, &text(WORKERS_MAX + 1));
    assert!(why.contains("5001 workers are more than 5000"), "{why}");
}

#[test]
fn a_byte_order_mark_is_no_mistake() {
    for (format, text) in [
        (Format::Json, JSON),
        (Format::Yaml, YAML),
        (Format::Toml, TOML),
    ] {
        assert_eq!(read(format, &format!("\u{feff}{text}")), read(format, text));
    }
}

#[test]
fn an_object_in_place_of_the_list_is_told_at_its_first_letter() {
    let why = fault(Format::Json, r#"{"targets": ["a:1"]}"#);
    assert!(why.starts_with("1:1: "), "{why}");
}

#[test]
fn models_that_name_none_are_a_mistake() {
    let why = fault(
        Format::Json,
        r#"[{"targets": ["a:1"], "labels": {"model": " ,,"}}]"#,
    );
    assert!(why.contains("names none"), "{why}");
}

#[test]
fn aliases_that_multiply_are_refused() {
    let mut text = "- &a0 [w, w, w, w, w, w, w, w, w]\n".to_owned();
    for n in 1..9 {
        let before = format!("*a{}", n - 1);
        text += &format!("- &a{n} [{}]\n", [before.as_str(); 9].join(", "));
    }
    fault(Format::Yaml, &text);
}

#[test]
fn the_name_shows_the_form() {
    let form = |name: &str| Format::of(Path::new(name)).ok();
    assert_eq!(form("/a/w.json"), Some(Format::Json));
    assert_eq!(form("w.yml"), Some(Format::Yaml));
    assert_eq!(form("w.yaml"), Some(Format::Yaml));
    assert_eq!(form("w.toml"), Some(Format::Toml));
    assert_eq!(form("w.JSON"), None);
    assert_eq!(form("json"), None);
}
