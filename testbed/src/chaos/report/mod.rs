//! How records are shown: on the terminal, as JSON, and as HTML files that need nothing else.

use std::path::Path;

use super::record::Record;

pub(crate) fn text(record: &Record) -> String {
    let mut text = format!("{} ({})\n", record.scenario, record.title);
    for promise in &record.promises {
        let verdict = if promise.held { "ok    " } else { "FAILED" };
        text += &format!("{verdict} {}: {}\n", promise.text, promise.seen);
    }
    for note in &record.notes {
        text += &format!("note: {note}\n");
    }
    text
}

pub(crate) fn write(dir: &Path, records: &[Record]) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir)?;
    for record in records {
        let path = dir.join(format!("{}.json", record.scenario));
        std::fs::write(path, serde_json::to_string(record)?)?;
    }
    Ok(())
}
