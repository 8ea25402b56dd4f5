//! `serve --check` on real files: a good configuration passes, and all mistakes of a bad one are reported together.

use std::fs::{self, Permissions};
use std::path::Path;

use clap::Parser;
use tempfile::TempDir;

use super::super::{Cli, Command, ca};
use super::*;

/// A folder with a configuration and what it names.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).expect("written");
    }

    /// `grapevine ca` with these words.
    fn ca(&self, words: &str) {
        let words = format!("grapevine ca {words} --dir {}", self.0.path().display());
        let Ok(Command::Ca(args)) = Cli::try_parse_from(words.split(' ')).map(|cli| cli.command)
        else {
            panic!("not ca: {words}");
        };
        ca(args).unwrap_or_else(|error| panic!("{words}: {error}"));
    }

    /// The certificate and the key of a server, with its own authority.
    fn self_signed(&self) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        self.write("tls.pem", &made.cert.pem());
        self.write("tls.key", &made.signing_key.serialize_pem());
    }

    /// The same, with a certificate that is accepted in these years.
    fn self_signed_in(&self, years: [i32; 2]) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let [from, until] = years.map(|year| rcgen::date_time_ymd(year, 1, 1));
        (params.not_before, params.not_after) = (from, until);
        let made = params.self_signed(&key).expect("made");
        self.write("tls.pem", &made.pem());
        self.write("tls.key", &key.serialize_pem());
    }

    /// What `--check` says of this configuration, in which `@` stands for the folder.
    fn check(&self, text: &str) -> Vec<String> {
        self.check_with(&[], text)
    }

    /// The same, with these variables.
    fn check_with(&self, variables: &[(&str, &str)], text: &str) -> Vec<String> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = self.0.path().to_str().expect("UTF-8");
        let layers = Layers {
            file: Some((Path::new("g.toml").to_owned(), text.replace('@', folder))),
            environment: variables
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            ..Layers::default()
        };
        let Err(error) = check(&layers) else {
            return Vec::new();
        };
        let text = error.to_string().replace(folder, "@");
        let lines = text.lines().skip(1);
        lines.map(|line| line.trim_start().to_owned()).collect()
    }
}

/// Each line begins with the text that is expected at its place.
fn assert_begin(lines: &[String], expected: &[&str]) {
    let is_begun = lines
        .iter()
        .zip(expected)
        .all(|(line, begin)| line.starts_with(begin));
    assert!(
        lines.len() == expected.len() && is_begun,
        "{lines:#?}\nexpected {expected:#?}"
    );
}

const KEY: &str = "[[key]]\nname = \"acme\"\nhash = \"sha256:0101010101010101010101010101010101010101010101010101010101010101\"\n";

#[test]
fn a_good_configuration_passes_with_all_its_files() {
    let folder = Folder::new();
    folder.ca("init");
    folder.ca("issue r1");
    folder.self_signed();
    folder.write("keys.toml", KEY);
    folder.write("secret", "hush\n");
    folder.write("w.json", "[{\"targets\": [\"a:1\"]}]");
    let lines = folder.check(
        "[replica]\nid = 'r1'\n[gossip]\nca = '@/ca.pem'\ncert = '@/r1.pem'\nkey = '@/r1.key'\nrevoked = '@/crl.pem'\n\
         [tls]\ncert = '@/tls.pem'\nkey = '@/tls.key'\nclient_ca = '@/tls.pem'\n\
         [workers]\nca = '@/tls.pem'\nclient_cert = '@/tls.pem'\nclient_key = '@/tls.key'\napi_key_file = '@/secret'\n\
         [keys]\nfile = '@/keys.toml'\n[files]\npaths = ['@/w.json', '@/none-yet-*.json']\n",
    );
    assert!(lines.is_empty(), "{lines:#?}");
}

