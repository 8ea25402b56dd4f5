use grapevine_placement::{ClusterSettings, ModelSettings, Models, Target, Weight};

use super::*;
use crate::alone::{Alone, worker};
use crate::config::KvEventsConfig;

/// A key for `a`, and for `alias`, which is `org/a`.
fn watch() -> Watch {
    Watch::new(Box::new(|asked| match asked {
        "a" => Some("a".to_owned()),
        "alias" => Some("org/a".to_owned()),
        _ => None,
    }))
}

/// A client's frame: a first byte, and content.
fn frame(first: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame_of_client(content, &mut bytes);
    bytes[0] = first;
    bytes
}

fn text(content: &str) -> Vec<u8> {
    frame(0x81, content.as_bytes())
}

/// The messages in a client's frames.
fn messages(bytes: &[u8]) -> Vec<String> {
    let (mut rest, mut all, mut open) = (bytes, Vec::new(), Vec::new());
    while !rest.is_empty() {
        let mut head = Head::default();
        let (taken, is_whole) = head.read(rest);
        assert!(is_whole);
        let (content, others) = rest[taken..].split_at(head.length() as usize);
        rest = others;
        let mask = head.mask().unwrap_or_default();
        let content = content
            .iter()
            .zip(mask.iter().cycle())
            .map(|(byte, key)| byte ^ key);
        if head.opcode() == Some(Opcode::Control) {
            all.push(format!(
                "control {}",
                String::from_utf8_lossy(&content.collect::<Vec<_>>())
            ));
            continue;
        }
        open.extend(content);
        if head.is_last() {
            all.push(String::from_utf8(std::mem::take(&mut open)).expect("UTF-8"));
        }
    }
    assert!(open.is_empty());
    all
}

/// What the worker reads, and the codes of the refusals, whatever the pieces in which it comes.
fn pass(bytes: &[u8]) -> (Vec<String>, Vec<String>) {
    let read = |piece: usize| {
        let (mut watch, mut out) = (watch(), Vec::new());
        for piece in bytes.chunks(piece) {
            watch.read(piece, &mut out).expect("the session goes on");
        }
        let refusals = messages(&watch.take_refusals());
        let counted = watch.take_uncounted();
        let codes = refusals.iter().map(|event| {
            let event: serde_json::Value = serde_json::from_str(event).expect("JSON");
            assert_eq!(event["type"], "error");
            assert_eq!(event["error"]["type"], "invalid_request_error");
            event["error"]["code"].as_str().expect("a code").to_owned()
        });
        let codes: Vec<_> = codes.collect();
        assert!(codes.iter().eq(counted.iter().map(|kind| kind.code())));
        (messages(&out), codes)
    };
    let whole = read(bytes.len());
    for piece in [1, 2, 3, 7, 1_000] {
        assert_eq!(read(piece), whole, "in pieces of {piece}");
    }
    whole
}

fn ends(bytes: &[u8]) -> CloseCode {
    let end = |piece: usize| {
        let (mut watch, mut out) = (watch(), Vec::new());
        let mut ends = bytes.chunks(piece).map(|piece| watch.read(piece, &mut out));
        ends.find_map(Result::err).expect("the session ends")
    };
    let code = end(1_000);
    assert_eq!(end(1), code);
    code
}

