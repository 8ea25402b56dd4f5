use proptest::prelude::*;

use super::*;

fn headers(kind: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, kind.parse().expect("a value"));
    headers
}

fn scanner() -> Scanner {
    Scanner::new(&headers("multipart/form-data; boundary=AaB03x")).expect("a boundary")
}

fn part(head: &str, content: &str) -> String {
    format!("--AaB03x\r\n{head}\r\n\r\n{content}\r\n")
}

fn named(name: &str, content: &str) -> String {
    part(
        &format!("Content-Disposition: form-data; name=\"{name}\""),
        content,
    )
}

/// An upload of one field that says how it is written.
fn typed(name: &str, kind: &str, content: &str) -> String {
    let disposition = format!("Content-Disposition: form-data; name=\"{name}\"");
    let head = format!("Content-Type: {kind}\r\n{disposition}");
    upload(&[part(&head, content)])
}

fn upload(parts: &[String]) -> String {
    format!("{}--AaB03x--\r\n", parts.concat())
}

/// The model of a whole upload, and whether it asks for a stream.
fn read(body: &str) -> Result<(Option<String>, bool), ApiError> {
    let mut scanner = scanner();
    scanner.end(body.as_bytes())?;
    let model = scanner.model().map(|at| body[at].to_owned());
    Ok((model, scanner.stream()))
}

const FILE: &str =
    "Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav";

fn ordinary() -> String {
    upload(&[
        named("language", "en"),
        part(FILE, "RIFF\r\n--AaB03\r\n\r\nname=\"model\"\r\n\r\nother"),
        named("model", "org/whisper"),
        named("stream", "True"),
    ])
}

fn expected_of_ordinary() -> (Option<String>, bool) {
    (Some("org/whisper".to_owned()), true)
}

