//! The expressions of the board and the selectors of the rules, read from the files that operators get.

use std::path::Path;

use serde_json::Value;

use super::MONITORING;

/// Every expression of the board that is not empty by intention while nothing is wrong, by its place, with the
/// variables filled in.
pub(super) fn board() -> Vec<(String, String)> {
    let program = Path::new(MONITORING).join("board.py");
    let run = |argument: &str| {
        let mut python = std::process::Command::new("python3");
        python
            .arg(&program)
            .arg(argument)
            .output()
            .expect("python3 runs")
    };
    let checked = run("--check");
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );
    let lines = String::from_utf8(run("--expressions").stdout).expect("text");
    let rows = lines.lines().map(|line| {
        let row: Value = serde_json::from_str(line).expect("a JSON line");
        let text = |field: &str| row[field].as_str().expect("text").to_owned();
        let filled = text("expression")
            .replace("$__rate_interval", "30s")
            .replace("$job", "grapevine")
            .replace("$instance", ".*")
            .replace("$model", ".*");
        let place = format!("{}: {}", text("row"), text("panel"));
        (row["quiet"] == true, place, filled)
    });
    let shown: Vec<_> = rows.filter(|(quiet, ..)| !quiet).collect();
    assert!(shown.len() > 80, "{} expressions", shown.len());
    shown
        .into_iter()
        .map(|(_, place, filled)| (place, filled))
        .collect()
}

/// What the rules look at: their selectors, which must have series, though the alarms have none.
pub(super) fn selectors_of_rules() -> Vec<(String, String)> {
    let rules = std::fs::read_to_string(format!("{MONITORING}/rules.yml")).expect("the rules");
    let mut selectors = Vec::new();
    let mut alarm = "";
    for line in rules.lines() {
        alarm = line.trim().strip_prefix("- alert: ").unwrap_or(alarm);
        if ["labels: ", "annotations: ", "#"]
            .iter()
            .any(|other| line.trim().starts_with(other))
        {
            continue;
        }
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        for prefix in ["grapevine_", "process_"] {
            for (at, _) in line.match_indices(prefix) {
                let rest = &line[at..];
                let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
                let labels = rest[end..]
                    .strip_prefix('{')
                    .and_then(|rest| rest.split_once('}'));
                let labels = labels.map_or(String::new(), |(labels, _)| format!("{{{labels}}}"));
                selectors.push((alarm.to_owned(), format!("{}{labels}", &rest[..end])));
            }
        }
    }
    selectors
}
