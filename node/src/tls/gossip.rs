//! The certificates between replicas: read again as those of the data port are.

use std::sync::Arc;

use grapevine_gossip::identity::PemFiles;
use grapevine_gossip::{Agent, Identity};

use super::{Files, Reloader};
use crate::config::Config;
use crate::http::hops;

/// The files of this replica's identity as they were at one moment.
pub struct GossipFiles {
    cluster: String,
    replica: String,
    pem: PemFiles,
    files: Files,
}

impl GossipFiles {
    /// Looks at the files; none for a cluster of one. To be called before they are read first.
    pub fn seen(config: &Config) -> Option<Self> {
        let pem = config.gossip.identity()?;
        let paths = [&pem.ca, &pem.cert, &pem.key].map(Clone::clone);
        let paths = paths.into_iter().chain(pem.revoked.clone()).collect();
        Some(Self {
            cluster: config.cluster.id.to_string(),
            replica: config.replica_id().to_string(),
            files: Files::seen("gossip", paths),
            pem,
        })
    }

    /// Has the files read again when they change. The certificate's end is a metric of gossip's own.
    pub fn watch(self, agent: &Arc<Agent>, reloader: &mut Reloader) {
        let agent = Arc::clone(agent);
        let Self {
            cluster,
            replica,
            pem,
            files,
        } = self;
        reloader.watch(files, None, move || {
            let identity = Identity::load(&cluster, &replica, &pem)?;
            let now = identity.clone();
            agent.replace_identity(identity)?;
            // What replicas that have the new files send comes back as theirs.
            hops::join(&cluster, now.authorities());
            Ok(None)
        });
    }
}
