//! Answers of the admin API as text on standard output.

use std::io::{self, Write as _};

use serde_json::Value;

use super::failure::Failure;

/// A column of a table: its heading, and the field it shows.
#[derive(Clone, Copy)]
pub(super) struct Column(pub(super) &'static str, pub(super) &'static str);

/// Prints aligned columns; a field that a row lacks is shown as a dash.
pub(super) fn print_table(columns: &[Column], rows: &[Value]) -> Result<(), Failure> {
    let heads = columns
        .iter()
        .map(|Column(head, _)| (*head).to_owned())
        .collect();
    let cells = |row: &Value| {
        columns
            .iter()
            .map(|Column(_, name)| field(row, name))
            .collect()
    };
    let lines: Vec<Vec<String>> = std::iter::once(heads)
        .chain(rows.iter().map(cells))
        .collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns.len())
        .map(|column| width(column).unwrap_or(0))
        .collect();
    for line in &lines {
        let padded = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        print_line(padded.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// One field as a person reads it.
pub(super) fn field(row: &Value, name: &str) -> String {
    match row.get(name) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(value) => plain(value),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(","),
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap_or_default();
            format!("{}", (number * 10.0).round() / 10.0)
        }
        other => other.to_string(),
    }
}

/// The list under a key of an answer; empty where there is none.
pub(super) fn rows<'a>(answer: &'a Value, key: &str) -> &'a [Value] {
    let list = answer.get(key).and_then(Value::as_array);
    list.map_or(&[], Vec::as_slice)
}

pub(super) fn print_json(value: &Value) -> Result<(), Failure> {
    print_line(&format!("{value:#}"))
}

/// Writes a line to standard output; a reader that left (`| head`) is no failure.
///
/// # Errors
/// Standard output cannot be written, as on a full disk.
pub fn print_line(line: &str) -> Result<(), Failure> {
    match writeln!(io::stdout(), "{line}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Refused(format!(
            "cannot write to standard output: {error}"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_shown_for_people() {
        let row = json!({"id": "w1", "models": ["a", "b"], "ready": true, "zone": null, "load": 3, "in_flight": 2.0, "cost": 0.75});
        let check = |name, expected| assert_eq!(field(&row, name), expected);
        check("id", "w1");
        check("models", "a,b");
        check("ready", "yes");
        check("zone", "-");
        check("nothing", "-");
        check("load", "3");
        check("in_flight", "2");
        check("cost", "0.8");
    }
}
