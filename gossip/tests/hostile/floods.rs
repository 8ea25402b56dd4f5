//! Floods from outside and inside: first packets from many sockets (S11), HELLOs, connections, half-open
//! and slow streams, questions that cost more than they look.

use std::collections::VecDeque;
use std::time::Duration;

use grapevine_gossip::frame::{BODY_BYTES_MAX, HEADER_BYTES, Header};
use grapevine_gossip::registry::{BUCKETS, Summary};
use grapevine_gossip::wire::{self, Message, SyncRequest};
use grapevine_gossip::worker::{RawWorker, Source, WorkerSpec};
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep, timeout};

use super::rogue::{LIMIT, Rogue};
use super::scene::{CLUSTER, Scene, eventually, pem, resident_kib};

/// First packets, each from a socket of its own.
const SOURCES: usize = 300;
/// Times that all of them are sent.
const ROUNDS: usize = 5;
/// Not more, whatever the kernel drops.
const ROUNDS_MAX: usize = 100;

/// First packets of QUIC handshakes, each of another connection, caught by a socket that never answers.
async fn first_packets(scene: &Scene, count: usize) -> Vec<Vec<u8>> {
    let trap = UdpSocket::bind("127.0.0.1:0").await.expect("binds");
    let to = trap.local_addr().expect("bound");
    let identity = pem(&scene.authority, "flood");
    let rogue = Rogue::start(CLUSTER, "flood", &identity);
    let mut packets = Vec::with_capacity(count);
    let mut buffer = vec![0; 2048];
    while packets.len() < count {
        let dialling = rogue.connect(to);
        let caught = async {
            let (length, _) = trap.recv_from(&mut buffer).await.expect("a packet");
            length
        };
        let length = tokio::select! {
            length = caught => length,
            _ = dialling => panic!("nobody answers"),
        };
        // Long header, type Initial, at least as long as one must be.
        if buffer[0] & 0xf0 == 0xc0 && length >= 1200 {
            packets.push(buffer[..length].to_vec());
        }
    }
    packets
}

/// S11: to an address that has not proven itself at most three bytes go for each that came; under pressure
/// a Retry; connected peers notice nothing, and newcomers still get in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_first_packets_is_not_amplified() {
    let mut scene = Scene::new().await;
    let packets = first_packets(&scene, SOURCES).await;
    let victim = scene.victim().address();
    let mut sockets = Vec::new();
    for _ in 0..SOURCES {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("binds");
        sockets.push(socket);
    }
    let (begun, cpu, memory) = (Instant::now(), cpu_ms(), resident_kib());
    let of = |label| scene.victim().sum("gossip_handshakes_total", label);
    let has_come = || of("retried") + of("slow") + of("crowded") >= SOURCES as f64 / 2.0;
    let mut rounds = 0;
    // On a busy machine the kernel drops most of a round: another follows, until half of the sources came through.
    while rounds < ROUNDS || (!has_come() && rounds < ROUNDS_MAX) {
        if rounds >= ROUNDS {
            // The victim has to get a processor for what it got of the round before.
            sleep(Duration::from_millis(100)).await;
        }
        rounds += 1;
        for (at, (socket, packet)) in sockets.iter().zip(&packets).enumerate() {
            socket.send_to(packet, victim).await.expect("sent");
            if at % 20 == 0 {
                // The kernel drops what does not fit the victim's socket.
                sleep(Duration::from_millis(2)).await;
            }
        }
    }
    let flood = begun.elapsed();
    // Everything that is coming: handshakes end after a second, with what they repeat until then.
    eventually("the flood is over", || has_come().then_some(())).await;
    sleep(Duration::from_millis(1500)).await;
    let (mut sent, mut back) = (0usize, 0usize);
    let mut buffer = vec![0; 2048];
    for (socket, packet) in sockets.iter().zip(&packets) {
        let mut received = 0;
        while let Ok((length, from)) = socket.try_recv_from(&mut buffer) {
            assert_eq!(from, victim);
            received += length;
        }
        let out = packet.len() * rounds;
        assert!(received <= 3 * out, "{received} bytes for {out}");
        sent += out;
        back += received;
    }
    let counted = |label| scene.victim().sum("gossip_handshakes_total", label);
    println!(
        "{} packets in {flood:?}: {sent} bytes in, {back} out ({:.2}); retried {}, slow {}, crowded {}; cpu of the whole test {} ms, memory {:+} KiB",
        SOURCES * rounds,
        back as f64 / sent as f64,
        counted("retried"),
        counted("slow"),
        counted("crowded"),
        cpu_ms() - cpu,
        resident_kib() - memory
    );
    assert!(counted("retried") > 0.0);
    // While it goes on, somebody with a certificate gets in.
    let newcomer = scene.rogue("newcomer");
    for (socket, packet) in sockets.iter().zip(&packets) {
        socket.send_to(packet, victim).await.expect("sent");
    }
    let line = newcomer.dial(victim).await;
    println!(
        "a newcomer was in {:?} after a flood began",
        line.connection.rtt()
    );
    drop(line);
    scene.unharmed("a flood of first packets").await;
    scene.still_works("a flood of first packets").await;
}

