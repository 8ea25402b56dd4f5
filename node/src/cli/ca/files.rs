//! How files of the directory are written: all that belong together, or none.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::cli::failure::Failure;

/// A file that is to be written.
pub(super) struct File {
    path: PathBuf,
    text: String,
    mode: u32,
}

impl File {
    pub(super) fn new(path: PathBuf, text: String, mode: u32) -> Self {
        Self { path, text, mode }
    }
}

pub(super) fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::Refused(format!("cannot write {}: {error}", path.display()))
}

/// A file that lies beside its place.
struct Staged {
    file: File,
    beside: PathBuf,
    /// What is in its place now, if anything.
    former: Option<Vec<u8>>,
}

/// [`write_all`] of one.
pub(super) fn write(file: File) -> Result<(), Failure> {
    write_all(vec![file])
}

/// Writes all of them, or leaves everything as it was. A reader sees the old or the new one of each, whole, and a key
/// never has wider rights than it should, not even for a moment.
pub(super) fn write_all(files: Vec<File>) -> Result<(), Failure> {
    let mut staged = Vec::new();
    for file in files {
        match Staged::new(file) {
            Ok(one) => staged.push(one),
            Err(failure) => {
                staged.iter().for_each(Staged::drop_it);
                return Err(failure);
            }
        }
    }
    for (at, one) in staged.iter().enumerate() {
        if let Err(error) = fs::rename(&one.beside, &one.file.path) {
            staged[..at].iter().for_each(Staged::undo);
            staged[at..].iter().for_each(Staged::drop_it);
            return Err(unwritable(&one.file.path, &error));
        }
    }
    Ok(())
}

impl Staged {
    fn new(file: File) -> Result<Self, Failure> {
        let mut beside = file.path.as_os_str().to_owned();
        beside.push(".tmp");
        let beside = PathBuf::from(beside);
        let former = match fs::read(&file.path) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(unwritable(&file.path, &error)),
        };
        if let Err(error) = write_new(&beside, file.text.as_bytes(), file.mode) {
            let _ = fs::remove_file(&beside);
            return Err(unwritable(&file.path, &error));
        }
        Ok(Self {
            file,
            beside,
            former,
        })
    }

    /// As far as it can be done: the failure that led here is what is told.
    fn drop_it(&self) {
        let _ = fs::remove_file(&self.beside);
    }

    /// The same for one that is in its place already.
    fn undo(&self) {
        let path = &self.file.path;
        let _ = match &self.former {
            None => fs::remove_file(path),
            Some(bytes) => write_new(&self.beside, bytes, self.file.mode)
                .and_then(|()| fs::rename(&self.beside, path)),
        };
    }
}

fn write_new(path: &Path, text: &[u8], mode: u32) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.write_all(text)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_renamed_already_is_taken_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let [there, new] = ["there", "new"].map(|name| dir.path().join(name));
        fs::write(&there, "before").expect("written");
        let file = |path: &PathBuf| File::new(path.clone(), "after".to_owned(), 0o600);
        let stage = |path| Staged::new(file(path)).expect("there is room");
        for one in [stage(&there), stage(&new)] {
            fs::rename(&one.beside, &one.file.path).expect("renamed");
            one.undo();
        }
        assert_eq!(fs::read_to_string(&there).expect("readable"), "before");
        assert!(!new.exists());
    }
}
