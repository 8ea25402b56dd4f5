//! File descriptors: as many as the system grants, and connections of clients within them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Kept for listeners, gossip, the admin port, probes and the runtime.
const RESERVED: u64 = 64;
/// A client's own, and that of the connection to the worker that answers it.
const PER_CLIENT: u64 = 2;

/// Raises this process's limit as far as it may, and says how many connections of clients fit in it, `asked` at
/// most. Clients beyond it wait in the backlog; without descriptors left, no worker could be reached for anybody.
pub(crate) fn connections_for(asked: u32) -> u32 {
    let limit = raised();
    let fit = fitting(asked, limit);
    if fit < asked {
        tracing::info!(
            connections = fit,
            limits_connections = asked,
            open_files = limit,
            "the limit of open files holds fewer connections than limits.connections; raise it with `ulimit -n`"
        );
    }
    fit
}

/// The soft limit after it was raised to the hard one; none: unlimited.
fn raised() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = Rlimit {
        current: maximum,
        maximum,
    };
    // Refused, say by a sandbox: what there is has to do.
    match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => maximum,
        Err(_) => current,
    }
}

fn fitting(asked: u32, limit: Option<u64>) -> u32 {
    let Some(limit) = limit else { return asked };
    let fit = limit.saturating_sub(RESERVED) / PER_CLIENT;
    u32::try_from(fit.max(1)).unwrap_or(u32::MAX).min(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_workers() {
        assert_eq!(fitting(65_536, None), 65_536);
        assert_eq!(fitting(65_536, Some(1 << 20)), 65_536);
        assert_eq!(fitting(65_536, Some(1_024)), 480);
        assert_eq!(fitting(100, Some(1_024)), 100);
        assert_eq!(fitting(100, Some(10)), 1);
    }
}
