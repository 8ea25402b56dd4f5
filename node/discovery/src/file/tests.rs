//! Tests of the file source on a real folder: what becomes a picture, and what keeps the last one.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::feed::Sight;

/// A source over one folder, and what it reports.
struct Watched {
    folder: TempDir,
    source: crate::watched::Watched,
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn watch(folder: TempDir, names: &[&str]) -> Watched {
    let paths = names.iter().map(|name| {
        let path = folder.path().join(name);
        path.to_str().expect("UTF-8").parse().expect("a pattern")
    });
    let settings = FileSettings {
        interval: Duration::from_millis(20),
        ..FileSettings::new(paths.collect())
    };
    Watched {
        folder,
        source: crate::watched::Watched::start(|feed| run(settings, feed)),
    }
}

impl Watched {
    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }
}

impl Deref for Watched {
    type Target = crate::watched::Watched;

    fn deref(&self) -> &Self::Target {
        &self.source
    }
}

impl DerefMut for Watched {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.source
    }
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
}

fn group(target: &str) -> String {
    format!("[{{\"targets\": [\"{target}\"]}}]")
}

#[tokio::test]
async fn a_file_that_is_renamed_over_another_is_seen() {
    let folder = folder();
    write(&folder.path().join("w.json"), &group("a:1"));
    let mut watched = watch(folder, &["w.json"]);
    watched.until_ids(&["http://a:1"]).await;
    write(&watched.path("new"), &group("b:1"));
    fs::rename(watched.path("new"), watched.path("w.json")).expect("renamed");
    watched.until_ids(&["http://b:1"]).await;
}

#[tokio::test]
async fn a_mounted_config_map_is_seen_when_it_is_swapped() {
    let folder = folder();
    let put = |version: &str, target: &str| {
        let path = folder.path().join(version);
        fs::create_dir(&path).expect("made");
        write(&path.join("w.yaml"), &group(target));
    };
    put("..one", "a:1");
    put("..two", "b:1");
    symlink("..one", folder.path().join("..data")).expect("linked");
    symlink("..data/w.yaml", folder.path().join("w.yaml")).expect("linked");
    let mut watched = watch(folder, &["*.yaml"]);
    watched.until_ids(&["http://a:1"]).await;
    symlink("..two", watched.path("..tmp")).expect("linked");
    fs::rename(watched.path("..tmp"), watched.path("..data")).expect("renamed");
    fs::remove_dir_all(watched.path("..one")).expect("removed");
    watched.until_ids(&["http://b:1"]).await;
}

#[tokio::test]
async fn a_half_written_file_keeps_the_last_picture() {
    let folder = folder();
    write(&folder.path().join("a.json"), &group("a:1"));
    write(&folder.path().join("b.json"), &group("b:1"));
    let mut watched = watch(folder, &["*.json"]);
    let both = ["http://a:1", "http://b:1"];
    watched.until_ids(&both).await;
    write(&watched.path("b.json"), "[{\"targets\": [\"c:1\"");
    watched
        .until_failure("b.json:1:19: [0].targets: EOF", &both)
        .await;
    write(&watched.path("b.json"), "");
    watched.until_failure("the file is empty", &both).await;
    write(&watched.path("b.json"), &group("c:1"));
    watched.until_ids(&["http://a:1", "http://c:1"]).await;
}

#[tokio::test]
async fn a_missing_file_is_a_failure_and_a_pattern_without_files_is_none() {
    let folder = folder();
    write(&folder.path().join("w.json"), &group("a:1"));
    let mut watched = watch(folder, &["w.json"]);
    watched.until_ids(&["http://a:1"]).await;
    fs::remove_file(watched.path("w.json")).expect("removed");
    watched
        .until_failure("create the file", &["http://a:1"])
        .await;
    write(&watched.path("w.json"), &group("b:1"));
    watched.until_ids(&["http://b:1"]).await;

    let mut watched = watch(watched.folder, &["*.yaml"]);
    let is_empty = |sight: &Sight| sight.picture.as_ref().is_some_and(|all| all.is_empty());
    watched.until("an empty picture", is_empty).await;
    let mut watched = watch(watched.folder, &["nowhere/*.yaml"]);
    watched
        .until_failure("the folder cannot be listed", &[])
        .await;
}

