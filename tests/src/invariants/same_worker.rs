//! The same prefix goes to the same worker from every replica, or to the same pair of workers.

use std::collections::BTreeSet;

use serde_json::Value;
use tokio::task::JoinSet;

use crate::admin::Explained;
use crate::chat::distinct;
use crate::cluster::Cluster;
use crate::wait::{LIMIT, eventually};

/// Answers of all replicas about the same chats in a quiet cluster.
pub struct Agreement {
    /// The worker of each chat, as the first replica named it.
    pub workers: Vec<String>,
    /// The worker that computes the prompt of each chat, likewise; empty for one that is not divided.
    pub prefill: Vec<String>,
    /// Chats for which every replica named these workers.
    pub agreed: usize,
    /// The ring digests in the answers.
    pub digests: BTreeSet<String>,
}

/// Asks every running replica about every chat.
pub async fn agreement(cluster: &Cluster, chats: &[Value]) -> Agreement {
    let mut asked = JoinSet::new();
    for (index, replica) in cluster.running().enumerate() {
        let (admin, chats) = (replica.admin(), chats.to_vec());
        asked.spawn(async move { (index, admin.explain(&chats).await) });
    }
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|(index, _)| *index);
    let answers: Vec<Vec<Explained>> = answers.into_iter().map(|(_, answers)| answers).collect();
    let first = answers.first().expect("a cluster has a running replica");
    let agrees = |chat: &usize| {
        let mut others = answers.iter().map(|replica| replica[*chat].pair());
        others.all(|pair| pair.1.is_some() && pair == first[*chat].pair())
    };
    Agreement {
        workers: first
            .iter()
            .map(|answer| answer.worker.clone().unwrap_or_default())
            .collect(),
        prefill: first
            .iter()
            .map(|answer| answer.pair().0.unwrap_or_default().to_owned())
            .collect(),
        agreed: (0..chats.len()).filter(agrees).count(),
        digests: answers.concat().into_iter().map(|a| a.digest).collect(),
    }
}

/// Health is each replica's own opinion and may lag on a busy machine, so the test waits for agreement.
pub(super) async fn for_the_same_prefix(cluster: &Cluster, sample: usize) {
    let chats = distinct(sample);
    eventually(LIMIT, "chats on which all replicas agree", async || {
        let found = agreement(cluster, &chats).await;
        if found.agreed == sample && found.digests.len() == 1 {
            return Ok(());
        }
        Err(format!(
            "{} of {sample}, rings {:?}",
            found.agreed, found.digests
        ))
    })
    .await;
}
