//! `[[model]]` sections: rules, weights, fingerprint.

use super::Config;
use super::tests::{file, messages};

#[test]
fn models_must_fit_together() {
    let check = |text: &str, expected: &str| {
        assert_eq!(messages(file(text)), [expected], "{text}");
    };
    check(
        "[[model]]\nname = \"a\"\ntargets = []",
        "g.toml:3:11: model.targets: an alias has at least one target; without `targets` the name \
         is a model's",
    );
    check(
        "[[model]]\nname = \"a\"\n[[model]]\nname = \"a\"",
        "g.toml:4:8: model.name: this name is there twice",
    );
    check(
        "[[model]]\nname = \"a\"\ntargets = [\"b\"]\n[[model]]\nname = \"b\"\ntargets = [\"c\"]",
        "g.toml:3:11: model.targets: `b` is an alias itself; name the models that workers serve",
    );
    check(
        "[[model]]\nname = \"a\"\ntargets = [\"b\"]\npolicy = \"random\"",
        "g.toml:4:10: model.policy: an alias has no workers of its own; give each of its targets a \
         policy",
    );
    check(
        "[[model]]\nname = \"a\"\ntargets = [\"b\"]\nfailover = true",
        "g.toml:4:12: model.failover: an alias has no streams of its own; give each of its targets a \
         failover",
    );
    check(
        "[[model]]\nname = \"\"",
        "g.toml:2:8: model.name: a model's name has 1 to 256 bytes without control characters",
    );
}

#[test]
fn an_alias_that_is_a_model_too_has_what_a_model_has() {
    let text =
        "[[model]]\nname = \"a\"\ntargets = [\"a:9\", \"b\"]\npolicy = \"random\"\nfailover = true";
    assert!(Config::from_layers(file(text)).is_ok());
}

#[test]
fn what_is_wrong_in_any_case_is_named_beside_other_mistakes() {
    let text = "[[model]]\nname = \"a\"\ntargets = [\"c:0\"]\n[[model]]\nname = \"a\"\npolicy = \"zz\"\n\
        [[model]]\nname = \"b\"\ntargets = []\n[[model]]\nname = 5\n[[model]]\nname = 6";
    let messages = messages(file(text));
    let starts = [
        "g.toml:3:11: model.targets: the weight in",
        "g.toml:5:8: model.name: this name is there twice",
        "g.toml:6:10: model.policy:",
        "g.toml:9:11: model.targets: an alias has at least one target",
        "g.toml:11:8: model.name:",
        "g.toml:13:8: model.name:",
    ];
    assert_eq!(messages.len(), starts.len(), "{messages:#?}");
    for (message, start) in messages.iter().zip(starts) {
        assert!(message.starts_with(start), "{message}");
    }
}

#[test]
fn a_target_whose_weight_is_no_number_is_noted() {
    let text = "[[model]]\nname = \"a\"\ntargets = [\"b:x\", \"b:\", \"llama3:8b\", \"m:7:1\", \"c:2\", \"d:e\", \"f:g\"]\n\
        [[model]]\nname = \"d:e\"\n[[worker]]\nurl = \"http://w:1\"\nmodels = [\"f:g\"]";
    let notes = Config::from_layers(file(text)).expect("valid").notes();
    let of_targets = notes.iter().filter(|note| note.starts_with("the target"));
    let names: Vec<_> = of_targets
        .filter_map(|note| note.split('"').nth(1))
        .collect();
    assert_eq!(names, ["b:x", "b:"]);
}

#[test]
fn targets_carry_their_weights() {
    let targets = |text: &str| {
        let text = format!("[[model]]\nname = \"alias\"\ntargets = [{text}]");
        let settings = Config::from_layers(file(&text))
            .expect("valid")
            .cluster_settings();
        let targets = settings.models.targets_of("alias").expect("an alias");
        let pairs = targets
            .iter()
            .map(|t| (t.model.clone(), t.weight.thousandths()));
        pairs.collect::<Vec<_>>()
    };
    let owned = |model: &str, weight| (model.to_owned(), weight);
    assert_eq!(
        targets("\"a\", \"b:9\", \"c:0.5\""),
        [owned("a", 1_000), owned("b", 9_000), owned("c", 500)]
    );
    assert_eq!(
        targets("\"llama3:8b\", \"org/m:7:1\", \"m:\""),
        [
            owned("llama3:8b", 1_000),
            owned("m:", 1_000),
            owned("org/m:7", 1_000)
        ]
    );
}

#[test]
fn models_are_part_of_the_fingerprint() {
    let fingerprint = |text: &str| {
        let config = Config::from_layers(file(text)).expect("valid");
        config.cluster_settings().fingerprint()
    };
    let one = "[[model]]\nname = \"a\"\ntargets = [\"b\"]\n";
    let two = "[[model]]\nname = \"m\"\npolicy = \"sticky\"\n";
    assert_ne!(fingerprint(one), fingerprint(""));
    assert_eq!(
        fingerprint(&format!("{one}{two}")),
        fingerprint(&format!("{two}{one}"))
    );
}