/// A peer with a certificate sends HELLO all the time: it is refused above its rate, and only it suffers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_hellos_and_connections_hurt_nobody() {
    let mut scene = Scene::new().await;
    let victim = scene.victim();
    let rogue = scene.rogue("liar");
    let begun = Instant::now();
    let memory = resident_kib();
    let mut open = VecDeque::new();
    let mut refused = 0;
    for _ in 0..400 {
        match rogue.greet(victim.address(), &rogue.id).await {
            Ok(line) => open.push_back(line),
            Err(_) => refused += 1,
        }
    }
    let alive = || open.iter().filter(|line| !line.is_over()).count();
    // The ends of those that were closed last arrive a little later.
    let told = Instant::now();
    while alive() > 4 && told.elapsed() < LIMIT {
        sleep(Duration::from_millis(20)).await;
    }
    let alive = alive();
    println!(
        "400 HELLOs in {:?}: {refused} refused, {alive} connections left, memory {:+} KiB",
        begun.elapsed(),
        resident_kib() - memory
    );
    assert!(alive <= 4, "{alive} connections of one replica");

    // Connections without HELLO end by themselves.
    let silent = scene.rogue("silent");
    let mut waiting = Vec::new();
    for _ in 0..100 {
        if let Ok(connection) = silent.connect(victim.address()).await {
            waiting.push(connection);
        }
    }
    for connection in &waiting {
        let ended = timeout(LIMIT, connection.closed()).await;
        assert!(ended.is_ok(), "a silent connection stays");
    }
    println!("{} silent connections ended", waiting.len());
    drop(open);
    scene.unharmed("HELLOs").await;
    scene.still_works("HELLOs").await;
}

/// A question of anti-entropy is some hundred bytes, for which all entries may be looked at, under the lock that every change
/// waits for: also where it differs in nothing, so that its answer has no entry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_about_a_great_registry_are_bounded() {
    let mut scene = Scene::new().await;
    let many = (0..20_000).map(|at| {
        let spec = WorkerSpec::new(RawWorker::at(format!(
            "http://10.0.{}.{}",
            at / 250,
            at % 250
        )));
        let spec = spec.expect("a URL");
        (spec.default_id(), spec)
    });
    let put = scene
        .victim()
        .agent
        .put_workers(Source::Admin, many.collect());
    put.await.expect("room");
    scene.settle().await;
    let victim = scene.victim();
    let rogue = scene.rogue("liar");
    let mut line = rogue.dial(victim.address()).await;
    let unlike = Summary {
        digest: victim.agent.view().registry(),
        buckets: [0; BUCKETS],
    };
    let question = |summary| {
        Message::SyncRequest(SyncRequest {
            summary,
            alone: Duration::ZERO,
        })
    };
    let answer = line.ask(&question(unlike)).await.expect("answered");
    let answer = wire::decode(first_frame(&answer)).expect("a frame");
    let Some(Message::SyncResponse(answer)) = answer.message else {
        panic!("another kind");
    };
    let alike = question(answer.summary);
    let (begun, mut answered) = (Instant::now(), 0u32);
    for _ in 0..5_000 {
        let answer = line.ask(&alike).await;
        answered += u32::from(answer.is_some_and(|answer| !answer.is_empty()));
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("5,000 questions in {seconds:.2} s, {answered} of them answered");
    let allowed = 220.0 + 20.0 * seconds;
    assert!(f64::from(answered) <= allowed, "{answered} answered");
    assert!(victim.refused("flood") >= 1.0);
    drop(line);
    scene.still_works("questions of anti-entropy").await;
}

