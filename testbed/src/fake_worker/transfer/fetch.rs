//! A decode worker's way to the blocks of a prefill worker.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::config::TransferConfig;
use super::plan::Source;
use super::shelf::{Parcel, Shelf};
use super::wire::{Answer, Ask, End, Hello, Lines};

/// What a fetch needs to know of its own worker.
pub(in crate::fake_worker) struct Reader<'a> {
    pub(in crate::fake_worker) config: &'a TransferConfig,
    pub(in crate::fake_worker) shelf: &'a Shelf,
    /// The own side channel.
    pub(in crate::fake_worker) address: SocketAddr,
    pub(in crate::fake_worker) data_parallel: u32,
    pub(in crate::fake_worker) block_tokens: u32,
    /// Virtual seconds in a real one.
    pub(in crate::fake_worker) speed: f64,
    /// Real time that a fault adds to the transfer.
    pub(in crate::fake_worker) delay: Duration,
}

/// Blocks that were promised and are on their way. Dropping it gives them up, so that the other side can free them.
pub(in crate::fake_worker) struct Fetch {
    lines: Option<Lines>,
    pub(in crate::fake_worker) blocks: u32,
    pub(in crate::fake_worker) content: u64,
}

/// What came.
#[derive(Debug, Clone, Copy)]
pub(in crate::fake_worker) struct Fetched {
    pub(in crate::fake_worker) bytes: u64,
    pub(in crate::fake_worker) seconds: f64,
}

impl Reader<'_> {
    /// Asks for the blocks. Fails with the reason, after the time that a real engine takes to notice.
    pub(in crate::fake_worker) async fn ask(&self, source: &Source) -> Result<Fetch, String> {
        let limit = self.config.closed_side_channel;
        let peer = source.engine_id.as_ref().unwrap_or(&source.address);
        let known = self.shelf.knows(peer);
        let lines = match timeout(limit, self.shake_hands(source)).await {
            Ok(Ok((lines, Answer::Welcome))) => lines,
            Ok(Ok((_, Answer::Refused(why)))) => return Err(why),
            Ok(Ok(_)) => return Err(format!("{}: no welcome", source.address)),
            Ok(Err(e)) => {
                // The connection of an engine that was reached before breaks at once, and a bootstrap server that does
                // not know the engine says so at once.
                if !known && e.kind() != std::io::ErrorKind::Other {
                    sleep(limit).await;
                }
                return Err(format!("{}: {e}", source.address));
            }
            Err(_) => return Err(format!("{}: no answer", source.address)),
        };
        self.shelf.know(peer);
        self.promised(source, lines).await
    }

    async fn promised(&self, source: &Source, mut lines: Lines) -> Result<Fetch, String> {
        match timeout(self.config.block_hold, lines.receive()).await {
            Ok(Ok(Answer::Blocks { count, content, .. })) => Ok(Fetch {
                lines: Some(lines),
                blocks: count,
                content,
            }),
            Ok(Ok(Answer::Refused(why))) => Err(why),
            Ok(Ok(Answer::Welcome)) => Err(format!("{}: welcome twice", source.address)),
            Ok(Err(e)) => Err(format!("{}: {e}", source.address)),
            Err(_) => Err(format!("{}: the blocks never came", source.address)),
        }
    }

    async fn shake_hands(&self, source: &Source) -> std::io::Result<(Lines, Answer)> {
        let address = match source.bootstrap {
            true => bootstrapped(source).await?,
            false => source.address.clone(),
        };
        let mut lines = Lines::new(TcpStream::connect(&address).await?);
        let ask = Ask {
            engine_id: source.engine_id.clone(),
            key: source.key.clone(),
            blocks: source.blocks.clone(),
            reader: self.address.to_string(),
            tensor_parallel: self.config.tensor_parallel,
            data_parallel: self.data_parallel,
            told_tensor_parallel: source.tensor_parallel,
            told_data_parallel: source.data_parallel,
            told_rank: source.rank,
            block_tokens: self.block_tokens,
            early: source.early,
        };
        lines.send(&Hello::Ask(ask)).await?;
        let answer = lines.receive().await?;
        Ok((lines, answer))
    }

    /// How long so many blocks are on their way, in real time; bytes, and seconds of the engine's clock.
    fn travel(&self, blocks: u32) -> (Duration, Fetched) {
        let tokens = u64::from(blocks) * u64::from(self.block_tokens);
        let bytes = tokens * self.config.bytes_per_token;
        let time = self.config.time(bytes);
        let seconds = time.as_secs_f64();
        (
            time.div_f64(self.speed) + self.delay,
            Fetched { bytes, seconds },
        )
    }

    /// Waits for what a prefill worker sends by itself, as long as it takes.
    pub(in crate::fake_worker) async fn await_parcel(&self, key: &str) -> (Parcel, Fetched) {
        let parcel = self.shelf.delivered(key).await;
        let (time, fetched) = self.travel(parcel.blocks);
        sleep(time).await;
        (parcel, fetched)
    }

    /// Receives the blocks and tells the other side so. Fails when that is gone meanwhile.
    pub(in crate::fake_worker) async fn receive(
        &self,
        mut fetch: Fetch,
    ) -> Result<Fetched, String> {
        let (time, fetched) = self.travel(fetch.blocks);
        sleep(time).await;
        let mut lines = fetch.lines.take().expect("taken here alone");
        let ended = async {
            lines.send(&End::Read).await?;
            lines.receive::<bool>().await
        };
        match ended.await {
            Ok(_) => Ok(fetched),
            Err(e) => Err(format!("the transfer broke: {e}")),
        }
    }
}

/// Sends blocks to a decode worker that has not asked; nobody learns whether they came.
pub(in crate::fake_worker) async fn send(
    address: String,
    key: String,
    parcel: Parcel,
    limit: Duration,
) {
    let sent = async {
        let mut lines = Lines::new(TcpStream::connect(&address).await?);
        lines.send(&Hello::Parcel(key, parcel)).await?;
        lines.receive::<bool>().await
    };
    match timeout(limit, sent).await {
        Ok(Ok(_)) => {}
        Ok(Err(e)) => tracing::debug!("blocks for {address} got lost: {e}"),
        Err(_) => tracing::debug!("blocks for {address} got lost"),
    }
}

/// Asks a bootstrap server for an engine's side channel.
async fn bootstrapped(source: &Source) -> std::io::Result<String> {
    let mut lines = Lines::new(TcpStream::connect(&source.address).await?);
    let request = format!(
        "GET /query HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
        source.address
    );
    lines.write(request.as_bytes()).await?;
    while !lines.line().await?.is_empty() {}
    let engines: BTreeMap<String, Value> = lines.receive().await?;
    let wanted = source.engine_id.as_deref();
    let engine = engines
        .values()
        .find(|engine| engine["engine_id"].as_str() == wanted);
    let address = engine.and_then(|engine| engine["worker_addr"]["0"]["0"].as_str());
    let address = address.and_then(|address| address.strip_prefix("tcp://"));
    let unknown = || std::io::Error::other("the bootstrap server does not know the engine");
    address.map(str::to_owned).ok_or_else(unknown)
}

impl Drop for Fetch {
    fn drop(&mut self) {
        if let Some(mut lines) = self.lines.take() {
            tokio::spawn(async move {
                if let Err(e) = lines.send(&End::GivenUp).await {
                    tracing::debug!("nobody to give the blocks back to: {e}");
                }
            });
        }
    }
}
