//! Fleet: which workers there are, by model, with their rings. Immutable; a change makes a new one.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::Arc;

use grapevine_gossip::worker::Role;
use grapevine_placement::{
    ClusterSettings, Digest, Member, PolicySettings, Ring, RingSettings, Slot, Weight, total_digest,
};
use parking_lot::Mutex;

use super::pairing::{Mate, Pairing};
use super::pool::{Halves, Pool, PoolMember, shortest_pause};
use super::served::ServedModels;
use crate::api::cards::Merged;
use crate::upstream::Worker;

/// Between a model's name and a role: no character at all for Unicode, so in no model's name. Not a control character,
/// which replicas would refuse in each other's questions about a pool.
const BEFORE_ROLE: char = '\u{ffff}';

fn name_of_half(model: &str, role: &str) -> Arc<str> {
    format!("{model}{BEFORE_ROLE}{role}").into()
}

/// All pools at one moment.
#[derive(Debug)]
pub struct Fleet {
    /// Those that requests find, sorted by model.
    pools: Vec<Arc<Pool>>,
    served: Arc<ServedModels>,
    whole: Arc<Pool>,
    /// Every worker that only computes prompts.
    prefill_only: Arc<Pool>,
    digest: Digest,
    models_unknown: usize,
    /// Workers that join and take no requests yet, sorted by id; in no ring above.
    joining: Vec<PoolMember>,
    /// The pools that will be changed by them, as they will be; sorted by model.
    prospective: Vec<Arc<Pool>>,
}

impl Fleet {
    /// The pool of a model.
    pub fn pool(&self, model: &str) -> Option<Arc<Pool>> {
        let at = self.pools.binary_search_by(|pool| pool.model().cmp(model));
        at.ok().map(|index| Arc::clone(&self.pools[index]))
    }

    /// The pools that requests find, sorted by model.
    pub fn pools(&self) -> &[Arc<Pool>] {
        &self.pools
    }

    /// The models of these pools. The same as before a change of the fleet that added and removed none.
    pub fn served(&self) -> &Arc<ServedModels> {
        &self.served
    }

    /// The same pools, and those of their halves.
    pub fn all_pools(&self) -> impl Iterator<Item = &Arc<Pool>> {
        self.pools
            .iter()
            .flat_map(|pool| std::iter::once(pool).chain(pool.parts()))
    }

    /// A pool by its name; the one of all workers has an empty one.
    pub fn pool_named(&self, name: &str) -> Option<Arc<Pool>> {
        if name.is_empty() {
            return Some(self.whole());
        }
        let Some((model, _)) = name.split_once(BEFORE_ROLE) else {
            return self.pool(name);
        };
        let pool = self.pool(model)?;
        pool.parts().find(|part| part.name() == name).cloned()
    }

    /// What the workers of a model report about it; merged once, until [`Fleet::cards_changed`].
    pub fn card_of(&self, model: &str) -> Arc<Merged> {
        self.pool(model).map_or_else(Arc::default, |p| p.card())
    }

    /// This worker has other cards than before.
    pub fn cards_changed(&self, worker: &Worker) {
        for model in worker.models.load().iter() {
            if let Some(pool) = self.pool(model) {
                pool.forget_card();
            }
        }
    }

    /// Every worker that can answer, for requests that name no model.
    pub fn whole(&self) -> Arc<Pool> {
        Arc::clone(&self.whole)
    }

    /// Every worker that only computes prompts.
    pub fn prefill_only(&self) -> &Pool {
        &self.prefill_only
    }

    /// Names of all models, sorted.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.pools.iter().map(|pool| pool.model())
    }

    /// All workers: those that can answer, those that only compute prompts, those that join; each part sorted by id.
    pub fn members(&self) -> impl Iterator<Item = &PoolMember> {
        let members = self.whole.members.iter().chain(&self.prefill_only.members);
        members.chain(&self.joining)
    }

    /// The same without what the fleet knows of them.
    pub fn workers(&self) -> impl Iterator<Item = &Arc<Worker>> {
        self.members().map(|member| &member.worker)
    }

    /// Workers that are being warmed up: known and probed, but in no ring.
    pub fn joining(&self) -> &[PoolMember] {
        &self.joining
    }

    /// The pools of the joining workers' models as they will be when all of these have joined.
    pub fn prospective(&self) -> &[Arc<Pool>] {
        &self.prospective
    }

    /// Models of which every usable worker asked to be left alone.
    pub fn left_alone(&self) -> impl Iterator<Item = &str> {
        let waiting = |pool: &&Arc<Pool>| shortest_pause(&mut pool.answering()).is_some();
        self.pools.iter().filter(waiting).map(|pool| pool.model())
    }

    /// No workers that take requests.
    pub fn is_empty(&self) -> bool {
        self.whole.members.is_empty()
    }

    /// Workers whose models are not known yet; they are in no model's pool.
    pub fn models_unknown(&self) -> usize {
        self.models_unknown
    }

    /// Equal on replicas that hold the same rings, worker addresses and cluster settings.
    pub fn digest(&self) -> Digest {
        self.digest
    }
}

