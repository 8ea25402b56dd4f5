//! Every kept input, on the current toolchain.

use std::path::Path;

use grapevine_fuzz::LAWS;

/// Least number of files, so that a missing corpus is noticed.
const FILES_MIN: usize = 5;

#[test]
fn every_kept_input_holds_its_law() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, law) in LAWS {
        let corpus = corpora.join(name);
        let files = std::fs::read_dir(&corpus)
            .unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
        let mut count = 0;
        for file in files {
            let path = file.expect("a directory entry").path();
            // Shown only when the law panics: names the input.
            println!("{}", path.display());
            law(&std::fs::read(&path).expect("a kept input"));
            count += 1;
        }
        assert!(count >= FILES_MIN, "{name}: {count} files");
    }
}
