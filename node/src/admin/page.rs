//! Pages: no answer of the admin API grows with the cluster without end.

use super::query::Query;
use crate::api::ApiError;

/// Workers of one page, unless the client asks for another number; also the most that `/ring` and `/explain` list.
pub(super) const PAGE: usize = 1_000;
/// Most that may be asked for.
const PAGE_MAX: usize = 10_000;

/// Which part of a list is wanted.
#[derive(Debug)]
pub(super) struct Page {
    limit: usize,
    after: Option<String>,
}

impl Page {
    /// `?limit=` and `?after=`.
    pub(super) fn of(query: &Query<'_>) -> Result<Self, ApiError> {
        let limit = match query.value("limit").map(|limit| limit.parse()) {
            None => PAGE,
            Some(Ok(limit)) if (1..=PAGE_MAX).contains(&limit) => limit,
            Some(_) => {
                let message = format!("limit is a number from 1 to {PAGE_MAX}");
                return Err(ApiError::invalid("limit", message));
            }
        };
        Ok(Self {
            limit,
            after: query.value("after"),
        })
    }

    /// How many are wanted.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// The part of a list that is sorted by `id`, and where the next one begins.
    pub(super) fn cut<'a, T>(
        &self,
        list: &'a [T],
        id: impl Fn(&T) -> &str,
    ) -> (&'a [T], Option<&'a T>) {
        let from = self.after.as_ref().map_or(0, |after| {
            list.partition_point(|item| id(item) <= after.as_str())
        });
        let rest = &list[from..];
        let page = &rest[..rest.len().min(self.limit)];
        (page, page.last().filter(|_| page.len() < rest.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other_without_gap_or_repetition() {
        let list: Vec<String> = (0..25).map(|n| format!("w{n:02}")).collect();
        let mut page = Page::of(&Query("limit=10")).expect("a page");
        let mut seen = Vec::new();
        loop {
            let (part, last) = page.cut(&list, |id| id);
            seen.extend(part.to_vec());
            let Some(last) = last else {
                break;
            };
            assert_eq!(part.len(), 10);
            page.after = Some(last.clone());
        }
        assert_eq!(seen, list);
        // Also after one that has left meanwhile.
        let page = Page::of(&Query("after=w03x")).expect("a page");
        assert_eq!(page.cut(&list, |id| id).0[0], "w04");
        for wrong in ["limit=0", "limit=x", "limit=10001"] {
            assert!(Page::of(&Query(wrong)).is_err(), "{wrong}");
        }
    }
}
