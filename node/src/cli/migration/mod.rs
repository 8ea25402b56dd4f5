//! What the flags of other routers are here: served, accepted because they change nothing, or refused with what
//! replaces them.
//!
//! Taking a flag in silence would start a router that does something else than its command line says; refusing one
//! that asks for what is so anyway would send people to an editor for nothing. `MIGRATING.md` shows the same rows, made
//! from them.

mod smg;
mod vllm_router;

/// A flag of another router.
#[derive(Debug)]
pub(super) struct Row {
    /// Its name and its other names, without dashes.
    pub(super) names: &'static [&'static str],
    /// What it is here.
    pub(super) here: Here,
}

/// What a flag of another router is here.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(
    not(test),
    allow(
        dead_code,
        reason = "what is different is told by the page, which a test compares"
    )
)]
pub(super) enum Here {
    /// The flag of that name; what is different, if anything is.
    Served(&'static str),
    /// The flag of this name; what is different, if anything is.
    Renamed(&'static str, &'static str),
    /// Taken, and changes nothing: why.
    Accepted(&'static str),
    /// Taken with these values, which change nothing; else refused, with what replaces it.
    Only(&'static [&'static str], &'static str),
    /// Refused, with what replaces it.
    Refused(&'static str),
}

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

const fn served(name: &'static [&'static str]) -> Row {
    differs(name, "")
}

const fn differs(names: &'static [&'static str], difference: &'static str) -> Row {
    Row {
        names,
        here: Here::Served(difference),
    }
}

const fn renamed(
    names: &'static [&'static str],
    ours: &'static str,
    difference: &'static str,
) -> Row {
    Row {
        names,
        here: Here::Renamed(ours, difference),
    }
}

const fn accepted(names: &'static [&'static str], why: &'static str) -> Row {
    Row {
        names,
        here: Here::Accepted(why),
    }
}

const fn only(
    names: &'static [&'static str],
    values: &'static [&'static str],
    instead: &'static str,
) -> Row {
    Row {
        names,
        here: Here::Only(values, instead),
    }
}

const fn refused(names: &'static [&'static str], instead: &'static str) -> Row {
    Row {
        names,
        here: Here::Refused(instead),
    }
}

impl Here {
    /// The flag is one of ours under its own name.
    pub(super) fn is_served(self) -> bool {
        matches!(self, Self::Served(_))
    }

    /// What to do instead, if it is refused with these values.
    pub(super) fn refuses(self, values: &[&str]) -> Option<&'static str> {
        match self {
            Self::Served(_) | Self::Renamed(..) | Self::Accepted(_) => None,
            Self::Only(harmless, instead) => {
                let is_harmless = |value: &&str| harmless.iter().any(|other| same(value, other));
                let all = !values.is_empty() && values.iter().all(is_harmless);
                (!all).then_some(instead)
            }
            Self::Refused(instead) => Some(instead),
        }
    }
}

/// Equal as text, or as a number: `0` and `0.0` are one value.
fn same(one: &str, other: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    one == other || number(one).is_some_and(|one| Some(one) == number(other))
}

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

/// Our flag that a flag of theirs is another name of.
pub(super) fn ours(name: &str) -> Option<&'static str> {
    let rows = PEERS.iter().flat_map(|peer| peer.rows);
    let mut named = rows.filter(|row| row.names.contains(&name));
    named.find_map(|row| match row.here {
        Here::Renamed(ours, _) => Some(ours),
        Here::Served(_) => row.names.first().copied(),
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
