//! What an operator should know of settings of which none is wrong.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use grapevine_gossip::worker::{Role, WorkerUrl};

use super::Config;

/// What an operator who starts with these settings should know; nothing here is wrong.
pub(super) fn of(config: &Config) -> Vec<String> {
    let mut notes = Vec::new();
    let is_discovering = config.kubernetes.enabled
        || !config.files.paths.is_empty()
        || config.dns.has_names()
        || config.pings.listen.is_some();
    let kubernetes = &config.kubernetes;
    let selectors = [
        &kubernetes.selector,
        &kubernetes.prefill_selector,
        &kubernetes.decode_selector,
    ];
    if !kubernetes.enabled && selectors.iter().any(|selector| !selector.is_empty()) {
        notes.push(
            "kubernetes has a selector and is not enabled: no pods are watched; add --service-discovery or \
             kubernetes.enabled = true"
                .to_owned(),
        );
    }
    if config.worker.is_empty() && !is_discovering {
        let admin = match config.admin.port {
            0 => "the admin address that is logged as soon as it is open".to_owned(),
            port => format!("http://{}", SocketAddr::new(config.admin.host, port)),
        };
        notes.push(format!(
            "no workers are configured: add one with --worker-urls or `grapevine workers add \
             http://address:port --admin {admin}`, or learn them from other replicas"
        ));
    }
    let has = |role: Role| config.worker.iter().any(|worker| worker.role == role);
    for (there, missing, flag) in [
        (Role::Prefill, Role::Decode, "--decode URL"),
        (Role::Decode, Role::Prefill, "--prefill URL"),
    ] {
        if has(there) && !has(missing) {
            notes.push(format!(
                "workers of the role {} are configured and none of the role {}: no request is divided between two workers \
                 until one is there; add one with {flag}, [[worker]] or `grapevine workers add`, or let it be found",
                there.as_str(),
                missing.as_str()
            ));
        }
    }
    let switches = config.listen.open_paths.iter();
    for open in switches.filter(|open| open.opens_engine_control()) {
        notes.push(format!(
            "listen.open_paths has {open}: any client that this replica serves may steer the workers' engines by it"
        ));
    }
    notes.extend(ranks_beside_all(config));
    notes.extend(odd_targets(config));
    if config.gossip.identity().is_none() {
        notes.push(
            "no certificates are configured: this replica is a cluster of one and does not gossip; \
             `grapevine ca --help` says how to make them"
                .to_owned(),
        );
    } else if config.gossip.seeds.is_empty() {
        notes.push(
            "no seeds are configured: alone until another replica names this one by --seed"
                .to_owned(),
        );
    }
    notes
}

/// Addresses that are there with a rank and without one.
fn ranks_beside_all(config: &Config) -> impl Iterator<Item = String> {
    let bases = |is_ranked: bool| {
        let urls = config.worker.iter().map(|worker| &worker.url);
        let wanted = urls.filter(move |url| url.rank().is_some() == is_ranked);
        wanted.map(WorkerUrl::base).collect::<BTreeSet<&str>>()
    };
    let (ranks, all) = (bases(true), bases(false));
    ranks.into_iter().filter(move |base| all.contains(base)).map(|base| {
        format!(
            "{base} is a worker, and {base}@... are workers, too: without a rank it is all of them, so these engines get \
             the requests of two workers; keep one kind"
        )
    })
}

/// Targets with a colon that no number follows: a model may be called so, and where nothing says that there is one, it may
/// be a slip.
fn odd_targets(config: &Config) -> impl Iterator<Item = String> {
    let is_known = |name: &String| {
        let models = config.model.iter().map(|model| &model.name);
        let listed = config.worker.iter().flat_map(|worker| &worker.models);
        models.chain(listed).any(|known| known == name)
    };
    let targets = config.model.iter().flat_map(|model| &model.targets);
    let odd = targets.flatten().filter(move |target| {
        let behind = target.model.rsplit_once(':').map(|(_, behind)| behind);
        let is_word = |behind: &str| !behind.starts_with(|first: char| first.is_ascii_digit());
        behind.is_some_and(is_word) && !is_known(&target.model)
    });
    odd.map(|target| {
        format!(
            "the target {:?} is the name of a model, colon included: what is behind its last colon is no weight",
            target.model
        )
    })
}