/// The first of the frames of an answer.
fn first_frame(answer: &[u8]) -> &[u8] {
    let header = Header::read(answer).expect("a header");
    &answer[..HEADER_BYTES + header.rest_len()]
}

/// Streams that never end, or a byte at a time: let go of in time, and everything else goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_and_slow_streams_are_let_go() {
    let mut scene = Scene::new().await;
    let victim = scene.victim();
    let rogue = scene.rogue("liar");
    let line = rogue.dial(victim.address()).await;
    let connection = line.connection.clone();
    let memory = resident_kib();
    let mut uni = Vec::new();
    while let Ok(Ok(mut stream)) = timeout(Duration::from_millis(200), connection.open_uni()).await
    {
        // Begins like a frame of 256 KiB, and goes on for ever.
        let _ = stream.write_all(b"GV\x01\x03").await;
        uni.push(stream);
    }
    let mut bi = Vec::new();
    while let Ok(Ok((mut send, receive))) =
        timeout(Duration::from_millis(200), connection.open_bi()).await
    {
        let _ = send.write_all(b"GV").await;
        bi.push((send, receive));
    }
    assert!(
        uni.len() <= 64 && bi.len() <= 16,
        "{} {}",
        uni.len(),
        bi.len()
    );
    println!(
        "{} uni and {} bi streams open, memory {:+} KiB",
        uni.len(),
        bi.len(),
        resident_kib() - memory
    );
    scene.unharmed("half-open streams").await;
    // One that drips is ended as one that is silent.
    let dripping = Instant::now();
    let mut stream = uni.pop().expect("some are open");
    while stream.write_all(&[0]).await.is_ok() {
        assert!(dripping.elapsed() < LIMIT, "it may drip for ever");
        sleep(Duration::from_millis(50)).await;
    }
    eventually("all are let go", || {
        let broken = victim.sum("gossip_dropped_total", "stream_broken");
        (broken >= 64.0).then_some(())
    })
    .await;
    println!("let go after {:?}", dripping.elapsed());
    drop((uni, bi));
    // The same connection is of use again.
    assert!(line.send(&super::chitchat::syn(CLUSTER, &[])).await);
    drop(line);
    scene.still_works("slow streams").await;
}

/// Streams that never become a message: reset at once, or after a header that announces the longest frame there is. What may
/// have come of them counts, so who goes on and on is cut off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_reset_again_and_again_end_in_a_ban() {
    let mut scene = Scene::new().await;
    let victim = scene.victim();
    for kind in ["one-way", "questions"] {
        let rogue = scene.rogue(&format!("liar-{kind}"));
        let line = rogue.dial(victim.address()).await;
        let connection = &line.connection;
        let (begun, memory) = (Instant::now(), resident_kib());
        let mut header = vec![0; HEADER_BYTES];
        header[..4].copy_from_slice(b"GV\x01\x03");
        let length = BODY_BYTES_MAX as u32;
        header[HEADER_BYTES - 4..].copy_from_slice(&length.to_le_bytes());
        let mut part = header;
        part.resize(32 << 10, 0);
        let mut streams = 0;
        let turn = async || {
            if kind == "questions" {
                let (mut send, _) = connection.open_bi().await.ok()?;
                send.write_all(&part[..HEADER_BYTES]).await.ok()?;
                return send.reset(0u32.into()).ok();
            }
            let mut send = connection.open_uni().await.ok()?;
            send.write_all(&part).await.ok()?;
            send.reset(0u32.into()).ok()
        };
        while !line.is_over() {
            let is_open = timeout(LIMIT, turn()).await.expect("in time").is_some();
            streams += usize::from(is_open);
            assert!(begun.elapsed() < LIMIT, "{kind}: {streams}, and no end");
        }
        assert!(line.is_banned().await, "{kind}");
        println!(
            "{kind}: cut off after {streams} streams in {:?}, memory {:+} KiB",
            begun.elapsed(),
            resident_kib() - memory
        );
        assert!(victim.refused("flood") >= 10.0);
        scene.unharmed(&format!("{kind} that are reset")).await;
    }
    scene.still_works("streams that are reset").await;
}

/// Processor time of this process in milliseconds.
fn cpu_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = after.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<u64>().expect("a number");
    // utime and stime, in ticks of 10 ms.
    (ticks(11) + ticks(12)) * 10
}
