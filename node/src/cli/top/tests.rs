//! Frames of a cluster in which much is wrong, compared letter by letter with those in `golden/`; any size; keys.
//!
//! `GRAPEVINE_WRITE_FRAMES=1 cargo test -p grapevine --lib top` writes them anew: look at what changed.

use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::app::{App, Done, Subject};
use super::picture::Picture;
use super::view::View;
use super::views;
use crate::cli::events::Event as Happened;
use crate::cli::failure::Failure;

fn replica(id: &str, live: bool, ring: &str) -> Value {
    json!({
        "id": id, "live": live, "ready": true, "leaving": false, "ring": ring, "settings": "s", "for_s": 40,
        "registry": "0badcafe", "version": "1.0.0", "admin": "10.0.0.1:30001", "heard_ms": 300,
        "round_trip_ms": 0.42, "certificate_days": if id == "r2" { 5 } else { 80 },
    })
}

fn worker(id: &str, verdict: &str, in_flight: f64) -> Value {
    json!({
        "id": id, "state": "active", "verdict": verdict, "verdict_for_s": 12, "models": ["llama"], "role": "any",
        "in_flight": in_flight, "in_flight_here": 1, "hit_rate": 0.25, "breaker": "closed", "sources": ["config"],
        "drained": false, "failed_check": null,
    })
}

fn chart(id: &str, title: &str, unit: &str, scale: f64) -> Value {
    let points = |shift: u64| {
        let point = |n: u64| match n {
            // A minute without a sample.
            150..=180 => json!([3_600 - n * 10, null]),
            _ => json!([3_600 - n * 10, ((n * 37 + shift) % 101) as f64 * scale]),
        };
        (0..360).map(point).collect::<Vec<_>>()
    };
    json!({
        "id": id, "title": title, "unit": unit, "span_s": 3_600, "until_s": 86_400 * 20_000 + 7_200,
        "lines": [{ "name": "median", "points": points(0) }, { "name": "99 of 100", "points": points(50) }],
        "marks": [{ "ago_s": 1_800, "kind": "fault" }, { "ago_s": 900, "kind": "repair" }],
    })
}

fn picture() -> Picture {
    let ids = ["r1", "r2", "r3"];
    let row = |of: &str| {
        let hears = ids.iter().filter(|id| **id != of).map(|id| {
            let ago = (of, *id) != ("r2", "r1");
            json!({ "replica": id, "ago_ms": ago.then_some(120) })
        });
        json!({ "replica": of, "hears": hears.collect::<Vec<_>>() })
    };
    let event = |at_s: u64, kind: &str, who: &str, text: &str| Happened {
        at_s: 86_400 * 20_000 + at_s,
        kind: kind.to_owned(),
        who: who.to_owned(),
        text: text.to_owned(),
        seen_by: vec!["r1".to_owned(), "r3".to_owned()],
    };
    let hostile = "http://10.0.0.9:8000";
    let mut other = worker(hostile, "good", 3.0);
    other["models"] = json!(["a\u{1b}[2Jb", "模型"]);
    Picture {
        cluster: json!({
            "replica": "r1", "digest": "d1", "settings": "s", "missing": [], "agreeing": 2, "live": 3,
            "agreement": 0.987, "agreement_samples": 512,
            "replicas": [replica("r1", true, "d1"), replica("r2", true, "other"), replica("r3", true, "d1"),
                replica("r4", false, "d1")],
            "unheard": [{ "replica": "r2", "other": "r1" }],
            "minute": { "requests_per_s": 12.5, "requests": 750, "refused": 0, "failed": 0, "in_flight": 13.0,
                "waiting": 0.0, "hit_rate": 0.7, "first_token_p50_ms": 41.0, "first_token_p99_ms": 230.0 },
        }),
        workers: vec![
            worker("http://10.0.0.5:8000", "good", 9.0),
            worker("http://10.0.0.6:8000", "stalled", 1.0),
            worker("http://10.0.0.7:8000", "unreachable", 0.0),
            other,
        ],
        links: json!({ "replica": "r1", "links": ids.map(row) }),
        rings: json!({ "digest": "d1", "pools": [{
            "model": "llama", "role": "any", "digest": "p1", "policy": "prefix", "panic": true, "count": 3,
            "workers": ["http://10.0.0.5:8000", "http://10.0.0.6:8000", "http://10.0.0.7:8000"],
            "shares": [0.4, 0.35, 0.25],
        }] }),
        history: json!({ "replica": "r1",
            "charts": [
                chart("requests", "Requests that ended here, a second", "per_second", 1.0),
                chart("first-token", "Time to the first token", "seconds", 0.01),
                chart("load", "Requests under way", "count", 1.0),
            ],
            "agreement": [{ "reason": "same", "count": 300 }, { "reason": "load", "count": 4 },
                { "reason": "settings", "count": 0 }],
        }),
        events: vec![
            event(3_600, "fault", "r4", "is dead"),
            event(
                3_700,
                "fault",
                "http://10.0.0.6:8000",
                "is giving no tokens",
            ),
            event(3_800, "repair", "r\u{202e}5", "is alive again"),
        ],
        not_asked: vec!["r4: it is dead".to_owned()],
        asked: "http://10.0.0.1:30001/".to_owned(),
        notice: None,
        at: Instant::now(),
    }
}

