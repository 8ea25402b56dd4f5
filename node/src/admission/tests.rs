//! Admission as the proxy uses it, in virtual time.

use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

use prometheus_client::registry::Registry;

use super::*;
use crate::config::parse_keys;
use crate::tenants::metrics::TenantMetrics;
use crate::tenants::{Keys, secret};

/// A cluster whose other replicas have what the test says.
#[derive(Debug, Default)]
struct Others(AtomicU32);

impl OthersUse for Others {
    fn requests(&self, _: u64) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    fn ready_replicas(&self) -> u32 {
        1
    }
}

struct Door {
    admission: Admission,
    others: Arc<Others>,
    registry: Registry,
}

fn door(requests: u32, queue_size: u32) -> Door {
    door_with(requests, queue_size, 1 << 30)
}

fn door_with(requests: u32, queue_size: u32, body_bytes: u64) -> Door {
    let mut registry = Registry::default();
    let others = Arc::new(Others::default());
    let admission = Admission::new(AdmissionParts {
        config: AdmissionConfig {
            queue_size,
            queue_timeout: Duration::from_secs(10),
            ..AdmissionConfig::default()
        }
        .into(),
        requests,
        bytes_per_token: 4,
        tenant_header: Some(HeaderName::from_static("x-tenant")),
        others: Arc::clone(&others) as Arc<dyn OthersUse>,
        bodies: Arc::new(ByteBudget::new(body_bytes)),
        metrics: AdmissionMetrics::register(&mut registry),
    });
    Door {
        admission,
        others,
        registry,
    }
}

fn keys(more: &str) -> Arc<ApiKey> {
    keys_counted(more, &mut Registry::default())
}

fn keys_counted(more: &str, registry: &mut Registry) -> Arc<ApiKey> {
    let hash = secret::hash_of(b"k");
    let text = format!("[[key]]\nname = \"acme\"\nhash = \"{hash}\"\n{more}");
    let keys = Keys::open(TenantMetrics::register(registry));
    let configs = parse_keys(Path::new("keys.toml"), &text).expect("a good file");
    keys.set(configs, Instant::now());
    let mut headers = HeaderMap::new();
    headers.insert("authorization", HeaderValue::from_static("Bearer k"));
    keys.caller(&headers).expect("let in").expect("a key")
}

impl Door {
    fn ask(&self, key: Option<&Arc<ApiKey>>, deadline: Option<Instant>) -> Ask {
        let key = key.map(|key| &**key);
        self.admission
            .ask(key, &HeaderMap::new(), Some(400), deadline)
    }

    fn serves(&self, models: &[&str]) {
        let models = models.iter().map(|model| Arc::from(*model));
        self.admission.serve(&Arc::new(models.collect()));
    }

    /// Lets in a request of a model, and makes its place one of its model's.
    async fn of_model(&self, model: &Arc<str>) -> Result<Admitted, ApiError> {
        let ask = self.ask(None, None).holding(400);
        let admitted = self.admission.admit(None, &ask).await;
        let mut admitted = admitted.map_err(|refused| refused.error)?;
        let permit = &mut admitted.permit;
        let entered = self.admission.enter(permit, None, model, &ask).await;
        admitted.queued = entered.map_err(|refused| refused.error)?;
        Ok(admitted)
    }

    async fn admit(&self, key: Option<&Arc<ApiKey>>) -> Result<Admitted, AdmissionRefused> {
        self.admission.admit(key, &self.ask(key, None)).await
    }

    fn text(&self) -> String {
        self.admission.show(Arc::clone);
        self.encoded()
    }

    fn encoded(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("text");
        text
    }

