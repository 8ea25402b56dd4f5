//! Bad links as packet filter rules: one list for each container. Pure.
//!
//! All rules are at the receiver: a packet that its sender's own filter drops is an error to the sender
//! (`EPERM`), and a broken network gives no errors. Rules name peers by address, and a container that starts
//! again has a new address and an empty filter, so all lists are made anew from the faults each time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

use super::super::fault::{Node, Reach};

/// Chain of our rules, called at the head of `INPUT`.
pub(super) const CHAIN: &str = "GRAPEVINE-CHAOS";

/// A link that is bad.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum BadLink {
    /// No packet from `from` reaches `to`; unless `one_way`, none the other way either.
    Cut {
        from: Node,
        to: Node,
        one_way: bool,
        reach: Reach,
    },
    /// No gossip from or to this replica.
    Mute { node: Node },
    /// This share of packets is lost each way: of gossip for a replica, of everything between a worker and
    /// the replicas. 0 to 1.
    Loss { node: Node, share: f64 },
}

/// Rules of `iptables`, in order, for each container that needs some. Nodes without an address have none and
/// are named in none.
pub(super) fn rules(
    links: &[BadLink],
    addresses: &BTreeMap<Node, Ipv4Addr>,
) -> BTreeMap<Node, Vec<String>> {
    let mut rules: BTreeMap<Node, Vec<String>> = BTreeMap::new();
    let mut drop_packets = |from: Node, to: Node, packets: &str| {
        if let (Some(source), true) = (addresses.get(&from), addresses.contains_key(&to)) {
            let rule = format!("-s {source}{packets} -j DROP");
            rules.entry(to).or_default().push(rule);
        }
    };
    for link in links {
        match *link {
            BadLink::Cut {
                from,
                to,
                one_way,
                reach,
            } => {
                drop_packets(from, to, packets(reach));
                if !one_way {
                    drop_packets(to, from, packets(reach));
                }
            }
            BadLink::Mute { node } => {
                for peer in replicas(addresses).filter(|peer| *peer != node) {
                    drop_packets(peer, node, packets(Reach::Gossip));
                    drop_packets(node, peer, packets(Reach::Gossip));
                }
            }
            BadLink::Loss { node, share } => {
                let reach = match node {
                    Node::Replica(_) => Reach::Gossip,
                    Node::Worker(_) => Reach::All,
                };
                let packets = format!(
                    "{} -m statistic --mode random --probability {share:.4}",
                    packets(reach)
                );
                for peer in replicas(addresses).filter(|peer| *peer != node) {
                    drop_packets(peer, node, &packets);
                    drop_packets(node, peer, &packets);
                }
            }
        }
    }
    rules
}

fn replicas(addresses: &BTreeMap<Node, Ipv4Addr>) -> impl Iterator<Item = Node> {
    let is_replica = |node: &Node| matches!(node, Node::Replica(_));
    addresses.keys().copied().filter(is_replica)
}

/// The part of the traffic. Gossip is the only UDP between containers: DNS stays on loopback.
fn packets(reach: Reach) -> &'static str {
    match reach {
        Reach::Gossip => " -p udp",
        Reach::All => "",
    }
}

/// Input of `iptables-restore --noflush`: replaces our chain by these rules in one step.
pub(super) fn restore_input(rules: &[String]) -> String {
    let mut text = format!("*filter\n:{CHAIN} - [0:0]\n");
    for rule in rules {
        writeln!(text, "-A {CHAIN} {rule}").expect("a string takes all");
    }
    text + "COMMIT\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const R1: Node = Node::Replica(1);
    const R2: Node = Node::Replica(2);
    const R3: Node = Node::Replica(3);
    const W1: Node = Node::Worker(1);

    fn addresses() -> BTreeMap<Node, Ipv4Addr> {
        let at = |last| Ipv4Addr::new(172, 18, 0, last);
        BTreeMap::from([(R1, at(1)), (R2, at(2)), (R3, at(3)), (W1, at(4))])
    }

    /// Rules as `receiver: rule`, in the order of the receivers.
    fn check(links: &[BadLink], expected: &[(Node, &str)]) {
        let rules = rules(links, &addresses());
        let flat: Vec<_> = rules
            .iter()
            .flat_map(|(node, rules)| rules.iter().map(|rule| (*node, rule.as_str())))
            .collect();
        assert_eq!(flat, expected);
    }

    #[test]
    fn a_one_way_cut_is_one_rule_at_the_receiver() {
        let (from, to) = (R1, R2);
        let cut = |one_way, reach| BadLink::Cut {
            from,
            to,
            one_way,
            reach,
        };
        check(
            &[cut(true, Reach::Gossip)],
            &[(R2, "-s 172.18.0.1 -p udp -j DROP")],
        );
        check(
            &[cut(false, Reach::All)],
            &[(R1, "-s 172.18.0.2 -j DROP"), (R2, "-s 172.18.0.1 -j DROP")],
        );
    }

    #[test]
    fn a_mute_replica_neither_hears_nor_is_heard_by_replicas() {
        check(
            &[BadLink::Mute { node: R2 }],
            &[
                (R1, "-s 172.18.0.2 -p udp -j DROP"),
                (R2, "-s 172.18.0.1 -p udp -j DROP"),
                (R2, "-s 172.18.0.3 -p udp -j DROP"),
                (R3, "-s 172.18.0.2 -p udp -j DROP"),
            ],
        );
    }

    #[test]
    fn a_worker_loses_packets_of_every_kind_to_and_from_replicas() {
        let lost = "-m statistic --mode random --probability 0.2000 -j DROP";
        let share = 0.2;
        let rules = rules(&[BadLink::Loss { node: W1, share }], &addresses());
        for replica in [R1, R2, R3] {
            assert_eq!(rules[&replica], [format!("-s 172.18.0.4 {lost}")]);
        }
        let at_worker: Vec<_> = (1..=3)
            .map(|last| format!("-s 172.18.0.{last} {lost}"))
            .collect();
        assert_eq!(rules[&W1], at_worker);
    }

    #[test]
    fn who_has_no_address_is_in_no_rule() {
        let (from, to) = (R1, Node::Replica(9));
        let (one_way, reach) = (false, Reach::All);
        let links = [
            BadLink::Cut {
                from,
                to,
                one_way,
                reach,
            },
            BadLink::Mute { node: to },
        ];
        check(&links, &[]);
    }

    #[test]
    fn our_chain_is_replaced_at_one_stroke() {
        let rules = ["-s 10.0.0.1 -j DROP".to_owned()];
        let expected =
            "*filter\n:GRAPEVINE-CHAOS - [0:0]\n-A GRAPEVINE-CHAOS -s 10.0.0.1 -j DROP\nCOMMIT\n";
        assert_eq!(restore_input(&rules), expected);
    }
}
