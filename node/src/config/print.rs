//! The documented default file: what `serve --print-config` writes.

use std::fmt::Write as _;

use super::table::{Row, Section};
use super::{ClusterConfig, ModelConfig, WorkerConfig, WorkersConfig, sections, variable};

/// Every section and setting with its documentation and default, as a file that may be used as is.
pub fn documented_defaults() -> String {
    let mut file = String::from(
        "# Grapevine's configuration with every default. Keep only what you change.\n\
         # Order of precedence: flags, then environment, then this file, then these defaults.\n",
    );
    for (name, about, rows) in sections() {
        write_section(&mut file, &format!("[{name}]"), about, |file| {
            for row in rows {
                write_row(file, Some(name), row);
            }
        });
        match name {
            ClusterConfig::NAME => write_example::<ModelConfig>(&mut file),
            WorkersConfig::NAME => write_example::<WorkerConfig>(&mut file),
            _ => {}
        }
    }
    file
}

/// Writes a section that may be repeated, and has no default, as an example.
fn write_example<S: Section>(file: &mut String) {
    write_section(file, &format!("# [[{}]]", S::NAME), S::ABOUT, |file| {
        for row in S::ROWS {
            write_row(file, None, row);
        }
    });
}

fn write_section(file: &mut String, head: &str, about: &[&str], rows: impl Fn(&mut String)) {
    file.push('\n');
    for line in about.iter().filter(|line| !line.is_empty()) {
        let _ = writeln!(file, "#{line}");
    }
    let _ = writeln!(file, "{head}");
    rows(file);
}

/// Writes one setting; without a section its lines are an example.
fn write_row(file: &mut String, section: Option<&str>, row: &Row) {
    file.push('\n');
    for line in row.about.iter().filter(|line| !line.is_empty()) {
        let _ = writeln!(file, "#{line}");
    }
    if let Some(range) = row.range {
        let _ = writeln!(file, "# Range: {}.", range());
    }
    if let Some(section) = section {
        let flag = row.flag.map(|flag| format!("--{}, ", flag.name));
        let variable = variable(section, row.key);
        let _ = writeln!(file, "# {}{variable}", flag.unwrap_or_default());
    }
    if row.is_live {
        let _ = writeln!(file, "# A reload brings a change into use.");
    }
    let _ = match ((row.default)(), section) {
        (Some(default), Some(_)) => writeln!(file, "{} = {default}", row.key),
        (Some(example), None) => writeln!(file, "# {} = {example}", row.key),
        (None, _) => writeln!(file, "# {} = (unset)", row.key),
    };
}