fn shown(view: View) -> App {
    let mut app = App::new(view, false);
    app.show(picture());
    app
}

/// What a terminal of this size shows.
fn frame(app: &mut App, width: u16, height: u16) -> String {
    let backend = TestBackend::new(width, height);
    let mut terminal = Terminal::new(backend).expect("a buffer needs no system");
    let drawn = terminal.draw(|frame| {
        let area = frame.area();
        views::draw(app, area, frame.buffer_mut());
    });
    drawn.expect("a buffer takes everything");
    views::plain(terminal.backend().buffer())
}

fn press(app: &mut App, code: KeyCode) -> Done {
    app.on_event(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn golden(name: &str, found: &str) {
    let path = format!(
        "{}/src/cli/top/golden/{name}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    if std::env::var_os("GRAPEVINE_WRITE_FRAMES").is_some() {
        std::fs::write(&path, found).expect("the frame can be written");
    }
    let kept = std::fs::read_to_string(&path).expect("there is a frame of this name");
    assert_eq!(
        found, kept,
        "{name}: GRAPEVINE_WRITE_FRAMES=1 writes it anew"
    );
}

#[test]
fn every_view_is_as_it_was_looked_at() {
    for view in View::ALL {
        let name = view.as_str().to_lowercase().replace(' ', "-");
        golden(&name, &frame(&mut shown(view), 120, 40));
    }
    golden("overview-small", &frame(&mut shown(View::Overview), 60, 16));
    golden("workers-narrow", &frame(&mut shown(View::Workers), 40, 10));
    let mut app = shown(View::Overview);
    press(&mut app, KeyCode::Char('?'));
    golden("help", &frame(&mut app, 100, 20));
}

#[test]
fn any_size_is_drawn_and_the_first_thing_shown_is_what_is_wrong() {
    for view in View::ALL {
        for width in [0, 1, 2, 3, 7, 19, 20, 39, 40, 59, 60, 80, 300] {
            for height in [0, 1, 2, 3, 4, 5, 9, 16, 17, 28, 35, 100] {
                let mut app = shown(view);
                let text = frame(&mut app, width, height);
                if width >= 40 && height >= 1 {
                    assert!(
                        text.starts_with("✖ r2 does not hear r1;"),
                        "{width}x{height}: {text}"
                    );
                }
                app.is_help = true;
                frame(&mut app, width, height);
            }
        }
    }
    let mut empty = App::new(View::Hour, true);
    assert!(frame(&mut empty, 80, 24).contains("asking"));
}

#[test]
fn names_from_outside_do_not_reach_the_terminal_as_commands() {
    for view in View::ALL {
        let text = frame(&mut shown(view), 200, 60);
        let is_command =
            |letter: char| letter != '\n' && (letter.is_control() || letter == '\u{202e}');
        assert!(!text.contains(is_command), "{text:?}");
    }
    assert!(frame(&mut shown(View::Workers), 200, 20).contains("a\u{fffd}[2Jb, 模型"));
}

#[test]
fn keys_go_through_views_and_rows_and_into_the_hour_of_one() {
    let mut app = shown(View::Overview);
    for (key, view) in [
        (KeyCode::Char('3'), View::Workers),
        (KeyCode::Tab, View::Rings),
        (KeyCode::BackTab, View::Workers),
        (KeyCode::Char('1'), View::Overview),
        (KeyCode::Left, View::Events),
        (KeyCode::Right, View::Overview),
        (KeyCode::Char('3'), View::Workers),
    ] {
        assert_eq!(press(&mut app, key), Done::No);
        assert_eq!(app.view, view, "{key:?}");
    }
    frame(&mut app, 80, 24);
    press(&mut app, KeyCode::End);
    frame(&mut app, 80, 24);
    assert_eq!(app.row, 3, "the last of four");
    press(&mut app, KeyCode::Up);
    press(&mut app, KeyCode::Enter);
    let expected = Subject::Worker("http://10.0.0.5:8000".to_owned());
    assert_eq!((app.view, app.wanted().of), (View::Hour, expected));
    press(&mut app, KeyCode::Esc);
    assert_eq!(
        (app.view, app.wanted().of),
        (View::Workers, Subject::Cluster)
    );
    let before = app.wanted();
    press(&mut app, KeyCode::Char('r'));
    assert_ne!(app.wanted(), before, "asked at once");
    press(&mut app, KeyCode::Char('?'));
    assert!(frame(&mut app, 80, 24).contains("grapevine top"));
    press(&mut app, KeyCode::Char('5'));
    assert_eq!(app.view, View::Workers, "the key ended the help");
    assert_eq!(press(&mut app, KeyCode::Char('q')), Done::Yes);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(app.on_event(&Event::Key(interrupt)), Done::Yes);
    assert_eq!(app.on_event(&Event::Resize(3, 3)), Done::No);
}

#[test]
fn what_is_old_does_not_look_well() {
    let mut app = shown(View::Overview);
    let mut well = picture();
    well.cluster["unheard"] = json!([]);
    well.cluster["replicas"] = json!([replica("r1", true, "d1")]);
    well.workers.truncate(1);
    app.show(well);
    assert!(frame(&mut app, 120, 30).starts_with("● 1 replica; 1 worker usable"));
    app.answered(Err(Failure::Unreachable("no replica answers".to_owned())));
    let text = frame(&mut app, 120, 30);
    assert!(
        text.starts_with("✖ not live, of 0 s ago: 1 replica; 1 worker usable"),
        "{text}"
    );
    assert!(text.contains("✖ no replica answers"), "{text}");
    app.answered(Ok(picture()));
    assert!(!frame(&mut app, 120, 30).contains("not live"));
}

#[test]
fn a_picture_without_a_successor_does_not_look_live() {
    let mut app = shown(View::Overview);
    app.stale_after = Duration::ZERO;
    assert!(frame(&mut app, 120, 30).starts_with("✖ not live, of 0 s ago: r2 does not hear r1"));
}

/// As they are where admin ports are open to their own machines alone.
#[test]
fn replicas_that_are_not_asked_do_not_hide_what_happened() {
    let mut silent = picture();
    silent.not_asked = (2..22).map(|n| format!("r{n}: r1 answers there")).collect();
    silent.events.truncate(1);
    silent.events[0].at_s = u64::MAX;
    let mut app = App::new(View::Overview, false);
    app.show(silent);
    let text = frame(&mut app, 80, 24);
    assert!(text.contains("23:59:59  ▼ fault   r4 is dead"), "{text}");
    assert!(
        text.contains("▲ 20 replicas not asked: view 7, or `grapevine events`"),
        "{text}"
    );
    app.view = View::Events;
    let text = frame(&mut app, 80, 24);
    assert!(text.contains("not asked: r2: r1"), "{text}");
}

#[test]
fn what_a_line_ended_with_ten_minutes_ago_is_not_said_to_be_so_now() {
    let mut app = shown(View::Hour);
    assert!(!frame(&mut app, 120, 40).contains("median –"));
    let mut ended = picture();
    let charts = ended.history["charts"].as_array_mut().expect("charts");
    for line in charts
        .iter_mut()
        .filter_map(|of| of["lines"].as_array_mut())
    {
        let points = line.iter_mut().filter_map(|of| of["points"].as_array_mut());
        points.for_each(|points| points.truncate(300));
    }
    app.show(ended);
    let text = frame(&mut app, 120, 40);
    assert!(text.contains("median –"), "{text}");
}

#[test]
fn a_text_that_ends_too_early_says_so() {
    let ends = |workers: usize| {
        let mut many = picture();
        let id = |n| worker(&format!("w{n}"), "good", 0.0);
        many.workers = (0..workers).map(id).collect();
        let mut app = App::new(View::Workers, false);
        super::text_of(&mut app, many, 120).contains("these are the first 600 lines")
    };
    assert!(ends(700) && !ends(70));
}
