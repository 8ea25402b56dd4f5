//! F-W6: a drained worker gets no new requests, sessions move, open answers end whole; later it is used
//! again.

use std::time::Duration;

use grapevine_tests::chat::{self, Ending, Stream, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::invariants;
use grapevine_tests::process;
use serde_json::json;

/// Long enough for a command line to see it open.
const TOKENS: u32 = 60;
const STEP: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread")]
async fn sessions_move_at_once_open_streams_end_whole_and_the_wait_sees_every_replica() {
    let workers = chat::workers(2, &chat::paced(STEP)).await;
    let cluster = Plan::default().workers(&workers).start(2).await;
    let [r1, r2] = [0, 1].map(|at| &cluster.replicas[at]);
    let admin = format!("http://{}", r1.admin().0);
    let run = async |words: &[&str]| {
        let words = [&["workers"], words, &["--admin", &admin]].concat();
        process::run(&words).await
    };
    let mut turn = streamed("Tell me a long story.", TOKENS);
    let mut open = Stream::open(r2.data(), &turn).await.expect("a head");
    open.read_events(1).await.expect("a first token");
    let home = open.head().header("x-grapevine-worker").expect("said");
    let home = home.to_owned();

    // A wait that times out does not change the drain.
    let given_up = run(&["drain", &home, "--wait", "--timeout", "1"]).await;
    assert_eq!(given_up.code, Some(1), "{}", given_up.text);
    for part in ["draining", "1 in flight (r2: 1)", "is still draining"] {
        assert!(given_up.text.contains(part), "no {part}: {}", given_up.text);
    }
    assert_eq!(r2.admin().worker(&home).await.state, "draining");

    // The next turn of the session, and anything new, goes elsewhere, from both replicas.
    turn["messages"] = json!([
        { "role": "user", "content": "Tell me a long story." },
        { "role": "assistant", "content": "Once upon a time." },
        { "role": "user", "content": "Go on." },
    ]);
    turn["max_tokens"] = 2.into();
    for replica in [r1, r2] {
        for body in [turn.clone(), streamed("Something new.", 2)] {
            let outcome = chat::stream(replica.data(), &body).await;
            assert_eq!(outcome.ending, Ending::Done);
            assert_ne!(outcome.worker.as_ref(), Some(&home), "{body}");
        }
    }
    // The same worker in another spelling.
    let spelled = format!("{home}/");
    let words = ["drain", spelled.as_str(), "--wait"];
    let (drained, ended) = tokio::join!(run(&words), open.finish());
    assert_eq!(ended.ending, Ending::Done, "the drain cuts nothing");
    assert_eq!(drained.code, Some(0), "{}", drained.text);
    for part in ["1 in flight (r2: 1)", "0 in flight\n", "drained"] {
        assert!(drained.text.contains(part), "no {part}: {}", drained.text);
    }

    // After the drain is undone, the worker has its prompts again. Who was not drained stays as it is.
    let urls: Vec<String> = workers.iter().map(|worker| worker.url()).collect();
    let mut words = vec!["activate"];
    words.extend(urls.iter().map(String::as_str));
    let active = run(&words).await;
    assert_eq!(active.code, Some(0), "{}", active.text);
    assert_eq!(
        active.text.matches("active:").count(),
        urls.len(),
        "{}",
        active.text
    );
    cluster.settled().await;
    let again = chat::stream(r1.data(), &streamed("Tell me a long story.", 2)).await;
    assert_eq!(again.worker, Some(home.clone()));
    let help = process::run(&["workers", "drain", "--help"]).await;
    assert!(help.text.contains("sessions move"), "{}", help.text);
    invariants::hold(&cluster, &workers, &[]).await;
}
