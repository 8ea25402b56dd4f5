//! What the flags of other routers are here: served, accepted because they change nothing, or refused with what
//! replaces them.
//!
//! Taking a flag in silence would start a router that does something else than its command line says; refusing one
//! that asks for what is so anyway would send people to an editor for nothing. `MIGRATING.md` shows the same rows, made
//! from them.

mod row;
mod smg;
mod vllm_router;

use row::{Here, Row};

/// Another router whose command lines are known.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: &'static str,
    /// Its flags, in the order of its help.
    pub(super) rows: &'static [Row],
}

/// The peers, the one that a flag of several is told to be of first.
pub(super) const PEERS: [Peer; 2] = [
    Peer {
        name: "vllm-router",
        rows: vllm_router::ROWS,
    },
    Peer {
        name: "SMG",
        rows: smg::ROWS,
    },
];

/// Names of all flags that are not ours, each once.
pub(super) fn foreign() -> impl Iterator<Item = &'static str> {
    let mut seen = std::collections::BTreeSet::new();
    let rows = PEERS.iter().flat_map(|peer| peer.rows);
    let foreign = rows.flat_map(|row| {
        // Other names of a served flag are not ours.
        let ours = usize::from(row.here.is_served());
        row.names.iter().skip(ours)
    });
    foreign.copied().filter(move |name| seen.insert(*name))
}

/// Our flag that a flag of theirs is another name of, and the value that theirs stands for, if that is fixed.
pub(super) fn ours(name: &str) -> Option<(&'static str, Option<&'static str>)> {
    let rows = PEERS.iter().flat_map(|peer| peer.rows);
    let mut named = rows.filter(|row| row.names.contains(&name));
    named.find_map(|row| match row.here {
        Here::Renamed(ours, _) => Some((ours, None)),
        Here::Means(ours, value, _) => Some((ours, Some(value))),
        Here::Served(_) => row.names.first().map(|ours| (*ours, None)),
        _ => None,
    })
}

/// A value that in another router means its default, of a flag that we have, too.
pub(super) fn is_default(name: &str, values: &[String]) -> bool {
    // SMG counts its processors then.
    name == "max-concurrent-requests" && values.iter().all(|value| value == "-1")
}

/// What to say of a flag of theirs with these values, if no peer's meaning of it is served or harmless here.
pub(super) fn refusal(name: &str, values: &[&str]) -> Option<String> {
    let of = |peer: &'static Peer| {
        let row = peer.rows.iter().find(|row| row.names.contains(&name))?;
        Some((peer.name, row.here.refuses(values)))
    };
    let meanings: Vec<_> = PEERS.iter().filter_map(of).collect();
    let instead = meanings.first()?.1?;
    if meanings.iter().any(|(_, refuses)| refuses.is_none()) {
        return None;
    }
    let peers: Vec<&str> = meanings.iter().map(|(peer, _)| *peer).collect();
    Some(format!(
        "--{name} of {} is not supported: {instead}",
        peers.join(" and ")
    ))
}

#[cfg(test)]
mod tests;
