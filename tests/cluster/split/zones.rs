//! Pairs are made within a zone where they can be, and with the rank that a client names.

use grapevine_testbed::fake_worker::{Role, StopMode};
use grapevine_tests::chat::{MODEL, distinct};
use grapevine_tests::cluster::Plan;
use serde_json::Value;

use super::scene::{CHATS, Member, Scene, scene, short, until};

fn chats() -> Vec<Value> {
    distinct(24).into_iter().map(short).collect()
}

/// A prefill and a decode worker in each of two zones.
async fn two_zones(plan: Plan) -> Scene {
    let member = |role, zone: &str| Member::new(role).line(&format!("zone = \"{zone}\""));
    let members = [
        member(Role::Prefill, "a"),
        member(Role::Prefill, "b"),
        member(Role::Decode, "a"),
        member(Role::Decode, "b"),
    ];
    scene(plan, 2, &members).await
}

/// The decode worker of zone b leaves the cluster.
async fn without_decode_in_b(scene: &Scene) {
    let admin = scene.cluster.replicas[0].admin();
    admin.remove(&scene.decode()[1].url()).await;
    scene.cluster.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pair_is_within_its_zone_while_there_is_one() {
    let scene = two_zones(Plan::default()).await;
    let mut zones = [0, 0];
    for (number, chat) in chats().iter().enumerate() {
        let answer = scene.ask_at(number % 2, CHATS, chat).await.good();
        let (prefill, decode) = answer.pair();
        let zone = |workers: Vec<_>, url: Option<&str>| {
            let workers: Vec<&grapevine_testbed::fake_worker::FakeWorker> = workers;
            workers.iter().position(|w| Some(&*w.url()) == url)
        };
        let (from, to) = (zone(scene.prefill(), prefill), zone(scene.decode(), decode));
        assert_eq!(from, to, "{answer:?}");
        zones[from.expect("a prefill worker")] += 1;
    }
    println!("pairs by zone: {zones:?}");
    assert!(zones.iter().all(|count| *count > 0), "{zones:?}");
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pair_spans_zones_where_one_has_no_decode_worker() {
    let scene = two_zones(Plan::default()).await;
    without_decode_in_b(&scene).await;
    let far = scene.prefill()[1].url();
    let mut across = 0;
    for chat in chats() {
        let answer = scene.ask(&chat).await.good();
        assert_eq!(answer.pair().1, Some(&*scene.decode()[0].url()));
        across += usize::from(answer.pair().0 == Some(&*far));
    }
    assert!(across > 0, "some prompts live in the other zone");
    scene.ends().await;
}

/// Looking for a near worker in vain is no turn.
#[tokio::test(flavor = "multi_thread")]
async fn far_workers_take_turns_where_none_is_near() {
    let plan = Plan::default().set("cluster.decode_policy", "\"round_robin\"");
    let members = [
        Member::new(Role::Prefill).line("zone = \"a\""),
        Member::new(Role::Decode).line("zone = \"b\""),
        Member::new(Role::Decode).line("zone = \"b\""),
    ];
    let scene = scene(plan, 1, &members).await;
    scene.talks().await;
    for chat in &chats()[..8] {
        scene.ask(chat).await.good();
    }
    let answers: Vec<usize> = scene.decode().iter().map(|w| w.log().len()).collect();
    assert_eq!(answers, [4, 4]);
    scene.ends().await;
}

/// While the health of most is bad it is not believed, but that of those that refuse connections.
#[tokio::test(flavor = "multi_thread")]
async fn a_near_worker_that_is_dead_is_asked_after_a_far_one_that_lives() {
    let members = [
        Member::new(Role::Prefill).line("zone = \"a\""),
        Member::new(Role::Decode).line("zone = \"a\""),
        Member::new(Role::Decode).line("zone = \"b\""),
        Member::new(Role::Decode).line("zone = \"b\""),
    ];
    let scene = scene(Plan::default(), 1, &members).await;
    scene.talks().await;
    let lives = scene.decode()[1].url();
    for dead in [scene.decode()[0], scene.decode()[2]] {
        dead.terminate(StopMode::Exit);
    }
    until("most decode workers are known to be dead", async || {
        let seen = scene.cluster.replicas[0].admin().workers().await;
        let dead = seen.iter().filter(|worker| worker.health == "unhealthy");
        dead.count() == 2
    })
    .await;
    let retries = async || scene.metric(0, "grapevine_retries_total", "").await;
    let before = retries().await;
    for chat in Scene::unseen().take(6) {
        let answer = scene.ask(&chat).await.good();
        assert_eq!(answer.pair().1, Some(&*lives), "{answer:?}");
    }
    assert_eq!(retries().await, before, "a dead one was asked first");
    let chats: Vec<Value> = Scene::unseen().skip(6).take(6).collect();
    let admin = scene.cluster.replicas[0].admin();
    for explained in admin.explain(&chats).await {
        assert_eq!(explained.pair().1, Some(&*lives));
    }
}

/// The prompt is computed wherever it belongs: the rank is that of the engine which answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_a_client_names_is_that_of_the_decode_worker() {
    const RANK: &str = "x-data-parallel-rank";
    let mut decode = Member::new(Role::Decode);
    decode.config.data_parallel = 2;
    let decode = decode.start().await;
    let plan = [0, 1].iter().fold(Plan::default(), |plan, rank| {
        let url = format!("{}@{rank}", decode.url());
        plan.worker_with(&url, &[MODEL], "role = \"decode\"\n")
    });
    let scene = scene(plan, 1, &[Member::new(Role::Prefill)]).await;
    scene.talks().await;
    for (number, chat) in Scene::unseen().take(12).enumerate() {
        let rank = (number % 2).to_string();
        let answer = scene.ask_with(0, CHATS, &[(RANK, &rank)], &chat).await;
        let answer = answer.good();
        assert!(answer.pair().0.is_some(), "{answer:?}");
        let asked = format!("{}@{rank}", decode.url());
        assert_eq!(answer.pair().1, Some(&*asked), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_pairs_must_not_span_zones_those_with_a_partner_have_all() {
    let plan = Plan::default().set("transfer.across_zones", "false");
    let scene = two_zones(plan).await;
    without_decode_in_b(&scene).await;
    for chat in chats() {
        let answer = scene.ask(&chat).await.good();
        let near = (scene.prefill()[0].url(), scene.decode()[0].url());
        assert_eq!(answer.pair(), (Some(&*near.0), Some(&*near.1)));
    }
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_pairs_must_not_span_zones_and_none_is_within_one_there_is_no_pair() {
    let plan = Plan::default().set("transfer.across_zones", "false");
    let members = [
        Member::new(Role::Prefill).line("zone = \"a\""),
        Member::new(Role::Decode).line("zone = \"b\""),
    ];
    let scene = scene(plan, 1, &members).await;
    let answer = scene.ask(&chats()[0]).await;
    assert_eq!(answer.status(), 503, "{answer:?}");
    assert!(answer.response.text().contains("zone"), "{answer:?}");
    assert_eq!(
        super::scene::seen(&scene.workers.iter().collect::<Vec<_>>()),
        0
    );
}