#[test]
fn the_model_is_found_wherever_it_stands() {
    assert_eq!(
        read(&ordinary()).expect("well-formed"),
        expected_of_ordinary()
    );
    for (parts, expected) in [
        (vec![named("model", "a"), part(FILE, "x")], Some("a")),
        (vec![part(FILE, "x")], None),
        (vec![named("model", "")], Some("")),
        (vec![named("Model", "a"), named("models", "b")], None),
        (
            vec![part(
                "content-type: text/plain\r\ncontent-disposition: FORM-DATA;name=model",
                "a",
            )],
            Some("a"),
        ),
        // As clients for Java write it by themselves.
        (
            vec![part(
                "Content-Disposition: form-data; name=\"model\"\r\nContent-Type: text/plain; charset=ISO-8859-1\r\nContent-Transfer-Encoding: 8bit",
                "a",
            )],
            Some("a"),
        ),
        (
            vec![part(
                "Content-Disposition: form-data; name=\"model\"\r\nContent-Type: text/plain; charset=\"UTF-8\"",
                "\u{e9}",
            )],
            Some("\u{e9}"),
        ),
        // Nothing is read of a file.
        (
            vec![part(
                "Content-Disposition: form-data; name=\"file\"; filename=\"a\"\r\nContent-Type: text/plain; charset=utf-16",
                "x",
            )],
            None,
        ),
        (
            vec![
                part(
                    "Content-Disposition: form-data; name=\"file\"; filename=\"C:\\x\\é; name=model\"",
                    "x",
                ),
                named("model", "b"),
            ],
            Some("b"),
        ),
    ] {
        let body = upload(&parts);
        let (model, stream) =
            read(&body).unwrap_or_else(|error| panic!("{body}: {}", error.message));
        assert_eq!(model.as_deref(), expected, "{body}");
        assert!(!stream);
    }
    for (before, after) in [
        ("", "\r\n"),
        ("\r\n", ""),
        ("\r\n\r\n", " \r\n\r\n"),
        ("", "\t"),
    ] {
        let padded = format!("{before}{}{after}", ordinary());
        let found = read(&padded).unwrap_or_else(|error| panic!("{padded:?}: {}", error.message));
        assert_eq!(found, expected_of_ordinary(), "{padded:?}");
    }
    let empty = read("--AaB03x--").expect("no parts");
    assert_eq!(empty, (None, false));
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    let model = named("model", "a");
    let disposition = |rest: &str| part(&format!("Content-Disposition: form-data{rest}"), "b");
    for (what, body) in [
        ("nothing", String::new()),
        ("no end", format!("{model}--AaB03x")),
        ("no last boundary", model.clone()),
        (
            "a preamble",
            format!("x\r\n{}", upload(std::slice::from_ref(&model))),
        ),
        (
            "an epilogue",
            format!("{}x", upload(std::slice::from_ref(&model))),
        ),
        ("twice", upload(&[model.clone(), named("model", "a")])),
        (
            "a blank behind a boundary",
            upload(std::slice::from_ref(&model)).replacen("--AaB03x\r\n", "--AaB03x \r\n", 1),
        ),
        (
            "a bare line end in front",
            format!("\n{}", upload(std::slice::from_ref(&model))),
        ),
        (
            "a longer boundary",
            upload(std::slice::from_ref(&model)).replace("--AaB03x--", "--AaB03xy--"),
        ),
        (
            "a file",
            upload(&[disposition("; name=\"model\"; filename=\"m\"")]),
        ),
        (
            "two names",
            upload(&[disposition("; name=\"x\"; name=\"model\"")]),
        ),
        (
            "an extended name",
            upload(&[disposition("; name*=UTF-8''model")]),
        ),
        (
            "a continued name",
            upload(&[disposition("; name*0=mo; name*1=del")]),
        ),
        (
            "an escaped quote",
            upload(&[disposition("; name=\"x\\\"; name=\"model\"")]),
        ),
        (
            "an escaped name",
            upload(&[disposition("; name=\"mod\\el\"")]),
        ),
        (
            "a percent name",
            upload(&[disposition("; name=\"%6dodel\"")]),
        ),
        ("no name", upload(&[disposition("; filename=\"x\"")])),
        (
            "a name in angle brackets",
            upload(&[disposition("; name=<model>"), model.clone()]),
        ),
        (
            "a parameter whose name is no token",
            upload(&[disposition("; name=\"x\"; (name=model")]),
        ),
        (
            "a control character in a head",
            upload(&[part(
                "X: 1\u{b}\r\nContent-Disposition: form-data; name=\"x\"",
                "a",
            )]),
        ),
        (
            "a blank that only some know",
            upload(&[part(
                "Content-Disposition: form-data;\u{a0}name=\"model\"",
                "a",
            )]),
        ),
        (
            "another disposition",
            upload(&[part("Content-Disposition: attachment; name=\"model\"", "a")]),
        ),
        (
            "no disposition",
            upload(&[part("Content-Type: text/plain", "a")]),
        ),
        ("no head", upload(&["--AaB03x\r\n\r\na\r\n".to_owned()])),
        (
            "a folded head",
            upload(&[part(
                "Content-Disposition: form-data;\r\n name=\"model\"",
                "a",
            )]),
        ),
        (
            "a bare line end",
            upload(&[part(
                "X: 1\nContent-Disposition: form-data; name=\"model\"",
                "a",
            )]),
        ),
        (
            "two dispositions",
            upload(&[part(
                "Content-Disposition: form-data; name=\"x\"\r\nContent-Disposition: form-data; name=\"model\"",
                "a",
            )]),
        ),
        (
            "an encoded model",
            upload(&[part(
                "Content-Disposition: form-data; name=\"model\"\r\nContent-Transfer-Encoding: base64",
                "YQ==",
            )]),
        ),
        (
            "two codings",
            upload(&[part(
                "Content-Transfer-Encoding: base64\r\nContent-Disposition: form-data; name=\"model\"\r\nContent-Transfer-Encoding: 8bit",
                "YQ==",
            )]),
        ),
        (
            "two media types",
            upload(&[part(
                "Content-Type: audio/wav\r\nContent-Type: text/plain\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"",
                "a",
            )]),
        ),
        (
            "another charset",
            typed("model", "text/plain; charset=utf-7", "+AG0-"),
        ),
        (
            "a wide charset",
            typed("model", "text/plain;Charset=\"UTF-16\"", "m\0"),
        ),
        (
            "two charsets",
            typed("model", "text/plain; charset=utf-8; charset=utf-7", "m"),
        ),
        (
            "an extended charset",
            typed("model", "text/plain; charset*=''utf-7", "m"),
        ),
        (
            "a charset of a stream",
            typed("stream", "text/plain; charset=utf-7", "true"),
        ),
        (
            "a name that Latin 1 reads in another way",
            typed("model", "text/plain; charset=ISO-8859-1", "mod\u{e9}le"),
        ),
        (
            "a long model",
            upload(&[named("model", &"m".repeat(FIELD_BYTES_MAX + 1))]),
        ),
        (
            "a long head",
            upload(&[part(&"X: 1\r\n".repeat(2_000), "")]),
        ),
        (
            "many parts",
            upload(&vec![named("x", ""); PARTS_MAX as usize + 1]),
        ),
    ] {
        let error = read(&body).expect_err(what);
        assert_eq!(error.kind.status(), 400, "{what}");
    }
    for kind in [
        "application/json",
        "multipart/form-data",
        "multipart/mixed; boundary=a",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=a; boundary=b",
        "multipart/form-data; boundary*=a",
        "multipart/form-data; boundary=a b",
        "multipart/form-data; boundary=\"a \"",
        "multipart/form-data; boundary=\" a\"",
        "multipart/form-data; boundary=a\\b",
        "multipart/form-data; boundary=\"a",
        "multipart/form-data; boundary=<a>",
        "multipart/form-data; boundary=a; charset=utf-16",
        "multipart/form-data; boundary=a; boundary*0=b",
        "multipart/form-data; boundary=a; charset*=utf-8''utf-16",
    ] {
        assert!(Scanner::new(&headers(kind)).is_err(), "{kind}");
    }
    for kind in [
        "Multipart/Form-Data;BOUNDARY=a",
        "multipart/form-data; charset=utf-8; boundary=\"a\"",
        "multipart/form-data; boundary=a; Charset=\"UTF-8\"",
        "multipart/form-data; boundary=\"a b\"",
        "multipart/form-data; boundary=a; profile=\"x y\"",
    ] {
        assert!(Scanner::new(&headers(kind)).is_ok(), "{kind}");
    }
}

