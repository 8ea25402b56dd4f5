//! An API server that behaves as Kubernetes 1.37 does where a client of pods can see it, without a cluster.
//!
//! It has what a simple mock lacks and what discovery gets wrong: one revision for all objects, lists in pages that
//! show one state, watches with bookmarks and an end, 410 as a status and as an event, deletion in two steps, refusals
//! in the real words. It fails on command ([`Rule`], [`Network`], `/fake/*` in `http/control.rs`). `kubectl` and the
//! reflector of kube-rs judge it.
//!
//! Pure: `store`, `access`, `fault`, `refusal`. At the rim: `http` (sockets), `state` (lock and signals), `files`.
//!
//! Not modelled: other resources, dry run, server-side apply, field management, admission, tables.

mod access;
mod config;
mod fault;
mod files;
mod http;
mod refusal;
mod state;
mod store;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

pub use access::Grant;
pub use config::Config;
pub use fault::{Fault, Network, RULES_MAX, Rule, When};
pub use state::Stats;

/// A running fake API server. Dropping it cuts its connections and removes a folder that it made.
pub struct FakeKubernetes {
    addr: SocketAddr,
    control: SocketAddr,
    state: Arc<state::State>,
    files: Arc<files::Files>,
    _tasks: [AbortOnDropHandle<()>; 3],
}

impl FakeKubernetes {
    /// Binds, writes the files of its clients, and serves.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        let (files, tls) = files::Files::new(config.directory.clone())?;
        let listener = bind(config.listen).await?;
        let control = bind(config.control).await?;
        let addr = listener.local_addr().context("listener has no address")?;
        let control_addr = control.local_addr().context("listener has no address")?;
        let state = state::State::new(config)?;
        let files = Arc::new(files);
        files.write_kubeconfig(addr)?;
        let token = state.lock().access.token.clone();
        files.write_token(&token)?;
        let serve = http::serve(Arc::clone(&state), listener, tls);
        let serve_control = http::serve_control(Arc::clone(&state), Arc::clone(&files), control);
        let kubelet = state::kubelet(Arc::clone(&state));
        Ok(Self {
            addr,
            control: control_addr,
            state,
            files,
            _tasks: [
                AbortOnDropHandle::new(tokio::spawn(serve)),
                AbortOnDropHandle::new(tokio::spawn(serve_control)),
                AbortOnDropHandle::new(tokio::spawn(kubelet)),
            ],
        })
    }

    /// `https://ip:port`.
    pub fn url(&self) -> String {
        format!("https://{}", self.addr)
    }

    /// The port for commands.
    pub fn control(&self) -> SocketAddr {
        self.control
    }

    /// Path of a kubeconfig for this server.
    pub fn kubeconfig(&self) -> PathBuf {
        self.files.kubeconfig()
    }

    /// Path of the authority that signed the server's certificate.
    pub fn authority(&self) -> PathBuf {
        self.files.authority()
    }

    /// Path of the user's token.
    pub fn token(&self) -> PathBuf {
        self.files.token()
    }

    /// Adds a rule behind those in force. Fails above [`RULES_MAX`].
    pub fn add_rule(&self, rule: Rule) -> anyhow::Result<()> {
        let added = self.state.lock().rules.add(rule);
        added.map_err(anyhow::Error::msg)
    }

    /// Removes all rules.
    pub fn clear_rules(&self) {
        self.state.lock().rules.clear();
    }

    /// Forgets the history: watches and continue tokens from before now are refused with 410.
    pub fn compact(&self) {
        self.state.compact();
    }

    /// Lets writes of other resources pass.
    pub fn pass_revisions(&self, count: u64) {
        self.state.write(|store| store.pass_revisions(count));
    }

    /// Sends a bookmark on each watch that takes them.
    pub fn bookmark(&self) {
        self.state.bookmarks.send_modify(|count| *count += 1);
    }

    /// While `true`, watches send no byte and do not end.
    pub fn stall(&self, on: bool) {
        self.state.stalled.send_replace(on);
    }

    /// Connections that are open now fall silent for ever; new ones work.
    pub fn half_open(&self) {
        self.state.silence();
    }

    /// Connections that are open now are reset; new ones work.
    pub fn reset(&self) {
        self.state.reset();
    }

    /// Sets how connections fare.
    pub fn network(&self, network: Network) {
        self.state.set_network(network);
    }

    /// Makes a new token and refuses the old one; `write`: the file has the new one.
    pub fn rotate_token(&self, write: bool) -> anyhow::Result<()> {
        let token = self.state.rotate();
        if write {
            self.files.write_token(&token)
        } else {
            Ok(())
        }
    }

    /// What the user may do; none: everything. Fails above 64 grants.
    pub fn grant(&self, grants: Option<Vec<Grant>>) -> anyhow::Result<()> {
        self.state.grant(grants).map_err(anyhow::Error::msg)
    }

    /// Counts since the start.
    pub fn stats(&self) -> Stats {
        self.state.stats()
    }
}

async fn bind(addr: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(addr).await;
    listener.with_context(|| format!("cannot listen on {addr}"))
}
