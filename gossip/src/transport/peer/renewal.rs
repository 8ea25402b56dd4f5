//! A peer's connection replaced by another one, under the certificates of now, without a gap.

use parking_lot::Mutex;
use quinn::{Connection, ConnectionError};
use tokio::time::sleep;

use super::super::hello::{self, Dialled};
use super::super::{Close, credentials, limits};
use super::Task;
use crate::metrics::Why;
use crate::peers::Member;

impl Task {
    /// Enters a connection as the link to the peer, `own` being our generation in its HELLO.
    pub(super) fn take(&self, connection: &Connection, own: u64, member: &Member) {
        let link = (member.generation, connection.clone());
        let mut peers = self.shared.peers.lock();
        peers.set_link(&self.id, self.peer.task, Some(link));
        // Our generation was renewed while HELLO was answered. Under the lock: a renewal from now on finds the link.
        if own != self.shared.generation() {
            connection.close(Close::Renewed.code(), b"");
        }
        drop(peers);
        credentials::is_late(&self.shared, connection);
    }

    /// Waits for the connection's end; meanwhile gives it successors when it should have one. Why the last of them ended,
    /// and the peer's generation on it.
    pub(super) async fn renewed_until_closed(
        &self,
        current: &Mutex<Connection>,
        mut member: Member,
    ) -> (ConnectionError, u64) {
        loop {
            let connection = self::current(current);
            let Dialled {
                connection: fresh,
                generation: own,
                member: again,
                ..
            } = tokio::select! {
                closed = connection.closed() => return (closed, member.generation),
                dialled = self.successor() => dialled,
            };
            self.take(&fresh, own, &again);
            *current.lock() = fresh;
            let reason = "renewed";
            let replaced = &self.shared.metrics.replaced;
            replaced.get_or_create(&Why { reason }).inc();
            tracing::info!(replica = %self.id, "connection replaced, with the certificates of now");
            if again.generation != member.generation {
                self.receiver.linked(&again);
            }
            member = again;
            let stop = self.shared.stop.clone();
            self.shared.tracker.spawn(async move {
                // Messages and answers on their way still arrive.
                stop.run_until_cancelled(sleep(limits::REQUEST)).await;
                connection.close(Close::Renewed.code(), b"");
            });
        }
    }

    /// Waits until the connection should be replaced, and dials until that succeeds.
    async fn successor(&self) -> Dialled {
        // However often another one is asked for, each one lasts a while.
        sleep(limits::RENEW_PAUSE).await;
        self.peer.renew.notified().await;
        loop {
            match hello::dial(&self.shared, self.peer.address, Some(&self.id)).await {
                Ok(dialled) => return dialled,
                Err(error) => self.failed(&error, true),
            }
            sleep(limits::PAUSE_MAX.mul_f64(0.5 + rand::random::<f64>())).await;
        }
    }
}

/// The connection to send on now.
pub(super) fn current(connection: &Mutex<Connection>) -> Connection {
    let connection = connection.lock();
    connection.clone()
}
