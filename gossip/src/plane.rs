//! A plane: one subject that replicas exchange messages about, as a machine that gets what happens and returns what is
//! to be done.
//!
//! Pure: a plane owns no socket, no clock and no lock. The driver (`driver/`) gives it messages, instants and views, and
//! carries out what it asks for in its [`Context`]; a test does the same with two planes and a queue between them. What a
//! plane counts, and what others read of it without waiting (load counters, received states, the listener's channel), it
//! holds as handles: nothing comes back to it through them.
//!
//! | part | plane |
//! |---|---|
//! | `planes/registry/` | the worker set, and the view that is made of it |
//! | `planes/load.rs` | load of each worker |
//! | `planes/evidence/` | which worker holds which prefix, and how hot it is |
//! | `planes/peer_state/` | what replicas found out about workers, and have in hand |
//! | `planes/dry_run.rs` | what another replica would decide |
//! | `planes/twin.rs` | two processes under one id; no messages, only a fact |

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::facts::SeenReplica;
use crate::frame::Header;
use crate::load::LoadFrame;
use crate::peers::Reason;
use crate::replica::ReplicaId;
use crate::twin::Twin;
use crate::view::View;
use crate::wire::{Kind, Message, Received};

/// What a subject of gossip does with what happens.
///
/// Every method must return soon: others wait for the plane's lock meanwhile. Each but [`Plane::names`] and
/// [`Plane::on_message`] may be left out.
pub trait Plane: Send + 'static {
    /// The planes, as the table of kinds names them, whose messages it takes.
    fn names(&self) -> &'static [&'static str];

    /// Kinds of its own, for a plane from outside this crate: numbers above those of [`KINDS`](crate::wire::KINDS).
    fn kinds(&self) -> &'static [Kind] {
        &[]
    }

    /// A push or a question came. What it gives to [`Context::answer`] answers a question; nothing is an answer, too.
    fn on_message(&mut self, from: Origin<'_>, message: Message, cx: &mut Context);

    /// What became of a question that it asked by [`Context::ask`].
    fn on_answer(
        &mut self,
        peer: &ReplicaId,
        question: &Message,
        answer: Result<Vec<Received>, RequestError>,
        cx: &mut Context,
    ) {
        let _ = (peer, question, answer, cx);
    }

    /// The time that it asked for has come, or somebody woke it: the driver does each round, every 200 ms. Returns when
    /// to call again at the latest; `None`: only when woken.
    fn on_tick(&mut self, around: &Surroundings, cx: &mut Context) -> Option<Instant> {
        let _ = (around, cx);
        None
    }

    /// The connection to a peer is up.
    fn on_link(&mut self, peer: &ReplicaId, cx: &mut Context) {
        let _ = (peer, cx);
    }

    /// A peer announced that it leaves, or may not come back: what is known of it is dropped.
    fn on_left(&mut self, peer: &ReplicaId, cx: &mut Context) {
        let _ = (peer, cx);
    }

    /// There is a new view; nobody has seen it yet.
    fn on_view(&mut self, view: &View, cx: &mut Context) {
        let _ = (view, cx);
    }
}

/// Where a message came from.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The replica that its certificate names.
    pub peer: &'a ReplicaId,
    /// Its generation, and the number of the frame within it.
    pub header: Header,
    /// Length of the frame in bytes.
    pub bytes: usize,
}

/// What a plane may know of the other replicas when it acts by the clock.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Connected peers, in no order.
    pub links: Vec<Link>,
    /// What the driver saw when it last looked, each round.
    pub(crate) seen: Arc<Seen>,
}

/// One connected peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its id.
    pub peer: ReplicaId,
    /// The generation in which it answered.
    pub generation: u64,
    /// How many messages its queue for the bulk takes now ([`Queue::Bulk`](crate::wire::Queue)).
    pub room: usize,
    /// Where it is dialled.
    pub address: SocketAddr,
}

/// What one look at membership and transport brought.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The other replicas, each in the generation that it proved.
    pub(crate) others: Vec<SeenReplica>,
    /// The generation under which this replica speaks.
    pub(crate) generation: u64,
    /// The shortest time of late to each connected peer.
    pub(crate) ways: Vec<(ReplicaId, Duration)>,
    /// Ids under which this replica saw two processes.
    pub(crate) twins: Vec<Twin>,
    /// The process that the cluster keeps instead of this one.
    pub(crate) kept_instead: Option<SocketAddr>,
    /// Where this replica is dialled.
    pub(crate) address: Option<SocketAddr>,
    /// Whether a peer's registry was taken, or there is none to take.
    pub(crate) is_synced: bool,
    /// Drawn anew for each look.
    pub(crate) draw: u64,
}

