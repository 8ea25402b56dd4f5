//! What a transport dials, and what it writes there.

use quinn::{Connection, ReadError, ReadToEndError, SendStream, TransportConfig};
use tokio::time::timeout;

use super::stream::{read_frame, send_uni};
use super::tests::{Bench, GENERATION, LIMIT, closed_with, identity_of};
use super::*;
use crate::registry::{Entry, MERGED_ENTRIES_MAX, Summary};
use crate::wire::{HelloAck, Snapshot, SyncRequest};

/// A replica with the certificate of `a`, for a transport that dials it.
struct Peer(Endpoint);

/// A HELLO that waits for its answer.
struct Greeting {
    connection: Connection,
    generation: u64,
    answer: SendStream,
}

impl Peer {
    fn new(bench: &Bench) -> Self {
        let server = credentials::server(&identity_of(&bench.authority, "a")).expect("config");
        Self(Endpoint::server(server, ([127, 0, 0, 1], 0).into()).expect("endpoint"))
    }

    /// From now on it is dialled.
    fn is_named_to(&self, bench: &Bench) {
        let address = self.0.local_addr().expect("bound");
        let id = "a".parse().expect("valid");
        peer::consider(&bench.transport.shared, &bench.receiver(), &id, address);
    }

    async fn greeted(&self) -> Greeting {
        let greeted = async {
            let connection = self.0.accept().await.expect("open").await.expect("shakes");
            let (answer, mut receive) = connection.accept_bi().await.expect("HELLO");
            let hello = read_frame(&mut receive).await.expect("whole").expect("one");
            let header = wire::decode(&hello).expect("HELLO").header;
            Greeting {
                connection,
                generation: header.generation,
                answer,
            }
        };
        timeout(LIMIT, greeted).await.expect("in time")
    }
}

impl Greeting {
    async fn answered(mut self) -> Connection {
        let ack = Message::HelloAck(HelloAck {
            replica: "a".parse().expect("valid"),
            generation_seen: 0,
            hints: Vec::new(),
        });
        let mut bytes = Vec::new();
        wire::encode(&mut bytes, 5, 0, &ack).expect("fits");
        self.answer.write_all(&bytes).await.expect("writes");
        self.answer.finish().expect("finishes");
        self.connection
    }
}

async fn linked(bench: &Bench) {
    let linked = async {
        while bench.transport.linked().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, linked).await.expect("in time");
}

/// The peer would drop all that comes later on such a connection, as of a former generation, for as long as it lasts.
#[tokio::test]
async fn a_dial_during_which_the_generation_is_renewed_begins_anew() {
    let bench = Bench::new().await;
    let peer = Peer::new(&bench);
    peer.is_named_to(&bench);
    let first = peer.greeted().await;
    assert_eq!(first.generation, GENERATION);
    bench.transport.renew(GENERATION + 1);
    let first = first.answered().await;
    assert_eq!(closed_with(&first).await, Some(Close::Renewed));
    let second = peer.greeted().await;
    assert_eq!(second.generation, GENERATION + 1);
    let second = second.answered().await;
    linked(&bench).await;
    assert_eq!(second.close_reason(), None);
}

/// Else its reader takes the part that came for a damaged message, and holds it against the sender.
#[tokio::test]
async fn a_message_that_is_given_up_is_reset() {
    let bench = Bench::new().await;
    let mut server = credentials::server(&identity_of(&bench.authority, "me")).expect("config");
    let mut narrow = TransportConfig::default();
    narrow.stream_receive_window(1000u32.into());
    server.transport_config(Arc::new(narrow));
    let reader = Endpoint::server(server, ([127, 0, 0, 1], 0).into()).expect("endpoint");
    let address = reader.local_addr().expect("bound");
    let accepted = async { reader.accept().await.expect("open").await.expect("shakes") };
    let ((_endpoint, writing), reading) = tokio::join!(bench.connect_to("a", address), accepted);
    // The reader takes nothing meanwhile.
    let message = [7; 64 << 10];
    let written = timeout(Duration::from_millis(50), send_uni(&writing, &message)).await;
    assert!(written.is_err(), "there is no room for it");
    let mut stream = reading.accept_uni().await.expect("it began");
    let read = timeout(LIMIT, stream.read_to_end(message.len()));
    let read = read.await.expect("in time");
    let is_reset = matches!(&read, Err(ReadToEndError::Read(ReadError::Reset(_))));
    assert!(is_reset, "{read:?}");
}

/// A transport, and the peer that it is linked with: its id, and its end of the connection that is asked on.
async fn linked_bench() -> (Bench, ReplicaId, Connection) {
    let bench = Bench::new().await;
    let peer = Peer::new(&bench);
    peer.is_named_to(&bench);
    let dialled = peer.greeted().await.answered().await;
    let id: ReplicaId = "a".parse().expect("valid");
    linked(&bench).await;
    (bench, id, dialled)
}

