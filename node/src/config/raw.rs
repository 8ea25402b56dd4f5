//! The layers before they are checked: file, environment, flags, each value with its origin.
//!
//! Nothing is typed here; this file knows which sections and keys exist and refuses the others.
//! Reading TOML as a table of spans, not through serde, keeps line and column of every value: also
//! one whose mistake shows only later, next to another setting.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Origin, Problem, nearest};
use super::section_values::SectionValues;
use super::setting::{Setting, Value, mismatch};
use super::table::{Flag, FlagKind, Row, Section};
use super::{ModelConfig, WorkerConfig, sections};

/// Sections that may be repeated: they have no variables and no flags.
const REPEATED: [&str; 2] = [WorkerConfig::NAME, ModelConfig::NAME];

/// Prefix of our variables in the environment.
const PREFIX: &str = "GRAPEVINE_";

/// The name of a setting's variable.
///
/// Two underscores part section and key: Kubernetes gives every pod variables like
/// `GRAPEVINE_GOSSIP_PORT=tcp://...` for a service of that name, and never a double underscore.
pub(crate) fn variable(section: &str, key: &str) -> String {
    format!("{PREFIX}{}__{}", section.to_uppercase(), key.to_uppercase())
}

/// All layers put together, later over earlier.
#[derive(Debug)]
pub(crate) struct Raw {
    sections: BTreeMap<&'static str, SectionValues>,
    pub(crate) workers: Vec<SectionValues>,
    pub(crate) models: Vec<SectionValues>,
    pub(crate) problems: Vec<Problem>,
}

impl Raw {
    pub(crate) fn new() -> Self {
        let sections = sections()
            .map(|(name, ..)| (name, SectionValues::new(name, Origin::Whole)))
            .collect();
        Self {
            sections,
            workers: Vec::new(),
            models: Vec::new(),
            problems: Vec::new(),
        }
    }

    pub(crate) fn read<S: Section>(&mut self) -> S {
        let table = self.sections.get(S::NAME);
        let table = table.expect("every section has a table");
        S::read(table, &mut self.problems)
    }

    pub(crate) fn read_workers(&mut self) -> Vec<WorkerConfig> {
        let remedy = "`url` is missing: write url = \"http://address:port\"";
        read_all(&self.workers, "url", remedy, &mut self.problems)
    }

    pub(crate) fn read_models(&mut self) -> Vec<ModelConfig> {
        let remedy = "`name` is missing: write name = \"what-clients-ask-for\"";
        read_all(&self.models, "name", remedy, &mut self.problems)
    }

    /// Where a setting was written, for a check that looks at several settings together.
    pub(crate) fn origin_of(&self, section: &str, key: &str) -> Origin {
        let table = self.sections.get(section);
        table
            .and_then(|table| table.origin_of(key))
            .cloned()
            .unwrap_or(Origin::Whole)
    }

    /// Lays the file over the defaults.
    pub(crate) fn add_file(&mut self, path: &Path, text: &str) {
        let source = SourceText { path, text };
        let root = match DeTable::parse(text) {
            Ok(root) => root.into_inner(),
            Err(error) => {
                self.problems.push(source.syntax(&error));
                return;
            }
        };
        for (name, value) in &root {
            self.add_section(&source, name, value);
        }
    }

    fn add_section(
        &mut self,
        source: &SourceText<'_>,
        name: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
    ) {
        let written = name.get_ref().as_ref();
        let origin = source.at(name.span());
        let known = sections().find(|(section, ..)| *section == written);
        match (known, value.get_ref()) {
            (Some((section, _, rows)), DeValue::Table(keys)) => {
                let table = self.sections.get_mut(section);
                let table = table.expect("every section has a table");
                fill(table, rows, source, keys, &mut self.problems);
            }
            (None, DeValue::Array(items)) if written == WorkerConfig::NAME => {
                let example = "{ url = \"http://10.0.0.5:8000\" }";
                let (tables, problems) = (&mut self.workers, &mut self.problems);
                add_repeated::<WorkerConfig>(tables, example, source, items, problems);
            }
            (None, DeValue::Array(items)) if written == ModelConfig::NAME => {
                let example = "{ name = \"llama\", targets = [\"llama-70b\"] }";
                let (tables, problems) = (&mut self.models, &mut self.problems);
                add_repeated::<ModelConfig>(tables, example, source, items, problems);
            }
            (Some((section, ..)), _) => self.problems.push(Problem {
                origin,
                key: format!("[{section}]"),
                what: format!("expected a section: write [{section}] on a line of its own"),
            }),
            (None, _) if REPEATED.contains(&written) => self.problems.push(Problem {
                origin,
                key: format!("[[{written}]]"),
                what: two_brackets(written),
            }),
            (None, value) if !matches!(value, DeValue::Table(_) | DeValue::Array(_)) => {
                self.problems.push(Problem {
                    origin,
                    key: written.to_owned(),
                    what: outside_of_sections(written),
                });
            }
            (None, _) => {
                let names = sections().map(|(section, ..)| section);
                self.problems.push(Problem {
                    origin,
                    key: format!("[{written}]"),
                    what: unknown("section", written, names.chain(REPEATED).collect()),
                });
            }
        }
    }

