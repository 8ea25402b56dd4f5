//! What an engine published before, asked for on a connection of its own.

use bytes::Bytes;
use grapevine_kv_events::endpoint::Endpoint;
use grapevine_kv_events::stream::{END, Message};
use grapevine_zmtp::SocketType;
use tokio::sync::mpsc;
use tokio::time::{Duration, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::connection::{Connection, End, read_message};
use crate::upstream::Worker;

use std::sync::Arc;

/// Messages, of up to 4 MiB, that wait to be applied; behind them the engine waits.
const WAITING_MAX: usize = 2;
/// How long each message of a replay may take. An engine answers between its steps, ten times a second when it rests.
const MESSAGE_MAX: Duration = Duration::from_secs(5);

/// What came of a replay, in order.
#[derive(Debug)]
pub(super) enum Replayed {
    Message(Message<Bytes>),
    /// That was all.
    Ended,
    /// It broke off.
    Failed(End),
}

/// A replay that is under way; dropping it ends it.
pub(super) struct Replay {
    came: mpsc::Receiver<Replayed>,
    _task: AbortOnDropHandle<()>,
}

impl Replay {
    /// Asks for everything from a number on, after a pause.
    pub(super) fn begin(
        worker: Arc<Worker>,
        endpoint: Endpoint,
        from: u64,
        pause: Duration,
    ) -> Self {
        let (send, came) = mpsc::channel(WAITING_MAX);
        let asking = async move {
            sleep(pause).await;
            let end = match ask(&worker, &endpoint, from, &send).await {
                Ok(()) => Replayed::Ended,
                Err(end) => Replayed::Failed(end),
            };
            // Whoever is gone wants no end.
            let _ = send.send(end).await;
        };
        #[allow(clippy::disallowed_methods, reason = "it ends with its handle")]
        let task = tokio::spawn(asking);
        Self {
            came,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// The next thing that came.
    pub(super) async fn next(&mut self) -> Replayed {
        self.came
            .recv()
            .await
            .unwrap_or(Replayed::Failed(End::Closed))
    }
}

async fn ask(
    worker: &Worker,
    endpoint: &Endpoint,
    from: u64,
    came: &mpsc::Sender<Replayed>,
) -> Result<(), End> {
    let mut connection = Connection::open(worker, endpoint, SocketType::Dealer).await?;
    let number = Bytes::copy_from_slice(&from.to_be_bytes());
    connection.send(&[Bytes::new(), number]).await?;
    loop {
        let frames = timeout(MESSAGE_MAX, connection.next())
            .await
            .map_err(|_| End::Slow)??;
        let Some(message) = read_message(&frames) else {
            return Err(End::Closed);
        };
        if message.sequence == END {
            return Ok(());
        }
        if came.send(Replayed::Message(message)).await.is_err() {
            return Ok(());
        }
    }
}
