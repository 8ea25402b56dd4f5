//! What happens to pods, and what becomes of their workers.

use grapevine_discovery::kubernetes::KubernetesSettings;
use grapevine_gossip::worker::Role;
use grapevine_testbed::fake_kubernetes::Config;
use serde_json::json;

use crate::scene::{Scene, pod, ready, settings};

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_a_worker_from_its_address_to_its_end() {
    let scene = Scene::with(&[]).await;
    scene.sees(&[]).await;
    scene.create("default", pod("a")).await;
    let waiting = json!({ "status": { "podIP": "10.0.0.1" } });
    scene.status("default", "a", waiting).await;
    scene.sees(&["a-"]).await;
    scene.status("default", "a", ready("10.0.0.1")).await;
    scene.sees(&["a"]).await;
    // Told to end: no new prompts. Gone: no worker.
    scene.delete("a", 60).await;
    scene.sees(&["a-"]).await;
    scene.delete("a", 0).await;
    scene.sees(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_not_ready_stays_known_and_takes_no_prompts() {
    let scene = Scene::with(&["a", "b"]).await;
    scene.sees(&["a", "b"]).await;
    let unready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
    scene.status("default", "a", unready).await;
    scene.sees(&["a-", "b"]).await;
    scene.status("default", "a", ready("10.0.0.1")).await;
    scene.sees(&["a", "b"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_address_is_cleared_is_no_worker() {
    let scene = Scene::with(&["a", "b"]).await;
    scene.sees(&["a", "b"]).await;
    let evicted = json!({ "status": { "podIP": null } });
    scene.status("default", "a", evicted).await;
    scene.sees(&["b"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_labels_do_not_match_any_more_is_no_worker() {
    let scene = Scene::with(&["a", "b"]).await;
    scene.sees(&["a", "b"]).await;
    let relabelled = json!({ "metadata": { "labels": { "app": "other" } } });
    scene.patch("a", relabelled).await;
    scene.sees(&["b"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_made_anew_under_its_name_keeps_its_id() {
    let scene = Scene::with(&["a"]).await;
    scene.sees(&["a"]).await;
    let seen = |scene: &Scene| {
        let picture = scene.watcher.sight().picture.expect("it was seen");
        let first = picture.iter().next();
        first.map(|(id, found)| (id.clone(), found.spec().url().host().to_owned()))
    };
    let (id, _) = seen(&scene).expect("one worker");
    scene.delete("a", 0).await;
    scene.create("default", pod("a")).await;
    scene.status("default", "a", ready("10.0.0.9")).await;
    let successor = Some((id, "10.0.0.9".to_owned()));
    let is_seen = |scene: &Scene| seen(scene) == successor;
    scene.until("the successor is seen", is_seen).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_and_roles_come_from_annotations_and_selectors() {
    let config = Config {
        namespaces: vec!["default".to_owned(), "other".to_owned()],
        ..Config::default()
    };
    let settings = KubernetesSettings {
        namespaces: vec!["*".to_owned()],
        prefill_selector: Some("app=vllm,part in (prefill)".to_owned()),
        ..settings()
    };
    let scene = Scene::of(config, settings, &["a"], |_| {}).await;
    let mut two = pod("b");
    two["metadata"]["annotations"] = json!({ "smg.ai/worker-ports": "8000,8001" });
    two["metadata"]["labels"]["part"] = json!("prefill");
    scene.create("other", two).await;
    scene.status("other", "b", ready("fd00::1")).await;
    scene.sees(&["a", "b", "b:8001"]).await;
    let picture = scene.watcher.fresh().expect("it was just seen");
    let prefill = picture
        .iter()
        .filter(|(_, found)| found.spec().role() == Role::Prefill);
    assert_eq!(prefill.count(), 2);
}
