//! What earlier releases wrote: `tests/releases/<version>/`, kept for ever, read by every later release.
//!
//! One text file a plane, a line for each thing that travels: its name and its bytes in hexadecimal. A release that is
//! about to be made writes its own with `GRAPEVINE_WRITE_RELEASE=1 cargo test -p grapevine-gossip release`; files that
//! are there already are never written again.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What one release wrote on one plane, in the order of its file.
pub(crate) struct ReleaseBytes {
    /// Its version.
    pub(crate) release: String,
    /// Name and bytes of each.
    pub(crate) lines: Vec<(String, Vec<u8>)>,
}

/// What all releases wrote on a plane. `now` is what this one writes, which may become the next file.
pub(crate) fn kept(plane: &str, now: &[(String, Vec<u8>)]) -> Vec<ReleaseBytes> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/releases");
    let own = all
        .join(env!("CARGO_PKG_VERSION"))
        .join(plane)
        .with_extension("txt");
    if std::env::var_os("GRAPEVINE_WRITE_RELEASE").is_some() && !own.exists() {
        write(&own, now);
    }
    let mut kept = Vec::new();
    for release in fs::read_dir(&all).expect("releases are kept") {
        let release = release.expect("readable").path();
        let file = release.join(plane).with_extension("txt");
        if let Ok(text) = fs::read_to_string(&file) {
            let name = release.file_name().unwrap_or_default();
            kept.push(ReleaseBytes {
                release: name.to_string_lossy().into_owned(),
                lines: text.lines().map(line).collect(),
            });
        }
    }
    assert!(!kept.is_empty(), "no release has a file for {plane}");
    kept
}

fn write(file: &PathBuf, lines: &[(String, Vec<u8>)]) {
    let mut text = String::new();
    for (name, bytes) in lines {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{name} {hex}").expect("a string takes everything");
    }
    fs::create_dir_all(file.parent().expect("it is in a folder")).expect("a folder can be made");
    fs::write(file, text).expect("a file can be written");
}

fn line(text: &str) -> (String, Vec<u8>) {
    let (name, hex) = text.split_once(' ').expect("name and bytes");
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
    let bytes = (0..hex.len()).step_by(2).map(byte).collect();
    (name.to_owned(), bytes)
}
