//! Workers of sources that this replica does not watch: nothing here would ever take them out.

use std::sync::Arc;

use grapevine_gossip::Agent;
use grapevine_gossip::worker::Source;

use crate::shutdown::Phase;

/// Sources that are watched where the settings say so; leases are looked after by every replica.
const ON_WISH: [&str; 3] = ["dns", "files", "kubernetes"];

/// Says in the log, once the registry is known, which of its workers come from sources that are not among `watched`.
pub async fn name_unwatched(agent: Arc<Agent>, watched: Vec<String>, phase: Phase) {
    let mut ready = agent.ready();
    let is_ready = tokio::select! {
        () = phase.closed() => return,
        ready = ready.wait_for(|ready| *ready) => ready.is_ok(),
    };
    if !is_ready {
        return;
    }
    for name in ON_WISH {
        if watched.iter().any(|watched| watched == name) {
            continue;
        }
        let source = Source::provider(name).expect("names of sources are constants");
        let entries = agent.entries_of(&source);
        let workers = entries.iter().filter(|entry| entry.spec.is_some()).count();
        if workers > 0 {
            tracing::warn!(
                source = name,
                workers,
                "workers come from a source that this replica does not watch: unless another one does, they stay until \
                 they are removed (grapevine workers remove)"
            );
        }
    }
}
