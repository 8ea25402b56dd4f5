//! The certificate in use, and what happens to open connections when it is replaced.
//!
//! 1. The endpoint and later dials take the new one at once.
//! 2. Peers whose certificates are revoked now are cut off, and leave the view.
//! 3. Connections that this replica dialled get a successor, one peer after the other; the old
//!    connection serves until the new one does. A peer that sees another certificate than before
//!    replaces its own connection to here ([`super::peer::shown`]), so both directions follow.
//! 4. What then still rests on an authority that is trusted no more is cut off.
//!
//! Nobody is declared dead for it: a connection that cannot be replaced stays, and is tried again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use quinn::{ClientConfig, Connection, ServerConfig};
use rand::seq::SliceRandom;
use rustls::pki_types::CertificateDer;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::{Close, Receiver, Shared, limits, now};
use crate::identity::{self, Certificate, Identity, IdentityError, Standing};
use crate::metrics::Why;

/// The identity in use with its dialling side. The cluster's and the replica's names never change.
pub(super) struct Credentials {
    cluster: Arc<str>,
    current: ArcSwap<Current>,
    /// Counts replacements, so that an older one's rounds end.
    round: AtomicU64,
    /// Wakes the reminders.
    pub(super) replaced: Notify,
}

struct Current {
    identity: Identity,
    client: ClientConfig,
}

impl Credentials {
    pub(super) fn new(identity: Identity) -> Result<Self, IdentityError> {
        Ok(Self {
            cluster: identity.cluster().clone(),
            current: ArcSwap::from_pointee(Current::new(identity)?),
            round: AtomicU64::new(0),
            replaced: Notify::new(),
        })
    }

    pub(super) fn cluster(&self) -> &Arc<str> {
        &self.cluster
    }

    /// What a dial presents and accepts now.
    pub(super) fn client(&self) -> ClientConfig {
        self.current.load().client.clone()
    }

    /// When this replica's certificate ends, and when its authority does.
    pub(super) fn ends(&self) -> [std::time::SystemTime; 2] {
        let current = self.current.load();
        [
            current.identity.expires(),
            current.identity.authority_expires(),
        ]
    }

    /// What the peer's certificate of an open connection is worth now.
    pub(super) fn judge(&self, connection: &Connection) -> Standing {
        self.current.load().identity.judge(&chain(connection))
    }
}

impl Current {
    fn new(identity: Identity) -> Result<Self, IdentityError> {
        let mut client = identity::client_config(&identity)?;
        client.transport_config(limits::quic());
        Ok(Self { identity, client })
    }
}

/// The listening side of an identity.
pub(super) fn server(identity: &Identity) -> Result<ServerConfig, IdentityError> {
    let mut server = identity::server_config(identity)?;
    server.transport_config(limits::quic()).migration(false);
    Ok(server)
}

/// The certificates that the peer of a connection presented, leaf first.
pub(super) fn chain(connection: &Connection) -> Vec<CertificateDer<'static>> {
    let shown = connection.peer_identity();
    let shown = shown.and_then(|shown| shown.downcast::<Vec<CertificateDer<'static>>>().ok());
    shown.map_or_else(Vec::new, |shown| *shown)
}

/// The certificate that the peer of a connection presented, if it can be read.
pub(super) fn leaf_of(connection: &Connection) -> Option<Certificate> {
    let chain = chain(connection);
    Certificate::read("a peer", chain.first()?).ok()
}

/// Takes another identity of the same replica into use; false if it is the one in use.
/// Errors: it is of another replica or cluster; nothing has changed.
pub(super) fn replace(
    shared: &Arc<Shared>,
    receiver: &Arc<dyn Receiver>,
    identity: Identity,
) -> Result<bool, IdentityError> {
    let credentials = &shared.identity;
    if *identity.replica() != shared.own || *identity.cluster() != credentials.cluster {
        return Err(IdentityError::Unproven {
            replica: shared.own.to_string(),
            cluster: credentials.cluster.to_string(),
            problem: format!("it names {identity:?}, and names change by a restart only"),
        });
    }
    let former = credentials.current.load_full();
    let (identity, kept) = identity.with_lists_of(&former.identity)?;
    if former.identity.is_same(&identity) {
        return Ok(false);
    }
    if kept > 0 {
        tracing::warn!(
            "the file of revoked certificates has no list of an authority that is still trusted: what was revoked of it stays \
             revoked; `grapevine ca revoke` writes the lists of all authorities"
        );
    }
    let server = server(&identity)?;
    let current = Current::new(identity)?;
    shared.endpoint.set_server_config(Some(server));
    credentials.current.store(Arc::new(current));
    let round = credentials.round.fetch_add(1, Ordering::Relaxed) + 1;
    credentials.replaced.notify_one();
    cut(shared, receiver, Standing::Revoked, "revoked");
    let (task, receiver) = (shared.clone(), receiver.clone());
    let stop = shared.stop.clone();
    shared.tracker.spawn(async move {
        stop.run_until_cancelled(renew_all(task, receiver, round))
            .await
    });
    Ok(true)
}

/// Steps 3 and 4.
async fn renew_all(shared: Arc<Shared>, receiver: Arc<dyn Receiver>, round: u64) {
    let mut ids = shared.peers.lock().linked_ids();
    ids.shuffle(&mut rand::rng());
    for id in ids {
        if shared.identity.round.load(Ordering::Relaxed) != round {
            return; // a later one does all of it
        }
        shared.peers.lock().renew(&id);
        sleep(BETWEEN.mul_f64(0.5 + rand::random::<f64>())).await;
    }
    sleep(SETTLE).await;
    if shared.identity.round.load(Ordering::Relaxed) == round {
        cut(&shared, &receiver, Standing::Foreign, "foreign");
    }
}

/// Ends the connections whose certificates stand like this. A peer that has none left is gone.
fn cut(
    shared: &Arc<Shared>,
    receiver: &Arc<dyn Receiver>,
    standing: Standing,
    reason: &'static str,
) {
    let open = shared.peers.lock().open();
    for (id, open) in open {
        let is_hit = |connection: &Connection| shared.identity.judge(connection) == standing;
        let (hit, spared): (Vec<_>, Vec<_>) = open.into_iter().partition(is_hit);
        for connection in &hit {
            connection.close(Close::Revoked.code(), b"");
            let replaced = &shared.metrics.replaced;
            replaced.get_or_create(&Why { reason }).inc();
        }
        if !hit.is_empty() && spared.is_empty() {
            tracing::error!(replica = %id, reason, "cut off a replica: its certificate is accepted no more");
            shared.peers.lock().leave(&id);
            shared.peer_table.lock().forget(&id, now());
            receiver.left(&id);
        }
    }
}

/// Ends a connection whose certificate was revoked while its handshake went on; true if it was.
pub(super) fn is_late(shared: &Shared, connection: &Connection) -> bool {
    let is_revoked = shared.identity.judge(connection) == Standing::Revoked;
    if is_revoked {
        connection.close(Close::Revoked.code(), b"");
    }
    is_revoked
}

/// Between two peers whose connections are replaced, give or take a half.
const BETWEEN: Duration = Duration::from_millis(100);
/// Time for the last replacements, before what could not be replaced is judged: longer than peers
/// keep a connection whose successor serves already.
const SETTLE: Duration = Duration::from_secs(7);
