//! Refusals: the last picture stays, the reason says what to do, and the source goes on by itself.

use std::time::Duration;

use grapevine_discovery::kubernetes::KubernetesSettings;
use grapevine_testbed::fake_kubernetes::{Config, Fault, Grant, Network};
use tokio::time::Instant;

use crate::scene::{Scene, rule, settings};

fn grant(verbs: &[&str], namespace: Option<&str>) -> Grant {
    Grant {
        verbs: verbs.iter().map(|&verb| verb.to_owned()).collect(),
        namespace: namespace.map(str::to_owned),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_permission_is_named_with_verb_and_namespace() {
    let scene = Scene::of(Config::default(), settings(), &["a"], |server| {
        let nothing = grant(&["get"], Some("default"));
        server.grant(Some(vec![nothing])).expect("few grants");
    })
    .await;
    let why = scene.fails().await;
    assert!(
        why.contains("allow to list pods in the namespace \"default\""),
        "{why}"
    );
    assert!(why.contains("a Role with"), "{why}");
    // The server's own words, which people search for.
    assert!(why.contains("cannot list resource \"pods\""), "{why}");
    let lists = grant(&["list"], Some("default"));
    scene.server.grant(Some(vec![lists])).expect("few grants");
    scene
        .until("the next verb is named", |scene| {
            let why = scene.watcher.sight().failure.unwrap_or_default();
            why.contains("allow to watch pods")
        })
        .await;
    let all = grant(&["list", "watch"], Some("default"));
    scene.server.grant(Some(vec![all])).expect("few grants");
    scene.sees(&["a"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_namespaces_need_a_cluster_role_and_the_refusal_says_so() {
    let everywhere = KubernetesSettings {
        namespaces: vec!["*".to_owned()],
        ..settings()
    };
    let scene = Scene::of(Config::default(), everywhere, &[], |server| {
        let here = grant(&["*"], Some("default"));
        server.grant(Some(vec![here])).expect("few grants");
    })
    .await;
    let why = scene.fails().await;
    assert!(
        why.contains("in all namespaces") && why.contains("a ClusterRole"),
        "{why}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_was_rotated_is_read_again() {
    let scene = Scene::with(&["a"]).await;
    scene.sees(&["a"]).await;
    scene.server.rotate_token(false).expect("it rotates");
    let why = scene.fails().await;
    assert!(why.contains("401"), "{why}");
    assert_eq!(scene.workers(), ["a"], "the last picture stays");
    scene.server.rotate_token(true).expect("it rotates");
    scene.sees(&["a"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_requests_are_answered_by_waiting_as_told() {
    let begun = Instant::now();
    let scene = Scene::of(Config::default(), settings(), &["a"], |server| {
        let busy = rule("list", 1, Fault::TooManyRequests(2));
        server.add_rule(busy).expect("few rules");
    })
    .await;
    let why = scene.fails().await;
    assert!(why.contains("429"), "{why}");
    scene.sees(&["a"]).await;
    assert!(begun.elapsed() >= Duration::from_secs(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_empties_nothing() {
    let scene = Scene::with(&["a", "b"]).await;
    scene.sees(&["a", "b"]).await;
    for network in [Network::Refusing, Network::Silent] {
        scene.server.network(network);
        let why = scene.fails().await;
        assert!(why.contains("the API server"), "{why}");
        assert_eq!(scene.workers(), ["a", "b"]);
        scene.server.network(Network::Open);
        scene.sees(&["a", "b"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_the_server_pass() {
    let scene = Scene::of(Config::default(), settings(), &["a"], |server| {
        for fault in [
            Fault::InternalError,
            Fault::Unavailable,
            Fault::HangUp,
            Fault::Stall,
        ] {
            server.add_rule(rule("list", 1, fault)).expect("few rules");
        }
    })
    .await;
    scene.sees(&["a"]).await;
    assert!(scene.watcher.sight().failures >= 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubeconfig_that_is_not_there_is_told() {
    let (feed, watcher) = grapevine_discovery::feed("kubernetes", Duration::from_secs(60));
    let settings = KubernetesSettings {
        kubeconfig: Some("no/such/kubeconfig".into()),
        ..settings()
    };
    let mut changed = watcher.clone();
    let source = grapevine_discovery::kubernetes::run(settings, feed);
    tokio::select! {
        () = source => panic!("it goes on as long as somebody reads"),
        () = changed.changed() => {}
    }
    let why = watcher.sight().failure.expect("it failed");
    assert!(
        why.contains("kubeconfig") && why.contains("service account"),
        "{why}"
    );
}
