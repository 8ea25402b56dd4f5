//! The file that is printed, and what is printed nowhere.

use super::*;

#[test]
fn the_printed_file_is_the_defaults() {
    let printed = documented_defaults();
    let config = Config::from_layers(file(&printed)).expect("the printed file is valid");
    assert_eq!(config, Config::default());
    for (section, row) in rows() {
        assert!(
            !row.about.is_empty(),
            "{section}.{} is not documented",
            row.key
        );
        let set = format!("\n{} = ", row.key);
        let unset = format!("\n# {} = ", row.key);
        assert!(
            printed.contains(&set) || printed.contains(&unset),
            "{section}.{}",
            row.key
        );
    }
}

#[test]
fn examples_in_the_printed_file_are_valid() {
    let printed = documented_defaults();
    let example = |name: &str| {
        let begin = printed.find(&format!("# [[{name}]]")).expect("an example");
        let lines = printed[begin..].lines();
        // The next section begins with a line that is no comment; its own lines have no `=` before it.
        let own = lines.take_while(|line| line.is_empty() || line.starts_with('#'));
        let own = own.map(|line| line.trim_start_matches("# "));
        let is_toml = |line: &&str| {
            line.starts_with("[[") || (line.contains(" = ") && !line.ends_with("(unset)"))
        };
        let example: Vec<&str> = own.filter(is_toml).collect();
        Config::from_layers(file(&example.join("\n"))).expect("valid")
    };
    assert_eq!(example("worker").worker, [WorkerConfig::default()]);
    assert_eq!(example("model").model, [ModelConfig::default()]);
}

#[test]
fn secrets_are_not_printed() {
    let text = "[admin]\ntoken = \"hush\"\n[workers]\napi_key = \"hush\"\n\
                [[worker]]\nurl = \"http://a:1\"\napi_key = \"hush\"";
    let config = Config::from_layers(file(text)).expect("valid");
    assert_eq!(
        config.admin.token.as_ref().map(Secret::reveal),
        Some("hush")
    );
    assert!(!format!("{config:?} {config:#?}").contains("hush"));
    // Nor when it is wrong, wherever it was written.
    let wrong = "a hush with spaces";
    let in_file = Config::from_layers(file(&format!("[admin]\ntoken = {wrong:?}")));
    let in_list = Config::from_layers(file(&format!("[workers]\napi_key = [{wrong:?}]")));
    let in_variable = Config::from_layers(Layers {
        environment: vec![("GRAPEVINE_ADMIN__TOKEN".to_owned(), wrong.to_owned())],
        ..Layers::default()
    });
    let in_url = |text: &str| Config::from_layers(file(text));
    let of_workers = in_url("[workers]\nurls = [\"http://u:hush@h:1\"]");
    let of_worker = in_url("[[worker]]\nurl = \"http://u:hush@h:99999\"");
    let of_trace = in_url("[trace]\nendpoint = \"http://u:hush@h:1\"");
    for refused in [
        in_file,
        in_list,
        in_variable,
        of_workers,
        of_worker,
        of_trace,
    ] {
        let error = refused.expect_err("no secret has spaces");
        assert!(!format!("{error} {error:?}").contains("hush"), "{error}");
    }
}
