//! The examples of all help texts are command lines that the program understands as they stand.

use clap::CommandFactory as _;

use super::Cli;

/// The words of the commands of this program in one line, as a shell parts them: what is piped into, or follows `&&`,
/// is a command of its own; redirections and comments are left out.
fn commands_in(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut quote = None;
    let mut letters = line.chars().peekable();
    let mut is_target = false;
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ') => {
                let ended = word.take().filter(|_| !std::mem::take(&mut is_target));
                words.extend(ended);
            }
            (None, '>') => {
                is_target = true;
                letters.next_if_eq(&' ');
            }
            (None, '&' | '|' | ';') => {
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
            }
            _ => word.get_or_insert_default().push(letter),
        }
        // A file that is written to ends with the word.
        if letter == '>' && letters.peek() == Some(&'>') {
            letters.next();
            letters.next_if_eq(&' ');
        }
    }
    words.extend(word.filter(|_| !is_target));
    commands.push(words);
    commands.retain(|words| words.first().is_some_and(|word| word == "grapevine"));
    commands
}

/// The examples of a help text.
fn examples_in(help: &str) -> Vec<Vec<String>> {
    let whole = help.replace("\\\n", " ");
    whole
        .lines()
        .flat_map(|line| commands_in(line.trim()))
        .collect()
}

fn check(command: &clap::Command, path: &str, seen: &mut usize) {
    let help = [command.get_after_help(), command.get_after_long_help()];
    let shown = command.clone().render_long_help().to_string();
    for help in help.into_iter().flatten() {
        // A line that is wrapped cannot be pasted.
        let text = help.to_string();
        let mut examples = text
            .lines()
            .filter(|line| line.trim_start().starts_with("grapevine "));
        let wrapped = examples.find(|line| !shown.contains(line.trim()));
        assert_eq!(wrapped, None, "{path}: it is wrapped");
    }
    for example in help
        .into_iter()
        .flatten()
        .flat_map(|help| examples_in(&help.to_string()))
    {
        let words = example.iter().map(Into::into);
        if let Err(error) = Cli::of(words) {
            let is_help = !error.use_stderr();
            assert!(is_help, "{path}: {example:?}: {error}");
        }
        *seen += 1;
    }
    for sub in command.get_subcommands() {
        check(sub, &format!("{path} {}", sub.get_name()), seen);
    }
}

#[test]
fn examples_of_every_help_text_are_understood() {
    let mut seen = 0;
    check(&Cli::command(), "grapevine", &mut seen);
    assert!(seen > 60, "{seen} examples were found");
}

/// Commands of the blocks that are for a shell in a document, however the program is started there.
fn shell_examples_in(document: &str) -> Vec<Vec<String>> {
    let blocks = document.split("```").skip(1).step_by(2);
    let shells = blocks.filter_map(|block| block.strip_prefix("sh\n"));
    let whole = shells.map(|block| block.replace("\\\n", " "));
    let started = whole.map(|block| {
        ["sudo target/release/", "target/release/", "/"]
            .into_iter()
            .fold(block, |block, before| {
                block.replace(&format!("\n{before}grapevine "), "\ngrapevine ")
            })
            .replace("cargo run --release -- ", "grapevine ")
    });
    started.flat_map(|block| examples_in(&block)).collect()
}

#[test]
fn examples_of_every_document_are_understood() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = vec![root.join("README.md")];
    for folder in [
        "docs",
        "node",
        "testbed",
        "packaging",
        "packaging/chart/grapevine",
    ] {
        let found = std::fs::read_dir(root.join(folder)).expect("a folder of the tree");
        let paths = found.map(|entry| entry.expect("readable").path());
        files.extend(paths.filter(|path| path.extension().is_some_and(|of| of == "md")));
    }
    let mut seen = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a document");
        for example in shell_examples_in(&text) {
            if let Err(error) = Cli::of(example.iter().map(Into::into)) {
                let is_help = !error.use_stderr();
                assert!(is_help, "{}: {example:?}: {error}", file.display());
            }
            seen += 1;
        }
    }
    assert!(seen > 35, "{seen} examples were found");
}

#[test]
fn a_line_is_parted_as_a_shell_does() {
    let parted = |line: &str| {
        let commands = commands_in(line).into_iter();
        commands.map(|words| words.join("_")).collect::<Vec<_>>()
    };
    assert_eq!(parted("grapevine status   # now"), ["grapevine_status"]);
    assert_eq!(
        parted("grapevine explain --prompt 'why # so?'"),
        ["grapevine_explain_--prompt_why # so?"]
    );
    assert_eq!(
        parted("grapevine ca init && grapevine ca issue r2"),
        ["grapevine_ca_init", "grapevine_ca_issue_r2"]
    );
    assert_eq!(
        parted("grapevine status > /dev/null || page-somebody"),
        ["grapevine_status"]
    );
    assert_eq!(
        parted("grapevine keys new a >> keys.toml   # x"),
        ["grapevine_keys_new_a"]
    );
    assert_eq!(parted("kill -HUP 7"), [""; 0]);
}
