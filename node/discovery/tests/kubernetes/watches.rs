//! Watches that break, grow silent or are too old: no change is lost by them.

use std::time::Duration;

use grapevine_discovery::kubernetes::KubernetesSettings;
use grapevine_testbed::fake_kubernetes::{Config, Fault, Network, Rule, When};

use crate::scene::{Scene, pod, ready, rule, settings};

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_watch_is_confirmed_again_and_again() {
    let scene = Scene::with(&["a"]).await;
    scene.sees(&["a"]).await;
    let first = scene.watcher.sight().seen.expect("it was seen");
    scene
        .until("it is confirmed without a list", |scene| {
            scene.watcher.sight().seen > Some(first) && scene.answers("watch 200") > 1
        })
        .await;
    assert_eq!(scene.answers("list 200"), 1);
    assert_eq!(scene.watcher.sight().failures, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_while_the_watch_is_down_is_not_lost() {
    let scene = Scene::with(&["a", "b"]).await;
    scene.sees(&["a", "b"]).await;
    scene.server.network(Network::Refusing);
    scene.fails().await;
    assert_eq!(scene.workers(), ["a", "b"], "what cannot be seen stays");
    assert!(scene.watcher.fresh().is_none(), "and is not acted on");
    // It goes while nobody watches, and the history forgets it.
    let unseen = Rule {
        when: When {
            verb: Some("list".to_owned()),
            ..When::default()
        },
        times: None,
        fault: Fault::Unavailable,
    };
    scene.server.add_rule(unseen).expect("few rules");
    scene.server.network(Network::Open);
    scene.delete("a", 0).await;
    scene.server.compact();
    scene.server.clear_rules();
    scene.sees(&["b"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revision_that_is_too_old_is_healed_by_a_list_in_each_form() {
    for fault in [Fault::Gone, Fault::GoneEvent] {
        let scene = Scene::with(&["a"]).await;
        scene.sees(&["a"]).await;
        scene
            .server
            .add_rule(rule("watch", 1, fault.clone()))
            .expect("few rules");
        scene.answered("list 200", 2).await;
        scene.create("default", pod("b")).await;
        scene.status("default", "b", ready("10.0.0.2")).await;
        scene.sees(&["a", "b"]).await;
        assert_eq!(scene.watcher.sight().failures, 0, "{fault:?} is no failure");
    }
}

/// As when the API server, or a balancer before it, starts anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_whose_connection_is_reset_is_healed_by_a_list() {
    let settings = KubernetesSettings {
        watch_for: Duration::from_secs(60),
        ..settings()
    };
    let scene = Scene::of(Config::default(), settings, &["a"], |_| {}).await;
    scene.sees(&["a"]).await;
    for resets in 1..=2 {
        scene.answered("watch 200", resets).await;
        scene.server.reset();
        scene.answered("list 200", 1 + resets).await;
    }
    scene.create("default", pod("b")).await;
    scene.status("default", "b", ready("10.0.0.2")).await;
    scene.sees(&["a", "b"]).await;
    // A list that met a reset as well may have failed; nothing is wrong after it.
    assert_eq!(scene.watcher.sight().failure, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compacted_history_is_healed_by_a_list() {
    let scene = Scene::with(&["a"]).await;
    scene.sees(&["a"]).await;
    scene.server.stall(true);
    scene.create("default", pod("b")).await;
    scene.status("default", "b", ready("10.0.0.2")).await;
    scene.delete("a", 0).await;
    scene.server.compact();
    scene.server.stall(false);
    scene.sees(&["b"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn revisions_that_are_always_too_old_are_a_failure_that_is_told() {
    let scene = Scene::with(&["a"]).await;
    scene.sees(&["a"]).await;
    scene
        .server
        .add_rule(rule("watch", 40, Fault::GoneEvent))
        .expect("few rules");
    let why = scene.fails().await;
    assert!(why.contains("410"), "{why}");
    scene.sees(&["a"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_without_a_byte_is_found_dead_and_its_changes_are_seen() {
    let scene = Scene::with(&["a"]).await;
    scene.sees(&["a"]).await;
    // Neither an event nor an end; the server answers lists as ever.
    scene.server.stall(true);
    scene.create("default", pod("b")).await;
    scene.status("default", "b", ready("10.0.0.2")).await;
    scene
        .until("the silence is told", |scene| {
            scene.watcher.sight().failures > 0
        })
        .await;
    scene
        .until("a list shows the change", |scene| {
            scene.workers() == ["a", "b"]
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_connection_is_left_for_a_new_one() {
    let scene = Scene::with(&["a"]).await;
    scene.sees(&["a"]).await;
    scene
        .until("a watch is open", |scene| {
            scene.server.stats().open_watches == 1
        })
        .await;
    scene.server.half_open();
    let why = scene.fails().await;
    assert!(why.contains("silent"), "{why}");
    scene.sees(&["a"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_in_pages_is_whole_and_begins_anew_when_it_expires() {
    let settings = KubernetesSettings {
        page_size: 2,
        ..settings()
    };
    let names = ["a", "b", "c", "d", "e"];
    let scene = Scene::of(Config::default(), settings, &names, |server| {
        let second_page = When {
            verb: Some("list".to_owned()),
            continued: Some(true),
            ..When::default()
        };
        let expired = Rule {
            when: second_page,
            times: Some(1),
            fault: Fault::Gone,
        };
        server.add_rule(expired).expect("few rules");
    })
    .await;
    scene.sees(&names).await;
    // One page before it expired, then three.
    assert_eq!(
        (scene.answers("list 200"), scene.answers("list 410")),
        (4, 1)
    );
    assert_eq!(scene.watcher.sight().failures, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_ends_within_a_line_loses_nothing() {
    let scene = Scene::with(&["a"]).await;
    scene.sees(&["a"]).await;
    scene
        .server
        .add_rule(rule("watch", 1, Fault::CutLine))
        .expect("few rules");
    scene.create("default", pod("b")).await;
    scene.status("default", "b", ready("10.0.0.2")).await;
    scene.sees(&["a", "b"]).await;
}
