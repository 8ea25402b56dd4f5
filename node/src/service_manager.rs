//! What started this process, where it is a service manager that speaks systemd's protocol: it gets reports of
//! readiness and life, and may hand over the data port.
//!
//! - `READY=1` is sent when this replica takes traffic for the first time, or after `READY_WITHIN` if it still waits then,
//!   for its first worker for example; and `STATUS=` at each change, with what is missing. Nothing takes readiness back: the
//!   balancer acts on it, the service manager does not.
//! - `WATCHDOG=1` comes from a task of the process's own runtime, and only while every lane, which serve requests, goes on
//!   (`pulse`). So a runtime that no longer runs tasks, of either kind, is noticed and the process is started anew.
//! - Until it is told as ready and while it ends, `EXTEND_TIMEOUT_USEC=` does the same: a replica may drain for as long as
//!   it lives, and one that hangs is ended soon.
//!
//! A message that cannot be sent is sent again; a service manager that is not there costs nothing.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::Duration;

use listenfd::ListenFd;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::pulse::Pulses;
use crate::readiness::{LOOK_EVERY, Lack, Readiness};
use crate::shutdown::Phase;

/// Between two signs of life; shorter where the watchdog wants it.
const BEAT: Duration = Duration::from_secs(5);
/// How long each of them lets a start or an end go on.
const EXTENDED_BY: Duration = Duration::from_secs(30);
/// How long a start may take. What is waited for may be long in coming, and whoever starts the service waits as well: an
/// upgrade of the package, units that come after it, and systemd's own limit of 90 s where the extensions do not count.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Signs of life in the time of the watchdog: two may be late.
const BEATS_PER_WATCHDOG: u32 = 3;

/// The service manager, or none.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<UnixDatagram>,
    watchdog: Option<Duration>,
    data_port: Option<TcpListener>,
}

/// Sockets were handed over that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HandedOver {
    /// Which of them is the data port is not known.
    #[error(
        "{0} sockets were handed over (LISTEN_FDS), and only the data port can be: keep one ListenStream= in the \
         socket unit"
    )]
    TooMany(usize),
    /// It is something else.
    #[error("the socket that was handed over (LISTEN_FDS) is no TCP socket that listens: {0}")]
    NotTcp(io::Error),
}

impl ServiceManager {
    /// From the environment of process `pid`, and the sockets that it was started with.
    /// Errors: sockets were handed over that cannot be used. Where only the reports cannot be sent, a line is logged.
    pub fn of(
        variable: impl Fn(&str) -> Option<OsString>,
        pid: u32,
        mut sockets: ListenFd,
    ) -> Result<Self, HandedOver> {
        if sockets.len() > 1 {
            return Err(HandedOver::TooMany(sockets.len()));
        }
        let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
        let is_for_us = number("WATCHDOG_PID").is_none_or(|watched| watched == u64::from(pid));
        let watchdog = number("WATCHDOG_USEC").filter(|&us| us > 0 && is_for_us);
        let socket = variable("NOTIFY_SOCKET").filter(|address| !address.is_empty());
        let socket = socket.and_then(|address| {
            let unusable = |error| {
                tracing::warn!(%error, ?address, "cannot report to the service manager (NOTIFY_SOCKET)");
            };
            connected(address.as_bytes()).map_err(unusable).ok()
        });
        Ok(Self {
            socket,
            watchdog: watchdog.map(Duration::from_micros),
            data_port: sockets.take_tcp_listener(0).map_err(HandedOver::NotTcp)?,
        })
    }

    /// The data port, where it was handed over.
    pub fn take_data_port(&mut self) -> Option<TcpListener> {
        self.data_port.take()
    }

