//! From the records of an answer to workers, and how long an answer stands. Pure.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use grapevine_gossip::worker::{
    RawWorker, WEIGHT_MILLI_DEFAULT, WEIGHT_MILLI_MAX, WorkerError, WorkerId, WorkerSpec,
};
use tokio::time::Instant;

use super::Scheme;
use crate::picture::Found;

/// Workers of one name.
pub(super) type Listed = Vec<(WorkerId, Found)>;

/// Answers without records after which a name is believed to have none.
pub(super) const EMPTY_ANSWERS: u32 = 3;

/// What a name server answered for one name.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) workers: Listed,
    /// They are IPv6 addresses, asked for because the name was said to have no IPv4 address.
    pub(super) is_second_choice: bool,
    /// How long the records stand; `None` for an answer without records.
    pub(super) ttl: Option<Duration>,
}

/// What an SRV record says; its priority is not read.
#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) target: String,
    pub(super) port: u16,
    pub(super) weight: u16,
}

/// A worker for each address. Its id is its address.
/// Errors: the port is 0.
pub(super) fn at_addresses(
    addresses: impl IntoIterator<Item = IpAddr>,
    port: u16,
    scheme: Scheme,
) -> Result<Listed, WorkerError> {
    let worker = |address| {
        let at = SocketAddr::new(address, port);
        let spec = WorkerSpec::new(RawWorker::at(format!("{scheme}://{at}")))?;
        Ok((spec.default_id(), Found::new(&spec, true)?))
    };
    addresses.into_iter().map(worker).collect()
}

/// A worker for each service. Its id is `target:port`, so a pod that comes back at another address is the same worker.
///
/// SRV weight 100 is weight 1. Weights count if all are above 0 and they differ: many servers give the same number to
/// all records, or their share of 100.
/// Errors: a target or a port that no worker can have.
pub(super) fn at_services(services: &[Service], scheme: Scheme) -> Result<Listed, WorkerError> {
    // RFC 2782: a target of "." announces that there is no such service.
    let services = || services.iter().filter(|service| service.target != ".");
    let first = services().next().map(|service| service.weight);
    let differs = services().any(|service| Some(service.weight) != first);
    let has_weights = differs && services().all(|service| service.weight > 0);
    let worker = |service: &Service| {
        let target = service.target.trim_end_matches('.').to_ascii_lowercase();
        let weight_milli = if has_weights {
            (u32::from(service.weight) * 10).min(WEIGHT_MILLI_MAX)
        } else {
            WEIGHT_MILLI_DEFAULT
        };
        let spec = WorkerSpec::new(RawWorker {
            weight_milli,
            ..RawWorker::at(format!("{scheme}://{target}:{}", service.port))
        })?;
        let id = format!("{target}:{}", service.port).parse()?;
        Ok((id, Found::new(&spec, true)?))
    };
    services().map(worker).collect()
}

/// What is believed of one name: its last records, until it has had none [`EMPTY_ANSWERS`] times in a row. IPv6 addresses
/// of a name that had IPv4 ones count as none: they show that it was said to have no IPv4 address, and nothing else.
#[derive(Debug, Default)]
pub(super) struct Belief {
    workers: Option<Listed>,
    is_second_choice: bool,
    empty_answers: u32,
    /// When the latest of them was counted.
    counted: Option<Instant>,
}

impl Belief {
    /// Takes in an answer, and returns whether it is believed. Of empty ones that come less than `apart` after another only
    /// the first counts: other names may have this one asked more often.
    pub(super) fn answered(&mut self, answer: Answer, now: Instant, apart: Duration) -> bool {
        let Answer {
            workers,
            is_second_choice,
            ttl: _,
        } = answer;
        let is_worse = is_second_choice && self.has_first_choice();
        if !workers.is_empty() && !is_worse {
            *self = Self {
                workers: Some(workers),
                is_second_choice,
                ..Self::default()
            };
            return true;
        }
        if self.counted.is_none_or(|counted| now >= counted + apart) {
            self.empty_answers += 1;
            self.counted = Some(now);
        }
        let is_believed = self.empty_answers >= EMPTY_ANSWERS;
        if is_believed {
            self.workers = Some(workers);
            self.is_second_choice = is_second_choice;
        }
        is_believed
    }

    fn has_first_choice(&self) -> bool {
        let has_some = self.workers.as_ref().is_some_and(|all| !all.is_empty());
        has_some && !self.is_second_choice
    }

    /// Takes in that there was no answer.
    pub(super) fn failed(&mut self) {
        (self.empty_answers, self.counted) = (0, None);
    }