/// The ring; with fewer virtual nodes when weights are so great that it would not fit, and with equal weights when even
/// one each is too many, which every replica finds out by itself and alike. One of `known` with the same members is taken as it is, and the first of them is
/// what a new one is made from: most members stay.
fn ring_of(
    mut settings: RingSettings,
    members: impl Iterator<Item = Member> + Clone,
    known: &[&Arc<Ring>],
) -> Arc<Ring> {
    let known = || known.iter().filter(|ring| *ring.settings() == settings);
    if let Some(same) = known().find(|ring| ring.members().iter().cloned().eq(members.clone())) {
        return Arc::clone(same);
    }
    if let Some(former) = known().next()
        && let Ok(ring) = former.rebuild(members.clone())
    {
        return Arc::new(ring);
    }
    loop {
        let error = match Ring::build(&settings, members.clone()) {
            Ok(ring) => return Arc::new(ring),
            Err(error) => error,
        };
        let Some(fewer) = NonZeroU16::new(settings.virtual_nodes.get() / 2) else {
            tracing::warn!(%error, "ring built with equal weights");
            let alike = members.map(|member| Member {
                weight: Weight::ONE,
                ..member
            });
            let ring = Ring::build(&settings, alike);
            return Arc::new(ring.expect("ids are distinct, and one point each fits"));
        };
        settings.virtual_nodes = fewer;
        tracing::warn!(%error, virtual_nodes = fewer, "ring built with fewer virtual nodes");
    }
}

/// What the registry holds of a worker, on its way into pools.
pub(super) struct Registration {
    pub(super) worker: Arc<Worker>,
    pub(super) weight: u32,
    pub(super) role: Role,
    pub(super) models: Vec<String>,
    pub(super) draining: bool,
    pub(super) asleep: bool,
    /// It is not to be in a ring yet.
    pub(super) warming: bool,
    pub(super) max_in_flight: Option<u32>,
    pub(super) epoch: u64,
    pub(super) slot: Slot,
    pub(super) mate: Mate,
}

impl Registration {
    fn member(&self) -> PoolMember {
        PoolMember {
            worker: Arc::clone(&self.worker),
            load: Arc::clone(&self.worker.load),
            glance: Arc::clone(&self.worker.glance),
            draining: self.draining,
            asleep: self.asleep,
            max_in_flight: self.max_in_flight,
            epoch: self.epoch,
            mate: self.mate.clone(),
        }
    }
}

