//! The program under test, built once.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Path of the `grapevine` binary: built with the profile of the running test, next to it.
///
/// Cargo does not build the binary of another package for a test, so this function runs cargo; that is fast
/// if the binary is up to date.
pub fn grapevine() -> &'static Path {
    static BINARY: LazyLock<PathBuf> = LazyLock::new(build);
    &BINARY
}

fn build() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    // <target>/<profile>/deps/<test>
    let profile_dir = test
        .ancestors()
        .nth(2)
        .expect("cargo puts tests three deep");
    let target_dir = profile_dir.parent().expect("cargo puts tests three deep");
    let profile = match profile_dir.file_name().and_then(OsStr::to_str) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build
        .args(["build", "--quiet", "--bin", "grapevine"])
        // With this package too, features come out as for the test, so dependencies are built once.
        .args(["--package", "grapevine", "--package", "grapevine-tests"])
        .args(["--features", "grapevine/jemalloc,grapevine/kubernetes"])
        .args(["--profile", profile, "--target-dir"])
        .arg(target_dir)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    // The variables that cargo sets for a test would make build scripts run again.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            build.env_remove(&name);
        }
    }
    let output = build.output().expect("cargo can be run");
    assert!(
        output.status.success(),
        "cannot build grapevine:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    profile_dir.join("grapevine")
}
