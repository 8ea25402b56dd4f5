//! A new kind of message from beginning to end: its row, its plane, and two agents that exchange it.

use crate::running::{Running, authority, issue, until};
use grapevine_gossip::plane::{Context, Origin, Plane};
use grapevine_gossip::wire::{Extra, Kind, Message, Queue, Rate, Role};
use grapevine_gossip::{Hosted, ReplicaId};

/// The row: pushed, and not answered.
static GREETING: [Kind; 1] = [Kind {
    name: "Greeting",
    codes: &[200],
    plane: "greetings",
    role: Role::Push(Queue::Urgent),
    rate: Rate::Own,
    body_max: 64,
}];

/// The plane: greets every peer that connects, and knows which peers greeted.
#[derive(Default)]
struct Greetings(Vec<ReplicaId>);

impl Plane for Greetings {
    fn names(&self) -> &'static [&'static str] {
        &["greetings"]
    }
    fn kinds(&self) -> &'static [Kind] {
        &GREETING
    }
    fn on_message(&mut self, from: Origin<'_>, message: Message, cx: &mut Context) {
        match message {
            Message::Extra(greeting) if greeting.body == b"hello" => self.0.push(from.peer.clone()),
            _ => cx.refuse(from.peer),
        }
    }
    fn on_link(&mut self, peer: &ReplicaId, cx: &mut Context) {
        let (kind, body) = (&GREETING[0], b"hello".to_vec());
        cx.send(peer.clone(), Message::Extra(Extra { kind, body }));
    }
    fn on_left(&mut self, peer: &ReplicaId, _: &mut Context) {
        self.0.retain(|from| from != peer);
    }
}

#[tokio::test]
async fn two_agents_exchange_a_kind_that_is_not_of_this_crate() {
    let authority = authority();
    let [of_a, of_b] = [(); 2].map(|()| Hosted::new(Greetings::default()));
    let a = Running::start_with(issue(&authority, "demo", "a"), &[], of_a.clone()).await;
    let b = Running::start_with(issue(&authority, "demo", "b"), &[a.seed()], of_b.clone()).await;
    until("b at a", || of_a.lock().0.contains(b.agent.replica())).await;
    until("a at b", || of_b.lock().0.contains(a.agent.replica())).await;
    assert_eq!(a.count("gossip_refused_total"), 0);
    b.agent.shutdown().await;
    until("b gone", || of_a.lock().0.is_empty()).await;
    a.agent.shutdown().await;
}