    /// Lays the environment over the file. Variables without `__` are not ours (see [`variable`]), but one that would
    /// be a setting with another underscore is no accident: an `ADMIN_TOKEN` that is not read leaves a door open.
    pub(crate) fn add_environment(&mut self, variables: impl Iterator<Item = (String, String)>) {
        for (name, text) in variables {
            let Some(rest) = name.strip_prefix(PREFIX) else {
                continue;
            };
            if !rest.contains("__") {
                self.problems.extend(one_underscore_short(&name, &text));
                continue;
            }
            let known = rows().find(|(section, row)| variable(section, row.key) == name);
            match known {
                Some((section, row)) => self.set(
                    section,
                    row.key,
                    Value::Word(text),
                    Origin::Environment(name),
                ),
                None => {
                    // Without what all of them begin with: that says nothing of how near they are.
                    let key = rest.to_lowercase().replacen("__", ".", 1);
                    let names: Vec<String> = rows()
                        .map(|(section, row)| format!("{section}.{}", row.key))
                        .collect();
                    let near = nearest(&key, names.iter().map(String::as_str));
                    let near = near.and_then(|near| near.split_once('.'));
                    let hint = near.map(|(section, key)| {
                        format!("; did you mean {}?", variable(section, key))
                    });
                    self.problems.push(Problem {
                        key,
                        origin: Origin::Environment(name.clone()),
                        what: format!("no such setting{}", hint.unwrap_or_default()),
                    });
                }
            }
        }
    }

    /// Lays one flag over everything else. `words` are its arguments, none for a switch.
    pub(crate) fn add_flag(&mut self, flag: Flag, words: Vec<String>) {
        let known = rows().find(|(_, row)| row.flag.is_some_and(|own| own.name == flag.name));
        let (section, row) = known.expect("flags are made from the rows");
        let word = words.first().map(String::as_str).unwrap_or_default();
        let value = match flag.kind {
            FlagKind::Text => Value::Word(word.to_owned()),
            FlagKind::Millis | FlagKind::Secs => match with_unit(word, flag.kind) {
                Ok(duration) => Value::Word(duration),
                Err(what) => {
                    self.problems.push(Problem {
                        origin: Origin::Flag(flag.name),
                        key: format!("{section}.{}", row.key),
                        what,
                    });
                    return;
                }
            },
            FlagKind::On => Value::Bool(true),
            FlagKind::Off => Value::Bool(false),
            FlagKind::List => Value::List(words.into_iter().map(Value::Word).collect()),
        };
        self.set(section, row.key, value, Origin::Flag(flag.name));
    }

    fn set(&mut self, section: &str, key: &'static str, value: Value, origin: Origin) {
        let table = self.sections.get_mut(section);
        let table = table.expect("every section has a table");
        table.set(key, value, origin);
    }
}

/// The duration that a flag of this kind says: a bare number counts in the unit of the flag's name, as other routers have
/// it; a duration that has its unit with it means what it says.
fn with_unit(word: &str, kind: FlagKind) -> Result<String, String> {
    let (unit, name) = match kind {
        FlagKind::Millis => ("ms", "milliseconds"),
        _ => ("s", "seconds"),
    };
    let word = word.trim();
    let is_bare = word
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let duration = match is_bare {
        true => format!("{word}{unit}"),
        false => word.to_owned(),
    };
    match Duration::parse(&Value::Word(duration.clone())) {
        Ok(_) => Ok(duration),
        Err(_) => Err(mismatch(
            &format!(
                "a number of {name} such as 90, or a duration with its unit such as \"250ms\", \"10s\" or \"5min\""
            ),
            &Value::Word(word.to_owned()),
        )),
    }
}

/// What is wrong with a variable that has one underscore where a setting has two.
fn one_underscore_short(name: &str, text: &str) -> Option<Problem> {
    let is_meant = |variable: &String| variable.replacen("__", "_", 1) == name;
    let mut variables = rows().map(|(section, row)| variable(section, row.key));
    let meant = variables.find(is_meant)?;
    // What Kubernetes says of a service called, for example, grapevine-listen.
    let is_service = name.ends_with("_PORT") && text.contains("://");
    (!is_service).then(|| Problem {
        key: name.trim_start_matches(PREFIX).to_lowercase(),
        origin: Origin::Environment(name.to_owned()),
        what: format!("no such setting; did you mean {meant}?"),
    })
}

/// Every setting that has a variable and may have a flag: all but those of sections that may be repeated.
pub(crate) fn rows() -> impl Iterator<Item = (&'static str, &'static Row)> {
    sections().flat_map(|(section, _, rows)| rows.iter().map(move |row| (section, row)))
}

