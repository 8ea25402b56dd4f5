//! Drives the planes: the one place with sockets, clocks and locks.
//!
//! It calls a plane when something arrives, when its time has come, when a peer comes or goes and when there is a new
//! view, and carries out what the plane asks for. What a call asks for is carried out under the plane's lock, so that
//! all see it in one order. Locks nest in one way only: that of the registry's plane, which makes views, before that of
//! another plane, which is shown one.
//!
//! - `hosted.rs`: a plane and its lock.
//! - `rounds.rs`: what happens by the clock.

mod hosted;
mod rounds;

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::watch;
use tokio::task::block_in_place;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::frame::Header;
use crate::membership::Membership;
use crate::metrics::Metrics;
use crate::peers::Member;
use crate::plane::{
    Context, Effect, Later, NewView, Origin, Plane, RequestError, Seen, Surroundings,
};
use crate::replica::ReplicaId;
use crate::transport::{Receiver, Transport, system_ms};
use crate::view::View;
use crate::wire::{Message, Received};

pub use hosted::Hosted;
use rounds::Hearing;

/// Drives the planes of one agent. Clones share it.
#[derive(Clone)]
pub(crate) struct Driver(Arc<Inner>);

struct Inner {
    /// `None` in a cluster of one.
    net: Option<Net>,
    /// The registry's first: it makes the views.
    planes: Vec<Arc<Hosted<dyn Plane>>>,
    view: watch::Sender<Arc<View>>,
    /// Number of the latest change that is in the view.
    published: watch::Sender<u64>,
    /// Whether a peer's registry was taken, or there is none to take.
    synced: watch::Sender<bool>,
    ready: watch::Sender<bool>,
    hearing: Mutex<Hearing>,
    /// What the latest look brought.
    seen: ArcSwap<Seen>,
    started: Instant,
    metrics: Metrics,
}

/// The way to the other replicas.
pub(crate) struct Net {
    pub(crate) transport: Transport,
    pub(crate) membership: Membership,
    /// Whether there is anybody to ask for the cluster.
    pub(crate) has_seeds: bool,
}

impl Driver {
    /// Of these planes; `view` is that of before anything happened.
    pub(crate) fn new(
        net: Option<Net>,
        planes: Vec<Arc<Hosted<dyn Plane>>>,
        view: View,
        metrics: Metrics,
    ) -> Self {
        let is_solo = net.is_none();
        let inner = Inner {
            net,
            planes,
            view: watch::Sender::new(Arc::new(view)),
            published: watch::Sender::new(0),
            synced: watch::Sender::new(is_solo),
            ready: watch::Sender::new(is_solo),
            hearing: Mutex::default(),
            seen: ArcSwap::default(),
            started: Instant::now(),
            metrics,
        };
        Self(Arc::new(inner))
    }

    /// Starts what arrives and what happens by the clock, until the transport closes.
    pub(crate) fn start(&self, seeds: &[String]) {
        let Some(net) = self.net() else {
            return;
        };
        net.transport.start(seeds, &self.receiver());
        self.look();
        for plane in &self.0.planes {
            net.transport.spawn(self.clone().run(plane.clone()));
        }
        net.transport.spawn(self.clone().rounds());
    }

    /// Itself, as the transport knows it.
    pub(crate) fn receiver(&self) -> Arc<dyn Receiver> {
        Arc::new(self.clone())
    }

    /// Calls a plane of this driver, and carries out what it asks for.
    pub(crate) fn with<P: Plane + ?Sized, T>(
        &self,
        plane: &Hosted<P>,
        call: impl FnOnce(&mut P, &mut Context) -> T,
    ) -> T {
        self.call(plane, call).0
    }

    /// [`Driver::with`]; also what is left in the context: the answer.
    fn call<P: Plane + ?Sized, T>(
        &self,
        hosted: &Hosted<P>,
        call: impl FnOnce(&mut P, &mut Context) -> T,
    ) -> (T, Context) {
        let mut cx = self.context();
        let mut plane = hosted.lock();
        let result = call(&mut plane, &mut cx);
        for effect in std::mem::take(&mut cx.effects) {
            match effect {
                Effect::Publish(new) => self.publish(&mut *plane, hosted, new),
                Effect::AmendRing(replica, digest) => self.amend_ring(&replica, &digest),
                Effect::Wake => hosted.wake.notify_one(),
                Effect::Ask(peer, question) => self.ask(hosted, peer, question),
                effect => self.carry_out(effect),
            }
        }
        (result, cx)
    }

    fn carry_out(&self, effect: Effect) {
        let Some(net) = self.net() else {
            return;
        };
        match effect {
            Effect::Send(peer, message) => net.transport.send(peer.as_ref(), &message),
            Effect::Strike(peer, reason) => net.transport.strike(&peer, reason),
            Effect::Fact(name, value) => net.membership.tell(name, &value),
            Effect::Greet(address) => net.membership.greet(address),
            Effect::Publish(_) | Effect::AmendRing(..) | Effect::Wake | Effect::Ask(..) => {}
        }
    }

    /// Shows a view to all planes, then to everybody, and at last to the plane that made it.
    fn publish<P: Plane + ?Sized>(&self, maker: &mut P, hosted: &Hosted<P>, new: NewView) {
        let NewView { view, load, change } = new;
        for plane in &self.0.planes {
            if !std::ptr::addr_eq(Arc::as_ptr(plane), hosted) {
                self.with(plane, |plane, cx| plane.on_view(&view, cx));
            }
        }
        if let Some((peer, header, frame)) = load {
            self.message(&peer, header, Message::Load(frame), 0);
        }
        self.0.view.send_replace(view.clone());
        maker.on_view(&view, &mut self.context());
        self.0.published.send_replace(change);
        self.0.metrics.views.inc();
    }