/// `former`: the fleet before, whose rings are used again where they can be.
pub(super) fn assemble(
    settings: &ClusterSettings,
    pairing: &Pairing,
    registrations: BTreeMap<&str, Registration>,
    former: Option<&Fleet>,
) -> Fleet {
    let mut by_model: BTreeMap<&str, Vec<&Registration>> = BTreeMap::new();
    for registration in registrations.values() {
        for model in &registration.models {
            by_model.entry(model).or_default().push(registration);
        }
    }
    let now = || registrations.values().filter(|r| !r.warming);
    let can_answer = now().filter(|r| r.role != Role::Prefill);
    let computes_only = now().filter(|r| r.role == Role::Prefill);
    let pool = |named: Named<'_>, members: Vec<&Registration>, former: Option<&Arc<Pool>>| {
        let former = former.map(|pool| &**pool);
        Arc::new(pool_of(settings, named, &members, former, &[]))
    };
    let before = former.map(|fleet| &fleet.whole);
    let whole = pool(Named::whole(), can_answer.collect(), before);
    let before = former.map(|fleet| &fleet.prefill_only);
    let prefill_only = pool(Named::whole(), computes_only.collect(), before);
    let (mut pools, mut prospective) = (Vec::new(), Vec::new());
    for (model, members) in by_model {
        let joining = members.iter().any(|r| r.warming && r.role == Role::Any);
        if joining {
            let before = former.and_then(|fleet| prospective_of(fleet, model));
            let whole_ones = members.iter().copied().filter(|r| r.role == Role::Any);
            prospective.push(pool(Named::of(model), whole_ones.collect(), before));
        }
        let now = members.into_iter().filter(|r| !r.warming);
        let before = former.and_then(|fleet| fleet.pool(model));
        pools.extend(pool_for_requests(
            settings,
            pairing,
            model,
            now.collect(),
            before.as_deref(),
            &whole,
        ));
    }
    let served: ServedModels = pools.iter().map(|pool: &Arc<Pool>| pool.label()).collect();
    let before = former.map(|fleet| &fleet.served);
    let served = match before.filter(|before| ***before == served) {
        Some(same) => Arc::clone(same),
        None => Arc::new(served),
    };
    let all = pools.iter().flat_map(|pool: &Arc<Pool>| {
        let halves = pool.halves.iter().flat_map(|h| [&h.prefill, &h.decode]);
        std::iter::once(pool).chain(halves)
    });
    let digests: Vec<_> = all.map(|p| (p.name(), p.digest())).collect();
    let urls: Vec<String> = now().map(|r| r.worker.address.url("")).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    Fleet {
        digest: total_digest(&digests, &urls, &settings.canonical_bytes()),
        pools,
        served,
        whole,
        prefill_only,
        models_unknown: now().filter(|r| r.models.is_empty()).count(),
        joining: registrations
            .values()
            .filter(|r| r.warming)
            .map(Registration::member)
            .collect(),
        prospective,
    }
}

/// The pool that requests for a model find, from its workers: of those that take whole requests, or, where none
/// does, of those that decode. None for a model without workers. `former`: the same pool before.
fn pool_for_requests(
    settings: &ClusterSettings,
    pairing: &Pairing,
    model: &str,
    members: Vec<&Registration>,
    former: Option<&Pool>,
    whole: &Pool,
) -> Option<Arc<Pool>> {
    let of = |role: Role| -> Vec<&Registration> {
        let members = members.iter().copied();
        members.filter(|r| r.role == role).collect()
    };
    let (any, prefill, decode) = (of(Role::Any), of(Role::Prefill), of(Role::Decode));
    // Most clusters serve one model, on all workers.
    let pool = |named: Named<'_>, members: &[&Registration], former: Option<&Pool>| {
        pool_of(settings, named, members, former, &[&whole.ring])
    };
    let half = |role: Role, members: &[&Registration], former: Option<&Arc<Pool>>| {
        let former = former.map(|pool| &**pool);
        Arc::new(pool(Named::half(model, role), members, former))
    };
    let halves = (!prefill.is_empty() && !decode.is_empty()).then(|| {
        let former = former.and_then(Pool::halves);
        let (first, second) = (former.map(|h| &h.prefill), former.map(|h| &h.decode));
        let prefill = half(Role::Prefill, &prefill, first);
        let decode = half(Role::Decode, &decode, second);
        Arc::new(Halves::new(prefill, decode, pairing))
    });
    let without_whole = (!any.is_empty() && !decode.is_empty()).then(|| {
        let former = former.and_then(|pool| pool.without_whole.as_deref());
        Arc::new(Pool {
            halves: halves.clone(),
            ..pool(Named::half(model, Role::Decode), &decode, former)
        })
    });
    let (role, members) = match any.is_empty() {
        true => (Role::Decode, decode),
        false => (Role::Any, any),
    };
    let named = Named {
        role,
        ..Named::of(model)
    };
    // Of a model with prefill workers alone there is one without workers: it is known, and cannot be served.
    (!members.is_empty() || !prefill.is_empty()).then(|| {
        Arc::new(Pool {
            halves,
            without_whole,
            ..pool(named, &members, former)
        })
    })
}

fn prospective_of<'a>(fleet: &'a Fleet, model: &str) -> Option<&'a Arc<Pool>> {
    fleet.prospective.iter().find(|pool| pool.model() == model)
}

/// What a pool is to be called, and what its workers are there for.
struct Named<'a> {
    model: &'a str,
    name: Arc<str>,
    role: Role,
}

impl<'a> Named<'a> {
    fn of(model: &'a str) -> Self {
        Self {
            model,
            name: model.into(),
            role: Role::Any,
        }
    }

    /// Workers of any model.
    fn whole() -> Self {
        Self::of("")
    }

    fn half(model: &'a str, role: Role) -> Self {
        Self {
            model,
            name: name_of_half(model, role.as_str()),
            role,
        }
    }
}