#[test]
fn an_endless_model_is_noticed_before_its_end() {
    let mut scanner = scanner();
    let body = format!("{}{}", named("x", "y"), named("model", &"m".repeat(4_096)));
    let shown = &body.as_bytes()[..2_000];
    assert!(scanner.advance(shown).is_err());
}

proptest! {
    #[test]
    fn it_does_not_matter_in_which_pieces_it_comes(cuts in prop::collection::vec(0usize..400, 0..12)) {
        let body = ordinary();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(body.len())).collect();
        cuts.sort_unstable();
        let mut scanner = scanner();
        for cut in cuts {
            prop_assert!(scanner.advance(&body.as_bytes()[..cut]).is_ok());
        }
        prop_assert!(scanner.end(body.as_bytes()).is_ok());
        prop_assert_eq!(&body[scanner.model().expect("found")], "org/whisper");
        prop_assert!(scanner.stream());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), noise in "[-AaB03x\r\n:;=\"a-e]{0,200}") {
        for body in [bytes, [&b"--AaB03x\r\n"[..], noise.as_bytes()].concat()] {
            let mut whole = scanner();
            let mut pieces = scanner();
            let end = whole.end(&body).is_ok();
            let mut all_read = true;
            for cut in 0..body.len() {
                all_read &= pieces.advance(&body[..cut]).is_ok();
                if !all_read {
                    break;
                }
            }
            prop_assert_eq!(end, all_read && pieces.end(&body).is_ok());
        }
    }
}
