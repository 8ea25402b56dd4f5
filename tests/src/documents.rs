//! What documents say of the tree is so: each source that they name is there, each test that they name is in its file.

use std::collections::{BTreeMap, BTreeSet};
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

/// One source: where it stands, and what it defines.
struct Source {
    /// Below the tree.
    path: PathBuf,
    /// Folders and file, as names of modules; tests beside what they test (`check_tests.rs`) are its module `tests`, too.
    place: Vec<String>,
    modules: BTreeSet<String>,
    functions: BTreeSet<String>,
}

impl Source {
    fn read(root: &Path, path: &Path) -> Self {
        let below = path.strip_prefix(root).expect("in the tree");
        let stem = below.with_extension("");
        let names = stem
            .iter()
            .map(|name| name.to_string_lossy().replace('-', "_"));
        let mut place: Vec<String> = names.collect();
        let beside = place.last().and_then(|name| name.strip_suffix("_tests"));
        let beside = beside.map(|name| [name.to_owned(), "tests".to_owned()]);
        place.extend(beside.into_iter().flatten());
        let text = read(path);
        let defined = |keyword: &str, behind: char| {
            let found = text.split(keyword).skip(1);
            let names = found.filter_map(|rest| {
                rest.split_once(|c: char| !is_of_name(c))
                    .map(|(name, _)| (name, rest))
            });
            let whole =
                names.filter(|(name, rest)| rest[name.len()..].trim_start().starts_with(behind));
            whole
                .map(|(name, _)| name.to_owned())
                .collect::<BTreeSet<_>>()
        };
        let mut functions = defined("fn ", '(');
        functions.extend(defined("def ", '('));
        Self {
            path: below.to_owned(),
            place,
            modules: defined("mod ", '{'),
            functions,
        }
    }

    /// Whether it is, or has, what a path such as `cluster::leases` or `page::model::tests::a_test` names; of a name that
    /// ends with `*` the beginning counts.
    fn has(&self, names: &[&str]) -> bool {
        let Some((last, modules)) = names.split_last() else {
            return false;
        };
        let is_there = match last.strip_suffix('*') {
            Some(begin) => self.functions.iter().any(|name| name.starts_with(begin)),
            None => {
                self.functions.contains(*last)
                    || self.modules.contains(*last)
                    || self.place.iter().any(|name| name == last)
            }
        };
        let mut place = self.place.iter();
        let mut is_way = |module: &str| {
            // Crates are called after their folders.
            let module = module.strip_prefix("grapevine_").unwrap_or(module);
            module == "grapevine"
                || self.modules.contains(module)
                || place.any(|name| name == module)
        };
        is_there && modules.iter().all(|module| is_way(module))
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The paths that a name stands for: `a::{b, c}` for `a::b` and `a::c`.
fn paths(name: &str) -> Vec<String> {
    let Some((before, rest)) = name.split_once('{') else {
        return vec![name.to_owned()];
    };
    let (inside, after) = rest.split_once('}').unwrap_or((rest, ""));
    let each = inside.split(',').map(str::trim);
    each.map(|one| format!("{before}{one}{after}")).collect()
}

#[test]
fn every_test_in_the_matrix_exists() {
    let root = root();
    let mut files = Vec::new();
    for folder in ["gossip", "node", "testbed", "tests"] {
        sources(&root.join(folder), &mut files);
    }
    let files: Vec<Source> = files.iter().map(|path| Source::read(&root, path)).collect();
    let text = read(&root.join("tests/MATRIX.md"));
    let is_path = |name: &str| {
        name.contains("::") && name.chars().all(|c| is_of_name(c) || ":*{}, ".contains(c))
    };
    let (mut in_files, mut in_modules) = (0, 0);
    for line in text.lines().filter(|line| line.starts_with('|')) {
        for name in quoted(line, |name| name.contains(".rs") || name.contains(".py")) {
            let (file, test) = name.split_once("::").unwrap_or((name, ""));
            if file.contains(' ') {
                continue; // a command
            }
            let mut there = files.iter().filter(|source| source.path.ends_with(file));
            let is_in = |source: &Source| test.is_empty() || source.functions.contains(test);
            assert!(there.any(is_in), "there is no {name}: {line}");
            in_files += 1;
        }
        for path in quoted(line, is_path).into_iter().flat_map(paths) {
            let names: Vec<&str> = path.split("::").collect();
            let is_there = files.iter().any(|source| source.has(&names));
            assert!(is_there, "there is no {path}: {line}");
            in_modules += 1;
        }
    }
    assert!(
        in_files > 450 && in_modules > 400,
        "only {in_files} and {in_modules} tests found in the matrix"
    );
}