/// `former`: the same pool before; `known`: further rings that may be the same.
fn pool_of(
    settings: &ClusterSettings,
    named: Named<'_>,
    registrations: &[&Registration],
    former: Option<&Pool>,
    known: &[&Arc<Ring>],
) -> Pool {
    let members = registrations.iter().map(|registration| Member {
        id: registration.worker.id.as_str().to_owned(),
        weight: Weight::from_thousandths(registration.weight)
            .expect("the registry holds checked weights"),
    });
    let known: Vec<_> = former
        .iter()
        .map(|pool| &pool.ring)
        .chain(known.iter().copied())
        .collect();
    let ring = ring_of(settings.ring, members, &known);
    Pool {
        model: named.model.into(),
        name: named.name,
        policy: policy_of(settings, named.model, named.role),
        role: named.role,
        halves: None,
        without_whole: None,
        has_halves: registrations.iter().any(|r| r.role != Role::Any),
        ring,
        members: registrations.iter().map(|r| r.member()).collect(),
        slots: registrations.iter().map(|r| r.slot).collect(),
        turns: former
            .map(|pool| Arc::clone(&pool.turns))
            .unwrap_or_default(),
        suspects_until: former
            .map(|pool| Arc::clone(&pool.suspects_until))
            .unwrap_or_default(),
        card: Mutex::default(),
    }
}

/// How workers of a role are chosen.
fn policy_of(settings: &ClusterSettings, model: &str, role: Role) -> PolicySettings {
    match role {
        Role::Decode => settings.decode_policy_of(model),
        Role::Prefill => settings.prefill_policy_of(model),
        Role::Any | Role::Later(_) => settings.policy_of(model),
    }
}

/// A pool of workers that nobody can reach, for tests of what is said about pools.
#[cfg(test)]
pub(crate) fn pool_for_tests(settings: &ClusterSettings, ids: &[&str]) -> Pool {
    use grapevine_gossip::worker::{RawWorker, WorkerSpec};

    let mut prefix_index = grapevine_placement::PrefixIndex::new(Default::default());
    let board = grapevine_gossip::load::LoadBoard::default();
    let connector = crate::upstream::Connector::load(Default::default());
    let connector = Arc::new(connector.expect("nothing is read"));
    let registrations: Vec<Registration> = ids
        .iter()
        .map(|id| {
            let url = match id.split_once('@') {
                Some((host, rank)) => format!("http://{host}:8000@{rank}"),
                None => format!("http://{id}:8000"),
            };
            let spec = WorkerSpec::new(RawWorker::at(url));
            let spec = spec.expect("a worker");
            let id: grapevine_gossip::worker::WorkerId = id.parse().expect("an id");
            let health = crate::upstream::health::Health::new(
                id.as_str().into(),
                crate::config::BreakerConfig::default().into(),
                crate::config::HealthConfig::default().into(),
            );
            let address = crate::upstream::address::Address::of(&spec).expect("an address");
            let load = board.cell(&id);
            let slot = prefix_index.slot(id.as_str(), 0);
            let idle_max = std::time::Duration::from_secs(1);
            Registration {
                worker: Arc::new(Worker::new(
                    id,
                    address,
                    Arc::clone(&connector),
                    load,
                    idle_max.into(),
                    health,
                    true,
                )),
                weight: 1_000,
                role: Role::Any,
                models: Vec::new(),
                draining: false,
                asleep: false,
                warming: false,
                max_in_flight: None,
                epoch: 0,
                slot,
                mate: Mate::default(),
            }
        })
        .collect();
    let registrations: Vec<&Registration> = registrations.iter().collect();
    pool_of(settings, Named::of("m"), &registrations, None, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever peers write into the registry, there is a ring, and the same one on every replica.
    #[test]
    fn there_is_a_ring_of_any_workers() {
        let settings = RingSettings::default();
        let of = |count: usize, weight: Weight| {
            let member = move |number: usize| Member {
                id: format!("w{number:05}"),
                weight,
            };
            ring_of(settings, (0..count).map(member), &[])
        };
        let heavy = of(1_000, Weight::MAX);
        assert!(heavy.settings().virtual_nodes < settings.virtual_nodes);
        // More than fit with one virtual node each.
        let most = of(42_000, Weight::MAX);
        assert_eq!(most.members().len(), 42_000);
        assert_eq!(most.settings().virtual_nodes.get(), 1);
        assert_eq!(most.digest(), of(42_000, Weight::MAX).digest());
    }
}