    /// Reports until the replica has ended; life while all lanes go on.
    pub async fn run(self, readiness: Arc<Readiness>, lanes: Pulses, phase: Phase) {
        let Some(socket) = self.socket else {
            return;
        };
        let mut reports = Reports::new(self.watchdog, Instant::now());
        let mut ticks = interval(LOOK_EVERY.min(reports.beat));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = phase.closed() => return,
                _ = ticks.tick() => {}
            }
            let missing: Vec<Lack> = readiness.missing().collect();
            let now = Instant::now();
            let (report, after) = reports.next(&missing, lanes.all_beat(now), now);
            // Else it is due again at the next tick.
            if report.is_empty() || socket.send(report.as_bytes()).is_ok() {
                reports = after;
            }
        }
    }
}

/// `address`: a path, or a name behind `@` that is in no folder.
fn connected(address: &[u8]) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    #[cfg(target_os = "linux")]
    if let Some(name) = address.strip_prefix(b"@") {
        use std::os::linux::net::SocketAddrExt as _;
        use std::os::unix::net::SocketAddr;
        socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        socket.set_nonblocking(true)?;
        return Ok(socket);
    }
    socket.connect(std::ffi::OsStr::from_bytes(address))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// What the service manager knows. Pure: `now` is an argument.
#[derive(Debug, Clone)]
struct Reports {
    watchdog: bool,
    beat: Duration,
    begun: Instant,
    /// It was told that the service has started.
    was_ready: bool,
    is_stopping: bool,
    status: String,
    last_beat: Option<Instant>,
}

impl Reports {
    fn new(watchdog: Option<Duration>, begun: Instant) -> Self {
        Self {
            watchdog: watchdog.is_some(),
            beat: watchdog.map_or(BEAT, |within| (within / BEATS_PER_WATCHDOG).min(BEAT)),
            begun,
            was_ready: false,
            is_stopping: false,
            status: String::new(),
            last_beat: None,
        }
    }

    /// The lines that are due, if any, and what is known once they are sent. `lives`: whether life may be reported.
    fn next(&self, missing: &[Lack], lives: bool, now: Instant) -> (String, Self) {
        let mut after = self.clone();
        let mut lines = String::new();
        let mut line = |text: &str| writeln!(lines, "{text}").expect("a text grows");
        let is_draining = missing.contains(&Lack::Draining);
        let has_waited = lives && !is_draining && now - self.begun >= READY_WITHIN;
        if (missing.is_empty() || has_waited) && !self.was_ready {
            after.was_ready = true;
            line("READY=1");
        }
        if is_draining && !self.is_stopping {
            after.is_stopping = true;
            line("STOPPING=1");
        }
        after.status = status(missing);
        if after.status != self.status {
            line(&format!("STATUS={}", after.status));
        }
        if lives && self.last_beat.is_none_or(|last| now - last >= self.beat) {
            after.last_beat = Some(now);
            if self.watchdog {
                line("WATCHDOG=1");
            }
            if !after.was_ready || after.is_stopping {
                line(&format!("EXTEND_TIMEOUT_USEC={}", EXTENDED_BY.as_micros()));
            }
        }
        (lines, after)
    }
}

