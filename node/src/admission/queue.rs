//! Which request is next: classes in strict order, tenants within a class by fair shares. Pure; no clock, no waiting.
//!
//! - **Classes.** A more urgent class goes first, except that a class that was passed over `passed_over_max` times
//!   in a row while a request of it waited gets the next place: none starves.
//! - **Tenants.** Start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queuing", SIGCOMM 1996): each
//!   tenant's next request has a start tag, the least tag goes first, and the tag of the tenant's following request
//!   is greater by cost / weight. The virtual time is the tag of the last one that left; a tenant that comes back
//!   begins there, so that idling saves nothing up. Within a tenant: first come, first served.
//! - **Full.** Buffer stealing: the newest request of the tenant that has the most requests waiting, in the least
//!   urgent class, makes room, if the newcomer is more urgent or its tenant has fewer waiting also with it; else the
//!   newcomer is turned away. So one tenant's flood does not close the queue to the others. Requests count here, whatever
//!   they cost: it is places that are short.
//!
//! Every operation takes O(log n). Nothing is kept of tenants that neither wait nor are ahead of the virtual time.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::api::Priority;

/// Tags count cost in units of 1/100,000 at weight 1, so that the least cost at the greatest weight is still 1.
const UNITS: u64 = 100_000;

/// A virtual time.
type Tag = u64;
/// The tenant of a request: a hash of its name.
pub(super) type FlowId = u64;

/// What a request asks the queue for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    /// How urgent it is.
    pub(super) class: Priority,
    /// The tenant that it belongs to.
    pub(super) flow: FlowId,
    /// Share of the tenant, in thousandths; 1 to 100,000.
    pub(super) weight: u32,
    /// What it will take, in estimated tokens; at least 1.
    pub(super) cost: u32,
}

impl Claim {
    fn span(&self) -> Tag {
        let weight = u64::from(self.weight.clamp(1, 100_000));
        (u64::from(self.cost.max(1)) * UNITS / weight).max(1)
    }
}

/// A place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    class: Priority,
    flow: FlowId,
    number: u64,
}

/// Requests that wait, each with a `T`.
#[derive(Debug)]
pub(super) struct Queue<T> {
    classes: [Class<T>; Priority::ALL.len()],
    len: usize,
    len_max: usize,
    passed_over_max: u32,
    next_number: u64,
}

#[derive(Debug)]
struct Class<T> {
    /// Start tag of the last request that left to be served.
    now: Tag,
    len: usize,
    /// The heads of all flows: start tag, number, flow.
    heads: BTreeSet<(Tag, u64, FlowId)>,
    flows: HashMap<FlowId, Flow<T>>,
    /// Flows by how many requests they have waiting.
    longest: BTreeSet<(usize, FlowId)>,
    /// Flows that wait for nothing but are ahead of `now`, by where they end.
    resting: BTreeSet<(Tag, FlowId)>,
    rests: HashMap<FlowId, Tag>,
    /// Requests of more urgent classes that went first while one waited here.
    passed_over: u32,
}

#[derive(Debug)]
struct Flow<T> {
    /// Start tag of the first that waits.
    start: Tag,
    /// Span and item by number.
    waiting: BTreeMap<u64, (Tag, T)>,
}

impl<T> Queue<T> {
    /// A queue of at most `len_max` requests.
    pub(super) fn new(len_max: usize, passed_over_max: u32) -> Self {
        Self {
            classes: std::array::from_fn(|_| Class::new()),
            len: 0,
            len_max,
            passed_over_max,
            next_number: 0,
        }
    }

    /// Requests that wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Takes a request in. With it comes the one that had to make room, if the queue was full.
    /// Errors: the item, when the queue is full of requests with a better claim.
    pub(super) fn push(
        &mut self,
        claim: Claim,
        item: T,
    ) -> Result<(Ticket, Option<(Ticket, T)>), T> {
        let displaced = if self.len < self.len_max {
            None
        } else {
            match self.make_room(&claim) {
                Some(displaced) => Some(displaced),
                None => return Err(item),
            }
        };
        let ticket = Ticket {
            class: claim.class,
            flow: claim.flow,
            number: self.next_number,
        };
        self.next_number += 1;
        self.len += 1;
        let rests_max = self.len_max;
        let class = &mut self.classes[claim.class.index()];
        class.push(ticket, claim.span(), item, rests_max);
        Ok((ticket, displaced))
    }

    /// The request that is next.
    pub(super) fn head(&self) -> Option<(Ticket, &T)> {
        let waiting = || {
            Priority::ALL
                .into_iter()
                .rev()
                .filter(|c| self.of(*c).len > 0)
        };
        let overdue = waiting().find(|c| self.of(*c).passed_over >= self.passed_over_max);
        let class = overdue.or_else(|| waiting().next())?;
        let (number, flow, item) = self.of(class).head()?;
        let ticket = Ticket {
            class,
            flow,
            number,
        };
        Some((ticket, item))
    }

    /// Whether the request still waits.
    pub(super) fn contains(&self, ticket: Ticket) -> bool {
        let flow = self.of(ticket.class).flows.get(&ticket.flow);
        flow.is_some_and(|flow| flow.waiting.contains_key(&ticket.number))
    }

    /// Takes a request out because it is served: its tenant and the other classes are charged for it.
    pub(super) fn serve(&mut self, ticket: Ticket) -> Option<T> {
        let rests_max = self.len_max;
        let item = self.classes[ticket.class.index()].remove(ticket, Some(rests_max))?;
        self.len -= 1;
        for class in &mut self.classes[..ticket.class.index()] {
            if class.len > 0 {
                class.passed_over += 1;
            }
        }
        self.classes[ticket.class.index()].passed_over = 0;
        Some(item)
    }