    /// The workers of the name; none before the first answer that is believed.
    pub(super) fn workers(&self) -> Option<&Listed> {
        self.workers.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(target: &str, weight: u16) -> Service {
        Service {
            target: target.to_owned(),
            port: 8000,
            weight,
        }
    }

    fn answer(workers: Listed, is_second_choice: bool) -> Answer {
        Answer {
            workers,
            is_second_choice,
            ttl: None,
        }
    }

    #[test]
    fn each_address_is_a_worker() {
        let addresses = ["10.0.0.1", "2001:db8::1"].map(|text| text.parse().expect("an address"));
        let listed = at_addresses(addresses, 8000, Scheme::Https).expect("workers");
        let ids: Vec<&str> = listed.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["https://10.0.0.1:8000", "https://[2001:db8::1]:8000"]);
    }

    #[test]
    fn a_service_keeps_its_name_as_id() {
        let services = [service("W-0.Example.", 0), service(".", 0)];
        let listed = at_services(&services, Scheme::Http).expect("workers");
        assert_eq!(listed.len(), 1, "a dot is no target");
        let (id, found) = &listed[0];
        assert_eq!(id.as_str(), "w-0.example:8000");
        assert_eq!(found.spec().url().base(), "http://w-0.example:8000");
    }

    #[test]
    fn weights_count_if_they_differ_and_none_is_zero() {
        for (weights, expected) in [
            ([0, 0], [1000, 1000]),
            ([33, 33], [1000, 1000]),
            ([100, 50], [1000, 500]),
            ([100, 0], [1000, 1000]),
            ([1, 65_535], [10, 100_000]),
        ] {
            let services = [service("a.", weights[0]), service("b.", weights[1])];
            let listed = at_services(&services, Scheme::Http).expect("workers");
            let milli: Vec<u32> = listed
                .iter()
                .map(|(_, found)| found.spec().weight_milli())
                .collect();
            assert_eq!(milli, expected, "{weights:?}");
        }
    }

    #[test]
    fn a_name_is_empty_after_three_empty_answers_in_a_row() {
        const APART: Duration = Duration::from_secs(5);
        let one = || at_services(&[service("a.", 0)], Scheme::Http).expect("a worker");
        let mut now = Instant::now();
        let mut belief = Belief::default();
        let mut answers = |belief: &mut Belief, count: u32, workers: Listed, each: Duration| {
            for _ in 0..count {
                now += each;
                belief.answered(answer(workers.clone(), false), now, APART);
            }
        };
        answers(&mut belief, 1, Vec::new(), APART);
        assert_eq!(belief.workers(), None, "nothing is known yet");
        answers(&mut belief, 1, one(), APART);
        answers(&mut belief, 2, Vec::new(), APART);
        assert_eq!(belief.workers(), Some(&one()), "two are not enough");
        belief.failed();
        answers(&mut belief, 2, Vec::new(), APART);
        assert_eq!(belief.workers(), Some(&one()), "a failure begins anew");
        answers(&mut belief, 4, Vec::new(), APART / 5);
        assert_eq!(belief.workers(), Some(&one()), "asked again too soon");
        answers(&mut belief, 1, Vec::new(), APART / 5);
        assert_eq!(belief.workers(), Some(&Vec::new()));
    }

    /// Where the IPv4 answer is empty by mistake, the same workers would be others, and the known ones gone.
    #[test]
    fn addresses_of_ipv6_take_the_place_of_ipv4_after_three_answers_in_a_row() {
        const APART: Duration = Duration::from_secs(5);
        let at = |text: &str| {
            let address = text.parse().expect("an address");
            at_addresses([address], 80, Scheme::Http).expect("a worker")
        };
        let (four, six) = (at("10.0.0.1"), at("2001:db8::1"));
        let start = Instant::now();
        let mut belief = Belief::default();
        let mut step = 0;
        let mut answers = |workers: &Listed, is_second_choice| {
            step += 1;
            let now = start + APART * step;
            belief.answered(answer(workers.clone(), is_second_choice), now, APART);
            belief.workers().cloned()
        };
        assert_eq!(answers(&six, true), Some(six.clone()), "all that it has");
        assert_eq!(answers(&four, false), Some(four.clone()));
        for _ in 0..2 {
            assert_eq!(answers(&six, true), Some(four.clone()), "by mistake?");
        }
        assert_eq!(answers(&four, false), Some(four.clone()), "it was");
        for expected in [&four, &four, &six, &six] {
            assert_eq!(answers(&six, true).as_ref(), Some(expected));
        }
    }
}
