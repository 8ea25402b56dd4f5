//! Who hears whom, as a table: from what `GET /links` answers. Pure.

use serde_json::Value;

use super::{field, rows};

/// What is known of one replica's hearing of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// It is the replica itself.
    Itself,
    /// It hears it; the latest report came so many milliseconds ago.
    Heard(u64),
    /// It does not hear it.
    Unheard,
    /// It does not tell whom it hears: it is not heard itself, or its release is too old.
    Untold,
}

/// Live replicas, and which of them each hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    /// The replicas that are shown, by id: rows and columns.
    pub ids: Vec<String>,
    /// Of each of them: what it hears of each of them.
    pub rows: Vec<Vec<Cell>>,
    /// How many replicas are not shown.
    pub more: usize,
}

impl Cell {
    /// In one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Itself => "–",
            Self::Heard(_) => "yes",
            Self::Unheard => "NO",
            Self::Untold => "?",
        }
    }
}

impl Matrix {
    /// Of an answer; at most so many replicas, those of which something is wrong first.
    pub fn of(answer: &Value, most: usize) -> Self {
        let links = rows(answer, "links");
        let all: Vec<String> = links.iter().map(|row| field(row, "replica")).collect();
        let mut shown: Vec<usize> = (0..all.len()).collect();
        if all.len() > most {
            let is_well = |of: &usize| {
                let hears = |other: &usize| cell(links, &all, *of, *other);
                let heard_by = |other: &usize| cell(links, &all, *other, *of);
                let is_bad = |cell: Cell| matches!(cell, Cell::Unheard | Cell::Untold);
                let others = 0..all.len();
                !others
                    .into_iter()
                    .any(|other| is_bad(hears(&other)) || is_bad(heard_by(&other)))
            };
            shown.sort_by_cached_key(is_well);
            shown.truncate(most);
            shown.sort_unstable();
        }
        let row = |of: &usize| {
            let others = shown.iter();
            others.map(|other| cell(links, &all, *of, *other)).collect()
        };
        Self {
            rows: shown.iter().map(row).collect(),
            more: all.len() - shown.len(),
            ids: shown.iter().map(|at| all[*at].clone()).collect(),
        }
    }
}

fn cell(links: &[Value], ids: &[String], of: usize, other: usize) -> Cell {
    if of == other {
        return Cell::Itself;
    }
    if !links[of]["hears"].is_array() {
        return Cell::Untold;
    }
    let heard = rows(&links[of], "hears").iter();
    let mut heard = heard.filter(|link| field(link, "replica") == ids[other]);
    let ago = heard.next().and_then(|link| link["ago_ms"].as_u64());
    ago.map_or(Cell::Unheard, Cell::Heard)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_one_way_cut_is_one_cell_and_is_shown_where_not_all_are() {
        let ids = ["r1", "r2", "r3", "r4"];
        let row = |of: &str| {
            let others = ids.iter().filter(|id| **id != of);
            let hears = others.map(|id| {
                let ago = (of, *id) != ("r4", "r2");
                json!({ "replica": id, "ago_ms": ago.then_some(120) })
            });
            json!({ "replica": of, "hears": hears.collect::<Vec<_>>() })
        };
        let mut answer = json!({ "replica": "r1", "links": ids.map(row) });
        let matrix = Matrix::of(&answer, 9);
        assert_eq!(
            (matrix.ids.as_slice(), matrix.more),
            (&ids.map(String::from)[..], 0)
        );
        let words = |row: &[Cell]| row.iter().map(|cell| cell.word()).collect::<Vec<_>>();
        assert_eq!(words(&matrix.rows[3]), ["yes", "NO", "yes", "–"]);
        assert_eq!(words(&matrix.rows[1]), ["yes", "–", "yes", "yes"]);
        let few = Matrix::of(&answer, 2);
        assert_eq!(
            (few.ids.as_slice(), few.more),
            (&["r2".to_owned(), "r4".to_owned()][..], 2)
        );
        assert_eq!(few.rows[1], [Cell::Unheard, Cell::Itself]);
        answer["links"][0]["hears"] = Value::Null;
        assert_eq!(words(&Matrix::of(&answer, 9).rows[0]), ["–", "?", "?", "?"]);
        assert_eq!(Matrix::of(&Value::Null, 9).ids.len(), 0, "an older release");
    }
}
