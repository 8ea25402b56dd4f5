//! Lists, page by page: all pages of one list show one revision, or the next page is refused.
//!
//! Pure. A past state is the present one with the history undone, so pages cost nothing between requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Key, Selector, Store};
use crate::fake_kubernetes::refusal::Refusal;

/// What a list asks for.
#[derive(Debug, Clone, Default)]
pub(in crate::fake_kubernetes) struct ListQuery {
    /// All namespaces, if none.
    pub(in crate::fake_kubernetes) namespace: Option<String>,
    pub(in crate::fake_kubernetes) selector: Selector,
    /// Objects in a page; none or 0 for all.
    pub(in crate::fake_kubernetes) limit: Option<usize>,
    /// Token of the page before.
    pub(in crate::fake_kubernetes) after: Option<String>,
    /// Not older than this, or with `exact` this very state.
    pub(in crate::fake_kubernetes) revision: Option<u64>,
    pub(in crate::fake_kubernetes) exact: bool,
}

/// One page of a list.
#[derive(Debug)]
pub(in crate::fake_kubernetes) struct Page {
    pub(in crate::fake_kubernetes) revision: u64,
    pub(in crate::fake_kubernetes) items: Vec<Arc<Value>>,
    /// Token of the next page.
    pub(in crate::fake_kubernetes) next: Option<String>,
    /// Objects after this page, where no selector hides the number.
    pub(in crate::fake_kubernetes) remaining: Option<usize>,
}

/// The inside of a continue token, which clients must not look into. Revision 0: whatever is now.
#[derive(Debug, Serialize, Deserialize)]
struct Token {
    revision: u64,
    after: Key,
}

impl Token {
    fn text(&self) -> String {
        let bytes = serde_json::to_vec(self).expect("strings and numbers are JSON");
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn read(text: &str) -> Option<Self> {
        let digits = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(digits).collect();
        serde_json::from_slice(&bytes?).ok()
    }
}

impl Store {
    /// One page of pods.
    pub(in crate::fake_kubernetes) fn list(&self, query: &ListQuery) -> Result<Page, Refusal> {
        let (revision, after) = self.start(query)?;
        let past;
        let pods = if revision == self.revision() {
            &self.pods
        } else {
            past = self.state_at(revision)?;
            &past
        };
        let shown = pods.iter().filter(|(key, pod)| {
            let here = query.namespace.as_ref().is_none_or(|n| *n == key.0);
            here && after.as_ref().is_none_or(|after| *key > after) && query.selector.matches(pod)
        });
        let limit = query.limit.filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        let mut page = Page {
            revision,
            items: Vec::new(),
            next: None,
            remaining: None,
        };
        let mut last = None;
        let mut left = 0;
        for (key, pod) in shown {
            if page.items.len() < limit {
                page.items.push(Arc::clone(pod));
                last = Some(key.clone());
            } else {
                left += 1;
            }
        }
        if let (Some(after), true) = (last, left > 0) {
            page.next = Some(Token { revision, after }.text());
            page.remaining = query.selector.is_everything().then_some(left);
        }
        Ok(page)
    }

    /// The revision to show, and the key after which to begin.
    fn start(&self, query: &ListQuery) -> Result<(u64, Option<Key>), Refusal> {
        let current = self.revision();
        if let Some(text) = &query.after {
            let token = Token::read(text);
            let token = token
                .ok_or_else(|| Refusal::bad_request("continue key is not valid: bad token"))?;
            let Token { revision, after } = token;
            if revision == 0 {
                return Ok((current, Some(after)));
            }
            if revision < self.oldest() {
                let next = Token { revision: 0, after }.text();
                return Err(Refusal::expired_list(next));
            }
            return Ok((revision, Some(after)));
        }
        match query.revision {
            Some(wanted) if wanted > current => Err(Refusal::too_large(wanted, current)),
            Some(wanted) if query.exact => Ok((wanted, None)),
            _ => Ok((current, None)),
        }
    }

    /// The pods as they were.
    fn state_at(&self, revision: u64) -> Result<BTreeMap<Key, Arc<Value>>, Refusal> {
        let undone: Vec<_> = self.changes_after(revision)?.collect();
        let mut pods = self.pods.clone();
        for change in undone.into_iter().rev() {
            match &change.before {
                Some(pod) => pods.insert(change.key.clone(), Arc::clone(pod)),
                None => pods.remove(&change.key),
            };
        }
        Ok(pods)
    }
}
