//! File descriptors: as many as the system grants, and connections of clients within them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::seats::spare;

/// Kept for listeners, gossip, probes and the runtime.
const RESERVED: u64 = 64;
/// Of so many files, one may be a connection of the admin port, and one of the metrics port.
const PER_OPERATOR: u64 = 16;
/// Connections of the admin port, and of the metrics port, however many files there are.
const OPERATORS_MAX: u32 = 256;
/// Fewer connections than these serve nobody in earnest.
const FEW: u32 = 128;
/// A client's own, and that of the connection to the worker that answers it.
const PER_CLIENT: u64 = 2;

/// Raises this process's limit as far as it may, and says how many connections of clients fit in it, `asked` at
/// most. Without descriptors left, no worker could be reached for any request.
pub(crate) fn connections_for(asked: u32) -> u32 {
    let limit = raised();
    let fit = fitting(asked, limit);
    // What many shells grant is enough for most; with less, a handful of clients are turned away.
    if fit < asked.min(FEW) {
        tracing::warn!(
            connections = fit,
            limits_connections = asked,
            open_files = limit,
            "the limit of open files holds next to no connections of clients; raise it with `ulimit -n`"
        );
    } else if fit < asked {
        tracing::info!(
            connections = fit,
            limits_connections = asked,
            open_files = limit,
            "the limit of open files holds fewer connections than limits.connections; raise it with `ulimit -n`"
        );
    }
    fit
}

/// How many connections the admin port takes, and the metrics port.
pub(crate) fn connections_of_operators() -> u32 {
    operators(raised())
}

/// The soft limit after it was raised to the hard one; none: unlimited. Clients of many connections need it as well.
pub fn raised() -> Option<u64> {
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

/// How many connections of clients fit into a limit of open files, `asked` at most.
pub(crate) fn fitting(asked: u32, limit: Option<u64>) -> u32 {
    let Some(files) = limit else { return asked };
    let with_spare = |connections| u64::from(connections + spare(connections));
    let reserved = RESERVED + 2 * with_spare(operators(limit));
    let fit = files.saturating_sub(reserved) / PER_CLIENT;
    let fit = u32::try_from(fit).unwrap_or(u32::MAX);
    fit.saturating_sub(spare(fit)).clamp(1, asked)
}

fn operators(limit: Option<u64>) -> u32 {
    let fit = limit.map_or(u64::MAX, |limit| limit / PER_OPERATOR);
    u32::try_from(fit)
        .unwrap_or(u32::MAX)
        .clamp(1, OPERATORS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_workers() {
        assert_eq!(fitting(65_536, None), 65_536);
        assert_eq!(fitting(65_536, Some(1 << 20)), 65_536);
        assert_eq!(fitting(65_536, Some(1_024)), 387);
        assert_eq!(fitting(100, Some(1_024)), 100);
        assert_eq!(fitting(100, Some(10)), 1);
    }

    #[test]
    fn operators_have_room_of_their_own() {
        let of = |limit| operators(limit);
        assert_eq!(
            [None, Some(1 << 20), Some(1_024), Some(10)].map(of),
            [256, 256, 64, 1]
        );
    }
}