/// Most entries of a later release arrive in answers.
#[tokio::test]
async fn what_cannot_be_read_of_an_answer_is_counted() {
    let (bench, id, dialled) = linked_bench().await;
    let answering = async {
        let (mut answer, _question) = dialled.accept_bi().await.expect("asked");
        let mut longer = Vec::new();
        crate::frame::seal(&mut longer, 4, 5, 1, &(7_u64, "and when")).expect("fits");
        answer.write_all(&longer).await.expect("writes");
        answer.finish().expect("finishes");
    };
    let question = Message::RegistryPush(Vec::new());
    let asking = bench.transport.request(&id, &question);
    let both = async { tokio::join!(asking, answering).0 };
    let answer = timeout(LIMIT, both).await.expect("in time").expect("whole");
    assert!(matches!(answer[0].message, Some(Message::PushAck(7))));
    let reason = "later_fields";
    let counted = |metrics: &Metrics| metrics.drops.get_or_create(&Why { reason }).get();
    assert_eq!(bench.count(counted), 1);
}

/// What a peer answers to a question, and what comes of it: how many frames were taken, and what was counted.
struct Answered {
    frames: Result<usize, RequestError>,
    drops: [u64; 2],
    strikes: u64,
}

async fn answered(question: Message, frames: Vec<Message>, share_is_spent: bool) -> Answered {
    let (bench, id, dialled) = linked_bench().await;
    if share_is_spent {
        let mut table = bench.transport.shared.peer_table.lock();
        assert!(table.may_bring(&id, 1 << 30, now()), "it is full");
    }
    let answering = async {
        let (mut answer, _question) = dialled.accept_bi().await.expect("asked");
        for message in &frames {
            let mut bytes = Vec::new();
            wire::encode(&mut bytes, 5, 1, message).expect("fits");
            // It may be read no further.
            let _ = answer.write_all(&bytes).await;
        }
        let _ = answer.finish();
    };
    let asking = bench.transport.request(&id, &question);
    let both = async { tokio::join!(asking, answering).0 };
    let answer = timeout(LIMIT, both).await.expect("in time");
    let why = |reason| Why { reason };
    let drops = ["answer_too_long", "answer_flood"]
        .map(|reason| bench.count(|metrics| metrics.drops.get_or_create(&why(reason)).get()));
    let reason = Reason::Malformed.label();
    Answered {
        frames: answer.map(|frames| frames.len()),
        drops,
        strikes: bench.count(|metrics| metrics.refusals.get_or_create(&why(reason)).get()),
    }
}

/// Each would otherwise be kept whole before anybody looks at it.
#[tokio::test]
async fn an_answer_is_read_only_as_far_as_an_honest_one_goes() {
    let piece = |entries| Snapshot {
        entries,
        load: None,
        last: false,
        alone: None,
    };
    let entry = |n: usize| Entry {
        id: format!("w{n}").parse().expect("valid"),
        source: crate::worker::Source::Admin,
        stamp: crate::hlc::Stamp::at_ms(1),
        writer: Some("a".parse().expect("valid")),
        spec: None,
        unused_ms: 0,
    };
    let full: Vec<Message> = wire::chunks((0..MERGED_ENTRIES_MAX).map(entry).collect())
        .into_iter()
        .map(|entries| Message::Snapshot(piece(entries)))
        .collect();
    let one_more = [full.clone(), vec![Message::Snapshot(piece(vec![entry(0)]))]].concat();
    let all = full.len();
    let empty = |frames| vec![Message::Snapshot(piece(Vec::new())); frames];
    let ask_all = || Message::SnapshotRequest;
    let size = || Message::EvidenceSizeRequest;
    let sync = || {
        Message::SyncRequest(SyncRequest {
            summary: Summary::of_nothing(),
            alone: Duration::ZERO,
        })
    };
    let broken = Err(RequestError::Broken);
    let most = wire::REGISTRY_ANSWER_FRAMES;
    let link = |n| Message::EvidenceSize(n);
    for (what, question, frames, is_spent, expected, drops, strikes) in [
        (
            "as much as there may be",
            ask_all(),
            full.clone(),
            false,
            Ok(all),
            [0, 0],
            0,
        ),
        (
            "an entry more",
            ask_all(),
            one_more,
            false,
            broken,
            [1, 0],
            0,
        ),
        (
            "as many frames as there may be",
            ask_all(),
            empty(most),
            false,
            Ok(most),
            [0, 0],
            0,
        ),
        (
            "a frame more",
            ask_all(),
            empty(most + 1),
            false,
            broken,
            [1, 0],
            0,
        ),
        (
            "above its share",
            ask_all(),
            empty(1),
            true,
            broken,
            [0, 1],
            0,
        ),
        ("one number", size(), vec![link(1)], false, Ok(1), [0, 0], 0),
        (
            "two numbers",
            size(),
            vec![link(1), link(2)],
            false,
            broken,
            [0, 0],
            1,
        ),
        ("another kind", sync(), empty(1), false, broken, [0, 0], 1),
    ] {
        let got = answered(question, frames, is_spent).await;
        assert_eq!(got.frames, expected, "{what}");
        assert_eq!(got.drops, drops, "{what}");
        assert_eq!(got.strikes, strikes, "{what}");
    }
}