#[test]
fn an_update_names_a_model_of_the_key_or_does_not_pass() {
    for (said, heard) in [
        (
            r#"{"type":"session.update","model":"a"}"#,
            r#"{"type":"session.update","model":"a"}"#,
        ),
        (
            r#"{ "model" : "alias", "type":"session.update", "x":"alias" }"#,
            r#"{ "model" : "org/a", "type":"session.update", "x":"alias" }"#,
        ),
        (
            r#"{"session":{"y":1,"model":"ali\u0061s"},"type":"session.update","model":"alias"}"#,
            r#"{"session":{"y":1,"model":"org/a"},"type":"session.update","model":"org/a"}"#,
        ),
        (
            r#"{"type":"session.update","session":{}}"#,
            r#"{"type":"session.update","session":{}}"#,
        ),
        (
            r#"{"type":"other","model":"b"}"#,
            r#"{"type":"other","model":"b"}"#,
        ),
        ("not JSON", "not JSON"),
        ("", ""),
    ] {
        assert_eq!(
            pass(&text(said)),
            (vec![heard.to_owned()], vec![]),
            "{said}"
        );
    }
    for (said, code) in [
        (
            r#"{"type":"session.update","model":"b"}"#,
            "model_not_found",
        ),
        (
            r#"{"model":"b","type":"session.update"}"#,
            "model_not_found",
        ),
        (
            r#"{"type":"session.update","session":{"model":"b"}}"#,
            "model_not_found",
        ),
        (
            r#"{"type":"session.update","model":"a","session":{"model":"b"}}"#,
            "model_not_found",
        ),
        (
            r#"{"\u0074ype":"session.update","mode\u006c":"b"}"#,
            "model_not_found",
        ),
        (
            r#"{"type":"session.update","model":"a","model":"b"}"#,
            "invalid_request",
        ),
        (
            r#"{"type":"session.update","type":"x","model":"b"}"#,
            "invalid_request",
        ),
        (r#"{"type":"session.update","model":7}"#, "invalid_request"),
        (r#"{"type":"session.update","model":"b""#, "invalid_request"),
        (
            r#"{"type":"session.update","x":NaN,"model":"b"}"#,
            "invalid_request",
        ),
    ] {
        assert_eq!(pass(&text(said)), (vec![], vec![code.to_owned()]), "{said}");
    }
}

#[test]
fn messages_in_pieces_are_read_whole_and_control_frames_go_ahead() {
    let pieces = |update: &str| {
        let (first, rest) = update.split_at(9);
        let (second, third) = rest.split_at(12);
        [
            frame(0x01, first.as_bytes()),
            frame(0x89, b"ping"),
            frame(0x00, second.as_bytes()),
            frame(0x00, b""),
            frame(0x80, third.as_bytes()),
            text("next"),
        ]
        .concat()
    };
    let good = r#"{"type":"session.update","model":"a"}"#;
    let heard = ["control ping", good, "next"].map(str::to_owned).to_vec();
    assert_eq!(pass(&pieces(good)), (heard, vec![]));
    let heard = ["control ping", "next"].map(str::to_owned).to_vec();
    let bad = good.replace("\"a\"", "\"b\"");
    assert_eq!(
        pass(&pieces(&bad)),
        (heard, vec!["model_not_found".to_owned()])
    );
}

#[test]
fn what_is_long_passes_unless_it_turns_out_to_be_an_update() {
    let audio = "A".repeat(300_000);
    for long in [
        format!(r#"{{"type":"input_audio_buffer.append","audio":"{audio}"}}"#),
        format!(r#"{{"audio":"{audio}","type":"input_audio_buffer.append"}}"#),
        audio.clone(),
    ] {
        let (heard, refused) = pass(&text(&long));
        assert!(heard == [long] && refused.is_empty());
    }
    let update = format!(r#"{{"type":"session.update","x":"{audio}","model":"b"}}"#);
    assert_eq!(
        pass(&[text(&update), text("next")].concat()),
        (vec!["next".to_owned()], vec!["invalid_request".to_owned()])
    );
    for late in [
        format!(r#"{{"audio":"{audio}","model":"b","type":"session.update"}}"#),
        format!(r#"{{"type":"x","audio":"{audio}","model":"b","type":"session.update"}}"#),
    ] {
        assert_eq!(ends(&text(&late)), CloseCode::Policy);
    }
    // What waits for its type is bounded, also where it has no content.
    let (mut watch, mut out) = (watch(), Vec::new());
    watch
        .read(&frame(0x01, b"{"), &mut out)
        .expect("it goes on");
    for _ in 0..40_000 {
        watch.read(&frame(0x00, b""), &mut out).expect("it goes on");
    }
    assert!(out.len() > 6 * 40_000 - 2 * HELD_BYTES_MAX, "{}", out.len());
}

#[test]
fn frames_that_no_client_may_send_end_the_session() {
    let mut unmasked = Vec::new();
    frame_of_server(b"{}", &mut unmasked);
    for bytes in [
        unmasked,
        frame(0xc1, b"compressed"),
        frame(0x80, b"continues nothing"),
        frame(0x83, b"unknown"),
        [frame(0x01, b"begun"), frame(0x81, b"again")].concat(),
    ] {
        assert_eq!(ends(&bytes), CloseCode::Protocol);
    }
}

#[test]
fn a_client_that_reads_no_refusal_gets_no_more_of_them() {
    let update = text(r#"{"type":"session.update","model":"b"}"#);
    let (mut watch, mut out) = (watch(), Vec::new());
    let mut ends = (0..1_000).map(|_| watch.read(&update, &mut out));
    assert_eq!(ends.find_map(Result::err), Some(CloseCode::Policy));
    assert!(watch.refusals.len() < 2 * REFUSALS_BYTES_MAX && out.is_empty());
}

#[tokio::test]
async fn a_worker_hears_no_alias() {
    let alias_of = |model: &str| ModelSettings {
        targets: vec![Target {
            model: model.to_owned(),
            weight: Weight::ONE,
        }],
        ..ModelSettings::default()
    };
    let models = [("own", "org/a"), ("other", "org/b")];
    let models = models.map(|(alias, model)| (alias.to_owned(), alias_of(model)));
    let settings = ClusterSettings {
        models: Models::new(models.into()).expect("they lead to models"),
        ..ClusterSettings::default()
    };
    let workers = [worker(0, "org/a")];
    let house = Alone::of(settings, "r1", workers, &KvEventsConfig::default(), 1);
    let pool = house.cluster.fleet().pool("org/a").expect("it is served");
    let cluster = Arc::new(house.cluster);
    let scope = SessionScope::of(&cluster, None, "org/a").expect("there are aliases");
    let worker = &pool.members()[0].worker;
    for (asked, name) in [
        ("org/a", "org/a"),
        ("own", "org/a"),
        // It does not serve it, and says so of a model, not of a name that only the router knows.
        ("other", "org/b"),
        ("org/c", "org/c"),
    ] {
        assert_eq!(scope.name_of(asked, worker), Some(name), "{asked}");
    }
}
