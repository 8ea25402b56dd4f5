//! A replica under a service manager: it reports its start, its life and its end, and takes over a socket.

use std::net::TcpListener;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixDatagram;

use grapevine_testbed::fake_worker::Config;
use grapevine_tests::chat;
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection};
use grapevine_tests::process::{Program, Signal};
#[cfg(debug_assertions)]
use grapevine_tests::wait::eventually;
use grapevine_tests::wait::{LIMIT, so};
use rustix::io::{FdFlags, fcntl_setfd};
use tempfile::TempDir;

/// What a service manager hears.
struct Manager {
    socket: UnixDatagram,
    address: &'static str,
    _folder: TempDir,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(LIMIT)).expect("a limit");
        // Programs of plans have variables of the whole test's life.
        let address = path.to_str().expect("a plain path").to_owned().leak();
        Self {
            socket,
            address,
            _folder: folder,
        }
    }

    /// A program that reports here, with a watchdog of this time.
    fn program(&self, watchdog_us: &'static str) -> Program {
        Program {
            environment: vec![
                ("NOTIFY_SOCKET", self.address),
                ("WATCHDOG_USEC", watchdog_us),
            ],
            ..Program::default()
        }
    }

    /// The next message; fails when none comes.
    fn next(&self) -> Vec<String> {
        let mut bytes = [0; 4_096];
        let length = self.socket.recv(&mut bytes).expect("a message in time");
        let text = std::str::from_utf8(&bytes[..length]).expect("a text");
        text.lines().map(str::to_owned).collect()
    }

    /// Reads what has come until nothing has come for a second, while there is a sign of life each 0.2 s at most.
    #[cfg(debug_assertions)]
    async fn until_silent(&self) {
        let socket = self.socket.try_clone().expect("a copy");
        let read = tokio::task::spawn_blocking(move || {
            let within = Some(std::time::Duration::from_secs(1));
            socket.set_read_timeout(within).expect("a limit");
            (0..200).any(|_| socket.recv(&mut [0; 4_096]).is_err())
        });
        assert!(read.await.expect("read"), "signs of life go on");
    }

    /// All messages up to the one with this line.
    async fn until(&self, line: &str) -> Vec<String> {
        let (socket, line) = (self.socket.try_clone().expect("a copy"), line.to_owned());
        let manager = Self {
            socket,
            address: self.address,
            _folder: tempfile::tempdir().expect("a folder"),
        };
        let read = tokio::task::spawn_blocking(move || {
            let mut lines = Vec::new();
            while !lines.contains(&line) {
                lines.extend(manager.next());
            }
            lines
        });
        read.await.expect("read")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_reports_its_start_its_life_and_its_end() {
    let manager = Manager::new();
    let workers = chat::workers(1, &Config::default()).await;
    let plan = Plan::default().set("timeouts.settle", "\"200ms\"");
    let plan = plan.workers(&workers).program(manager.program("600000"));
    let mut cluster = plan.start(1).await;

    let start = manager.until("READY=1").await;
    assert!(
        start
            .iter()
            .any(|line| line.starts_with("EXTEND_TIMEOUT_USEC=")),
        "{start:?}"
    );
    for beat in 1..=3 {
        let life = manager.until("WATCHDOG=1").await;
        assert!(
            !life.contains(&"STOPPING=1".to_owned()),
            "beat {beat}: {life:?}"
        );
    }

    cluster.replicas[0].process().signal(Signal::TERM);
    let end = manager.until("STOPPING=1").await;
    assert!(!end.contains(&"READY=1".to_owned()), "{end:?}");
    assert_eq!(cluster.replicas[0].ended().await.code(), Some(0));
}

/// Only debug builds can provoke it.
#[cfg(debug_assertions)]
#[tokio::test(flavor = "multi_thread")]
async fn while_a_thread_that_serves_clients_stands_still_there_is_no_sign_of_life() {
    const CHATS: &str = "/v1/chat/completions";
    let manager = Manager::new();
    let workers = chat::workers(1, &Config::default()).await;
    let mut program = manager.program("600000");
    program.environment.push(("GRAPEVINE_PROVOKE", "1"));
    let plan = Plan::default().set("listen.threads", "2");
    let cluster = plan.workers(&workers).program(program).start(1).await;
    let replica = &cluster.replicas[0];
    manager.until("WATCHDOG=1").await;

    let body = chat::chat("stuck", 1).to_string();
    let headers = [("x-request-id", "block-the-lane")];
    let request = http1::request("POST", CHATS, &headers, body.as_bytes());
    let mut stuck = Connection::open(replica.data()).await;
    stuck.send(&request).await.expect("taken");
    eventually(LIMIT, "it is noticed", async || {
        let stalled = replica.admin().metrics().await;
        let stalled = stalled.sum("grapevine_lanes_stalled", "");
        so(stalled == 1.0, || stalled.to_string())
    })
    .await;
    manager.until_silent().await;
    let log = replica.log();
    assert!(log.contains("serves clients stands still"), "{log}");
    for number in 0..4 {
        let answer = http1::post(replica.data(), CHATS, &chat::chat("others", 1)).await;
        assert_eq!(answer.head.status, 200, "{number}: {}", answer.text());
    }
}

/// Readiness, not the open port: a service manager would otherwise go on to what needs this one.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_without_workers_says_what_it_waits_for() {
    let manager = Manager::new();
    let mut cluster = Plan::default().program(manager.program("0")).found().await;
    cluster.join("r1", Vec::new()).await;
    let wanted = "STATUS=not ready: there is no worker that answers clients; add one with `grapevine workers add`";
    let heard = manager.until(wanted).await;
    assert!(!heard.contains(&"READY=1".to_owned()), "{heard:?}");
    assert!(
        !heard.contains(&"WATCHDOG=1".to_owned()),
        "there is no watchdog: {heard:?}"
    );
}

/// Clients that came before the replica are served by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_was_handed_over_is_the_data_port() {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("bound");
    fcntl_setfd(&socket, FdFlags::empty()).expect("children inherit it");
    let number: &'static str = socket.as_raw_fd().to_string().leak();
    let program = Program {
        environment: vec![("LISTEN_FDS", "1"), ("LISTEN_FDS_FIRST_FD", number)],
        ..Program::default()
    };
    let early = Connection::try_open(address).await;
    let mut early = early.expect("it waits in the queue of the socket");
    let question = b"GET /liveness HTTP/1.1\r\nhost: early\r\n\r\n";
    early
        .send(question)
        .await
        .expect("sent before anybody reads");
    let workers = chat::workers(1, &Config::default()).await;
    let cluster = Plan::default()
        .workers(&workers)
        .program(program)
        .start(1)
        .await;
    assert_eq!(cluster.replicas[0].data(), address);
    // So `doctor` sees where it is open.
    let admin = cluster.replicas[0].admin().0;
    let about = http1::exchange(admin, "GET", "/about", &[], b"").await;
    let about: serde_json::Value = about.json();
    assert_eq!(about["listen"]["data"], address.to_string());
    let answer = early.response().await.expect("an answer");
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    let answer = http1::post(address, "/v1/chat/completions", &chat::chat("hello", 1)).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
}