    /// Takes a request out because it gave up; it costs its tenant nothing.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<T> {
        let item = self.classes[ticket.class.index()].remove(ticket, None)?;
        self.len -= 1;
        Some(item)
    }

    /// Charges a tenant for more of what it was served: what that costs was not all known then.
    pub(super) fn charge(&mut self, more: &Claim) {
        let rests_max = self.len_max;
        self.classes[more.class.index()].charge(more.flow, more.span(), rests_max);
    }

    fn of(&self, class: Priority) -> &Class<T> {
        &self.classes[class.index()]
    }

    fn make_room(&mut self, newcomer: &Claim) -> Option<(Ticket, T)> {
        let lowest = Priority::ALL.into_iter().find(|c| self.of(*c).len > 0)?;
        let class = self.of(lowest);
        let &(most, flow) = class.longest.last()?;
        let yields = match newcomer.class.cmp(&lowest) {
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => {
                let own = class.flows.get(&newcomer.flow);
                own.map_or(0, |own| own.waiting.len()) + 1 < most
            }
        };
        if !yields {
            return None;
        }
        let (&number, _) = class.flows.get(&flow)?.waiting.last_key_value()?;
        let ticket = Ticket {
            class: lowest,
            flow,
            number,
        };
        self.remove(ticket).map(|item| (ticket, item))
    }
}

impl<T> Class<T> {
    fn new() -> Self {
        Self {
            now: 0,
            len: 0,
            heads: BTreeSet::new(),
            flows: HashMap::new(),
            longest: BTreeSet::new(),
            resting: BTreeSet::new(),
            rests: HashMap::new(),
            passed_over: 0,
        }
    }

    fn head(&self) -> Option<(u64, FlowId, &T)> {
        let &(_, number, flow) = self.heads.first()?;
        let (_, item) = self.flows.get(&flow)?.waiting.get(&number)?;
        Some((number, flow, item))
    }

    fn push(&mut self, ticket: Ticket, span: Tag, item: T, rests_max: usize) {
        self.len += 1;
        let (now, rested) = (self.now, self.rests.remove(&ticket.flow));
        if let Some(end) = rested {
            self.resting.remove(&(end, ticket.flow));
        }
        let flow = self.flows.entry(ticket.flow).or_insert_with(|| Flow {
            start: rested.unwrap_or(0).max(now),
            waiting: BTreeMap::new(),
        });
        if flow.waiting.is_empty() {
            self.heads.insert((flow.start, ticket.number, ticket.flow));
        } else {
            self.longest.remove(&(flow.waiting.len(), ticket.flow));
        }
        flow.waiting.insert(ticket.number, (span, item));
        self.longest.insert((flow.waiting.len(), ticket.flow));
        self.forget_rests(rests_max);
    }

    /// Takes one out; `served` (with the most rests to keep): its span is charged to the flow.
    fn remove(&mut self, ticket: Ticket, served: Option<usize>) -> Option<T> {
        let flow = self.flows.get_mut(&ticket.flow)?;
        let head = *flow.waiting.first_key_value()?.0;
        let waiting = flow.waiting.len();
        let (span, item) = flow.waiting.remove(&ticket.number)?;
        self.len -= 1;
        self.heads.remove(&(flow.start, head, ticket.flow));
        self.longest.remove(&(waiting, ticket.flow));
        if served.is_some() {
            self.now = self.now.max(flow.start);
            flow.start = flow.start.saturating_add(span);
        }
        let start = flow.start;
        match flow.waiting.first_key_value() {
            Some((&next, _)) => {
                self.heads.insert((start, next, ticket.flow));
                self.longest.insert((waiting - 1, ticket.flow));
            }
            None => {
                self.flows.remove(&ticket.flow);
                self.rest(ticket.flow, start);
            }
        }
        self.forget_rests(served.unwrap_or(usize::MAX));
        if self.len == 0 {
            // No request waits, so none was treated unfairly: everything begins anew.
            *self = Self::new();
        }
        Some(item)
    }

    /// The flow's next request goes later by so much.
    fn charge(&mut self, id: FlowId, span: Tag, rests_max: usize) {
        if self.len == 0 {
            return;
        }
        match self.flows.get_mut(&id) {
            Some(flow) => {
                let first = flow.waiting.first_key_value();
                let (&head, _) = first.expect("a flow is there while it waits");
                self.heads.remove(&(flow.start, head, id));
                flow.start = flow.start.saturating_add(span);
                self.heads.insert((flow.start, head, id));
            }
            None => {
                let rested = self.rests.remove(&id);
                if let Some(end) = rested {
                    self.resting.remove(&(end, id));
                }
                let end = rested.unwrap_or(0).max(self.now);
                self.rest(id, end.saturating_add(span));
                self.forget_rests(rests_max);
            }
        }
    }

    /// Remembers how far ahead a flow without waiting requests is.
    fn rest(&mut self, flow: FlowId, end: Tag) {
        if end > self.now {
            self.resting.insert((end, flow));
            self.rests.insert(flow, end);
        }
    }

    /// Forgets those that the virtual time has reached, and beyond `max` those that are least ahead.
    fn forget_rests(&mut self, max: usize) {
        while let Some(&(end, flow)) = self.resting.first() {
            if end > self.now && self.resting.len() <= max {
                return;
            }
            self.resting.pop_first();
            self.rests.remove(&flow);
        }
    }
}