#[test]
fn a_private_key_that_everybody_may_read_is_noted() {
    let folder = Folder::new();
    let key = folder.0.path().join("key");
    let notes = |mode: u32| {
        fs::write(&key, "").expect("written");
        fs::set_permissions(&key, Permissions::from_mode(mode)).expect("its own file");
        let text = format!("[gossip]\nkey = '{}'", key.display());
        let layers = Layers {
            file: Some((Path::new("g.toml").to_owned(), text)),
            ..Layers::default()
        };
        let (_, _, notes) = examine(&layers);
        notes
            .into_iter()
            .filter(|note| note.starts_with("gossip.key"))
            .collect::<Vec<_>>()
    };
    let [note] = &notes(0o644)[..] else {
        panic!("no note");
    };
    assert!(note.contains("(mode 0644): chmod 600"), "{note}");
    // A group of its own is a way to share a key with one service.
    assert!(notes(0o640).is_empty() && notes(0o600).is_empty());
}

#[test]
fn a_found_worker_that_will_be_left_out_is_noted() {
    let folder = Folder::new();
    folder.write("w.json", "[{\"targets\": [\"a:1\", \"169.254.1.1:1\"]}]");
    let text = format!("[files]\npaths = ['{}/w.json']", folder.0.path().display());
    let layers = Layers {
        file: Some((Path::new("g.toml").to_owned(), text)),
        ..Layers::default()
    };
    let (_, problems, notes) = examine(&layers);
    assert!(problems.is_empty(), "{problems:?}");
    let mut about = notes.iter().filter(|note| note.starts_with("files.paths"));
    let note = about.next().expect("a note");
    assert!(note.contains("169.254.1.1:1 will be left out: "), "{note}");
    assert_eq!(about.next(), None);
}

#[test]
fn all_mistakes_are_reported_at_once_each_with_its_place() {
    let folder = Folder::new();
    folder.self_signed();
    folder.write("keys.toml", &KEY.replace("acme", ""));
    folder.write(
        "bad.json",
        "[\n {\"targets\": [\"a:1\"],\n  \"labels\": {\"weight\": \"much\"}}]",
    );
    folder.write("worse.toml", "[[worker]]\nurl = 5\n");
    folder.write("good.json", "[{\"targets\": [\"b:1\"]}]");
    let lines = folder.check(
        "[listen]\nport = 'x'\n\
         [gossip]\nca = '@/ca.pem'\ncert = '@/tls.key'\nkey = '@/tls.key'\nrevoked = '@/crl.pem'\n\
         [tls]\ncert = '@/tls.pem'\nkey = '@/tls.pem'\nclient_ca = '@/none.pem'\n\
         [workers]\nca = '@/none.pem'\nclient_key = '@/tls.key'\napi_key_file = '@/secret'\n\
         [[worker]]\nurl = 'http://a:1'\napi_key_file = '@/own'\n\
         [keys]\nfile = '@/keys.toml'\n\
         [files]\npaths = [\n '@/missing.json', '@/bad.json', '@/worse.toml', '@/good.json']\n",
    );
    assert_begin(
        &lines,
        &[
            "g.toml:2:8: listen.port: expected ",
            "g.toml:4:6: gossip.ca: cannot read @/ca.pem",
            "g.toml:5:8: gossip.cert: @/tls.key: it holds no certificate",
            "g.toml:7:11: gossip.revoked: cannot read @/crl.pem",
            "g.toml:10:7: tls.key: @/tls.pem: it holds no private key",
            "g.toml:11:13: tls.client_ca: cannot read @/none.pem",
            "g.toml:13:6: workers.ca: cannot read @/none.pem",
            // Settings that do not fit together, beside a value that is wrong in another section.
            "g.toml:14:14: workers.client_cert: missing",
            "g.toml:15:16: workers.api_key_file: cannot read @/secret",
            "g.toml:18:16: worker.api_key_file: cannot read @/own",
            "g.toml:22:9: files.paths: @/missing.json: cannot be seen",
            "g.toml:22:9: files.paths: @/bad.json:",
            "g.toml:22:9: files.paths: @/worse.toml:2:7: ",
            "@/keys.toml:2:8: key.name: ",
            "configuration: replica.id: missing",
        ],
    );
}