    fn counted(&self, line: &str) -> u64 {
        let text = self.text();
        let found = text.lines().find_map(|l| l.strip_prefix(line));
        let found = found.unwrap_or_else(|| panic!("no {line} in {text}"));
        found.trim().parse().expect("a number")
    }
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_room_waits_and_is_let_in_by_an_end() {
    let door = door(1, 2);
    let first = door.admit(None).await.expect("room");
    assert_eq!(first.queued, None);
    let mut second = Box::pin(door.admit(None));
    let mut third = Box::pin(door.admit(None));
    assert!(poll_once(second.as_mut()).is_none());
    assert!(poll_once(third.as_mut()).is_none());
    assert_eq!(
        door.counted("queue_length{queue=\"admission\",class=\"normal\"}"),
        2
    );
    let full = door.admit(None).await.expect_err("two wait");
    assert_eq!(full.error.kind, ErrorKind::Overloaded);

    tokio::time::advance(Duration::from_secs(3)).await;
    drop(first);
    let second = second.await.expect("the first has ended");
    assert_eq!(second.queued, Some(Duration::from_secs(3)));
    assert!(
        poll_once(third.as_mut()).is_none(),
        "one place, one request"
    );
    // The third's client leaves; the place is not lost.
    drop(third);
    drop(second);
    let fourth = door.admit(None).await.expect("room");
    assert_eq!(fourth.queued, None);
    for (result, count) in [("admitted", 3), ("queue_full", 1), ("client_left", 1)] {
        let line = format!("admissions_total{{class=\"normal\",result=\"{result}\"}}");
        assert_eq!(door.counted(&line), count, "{result}");
    }
    assert_eq!(
        door.counted("queue_length{queue=\"admission\",class=\"normal\"}"),
        0
    );
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_the_queue_or_the_request_allows() {
    let door = door(1, 2);
    let _first = door.admit(None).await.expect("room");
    let begun = Instant::now();
    for (deadline, waits) in [(None, 10), (Some(begun + Duration::from_secs(15)), 5)] {
        let since = Instant::now();
        let ask = door.ask(None, deadline);
        let refused = door.admission.admit(None, &ask).await.expect_err("no room");
        assert_eq!(refused.error.kind, ErrorKind::Overloaded);
        assert_eq!(since.elapsed().as_secs(), waits);
    }
}

#[tokio::test(start_paused = true)]
async fn patience_is_worn_by_waiting_alone() {
    let door = door(10, 2);
    let model: Arc<str> = "m".into();
    let full = || Err::<(), _>(NoWorker::Full);
    let begun = Instant::now();
    for (deadline, waits) in [(None, 10), (Some(begun + Duration::from_secs(67)), 7)] {
        let ask = door.ask(None, deadline);
        let upload = Duration::from_secs(25);
        tokio::time::advance(upload).await;
        let since = Instant::now();
        let ask = ask.after(upload, deadline);
        let (placed, waited) = door.admission.place(&model, &ask, None, full).await;
        assert!(matches!(placed, Err(Unplaced::TurnedAway(_))), "{placed:?}");
        assert_eq!(since.elapsed().as_secs(), waits);
        assert_eq!(waited.map(|waited| waited.as_secs()), Some(waits));
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_turned_away_by_full_workers_is_counted_for_its_tenant() {
    let mut door = door(10, 1);
    let key = keys_counted("", &mut door.registry);
    let model: Arc<str> = "m".into();
    let refusals = |reason: &str| {
        let series = format!("tenant_refusals_total{{tenant=\"acme\",reason=\"{reason}\"}}");
        door.counted(&series)
    };
    let ask = door.ask(Some(&key), None);
    let full = || Err::<(), _>(NoWorker::Full);
    let place = || door.admission.place(&model, &ask, Some(key.tenant()), full);
    let mut waits = Box::pin(place());
    assert!(poll_once(waits.as_mut()).is_none());
    let (refused, _) = place().await;
    assert!(matches!(refused, Err(Unplaced::NoWorker(NoWorker::Full))));
    assert_eq!([refusals("queue_full"), refusals("queue_timeout")], [1, 0]);
    let (late, _) = waits.await;
    assert!(matches!(late, Err(Unplaced::TurnedAway(_))), "{late:?}");
    assert_eq!([refusals("queue_full"), refusals("queue_timeout")], [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_tenants_requests_are_counted_over_the_cluster() {
    let door = door(10, 0);
    let key = keys("max_requests = 3");
    let _first = door.admit(Some(&key)).await.expect("1 of 3");
    door.others.0.store(1, Ordering::Relaxed);
    let second = door.admit(Some(&key)).await.expect("3 of 3");
    let refused = door.admit(Some(&key)).await.expect_err("4 of 3");
    assert_eq!(refused.error.kind, ErrorKind::RateLimited);
    drop(second);
    door.others.0.store(2, Ordering::Relaxed);
    assert!(door.admit(Some(&key)).await.is_err(), "two elsewhere");
    door.others.0.store(0, Ordering::Relaxed);
    assert!(door.admit(Some(&key)).await.is_ok());

    let local = keys("max_requests = 1\ncluster = false");
    door.others.0.store(9, Ordering::Relaxed);
    let held = door.admit(Some(&local)).await.expect("only its own count");
    assert_eq!(local.tenant().in_use().in_flight, 1);
    drop(held);
    assert_eq!(local.tenant().in_use().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn what_has_nothing_computed_waits_for_no_place_up_to_a_bound() {
    let mut door = door(1, 1);
    let key = keys_counted(
        "max_requests = 1\nrequests_per_minute = 1000",
        &mut door.registry,
    );
    let model: Arc<str> = "m".into();
    let _held = door.admit(Some(&key)).await.expect("room");
    let reads = door.ask(Some(&key), None).that_only_reads();
    let mut beside = Vec::new();
    for _ in 0..64 {
        let admitted = door.admission.admit(Some(&key), &reads).await;
        let mut admitted = admitted.expect("beside the one");
        assert_eq!(admitted.queued, None);
        assert!(admitted.quotas.requests.is_some(), "the rate holds for it");
        door.admission.enter_at_once(&mut admitted.permit, &model);
        beside.push(admitted);
    }
    let refused = door.admission.admit(Some(&key), &reads).await;
    let refused = refused.expect_err("beyond the bound it is as any other");
    assert_eq!(refused.error.kind, ErrorKind::RateLimited);
    let reads = door.ask(None, None).that_only_reads();
    let mut waits = Box::pin(door.admission.admit(None, &reads));
    assert!(poll_once(waits.as_mut()).is_none());
    drop(waits);
    drop(beside);
    assert_eq!(door.admission.in_progress(), 0);
    let shown = door.counted("tenant_requests{tenant=\"acme\"}");
    assert_eq!(shown, 1, "the one that is held");
    assert!(door.admission.admit(None, &reads).await.is_ok());
}

/// What only reads is neither one of its tenant's requests for those that compute, nor does it keep a place from them.
#[tokio::test(start_paused = true)]
async fn what_has_nothing_computed_keeps_nobody_out() {
    let door = door(1, 1);
    let key = keys("max_requests = 1");
    let model: Arc<str> = "m".into();
    let reads = door.ask(Some(&key), None).that_only_reads();
    let reader = door.admission.admit(Some(&key), &reads).await;
    let mut reader = reader.expect("room");
    door.admission.enter_at_once(&mut reader.permit, &model);
    assert_eq!(door.admission.in_progress(), 0);
    assert_eq!(
        key.tenant().in_use().in_flight,
        0,
        "by what others are told"
    );
    let mut admitted = door.admit(Some(&key)).await.expect("room for the one");
    let ask = door.ask(Some(&key), None);
    let entered = door
        .admission
        .enter(&mut admitted.permit, Some(&key), &model, &ask)
        .await;
    assert_eq!(entered.expect("at once"), None);
    assert_eq!(door.admission.in_progress(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_rate_is_kept_and_told() {
    let door = door(10, 0);
    let key = keys("requests_per_minute = 2");
    for remaining in [1, 0] {
        let admitted = door.admit(Some(&key)).await.expect("within the rate");
        assert_eq!(
            admitted.quotas.requests.expect("a limit").remaining,
            remaining
        );
    }
    let refused = door.admit(Some(&key)).await.expect_err("above it");
    assert_eq!(refused.error.kind, ErrorKind::RateLimited);
    let mut headers = HeaderMap::new();
    tell(&refused.quotas, &mut headers);
    for (name, value) in [
        ("x-ratelimit-limit-requests", "2"),
        ("x-ratelimit-remaining-requests", "0"),
        ("x-ratelimit-reset-requests", "60s"),
        ("retry-after", "30"),
    ] {
        assert_eq!(headers[name], value, "{name}");
    }
    tokio::time::advance(Duration::from_secs(30)).await;
    assert!(door.admit(Some(&key)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_rate_of_tokens_is_held_by_what_is_expected_and_kept_by_what_was_used() {
    let door = door(10, 0);
    let key = keys("tokens_per_minute = 6000");
    // 400 bytes, and 256 tokens for the answer.
    let mut first = door.admit(Some(&key)).await.expect("within the rate");
    assert_eq!(first.quotas.tokens.expect("a limit").remaining, 6_000 - 356);
    assert_eq!(first.quotas.requests, None);
    let charge = first.charge.take().expect("of a key with such a rate");
    assert_eq!(charge.tokens_of(401), 100);
    charge.settle(9_000);
    let refused = door.admit(Some(&key)).await.expect_err("above it");
    assert_eq!(refused.error.kind, ErrorKind::RateLimited);
    assert!(refused.error.message.contains("6000 tokens a minute"));
    let mut headers = HeaderMap::new();
    tell(&refused.quotas, &mut headers);
    for (name, value) in [
        ("x-ratelimit-limit-tokens", "6000"),
        ("x-ratelimit-remaining-tokens", "0"),
        ("x-ratelimit-reset-tokens", "90s"),
        ("retry-after", "31"),
    ] {
        assert_eq!(headers[name], value, "{name}");
    }
    assert_eq!(headers.len(), 4, "it has no rate of requests");
    // What has nothing generated comes in, and takes nothing.
    let ask = door.ask(Some(&key), None).without_tokens();
    let counted = door.admission.admit(Some(&key), &ask).await.expect("in");
    assert!(counted.charge.is_none() && counted.quotas.tokens.is_none());
    tokio::time::advance(Duration::from_secs(31)).await;
    // One that uses nothing gives all of it back, as it is dropped.
    for _ in 0..3 {
        let admitted = door.admit(Some(&key)).await.expect("paid");
        assert_eq!(admitted.quotas.tokens.expect("a limit").remaining, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_counts_for_its_tenant_until_it_is_gone() {
    let door = door(1, 2);
    let key = keys("");
    let _held = door.admit(None).await.expect("room");
    let mut waits = Box::pin(door.admit(Some(&key)));
    assert!(poll_once(waits.as_mut()).is_none());
    let used = key.tenant().in_use();
    assert_eq!((used.queued, used.in_flight), (1, 0));
    drop(waits);
    let used = key.tenant().in_use();
    assert_eq!((used.queued, used.in_flight), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn room_at_a_worker_is_waited_for_in_turn() {
    let door = door(10, 2);
    let model: Arc<str> = "m".into();
    let ask = door.ask(None, None);
    let free = AtomicU32::new(0);
    let take = || {
        let taken = free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        taken.map_err(|_| NoWorker::Full)
    };
    let held = door.admit(None).await.expect("room");
    let mut first = Box::pin(door.admission.place(&model, &ask, None, take));
    assert!(poll_once(first.as_mut()).is_none());
    free.store(1, Ordering::Relaxed);
    // Room that somebody waits for is not for a newcomer.
    let mut second = Box::pin(door.admission.place(&model, &ask, None, take));
    assert!(poll_once(second.as_mut()).is_none());
    drop(held);
    let (placed, waited) = first.await;
    assert!(placed.is_ok() && waited.is_some());
    let (refused, waited) = second.await;
    let refused = refused.expect_err("nothing becomes free");
    assert!(waited.is_some_and(|waited| waited > Duration::ZERO));
    let Unplaced::TurnedAway(error) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(error.kind, ErrorKind::Overloaded);
    let unhealthy = || Err::<(), _>(NoWorker::Unhealthy);
    let (refused, waited) = door.admission.place(&model, &ask, None, unhealthy).await;
    let refused = refused.expect_err("at once");
    assert_eq!(waited, None);
    assert!(matches!(refused, Unplaced::NoWorker(NoWorker::Unhealthy)));
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_some_workers_holds_back_those_alone_that_want_the_same() {
    let door = door(10, 2);
    let (all, some): (Arc<str>, Arc<str>) = ("m".into(), "m, but one".into());
    let ask = door.ask(None, None);
    let full = || Err::<(), _>(NoWorker::Full);
    let mut first = Box::pin(door.admission.place(&some, &ask, None, full));
    assert!(poll_once(first.as_mut()).is_none());
    let (placed, waited) = door.admission.place(&all, &ask, None, || Ok(())).await;
    assert!(placed.is_ok() && waited.is_none(), "{placed:?}");
    let mut second = Box::pin(door.admission.place(&some, &ask, None, || Ok(())));
    assert!(poll_once(second.as_mut()).is_none(), "it is behind");
    let waiting = "queue_length{queue=\"worker\",class=\"normal\"}";
    assert_eq!(door.counted(waiting), 2, "one label for all queues");
    drop(first);
    assert!(second.await.0.is_ok());
}

/// Asks until the next one would wait.
async fn fill(door: &Door, model: &Arc<str>) -> Vec<Admitted> {
    let mut held = Vec::new();
    loop {
        let mut next = Box::pin(door.of_model(model));
        match poll_once(next.as_mut()) {
            Some(admitted) => held.push(admitted.expect("room")),
            None => return held,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_small_model_does_not_wait_behind_a_large_one() {
    let door = door(64, 2);
    door.serves(&["large", "small"]);
    let (large, small): (Arc<str>, Arc<str>) = ("large".into(), "small".into());
    let mut held = fill(&door, &large).await;
    assert_eq!(held.len(), 45, "all but 15 for the small one, 4 to be read");
    let mut first = Box::pin(door.of_model(&large));
    let mut second = Box::pin(door.of_model(&large));
    assert!(poll_once(first.as_mut()).is_none());
    assert!(poll_once(second.as_mut()).is_none());
    let full = door.of_model(&large).await.expect_err("two wait");
    assert_eq!(full.kind, ErrorKind::Overloaded);

    // Its own line is full; the other's requests come and go as if it were not there.
    for _ in 0..100 {
        let admitted = door.of_model(&small).await.expect("a place of its own");
        assert_eq!(admitted.queued, None);
    }
    let own = fill(&door, &small).await;
    assert_eq!(own.len(), 15);
    for (model, state, count) in [
        ("large", "in_progress", 45),
        ("large", "waiting", 2),
        ("small", "in_progress", 15),
    ] {
        let line = format!("model_requests{{model=\"{model}\",state=\"{state}\"}}");
        assert_eq!(door.counted(&line), count, "{line}");
    }
    // Of models without series of their own the sum is shown.
    door.admission.show(|_| "other".into());
    let shared = "model_requests{model=\"other\",state=\"in_progress\"} 60";
    assert!(door.encoded().contains(shared), "{}", door.encoded());

    // What the small one has beyond its own it waits for, but goes before the large one, which has more.
    let mut small_waits = Box::pin(door.of_model(&small));
    assert!(poll_once(small_waits.as_mut()).is_none());
    drop(held.pop());
    assert!(poll_once(first.as_mut()).is_none());
    assert!(poll_once(small_waits.as_mut()).is_some());
    drop(held.pop());
    let first = first.await.expect("its turn");
    assert_eq!(first.queued, Some(Duration::ZERO));
    // A request that leaves its queue leaves nothing behind.
    drop(second);
    drop((held, own, first, small_waits));
    assert!(!door.text().contains("model_requests{"), "nobody is left");
    assert_eq!(fill(&door, &small).await.len(), 45, "nothing is lost");
}

#[tokio::test(start_paused = true)]
async fn while_bodies_are_read_slowly_the_next_waits_at_the_door_unread() {
    let door = door(64, 8);
    door.serves(&["large", "small"]);
    let large: Arc<str> = "large".into();
    let held = fill(&door, &large).await;
    let ask = door.ask(None, None);
    let mut reading = Vec::new();
    for _ in 0..4 {
        let admitted = door.admission.admit(None, &ask).await;
        reading.push(admitted.expect("a place to be read"));
    }
    assert!(!door.admission.is_crowded());
    let mut next = Box::pin(door.admission.admit(None, &ask));
    assert!(poll_once(next.as_mut()).is_none());
    assert!(door.admission.is_crowded());
    // One was read: it waits for its model without a place, so that the next is read.
    let mut read = reading.pop().expect("four");
    let mut entering = Box::pin(door.admission.enter(&mut read.permit, None, &large, &ask));
    assert!(poll_once(entering.as_mut()).is_none());
    assert!(poll_once(next.as_mut()).is_some_and(|next| next.is_ok()));
    drop(held);
    assert_eq!(entering.await.expect("room"), Some(Duration::ZERO));
}

/// In which order two tenants with prompts of 400 KB get one place after the other, when heads of the first say nothing
/// of their length; `models`: with one they wait at the door, with two in their model's queue.
async fn order_of_two_tenants(models: usize) -> Vec<&'static str> {
    const BYTES: usize = 400_000;
    let (door, model) = (door(64, 100), Arc::from("m"));
    let mut held = Vec::new();
    if models > 1 {
        door.serves(&["m", "other"]);
        held = fill(&door, &model).await;
    } else {
        while held.len() < 64 {
            held.push(door.admit(None).await.expect("room"));
        }
    }
    let headers = |tenant: &'static str| {
        let name = HeaderName::from_static("x-tenant");
        HeaderMap::from_iter([(name, HeaderValue::from_static(tenant))])
    };
    let served = std::cell::RefCell::new(Vec::new());
    let (door, model) = (&door, &model);
    let serve = async |tenant: &'static str, length: Option<u64>| {
        let head = door.admission.ask(None, &headers(tenant), length, None);
        let admitted = door.admission.admit(None, &head).await;
        let mut permit = admitted.expect("room").permit;
        let ask = head.holding(BYTES);
        let entered = door.admission.enter(&mut permit, None, model, &ask).await;
        entered.expect("room");
        served.borrow_mut().push(tenant);
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let mut all = Vec::new();
    for _ in 0..10 {
        all.push(Box::pin(serve("silent", None)));
        all.push(Box::pin(serve("honest", Some(BYTES as u64))));
    }
    all.retain_mut(|waits| poll_once(waits.as_mut()).is_none());
    assert_eq!(all.len(), 20, "they wait");
    // One place goes from hand to hand.
    drop(held.pop());
    while !all.is_empty() {
        all.retain_mut(|waits| poll_once(waits.as_mut()).is_none());
        tokio::time::advance(Duration::from_millis(10)).await;
    }
    served.take()
}

#[tokio::test(start_paused = true)]
async fn what_a_head_hides_of_a_body_is_charged_once_it_is_read() {
    let door = door(1, 0);
    let ask = |length| {
        let ask = door.admission.ask(None, &HeaderMap::new(), length, None);
        ask.holding(400_000).claim.cost
    };
    // Without a length, with the right one, and with that of compressed bytes.
    assert_eq!(ask(None), 100_256);
    assert_eq!(ask(Some(400_000)), 100_256);
    assert_eq!(ask(Some(1_000)), 100_256);
    for models in [1, 2] {
        let order = order_of_two_tenants(models).await;
        let silent = order[..10].iter().filter(|tenant| **tenant == "silent");
        let silent = silent.count();
        assert!((4..=6).contains(&silent), "{models}: {order:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_that_wait_for_one_model_leave_bytes_for_others() {
    let door = door_with(8, 100, 1_000);
    let (large, small): (Arc<str>, Arc<str>) = ("large".into(), "small".into());
    door.serves(&["large", "small"]);
    let _held = fill(&door, &large).await;
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let mut waits = Box::pin(door.of_model(&large));
        assert!(poll_once(waits.as_mut()).is_none());
        waiting.push(waits);
    }
    let refused = door.of_model(&large).await.expect_err("1,200 of 1,000");
    assert_eq!(refused.kind, ErrorKind::Overloaded);
    assert!(door.of_model(&small).await.is_ok());
    let counted = "admissions_total{class=\"normal\",result=\"queue_bytes\"}";
    assert_eq!(door.counted(counted), 1);
}

/// Long after its prompt is computed, or another worker has it, a request is still in progress.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_worker_looks_when_another_request_has_left_one() {
    let door = door(8, 8);
    let (model, ask): (Arc<str>, _) = ("m".into(), door.ask(None, None));
    let room = std::cell::Cell::new(false);
    let take = || match room.get() {
        true => Ok(()),
        false => Err(NoWorker::Full),
    };
    let mut waits = Box::pin(door.admission.place(&model, &ask, None, take));
    assert!(poll_once(waits.as_mut()).is_none());
    room.set(true);
    assert!(poll_once(waits.as_mut()).is_none(), "nobody has told it");
    door.admission.worker_has_room();
    let (placed, _) = poll_once(waits.as_mut()).expect("it looks");
    assert!(placed.is_ok());
}
