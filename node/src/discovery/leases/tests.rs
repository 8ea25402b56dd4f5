//! Leases on a replica that is alone.

use std::sync::Arc;

use grapevine_gossip::worker::WorkerId;
use tokio::time::{Duration, Instant, advance};

use super::*;
use crate::all_metrics::AllMetrics;
use crate::alone::{Alone, worker};
use crate::config::KvEventsConfig;
use crate::metrics::SourceStateLabels;
use crate::shutdown::Shutdown;
use crate::warmup::WarmUpParts;

/// A replica without workers; whoever registers is there at once.
fn leases() -> Leases {
    let metrics = AllMetrics::new();
    let Alone { cluster, agent, .. } = Alone::new("r1", [], &KvEventsConfig::default(), 1);
    let phase = Shutdown::new().phase();
    let warm_ups = WarmUps::new(WarmUpParts {
        agent: Arc::clone(&agent),
        cluster: Arc::new(cluster),
        metrics: metrics.warmup.clone(),
        config: Live::default(),
        timeouts: Live::default(),
        phase: phase.clone(),
    });
    Leases::new(LeaseParts {
        source: SOURCE,
        agent,
        is_good: Box::new(|_| true),
        warm_ups: Arc::new(warm_ups),
        board: Arc::default(),
        metrics: metrics.discovery.clone(),
        config: Live::default(),
        phase,
    })
}

impl Leases {
    async fn registered(&self, number: usize) -> WorkerId {
        let (id, spec) = worker(number, "m");
        let renewed = self.renew(&id, spec, Labels::default(), None).await;
        renewed.expect("there is room");
        id
    }

    fn state(&self, id: &WorkerId) -> Option<State> {
        let entry = self.parts.agent.entry_of(id, &self.source)?;
        Some(entry.spec?.state())
    }
}

/// Until the last of many expired leases is written others have been, and each of those may take its time.
#[tokio::test(start_paused = true)]
async fn a_renewal_between_look_and_write_wins() {
    let leases = leases();
    let config = leases.parts.config.now();
    let (kept, lost) = (leases.registered(1).await, leases.registered(2).await);
    let heard_since = leases.registered(3).await;
    leases.look(false).await;
    advance(config.ttl + Duration::from_secs(1)).await;
    leases.registered(3).await;
    let entry = leases.parts.agent.entry_of(&kept, &leases.source);
    let entry = entry.expect("it is registered");
    assert_eq!(leases.judge(&entry, &config), Due::StopUse);
    leases.registered(1).await;
    for id in [&kept, &lost] {
        leases.end(id, &config).await;
    }
    assert_eq!(leases.state(&kept), Some(State::Active));
    assert_eq!(leases.state(&lost), Some(State::Draining));
    assert_eq!(leases.state(&heard_since), Some(State::Active));
}

#[tokio::test(start_paused = true)]
async fn leases_that_another_replica_answers_for_are_no_lost_source() {
    let leases = leases();
    leases.registered(1).await;
    let entries = leases.parts.agent.entries_of(&leases.source);
    leases.show(&entries, 0, Instant::now());
    let board = &leases.parts.board;
    assert_eq!(board.lost(), []);
    let view = board.describe(Instant::now());
    let [source] = &view[..] else {
        panic!("one source: {view:?}");
    };
    assert_eq!((source.registered, source.seen, source.up), (1, 1, true));
}

/// It renewed at another replica only, so that this one knows of it by its entry alone.
#[tokio::test(start_paused = true)]
async fn the_last_lease_of_another_replica_leaves_nothing_behind() {
    let (there, here) = (leases(), leases());
    let board = &here.parts.board;
    here.show(&[], 0, Instant::now());
    assert!(
        board.describe(Instant::now()).is_empty(),
        "nobody registers"
    );
    there.registered(1).await;
    let entries = there.parts.agent.entries_of(&there.source);
    here.show(&entries, 0, Instant::now());
    here.show(&[], 0, Instant::now());
    assert_eq!(board.lost(), []);
    let view = board.describe(Instant::now());
    let [source] = &view[..] else {
        panic!("one source: {view:?}");
    };
    assert_eq!((source.registered, source.seen, source.ready), (0, 0, 0));
    let of_metric = |state| {
        let labels = SourceStateLabels {
            source: SOURCE.into(),
            state,
        };
        here.parts.metrics.workers.get_or_create(&labels).get()
    };
    assert_eq!(["registered", "seen", "ready"].map(of_metric), [0, 0, 0]);
}