    /// Silent: readers of the view see the digest, and tasks that wait for another view go on waiting.
    fn amend_ring(&self, replica: &ReplicaId, digest: &str) {
        self.0.view.send_if_modified(|view| {
            *view = Arc::new(view.with_ring(replica, digest));
            false
        });
    }

    fn ask<P: Plane + ?Sized>(&self, hosted: &Hosted<P>, peer: ReplicaId, question: Message) {
        let is_it = |plane: &&Arc<Hosted<dyn Plane>>| std::ptr::addr_eq(Arc::as_ptr(plane), hosted);
        let (Some(net), Some(plane)) = (self.net(), self.0.planes.iter().find(is_it)) else {
            return;
        };
        let (driver, plane) = (self.clone(), plane.clone());
        net.transport.spawn(async move {
            let answer = driver.request(&peer, &question).await;
            driver.with(&plane, |plane, cx| {
                plane.on_answer(&peer, &question, answer, cx)
            });
        });
    }

    /// Asks a peer, and waits for its whole answer.
    pub(crate) async fn request(
        &self,
        peer: &ReplicaId,
        question: &Message,
    ) -> Result<Vec<Received>, RequestError> {
        let net = self.net().ok_or(RequestError::NotLinked)?;
        net.transport.request(peer, question).await
    }

    fn context(&self) -> Context {
        Context::at(Instant::now().into_std(), self.unix_ms())
    }

    /// What planes may know of the others now.
    fn surroundings(&self) -> Surroundings {
        let links = self.net().map(|net| net.transport.open_links());
        Surroundings {
            links: links.unwrap_or_default(),
            seen: self.0.seen.load_full(),
        }
    }

    /// The way to the others; `None` in a cluster of one.
    pub(crate) fn net(&self) -> Option<&Net> {
        self.0.net.as_ref()
    }

    /// This replica's wall clock, Unix milliseconds; in a cluster of one that of the operating system.
    pub(crate) fn unix_ms(&self) -> u64 {
        self.net()
            .map_or_else(system_ms, |net| net.transport.unix_ms())
    }

    /// The latest view.
    pub(crate) fn view(&self) -> &watch::Sender<Arc<View>> {
        &self.0.view
    }

    /// Number of the latest change that is in the view.
    pub(crate) fn published(&self) -> watch::Receiver<u64> {
        self.0.published.subscribe()
    }

    /// Whether a peer's registry was taken, or there is none to take.
    pub(crate) fn synced(&self) -> &watch::Sender<bool> {
        &self.0.synced
    }

    /// Whether the view may be used for routing.
    pub(crate) fn ready(&self) -> &watch::Sender<bool> {
        &self.0.ready
    }

    /// When it was made.
    pub(crate) fn started(&self) -> Instant {
        self.0.started
    }

    /// Handles of all metrics.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Drives a plane of a cluster of one by the clock; ends with `stop`.
    pub(crate) fn run_alone(
        &self,
        plane: Arc<Hosted<dyn Plane>>,
        stop: tokio_util::sync::CancellationToken,
    ) {
        let run = self.clone().run(plane);
        TaskTracker::new().spawn(async move { stop.run_until_cancelled(run).await });
    }
}

/// An answer that is made outside of its plane's lock.
fn made(Later { make, is_long }: Later) -> Vec<Message> {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match flavor {
        // The tasks that wait for this thread go on with another one.
        Ok(RuntimeFlavor::MultiThread) if is_long => block_in_place(make),
        _ => make(),
    }
}

impl Receiver for Driver {
    fn gossip(&self, from: SocketAddr, bytes: Vec<u8>) {
        if let Some(net) = self.net() {
            net.membership.deliver(from, bytes);
        }
    }

    fn has_news(&self, address: SocketAddr) {
        if let Some(net) = self.net() {
            net.membership.greet(address);
        }
    }

    fn outdone(&self, version: u64) {
        if let Some(net) = self.net() {
            net.membership.outdone(version);
        }
    }

    fn message(
        &self,
        from: &ReplicaId,
        header: Header,
        message: Message,
        bytes: usize,
    ) -> Vec<Message> {
        let name = message.kind().plane;
        let mut planes = self.0.planes.iter();
        let Some(plane) = planes.find(|plane| plane.names.contains(&name)) else {
            self.0.metrics.dropped("unknown_kind");
            return Vec::new();
        };
        let origin = Origin {
            peer: from,
            header,
            bytes,
        };
        let ((), cx) = self.call(plane, |plane, cx| plane.on_message(origin, message, cx));
        let mut answer = cx.answer;
        // The lock is open again.
        answer.extend(cx.later.map(made).into_iter().flatten());
        answer
    }

    fn linked(&self, member: &Member) {
        if let Some(net) = self.net() {
            net.membership.greet(member.address);
        }
        for plane in &self.0.planes {
            self.with(plane, |plane, cx| plane.on_link(&member.id, cx));
        }
    }

    fn left(&self, id: &ReplicaId) {
        for plane in &self.0.planes {
            self.with(plane, |plane, cx| plane.on_left(id, cx));
        }
    }

    fn outrun(&self, seen: u64) {
        if let Some(net) = self.net() {
            net.membership.outrun(seen);
        }
    }
}
