//! What documents say of the tree is so: each source that they name is there, each test that they name is in its file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().expect("the crate is in the tree").to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What stands between backticks and satisfies the condition, in the text's order.
fn quoted(text: &str, wanted: impl Fn(&str) -> bool) -> Vec<&str> {
    let inside = text.split('`').skip(1).step_by(2);
    inside.filter(|name| wanted(name)).collect()
}

/// Parts of the architecture that begin with `## `, by their headings.
fn sections(text: &str) -> BTreeMap<&str, &str> {
    let parts = text.split("\n## ").skip(1);
    parts.filter_map(|part| part.split_once('\n')).collect()
}

/// All sources below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the tree") {
        let path = entry.expect("readable").path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_dir() {
            sources(&path, found);
        } else if matches!(extension, Some("rs" | "py")) {
            found.push(path);
        }
    }
}

#[test]
fn every_source_in_the_architecture_exists() {
    let root = root();
    let text = read(&root.join("docs/architecture.md"));
    let mut named = 0;
    for (heading, section) in sections(&text) {
        // As the text of each walk says: what its paths are below.
        let below: &[&str] = match heading.split_once(':') {
            Some(("Walk 1", _)) => &["node"],
            Some(("Walk 2", _)) => &["gossip/src", ""],
            _ => &["", "node/src"],
        };
        for name in quoted(section, |name| name.ends_with(".rs")) {
            let exists = below
                .iter()
                .any(|base| root.join(base).join(name).is_file());
            assert!(exists, "{heading}: there is no {name}");
            named += 1;
        }
    }
    assert!(named > 200, "only {named} sources found in the text");
}

#[test]
fn the_walks_of_a_request_and_of_a_worker_enter_each_file_once() {
    let text = read(&root().join("docs/architecture.md"));
    for (heading, section) in sections(&text) {
        if !heading.starts_with("Walk 1") && !heading.starts_with("Walk 3") {
            continue;
        }
        let mut named = quoted(section, |name| name.ends_with(".rs"));
        named.sort_unstable();
        let twice = named.windows(2).find(|pair| pair[0] == pair[1]);
        assert_eq!(twice, None, "{heading}");
    }
}

#[test]
fn every_test_in_the_matrix_exists() {
    let root = root();
    let mut files = Vec::new();
    for folder in ["gossip", "node", "testbed", "tests"] {
        sources(&root.join(folder), &mut files);
    }
    let text = read(&root.join("tests/MATRIX.md"));
    let mut named = 0;
    for line in text.lines().filter(|line| line.starts_with('|')) {
        for name in quoted(line, |name| name.contains(".rs") || name.contains(".py")) {
            let (file, test) = name.split_once("::").unwrap_or((name, ""));
            if file.contains(' ') {
                continue; // a command
            }
            let mut there = files.iter().filter(|path| path.ends_with(file));
            let is_in = |path: &PathBuf| read(path).contains(test);
            assert!(there.any(is_in), "there is no {name}: {line}");
            named += 1;
        }
    }
    assert!(named > 300, "only {named} tests found in the matrix");
}