#[test]
fn a_certificate_that_proves_nothing_and_a_list_that_is_none_are_told_apart() {
    let folder = Folder::new();
    folder.ca("init");
    folder.ca("issue r1");
    let with = |id: &str, list: &str| {
        folder.check(&format!(
            "[replica]\nid = '{id}'\n[gossip]\nca = '@/ca.pem'\ncert = '@/r1.pem'\nkey = '@/r1.key'\nrevoked = '@/{list}'\n"
        ))
    };
    assert_begin(&with("r1", "crl.pem"), &[]);
    assert_begin(
        &with("r2", "crl.pem"),
        &["g.toml:5:8: gossip.cert: certificate is not valid for replica `r2`"],
    );
    assert_begin(&with("r1", "r1.pem"), &["g.toml:7:11: gossip.revoked: "]);
    // The name could not be read: the certificate is not blamed for it.
    assert_begin(&with("R 2", "crl.pem"), &["g.toml:2:6: replica.id: "]);
    // Another authority: neither list nor certificate is damaged.
    let list = fs::read_to_string(folder.0.path().join("crl.pem")).expect("a list");
    let other = Folder::new();
    other.ca("init");
    let [foreign, foreign_list] = ["ca.pem", "crl.pem"]
        .map(|name| fs::read_to_string(other.0.path().join(name)).expect("written"));
    folder.write("crl.pem", &foreign_list);
    assert_begin(
        &with("r1", "crl.pem"),
        &[
            "g.toml:7:11: gossip.revoked: the file of revoked certificates cannot be used: no list in it is of an authority",
        ],
    );
    folder.write("crl.pem", &list);
    folder.write("ca.pem", &foreign);
    assert_begin(
        &with("r1", "crl.pem"),
        &[
            "g.toml:4:6: gossip.ca: no authority in the CA file has signed the certificate of replica `r1`: ",
        ],
    );
}

#[test]
fn a_certificate_that_is_not_good_now_is_a_mistake() {
    let folder = Folder::new();
    let check = |years: [i32; 2], why: &str| {
        folder.self_signed_in(years);
        let tls = "[tls]\ncert = '@/tls.pem'\nkey = '@/tls.key'\n";
        let listener =
            format!("g.toml:2:8: tls.cert: certificate @/tls.pem is not good now: {why}");
        assert_begin(&folder.check(tls), &[&listener]);
        let workers = "[workers]\nclient_cert = '@/tls.pem'\nclient_key = '@/tls.key'\n";
        let client = format!(
            "g.toml:2:15: workers.client_cert: certificate @/tls.pem is not good now: {why}"
        );
        assert_begin(&folder.check(workers), &[&client]);
    };
    check([2020, 2021], "it expired on 2021-01-01 0:00:00.0 UTC");
    check(
        [2120, 2121],
        "it begins on 2120-01-01 0:00:00.0 UTC, and this machine's clock says ",
    );
}

#[test]
fn headers_for_a_collector_are_read_where_metrics_are_sent() {
    let folder = Folder::new();
    let bad = [("OTEL_EXPORTER_OTLP_HEADERS", "a=b,hush")];
    let text = "[metrics_export]\nendpoint = 'http://c:4318'\n";
    let lines = folder.check_with(&bad, text);
    let what = "cannot read OTEL_EXPORTER_OTLP_HEADERS: header 2 is not `name=value`";
    let expected = format!("g.toml:2:12: metrics_export.endpoint: {what}");
    assert_eq!(lines, [expected], "and the secret is not shown");
    assert_begin(&folder.check_with(&bad, ""), &[]);
    assert_begin(
        &folder.check_with(&[("OTEL_EXPORTER_OTLP_HEADERS", "a=b")], text),
        &[],
    );
}

#[test]
#[cfg(feature = "kubernetes")]
fn a_kubeconfig_is_read_where_pods_are_watched() {
    let folder = Folder::new();
    let text = |enabled: bool| {
        format!(
            "[kubernetes]\nenabled = {enabled}\nselector = ['app=vllm']\nkubeconfig = '@/none'\n"
        )
    };
    assert_begin(
        &folder.check(&text(true)),
        &["g.toml:4:14: kubernetes.kubeconfig: @/none: "],
    );
    assert_begin(&folder.check(&text(false)), &[]);
}
