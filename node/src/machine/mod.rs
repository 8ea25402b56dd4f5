//! What the machine, or the container, gives this process: files, processors, memory, room for gossip's packets.
//!
//! Read from `/proc` and from the cgroups when an operator asks, never for a request; but for counts of which earlier ones
//! are needed (`held_up`). What the system does not say is
//! left out rather than guessed.

pub(crate) mod cgroups;
mod cpu;
mod held_up;
mod quota;
pub(crate) mod udp;

use std::net::SocketAddr;
use std::path::Path;

use procfs::process::{LimitValue, Process};
use serde::Serialize;

pub use cpu::Cpu;
pub use held_up::HeldUp;
pub use udp::Udp;

/// What there is for this process.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Open files; null where the system does not say.
    files: Option<Files>,
    cpu: Cpu,
    /// The socket of gossip; null where there is none.
    udp: Option<Udp>,
}

#[derive(Debug, Serialize)]
struct Files {
    /// Open file descriptors.
    open: usize,
    /// Most that may be open; null: not limited.
    most: Option<u64>,
}

impl Machine {
    /// Looks now; `gossip`: the address of the socket that gossip has; `held_up`: earlier counts of its quota.
    pub fn look(gossip: Option<SocketAddr>, held_up: &HeldUp) -> Self {
        Self {
            files: files(),
            cpu: Cpu::look(held_up),
            udp: gossip.and_then(|at| Udp::look(Path::new("/proc/self/net"), at)),
        }
    }
}

fn files() -> Option<Files> {
    let own = Process::myself().ok()?;
    Some(Files {
        open: own.fd_count().ok()?,
        most: files_max(&own),
    })
}

fn files_max(process: &Process) -> Option<u64> {
    match process.limits().ok()?.max_open_files.soft_limit {
        LimitValue::Unlimited => None,
        LimitValue::Value(most) => Some(most),
    }
}

/// Most files that this process may have open; none: not limited, or not known.
pub fn own_files_max() -> Option<u64> {
    files_max(&Process::myself().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_files_and_processors() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        let at = socket.local_addr().expect("bound");
        let shown =
            serde_json::to_value(Machine::look(Some(at), &HeldUp::default())).expect("a value");
        assert!(shown["files"]["open"].as_u64() >= Some(3), "{shown}");
        assert!(shown["cpu"]["usable"].as_u64() >= Some(1), "{shown}");
        assert_eq!(shown["udp"]["dropped"], 0, "{shown}");
        let without =
            serde_json::to_value(Machine::look(None, &HeldUp::default())).expect("a value");
        assert!(without["udp"].is_null(), "{without}");
    }
}