#[tokio::test]
async fn what_is_wrong_names_file_line_and_key() {
    let folder = folder();
    write(
        &folder.path().join("w.toml"),
        "[[worker]]\nurl = \"http://a:1\"\nzones = \"z\"\n",
    );
    let mut watched = watch(folder, &["w.toml"]);
    watched
        .until_failure("w.toml:3:9: worker[0].zones: unknown field", &[])
        .await;
    write(
        &watched.path("w.toml"),
        "[[worker]]\nurl = \"http://a:1\"\nzone = 7\n",
    );
    watched
        .until_failure("w.toml:3:8: worker[0].zone: invalid type", &[])
        .await;
    write(
        &watched.path("w.toml"),
        "[[worker]]\nurl = \"http://a:1\"\n",
    );
    watched.until_ids(&["http://a:1"]).await;
    fs::rename(watched.path("w.toml"), watched.path("w.txt")).expect("renamed");
    let mut watched = watch(watched.folder, &["w.txt"]);
    watched.until_failure("end it in .json", &[]).await;
}

#[tokio::test]
async fn a_worker_that_stands_twice_counts_once_unless_it_differs() {
    let folder = folder();
    write(&folder.path().join("a.json"), &group("a:1"));
    write(
        &folder.path().join("b.toml"),
        "[[worker]]\nurl = \"http://A:1/\"\n",
    );
    let mut watched = watch(folder, &["*.json", "b.toml"]);
    watched.until_ids(&["http://a:1"]).await;
    write(
        &watched.path("b.toml"),
        "[[worker]]\nurl = \"http://a:1\"\nweight = 2\n",
    );
    watched
        .until_failure("stands there and in", &["http://a:1"])
        .await;
}

#[tokio::test]
async fn limits_of_files_are_kept() {
    let folder = folder();
    let large = " ".repeat(FILE_BYTES_MAX as usize - 1) + "[]";
    write(&folder.path().join("w.json"), &large);
    let mut watched = watch(folder, &["w.json"]);
    watched
        .until_failure("larger than 4194304 bytes", &[])
        .await;
    write(&watched.path("w.json"), &large[1..]);
    watched.until_ids(&[]).await;
    for n in 0..=FILES_MAX {
        write(&watched.path(&format!("{n}.yaml")), "[]");
    }
    let mut watched = watch(watched.folder, &["*.yaml"]);
    watched.until_failure("more than 256 files", &[]).await;
}

#[tokio::test]
async fn five_thousand_workers_are_one_picture() {
    let folder = folder();
    let entry = |n: usize| {
        format!(
            "- targets: ['10.0.{}.{}:8000']\n  labels: {{model: m, zone: z{n}}}\n",
            n / 250,
            n % 250
        )
    };
    for file in 0..5 {
        let text: String = (file * 1000..(file + 1) * 1000).map(entry).collect();
        write(&folder.path().join(format!("{file}.yaml")), &text);
    }
    let mut watched = watch(folder, &["*.yaml"]);
    let all = |sight: &Sight| sight.picture.as_ref().is_some_and(|all| all.len() == 5000);
    watched.until("5,000 workers", all).await;
    write(&watched.path("more.yaml"), &group("one-more:1"));
    let too_many = |sight: &Sight| {
        sight
            .failure
            .as_ref()
            .is_some_and(|why| why.contains("5001 workers"))
    };
    watched.until("too many", too_many).await;
}

#[tokio::test]
async fn the_source_ends_with_its_readers() {
    let watched = watch(folder(), &["*.json"]);
    watched.source.until_end().await;
}

#[test]
fn an_examination_names_every_bad_file_and_what_two_good_ones_disagree_on() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    write(&path("a.json"), "[{\"targets\": 5}]");
    write(&path("b.toml"), "[[worker]]\nurl = 5\n");
    write(&path("c.json"), &group("c:1"));
    let heavier = group("c:1").replace("}]", ", \"labels\": {\"weight\": \"2\"}}]");
    write(&path("d.json"), &heavier);
    let pattern = |name: &str| {
        path(name)
            .to_str()
            .expect("UTF-8")
            .parse()
            .expect("a pattern")
    };
    let examined = examine(&[
        pattern("none.json"),
        pattern("*.toml"),
        pattern("*.json"),
        pattern("*.yaml"),
    ]);
    let expected = [
        "none.json: cannot be seen",
        "a.json:1:",
        "b.toml:2:7:",
        "d.json: worker http://c:1 stands there",
    ];
    assert_eq!(
        examined.mistakes.len(),
        expected.len(),
        "{:#?}",
        examined.mistakes
    );
    for (mistake, part) in examined.mistakes.iter().zip(expected) {
        assert!(mistake.contains(part), "{mistake}: {part}");
    }
    assert_eq!(examined.without_files, [pattern("*.yaml")]);
}
