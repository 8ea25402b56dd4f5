//! What lies on the disk: which files there are, how they look from outside, and what stands in them. Blocking.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::ErrorKind::NotFound;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::changes::{Stamp, Stamps};
use super::format::Format;
use super::pattern::{PathPattern, matches};
use super::tables::Listed;
use super::{FILE_BYTES_MAX, FILES_MAX};
use crate::picture::{Found, Picture, PictureError, WORKERS_MAX};
use grapevine_gossip::worker::WorkerId;

/// All files that `patterns` stand for.
/// Errors: a file or a folder that is not there or cannot be looked at, or too many files. A pattern without files is
/// no error.
pub(super) fn look(patterns: &[PathPattern]) -> Result<Stamps, String> {
    let mut stamps = Stamps::new();
    for pattern in patterns {
        match pattern.folder() {
            None => {
                let path = pattern.path().to_owned();
                let metadata = seen(&path)?;
                if !metadata.is_file() {
                    return Err(format!(
                        "{pattern} is no file; give its path, or {pattern}/*.json"
                    ));
                }
                stamps.insert(path, stamp(&metadata));
            }
            Some((folder, names)) => look_into(folder, names, &mut stamps)?,
        }
        if stamps.len() > FILES_MAX {
            return Err(format!(
                "{pattern}: more than {FILES_MAX} files; put several workers into each file"
            ));
        }
    }
    Ok(stamps)
}

fn look_into(folder: &Path, names: &str, stamps: &mut Stamps) -> Result<(), String> {
    let unseen = |error| format!("{}: the folder cannot be listed: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(unseen)? {
        let entry = entry.map_err(unseen)?;
        let name = entry.file_name();
        if !name.to_str().is_some_and(|name| matches(names, name)) {
            continue;
        }
        let path = entry.path();
        let metadata = match seen(&path) {
            Ok(metadata) => metadata,
            // Gone since the folder was listed; a link that leads nowhere is there.
            Err(_) if fs::symlink_metadata(&path).is_err_and(|error| error.kind() == NotFound) => {
                continue;
            }
            Err(why) => return Err(why),
        };
        if metadata.is_file() {
            stamps.insert(path, stamp(&metadata));
        }
        if stamps.len() > FILES_MAX {
            break;
        }
    }
    Ok(())
}

/// Through links.
fn seen(path: &Path) -> Result<Metadata, String> {
    fs::metadata(path).map_err(|error| {
        format!(
            "{}: cannot be seen: {error}; create the file, or take it out of the settings",
            path.display()
        )
    })
}

fn stamp(metadata: &Metadata) -> Stamp {
    Stamp {
        device: metadata.dev(),
        inode: metadata.ino(),
        bytes: metadata.size(),
        written: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    }
}

/// What is wrong with the files that `patterns` stand for now: every file that is not there or cannot be read, the first
/// mistake of each other one, and what does not fit between two of them. Patterns without a file are apart: they are
/// no mistake.
pub fn examine(patterns: &[PathPattern]) -> Examined {
    let (mut found, mut good) = (Examined::default(), Stamps::new());
    for pattern in patterns {
        match look(std::slice::from_ref(pattern)) {
            Ok(files) if files.is_empty() => found.without_files.push(pattern.clone()),
            Ok(files) => good.extend(files),
            Err(why) => found.mistakes.push(why),
        }
    }
    good.retain(|path, _| match read_file(path) {
        Ok(_) => true,
        Err(why) => {
            found.mistakes.push(format!("{}:{why}", path.display()));
            false
        }
    });
    match read(&good) {
        Ok(workers) => found.workers = workers,
        Err(why) => found.mistakes.push(why),
    }
    found
}

/// What `examine` says.
#[derive(Debug, Default)]
pub struct Examined {
    /// Each begins with the path of its file, and the place in it if it has one.
    pub mistakes: Vec<String>,
    /// The workers of the files in which nothing is wrong; none where two of them do not fit.
    pub workers: Picture,
    /// Patterns that match nothing.
    pub without_files: Vec<PathPattern>,
}

/// The workers of all `files`.
/// Errors: the first file that cannot be read, or whose content is wrong; two files that describe one worker
/// differently.
pub(super) fn read(files: &Stamps) -> Result<Picture, String> {
    let mut all: BTreeMap<WorkerId, (Found, &PathBuf)> = BTreeMap::new();
    for path in files.keys() {
        let listed = read_file(path).map_err(|why| format!("{}:{why}", path.display()))?;
        for (id, found) in listed {
            if let Some((known, first)) = all.get(&id)
                && *known != found
            {
                return Err(twice(&id, first, path));
            }
            all.insert(id, (found, path));
        }
        if all.len() > WORKERS_MAX {
            let why = PictureError::TooMany(all.len());
            return Err(format!("{}: {why}", path.display()));
        }
    }
    let workers = all.into_iter().map(|(id, (found, _))| (id, found));
    Picture::new(workers).map_err(|error| error.to_string())
}

fn twice(id: &WorkerId, first: &Path, second: &Path) -> String {
    let also = if first == second {
        String::new()
    } else {
        format!(" and in {}", first.display())
    };
    let second = second.display();
    format!("{second}: worker {id} stands there{also} with another description; keep one of them")
}

fn read_file(path: &Path) -> Result<Listed, String> {
    let format = Format::of(path).map_err(|why| format!(" {why}"))?;
    let unreadable = |error| format!(" the file cannot be read: {error}");
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    let mut limited = file.take(FILE_BYTES_MAX + 1);
    limited.read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!(
            " the file is larger than {FILE_BYTES_MAX} bytes; split it into several"
        ));
    }
    let text =
        String::from_utf8(bytes).map_err(|error| format!(" the file is not UTF-8: {error}"))?;
    format.read(&text).map_err(|why| {
        // Directly behind the name if it is a place, as compilers write it.
        let is_place = why.starts_with(|c: char| c.is_ascii_digit());
        if is_place { why } else { format!(" {why}") }
    })
}
