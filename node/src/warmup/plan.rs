//! Plan: which hot prompts a joining worker is given, and in which order.
//!
//! Pure. A prompt belongs to it if requests that begin like it will be looked for there once it is in the ring, by the
//! rule that places them. One prompt of several that share a beginning is enough for that beginning.

use std::collections::BTreeSet;
use std::sync::Arc;

use grapevine_gossip::worker::WorkerId;
use grapevine_placement::HotSet;

use super::prompt::HotPrompt;
use crate::cluster::Pool;

/// One prompt for the new worker.
pub(super) struct Planned {
    pub(super) prompt: Arc<HotPrompt>,
    /// The pool as it will be.
    pub(super) pool: Arc<Pool>,
    /// The worker's place in it.
    pub(super) worker: usize,
}

/// Chooses among `prompts`, which come hottest first; at most `prompts_max`.
pub(super) fn plan(
    pools: &[Arc<Pool>],
    worker: &WorkerId,
    hot: &HotSet,
    prompts: Vec<Arc<HotPrompt>>,
    prompts_max: usize,
) -> Vec<Planned> {
    let mut covered: BTreeSet<u64> = BTreeSet::new();
    let mut planned = Vec::new();
    for prompt in prompts {
        if planned.len() == prompts_max {
            break;
        }
        let pool = pools.iter().find(|pool| pool.model() == &*prompt.model);
        let Some(pool) = pool else { continue };
        let members = pool.members();
        let Some(place) = members
            .iter()
            .position(|member| member.worker.id == *worker)
        else {
            continue;
        };
        let tokens = pool.tokens_sought_at(place, hot, &prompt.key);
        let marks = prompt.key.marks();
        let Some(last) = marks.iter().rfind(|mark| mark.tokens <= tokens) else {
            continue;
        };
        if covered.contains(&last.hash) {
            continue;
        }
        covered.extend(marks.iter().map(|mark| mark.hash));
        planned.push(Planned {
            pool: Arc::clone(pool),
            worker: place,
            prompt,
        });
    }
    planned
}

#[cfg(test)]
mod tests {
    use grapevine_placement::{ClusterSettings, HeatReport, Key, KeyBuilder, KeySettings};

    use super::*;
    use crate::api::Endpoint;
    use crate::cluster::pool_for_tests;

    const IDS: [&str; 4] = ["w0", "w1", "w2", "w3"];

    fn prompt(model: &str, sections: &[&str]) -> Arc<HotPrompt> {
        let mut builder = KeyBuilder::new(&KeySettings::default(), model, b"");
        for section in sections {
            builder.begin_message("user");
            builder.text(section.repeat(200));
            builder.end_message();
        }
        let key = builder.finish();
        Arc::new(HotPrompt {
            mark: key.marks().last().expect("it is long").hash,
            model: model.into(),
            endpoint: Endpoint::Chat,
            body: "{}".into(),
            key,
        })
    }

    fn pools() -> Vec<Arc<Pool>> {
        vec![Arc::new(pool_for_tests(&ClusterSettings::default(), &IDS))]
    }

    fn planned(hot: &HotSet, prompts: &[Arc<HotPrompt>], of: &str, most: usize) -> Vec<u64> {
        let id = of.parse().expect("an id");
        let planned = plan(&pools(), &id, hot, prompts.to_vec(), most);
        planned.iter().map(|planned| planned.prompt.mark).collect()
    }

    /// Reports in which each mark of these keys carries this share of a thousand requests.
    fn hot(keys: &[(&Key, u32)]) -> HotSet {
        let model = keys[0].0.model();
        let mut counts = vec![(model, 16 * 1_000)];
        for (key, requests) in keys {
            counts.extend(key.marks().iter().map(|mark| (mark.hash, 16 * requests)));
        }
        counts.sort_unstable();
        counts.dedup_by_key(|count| count.0);
        HotSet::sum([&HeatReport {
            version: 1,
            counts,
            total: 16 * 1_000,
        }])
    }

    #[test]
    fn each_cool_prompt_is_planned_for_its_home_alone() {
        let prompts: Vec<_> = (0..40)
            .map(|n| prompt("m", &[&format!("about {n} and more ")]))
            .collect();
        let all = IDS.map(|id| planned(&HotSet::EMPTY, &prompts, id, 100));
        let mut together = all.concat();
        assert!(all.iter().all(|part| !part.is_empty()), "{all:?}");
        together.sort_unstable();
        let mut marks: Vec<u64> = prompts.iter().map(|prompt| prompt.mark).collect();
        marks.sort_unstable();
        assert_eq!(together, marks);
        // In the order that they came, the first alone if there is room for one.
        assert_eq!(planned(&HotSet::EMPTY, &prompts, "w1", 1), all[1][..1]);
        let stranger = planned(&HotSet::EMPTY, &prompts, "w9", 9);
        assert!(stranger.is_empty(), "it is not in this pool");
        let other = [prompt("another", &["x"])];
        let of_other = planned(&HotSet::EMPTY, &other, "w1", 9);
        assert!(of_other.is_empty(), "it is not of this model");
    }

    #[test]
    fn a_hot_prefix_is_planned_once_for_each_of_its_workers() {
        let shared = "everybody says this ";
        let of = |n: usize| prompt("m", &[shared, &format!("only {n} says that ")]);
        let prompts: Vec<_> = (0..30).map(of).collect();
        let root = prompt("m", &[shared]);
        // All traffic begins like this: the prefix belongs to every worker.
        let hot = hot(&[(&root.key, 1_000)]);
        for id in IDS {
            let planned = planned(&hot, &prompts, id, 100);
            assert!(!planned.is_empty(), "{id} holds the shared part");
            let own = |prompt: &&Arc<HotPrompt>| {
                let id = id.parse().expect("an id");
                let pools = pools();
                let place = pools[0].members().iter().position(|s| s.worker.id == id);
                let place = place.expect("a member");
                let sought = pools[0].tokens_sought_at(place, &hot, &prompt.key);
                sought == prompt.key.prompt_tokens()
            };
            let homes = prompts.iter().filter(own).count();
            // Those that live here, and at most one more that brings the shared part along.
            assert!((homes..=homes + 1).contains(&planned.len()));
        }
    }
}