/// Why a question got no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// There is no connection to this peer now.
    #[error("not connected")]
    NotLinked,
    /// No whole answer in time.
    #[error("no answer in time")]
    Slow,
    /// The stream broke or the answer is damaged.
    #[error("answer broken off")]
    Broken,
}

/// The moment at which a plane is called, and what it wants done, in order.
pub struct Context {
    /// Of the monotonic clock.
    pub now: Instant,
    /// Of this replica's wall clock, Unix milliseconds.
    pub unix_ms: u64,
    pub(crate) effects: Vec<Effect>,
    /// Frames that answer the question at hand.
    pub(crate) answer: Vec<Message>,
    /// Makes further frames of the answer.
    pub(crate) later: Option<Later>,
}

/// Makes an answer outside of the plane's lock.
pub(crate) struct Later {
    pub(crate) make: Box<dyn FnOnce() -> Vec<Message> + Send>,
    /// It takes so long that other tasks should not wait for it.
    pub(crate) is_long: bool,
}

/// One thing to be done.
pub(crate) enum Effect {
    /// Queue a push for one peer, or for all that are connected.
    Send(Option<ReplicaId>, Message),
    /// Ask a peer.
    Ask(ReplicaId, Message),
    /// Count an offence that only the receiver of a message can see.
    Strike(ReplicaId, Reason),
    /// Send this fact about ourselves.
    Fact(&'static str, String),
    /// Have chitchat begin an exchange with the replica at this address.
    Greet(SocketAddr),
    /// Show a new view to everybody.
    Publish(NewView),
    /// Put the digest of this replica's ring into the latest view, and wake nobody.
    AmendRing(ReplicaId, String),
    /// Call [`Plane::on_tick`] now.
    Wake,
}

/// A view, and what must be known together with it.
pub(crate) struct NewView {
    pub(crate) view: Arc<View>,
    /// The load that came with the workers: applied once the planes know these, and before anybody sees them.
    pub(crate) load: Option<(ReplicaId, Header, LoadFrame)>,
    /// Number of the latest change that is in it.
    pub(crate) change: u64,
}

impl Context {
    /// At this moment, with nothing to be done.
    pub fn at(now: Instant, unix_ms: u64) -> Self {
        Self {
            now,
            unix_ms,
            effects: Vec::new(),
            answer: Vec::new(),
            later: None,
        }
    }

    /// Queues a push for one peer. Whether it arrives is not known.
    pub fn send(&mut self, peer: ReplicaId, message: Message) {
        self.effects.push(Effect::Send(Some(peer), message));
    }

    /// Queues a push for every connected peer.
    pub fn send_to_all(&mut self, message: Message) {
        self.effects.push(Effect::Send(None, message));
    }

    /// Asks a peer; [`Plane::on_answer`] gets what became of it, within some seconds.
    pub fn ask(&mut self, peer: ReplicaId, question: Message) {
        self.effects.push(Effect::Ask(peer, question));
    }

    /// Adds a frame to the answer to the question at hand.
    pub fn answer(&mut self, message: Message) {
        self.answer.push(message);
    }

    /// Has the answer made outside of the plane's lock: for what others wait for too long, or what calls back.
    pub fn answer_later(&mut self, make: impl FnOnce() -> Vec<Message> + Send + 'static) {
        self.later = Some(Later {
            make: Box::new(make),
            is_long: false,
        });
    }

    /// The same of one that takes milliseconds and more: where the runtime has several threads, no other task waits for it.
    pub fn answer_at_length(&mut self, make: impl FnOnce() -> Vec<Message> + Send + 'static) {
        self.later = Some(Later {
            make: Box::new(make),
            is_long: true,
        });
    }

    /// Has [`Plane::on_tick`] called now.
    pub fn wake(&mut self) {
        self.effects.push(Effect::Wake);
    }

    /// The message was none that an honest peer sends. The tenth cuts the peer off for a minute.
    pub fn refuse(&mut self, peer: &ReplicaId) {
        self.strike(peer, Reason::Malformed);
    }

    pub(crate) fn strike(&mut self, peer: &ReplicaId, reason: Reason) {
        self.effects.push(Effect::Strike(peer.clone(), reason));
    }

    /// Shows a new view to everybody.
    pub(crate) fn publish(&mut self, view: NewView) {
        self.effects.push(Effect::Publish(view));
    }

    /// Puts the digest of this replica's ring into the latest view. Nobody is woken: its followers computed the digest.
    pub(crate) fn amend_ring(&mut self, replica: ReplicaId, digest: String) {
        self.effects.push(Effect::AmendRing(replica, digest));
    }

    pub(crate) fn fact(&mut self, name: &'static str, value: String) {
        self.effects.push(Effect::Fact(name, value));
    }

    pub(crate) fn greet(&mut self, address: SocketAddr) {
        self.effects.push(Effect::Greet(address));
    }
}