/// Reads the tables of a section that may be repeated; each must have the key `required`.
fn read_all<S: Section>(
    tables: &[SectionValues],
    required: &str,
    remedy: &str,
    problems: &mut Vec<Problem>,
) -> Vec<S> {
    let read = |table: &SectionValues| {
        if table.origin_of(required).is_none() {
            problems.push(Problem {
                origin: table.origin.clone(),
                key: format!("[[{}]]", S::NAME),
                what: remedy.into(),
            });
        }
        S::read(table, problems)
    };
    tables.iter().map(read).collect()
}

/// Reads a file that has a repeated section and nothing else.
pub(super) fn read_list<S: Section>(
    path: &Path,
    text: &str,
    example: &str,
) -> (Vec<SectionValues>, Vec<Problem>) {
    let source = SourceText { path, text };
    let (mut tables, mut problems) = (Vec::new(), Vec::new());
    let root = match DeTable::parse(text) {
        Ok(root) => root.into_inner(),
        Err(error) => return (tables, vec![source.syntax(&error)]),
    };
    for (name, value) in &root {
        let written = name.get_ref().as_ref();
        let mut refuse = |key, what| {
            problems.push(Problem {
                origin: source.at(name.span()),
                key,
                what,
            });
        };
        match value.get_ref() {
            DeValue::Array(items) if written == S::NAME => {
                add_repeated::<S>(&mut tables, example, &source, items, &mut problems);
            }
            _ if written == S::NAME => refuse(format!("[[{written}]]"), two_brackets(written)),
            _ => {
                let what = format!("unknown section; write [[{0}]], once a {0}", S::NAME);
                refuse(format!("[{written}]"), what);
            }
        }
    }
    (tables, problems)
}

/// What is wrong with a key above the first section, and where it belongs.
fn outside_of_sections(key: &str) -> String {
    let of_key = rows().filter(|(_, row)| row.key == key);
    let homes: Vec<String> = of_key.map(|(section, _)| format!("[{section}]")).collect();
    match homes.is_empty() {
        true => "a key that stands in no section, and no section has one of this name; --print-config writes all of them"
            .to_owned(),
        false => format!(
            "a key that stands in no section: write it below {}",
            homes.join(" or ")
        ),
    }
}

fn two_brackets(section: &str) -> String {
    format!("expected a list: write [[{section}]] with two brackets, once a {section}")
}

fn add_repeated<S: Section>(
    tables: &mut Vec<SectionValues>,
    example: &str,
    source: &SourceText<'_>,
    items: &[Spanned<DeValue<'_>>],
    problems: &mut Vec<Problem>,
) {
    for item in items {
        let mut table = SectionValues::new(S::NAME, source.at(item.span()));
        match item.get_ref() {
            DeValue::Table(keys) => {
                fill(&mut table, S::ROWS, source, keys, problems);
                tables.push(table);
            }
            _ => problems.push(Problem {
                origin: table.origin,
                key: format!("[[{}]]", S::NAME),
                what: format!("expected a table such as {example}"),
            }),
        }
    }
}

fn fill(
    table: &mut SectionValues,
    rows: &'static [Row],
    source: &SourceText<'_>,
    keys: &DeTable<'_>,
    problems: &mut Vec<Problem>,
) {
    for (name, value) in keys {
        let written = name.get_ref().as_ref();
        match rows.iter().find(|row| row.key == written) {
            Some(row) => {
                let origin = source.at(value.span());
                table.set(row.key, Value::from_toml(value.get_ref()), origin);
            }
            None => problems.push(Problem {
                origin: source.at(name.span()),
                key: format!("{}.{written}", table.section()),
                what: unknown("key", written, rows.iter().map(|row| row.key).collect()),
            }),
        }
    }
}

fn unknown(kind: &str, written: &str, known: Vec<&str>) -> String {
    match nearest(written, known.iter().copied()) {
        Some(near) => format!("unknown {kind}; did you mean `{near}`?"),
        None => format!("unknown {kind}; known are: {}", known.join(", ")),
    }
}

/// A file being read: turns byte offsets into lines and columns.
struct SourceText<'a> {
    path: &'a Path,
    text: &'a str,
}

impl SourceText<'_> {
    fn syntax(&self, error: &toml::de::Error) -> Problem {
        let span = error.span().unwrap_or_default();
        let message = error.message().trim_end().replace('\n', "; ");
        // The parser names no key; a value may be a secret.
        let key = self
            .text
            .get(span.clone())
            .filter(|_| message == "duplicate key");
        Problem {
            origin: self.at(span),
            key: String::new(),
            what: key.map_or(message.clone(), |key| format!("{message} `{}`", key.trim())),
        }
    }

    fn at(&self, span: Range<usize>) -> Origin {
        let before = &self.text[..span.start.min(self.text.len())];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Origin::File {
            path: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}