fn status(missing: &[Lack]) -> String {
    if missing.is_empty() {
        return "ready".to_owned();
    }
    let messages: Vec<_> = missing.iter().map(|lack| lack.message()).collect();
    format!("not ready: {}", messages.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENDED: &str = "EXTEND_TIMEOUT_USEC=30000000\n";

    #[test]
    fn a_start_is_reported_until_it_is_ready_and_an_end_until_it_is_over() {
        let begun = Instant::now();
        let mut reports = Reports::new(None, begun);
        let mut at = |ms, missing: &[Lack]| {
            let (report, after) = reports.next(missing, true, begun + Duration::from_millis(ms));
            reports = after;
            report
        };
        let waits = "STATUS=not ready: no worker answers its health checks\n";
        let lack = [Lack::NoWorkerReachable];
        assert_eq!(at(0, &lack), format!("{waits}{EXTENDED}"));
        assert_eq!(at(100, &lack), "", "nothing new");
        assert_eq!(at(5_000, &lack), EXTENDED, "it lives, and waits");
        assert_eq!(at(5_100, &[]), "READY=1\nSTATUS=ready\n");
        assert_eq!(at(60_000, &[]), "", "without a watchdog");
        assert_eq!(at(60_100, &lack), waits, "for people alone");
        assert_eq!(at(60_200, &[]), "STATUS=ready\n", "ready is said once");
        let told = "STOPPING=1\nSTATUS=not ready: this replica was told to end\n";
        let draining = [Lack::Draining];
        assert_eq!(at(70_000, &draining), format!("{told}{EXTENDED}"));
        assert_eq!(at(74_900, &draining), "");
        assert_eq!(at(75_000, &draining), EXTENDED);
    }

    #[test]
    fn a_replica_that_waits_for_long_is_told_as_started() {
        let begun = Instant::now();
        let mut reports = Reports::new(None, begun);
        let mut at = |s, missing: &[Lack], lives| {
            let (report, after) = reports.next(missing, lives, begun + Duration::from_secs(s));
            reports = after;
            report
        };
        let waits = "STATUS=not ready: no worker answers its health checks\n";
        let lack = [Lack::NoWorkerReachable];
        assert_eq!(at(0, &lack, true), format!("{waits}{EXTENDED}"));
        assert_eq!(at(59, &lack, true), EXTENDED);
        assert_eq!(at(60, &lack, false), "", "not one that hangs");
        assert_eq!(at(61, &lack, true), "READY=1\n");
        assert_eq!(at(100, &lack, true), "", "once, and it has started");
        assert_eq!(at(101, &[], true), "STATUS=ready\n");
    }

    #[test]
    fn the_watchdog_gets_a_sign_of_life_three_times_in_its_time() {
        let begun = Instant::now();
        let (_, mut reports) =
            Reports::new(Some(Duration::from_secs(3)), begun).next(&[], true, begun);
        let mut at = |ms| {
            let (report, after) = reports.next(&[], true, begun + Duration::from_millis(ms));
            reports = after;
            report
        };
        assert_eq!(at(999), "");
        assert_eq!(at(1_000), "WATCHDOG=1\n");
        assert_eq!(at(1_999), "");
        assert_eq!(at(2_000), "WATCHDOG=1\n");
    }

    #[test]
    fn while_a_lane_stands_still_there_is_no_sign_of_life() {
        let begun = Instant::now();
        let mut reports = Reports::new(Some(Duration::from_secs(3)), begun);
        let mut at = |ms, missing: &[Lack], lives| {
            let (report, after) = reports.next(missing, lives, begun + Duration::from_millis(ms));
            reports = after;
            report
        };
        let draining = [Lack::Draining];
        let told = "STOPPING=1\nSTATUS=not ready: this replica was told to end\n";
        let sign = format!("WATCHDOG=1\n{EXTENDED}");
        assert_eq!(at(0, &[], false), "READY=1\nSTATUS=ready\n");
        assert_eq!(at(1_000, &[], true), "WATCHDOG=1\n");
        assert_eq!(at(2_000, &[], false), "");
        assert_eq!(at(9_000, &[], false), "");
        assert_eq!(at(9_100, &[], true), "WATCHDOG=1\n", "at once");
        // Nor is more time asked for.
        assert_eq!(at(20_000, &draining, false), told);
        assert_eq!(at(30_000, &draining, false), "");
        assert_eq!(at(30_100, &draining, true), sign);
    }

    #[test]
    fn a_watchdog_of_another_process_is_not_ours() {
        let environment = |own: &'static str| {
            move |name: &str| match name {
                "WATCHDOG_USEC" => Some(OsString::from("2000000")),
                "WATCHDOG_PID" => Some(OsString::from(own)),
                _ => None,
            }
        };
        let of = |own| ServiceManager::of(environment(own), 7, ListenFd::empty());
        let watchdog = |own| of(own).expect("no sockets").watchdog;
        assert_eq!(watchdog("7"), Some(Duration::from_secs(2)));
        assert_eq!(watchdog("8"), None);
    }
}
