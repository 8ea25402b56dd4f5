//! Who hears whom, as a table: from what `GET /links` answers. Pure.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};

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
    /// Each of those that are not shown hears all others, and all others hear it.
    pub rest_is_well: bool,
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
    /// Of an answer; at most so many replicas, those first with which most others have no link that works: one that nobody
    /// hears has such a link with each of them, and must not hide the others that are broken.
    pub fn of(answer: &Value, most: usize) -> Self {
        let (all, cells) = cells(rows(answer, "links"));
        let is_bad =
            |of: usize, other: usize| matches!(cells[of][other], Cell::Unheard | Cell::Untold);
        let others = 0..all.len();
        let broken = |of: &usize| {
            let bad =
                |other: usize| usize::from(is_bad(*of, other)) + usize::from(is_bad(other, *of));
            Reverse(others.clone().map(bad).sum::<usize>())
        };
        let mut shown: Vec<usize> = others.clone().collect();
        let mut rest = Vec::new();
        if all.len() > most {
            shown.sort_by_cached_key(broken);
            let is_broken = |one: usize, other: usize| is_bad(one, other) || is_bad(other, one);
            // With each one whose broken links lead to nobody here goes one at their other end.
            let (mut taken, mut left) = (Vec::with_capacity(most), VecDeque::from(shown));
            while taken.len() < most {
                let Some(next) = left.pop_front() else { break };
                taken.push(next);
                let is_seen = taken.iter().any(|other| is_broken(next, *other));
                let partner = left.iter().position(|other| is_broken(next, *other));
                if let Some(partner) = partner.filter(|_| !is_seen && taken.len() < most) {
                    taken.extend(left.remove(partner));
                }
            }
            rest = left.into();
            shown = taken;
            shown.sort_unstable();
        }
        let row = |of: &usize| shown.iter().map(|other| cells[*of][*other]).collect();
        let is_well = |of: usize| !others.clone().any(|at| is_bad(of, at) || is_bad(at, of));
        Self {
            rows: shown.iter().map(row).collect(),
            more: rest.len(),
            rest_is_well: rest.iter().all(|of| is_well(*of)),
            ids: shown.iter().map(|at| all[*at].clone()).collect(),
        }
    }

    /// What is to be said of the replicas that are not shown.
    pub fn rest_in_words(&self) -> &'static str {
        match self.rest_is_well {
            true => "replicas, all of which hear all others and are heard",
            false => {
                "replicas, not all of which are known to hear all others: grapevine status --links shows them"
            }
        }
    }
}

/// All replicas, and what each hears of each.
fn cells(links: &[Value]) -> (Vec<String>, Vec<Vec<Cell>>) {
    let ids: Vec<String> = links.iter().map(|row| field(row, "replica")).collect();
    let at: HashMap<&str, usize> = ids.iter().enumerate().map(|(at, id)| (&**id, at)).collect();
    let row = |(of, row): (usize, &Value)| {
        let unheard = match row["hears"].is_array() {
            true => Cell::Unheard,
            false => Cell::Untold,
        };
        let mut cells = vec![unheard; ids.len()];
        for link in rows(row, "hears") {
            let other = at.get(&*field(link, "replica"));
            if let (Some(other), Some(ago)) = (other, link["ago_ms"].as_u64()) {
                cells[*other] = Cell::Heard(ago);
            }
        }
        cells[of] = Cell::Itself;
        cells
    };
    let cells = links.iter().enumerate().map(row).collect();
    (ids, cells)
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

    /// Two racks do not hear each other, a third one hears both: so all live.
    #[test]
    fn a_cut_between_those_that_are_shown_and_those_that_are_not_is_shown() {
        let ids: Vec<String> = ["a", "b", "c"]
            .iter()
            .flat_map(|rack| (10..26).map(move |at| format!("{rack}{at}")))
            .collect();
        let is_cut = |of: &str, other: &str| {
            of[..1] != other[..1] && !of.starts_with('c') && !other.starts_with('c')
        };
        let row = |of: &String| {
            let others = ids.iter().filter(|id| *id != of);
            let hears = others
                .map(|id| json!({ "replica": id, "ago_ms": (!is_cut(of, id)).then_some(120) }));
            json!({ "replica": of, "hears": hears.collect::<Vec<_>>() })
        };
        let answer = json!({ "replica": "c10", "links": ids.iter().map(row).collect::<Vec<_>>() });
        let matrix = Matrix::of(&answer, 16);
        assert_eq!((matrix.ids.len(), matrix.more), (16, 32));
        assert!(
            matrix
                .rows
                .iter()
                .flatten()
                .any(|cell| *cell == Cell::Unheard)
        );
        assert!(
            !matrix.rest_is_well,
            "they are cut from those that are shown"
        );
    }

    /// A replica that nobody hears has no link that works with anybody.
    #[test]
    fn one_that_is_not_heard_does_not_hide_a_broken_pair() {
        let ids: Vec<_> = (0..40).map(|n| format!("r{n:02}")).collect();
        let answer = |silent: &str, unheard: &[(&str, &str)]| {
            let row = |of: &String| {
                let others = ids.iter().filter(|id| *id != of);
                let hears = others.map(|id| {
                    let is_heard = !unheard.contains(&(&**of, &**id));
                    json!({ "replica": id, "ago_ms": is_heard.then_some(120) })
                });
                let hears = (of != silent).then(|| hears.collect::<Vec<_>>());
                json!({ "replica": of, "hears": hears })
            };
            json!({ "links": ids.iter().map(row).collect::<Vec<_>>() })
        };
        let matrix = Matrix::of(&answer("r30", &[("r38", "r39")]), 16);
        for id in ["r30", "r38", "r39"] {
            assert!(
                matrix.ids.iter().any(|shown| shown == id),
                "{id}: {matrix:?}"
            );
        }
        assert_eq!((matrix.ids.len(), matrix.more), (16, 24));
        assert!(!matrix.rest_is_well, "whether r30 hears them is not known");
        let matrix = Matrix::of(&answer("", &[("r38", "r39")]), 16);
        assert!(matrix.rest_is_well && matrix.rest_in_words().contains(", all of which hear"));
        let matrix = Matrix::of(&answer("", &[("r37", "r36"), ("r38", "r39")]), 3);
        assert!(!matrix.rest_is_well, "{matrix:?}");
        assert!(!matrix.rest_in_words().contains(", all of which hear"));
    }
}
