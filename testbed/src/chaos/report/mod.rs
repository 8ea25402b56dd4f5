//! How records are shown: on the terminal, as JSON, and as HTML files that need nothing else.
//!
//! All are made from the same [`Record`], so a page can be made again later from the JSON of a run.

mod html;
mod panels;
pub(crate) mod phases;
mod text;
mod timeline;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::record::Record;

/// For the terminal: events, parts, totals, promises.
pub(crate) fn text(record: &Record) -> String {
    text::Text(record).to_string()
}

/// Writes `NAME.json` and `NAME.html` for each record into `dir`, which is created if needed, and `index.html`
/// if there are several records. A scenario that ran more than once becomes `NAME-2`. Returns the files for
/// people to open, the index first.
pub(crate) fn write(dir: &Path, records: &[Record]) -> anyhow::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let put = |name: &str, content: &str| {
        let path = dir.join(name);
        let written = std::fs::write(&path, content);
        written.with_context(|| format!("cannot write {}", path.display()))?;
        anyhow::Ok(path)
    };
    let mut paths = Vec::new();
    let mut pages = Vec::new();
    for (record, name) in records.iter().zip(names(records)) {
        let json = serde_json::to_string_pretty(record).context("record as JSON")?;
        put(&format!("{name}.json"), &json)?;
        let page = format!("{name}.html");
        paths.push(put(&page, &html::page(record))?);
        pages.push(page);
    }
    if records.len() > 1 {
        paths.insert(0, put("index.html", &html::index(records, &pages))?);
    }
    Ok(paths)
}

/// Names of files: the scenario's name, without characters that have a meaning in a path or a URL.
fn names(records: &[Record]) -> Vec<String> {
    let mut used: BTreeMap<String, u32> = BTreeMap::new();
    let mut name = |record: &Record| {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let name: String = record.scenario.chars().map(plain).collect();
        let name = if name == "index" {
            "index-".to_owned()
        } else {
            name
        };
        let times = used.entry(name.clone()).or_default();
        *times += 1;
        if *times > 1 {
            format!("{name}-{times}")
        } else {
            name
        }
    };
    records.iter().map(&mut name).collect()
}

#[cfg(test)]
mod tests;
