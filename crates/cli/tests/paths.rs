//! Paths that are not Unicode. Invariant: any path that the system has is accepted, wherever a path
//! is expected.
//!
//! Tier: quick, since it takes 1 s.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::program::{Ran, corpus, folder, tightfit};

/// `FOLDER/NAME` with a byte at the end that is not Unicode.
fn odd(folder: &Path, name: &str) -> PathBuf {
    folder.join(OsStr::from_bytes(&[name.as_bytes(), b"\xff"].concat()))
}

/// Runs the program; words that begin with `@` are odd paths in `folder`.
fn ran(folder: &Path, arguments: &str) -> Ran {
    let arguments = arguments.split_whitespace().map(|word| match word.strip_prefix('@') {
        Some(name) => odd(folder, name).into_os_string(),
        None => OsString::from_vec(word.into()),
    });
    let ran: Ran = tightfit().args(arguments).output().unwrap().into();
    ran.done()
}

#[test]
fn paths_need_not_be_unicode() {
    let folder = folder();
    let folder = folder.path();
    let step = odd(folder, "step");
    std::fs::create_dir(&step).unwrap();
    for file in ["step.json", "train.json.gz", "eval.json.gz"] {
        std::fs::copy(corpus().join("steps/mlp-digits").join(file), step.join(file)).unwrap();
    }
    std::fs::copy(corpus().join("data/digits.csv"), odd(folder, "data")).unwrap();
    let train = "train @step --data @data --budget 100% --steps 1 --threads 2 --roofline";
    let saved =
        ran(folder, &format!("{train} --json --save @weights --output @plan --trace @trace"));
    let name = saved.result()["saved"].as_str().unwrap().to_string();
    assert!(name.ends_with("weights\u{fffd}"), "{name}");
    ran(folder, &format!("{train} --resume @weights --save @weights"));
    ran(folder, &format!("{train} --json --resume @weights --dump @dump"));
    for file in ["weights", "plan", "trace", "dump"] {
        assert!(odd(folder, file).is_file(), "{file}");
    }
    ran(folder, "check @step @plan --budget 100% --threads 2");
    ran(folder, "plan @step --budget 90% --threads 2 --roofline --json -o @again --svg @drawing");
    ran(folder, "report @step --plan @plan --measured @trace --points 0 --threads 2 -o @page");
    ran(folder, "trace @step --plan @plan --threads 2 -o @trace");
    ran(folder, "analyze @step --threads 2");
}

/// Saving weights follows a link, and refuses what no program can open, before any step is done.
#[test]
fn weights_follow_links_and_refuse_sockets() {
    let folder = folder();
    let (link, file) = (folder.path().join("link"), folder.path().join("file"));
    std::fs::write(&file, "before").unwrap();
    std::os::unix::fs::symlink("file", &link).unwrap();
    let save = |place: &Path| {
        let options = "--budget 100% --steps 1 --threads 2 --roofline --save";
        let mut train = tightfit();
        train.arg("train").arg(corpus().join("steps/mlp-digits"));
        train.args(options.split(' ')).arg(place).output().unwrap()
    };
    assert!(save(&link).status.success());
    assert!(link.is_symlink() && std::fs::read(&file).unwrap() != b"before");
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let refused = save(&socket);
    assert_eq!(refused.status.code(), Some(4));
    assert!(refused.stdout.is_empty(), "refused before any step");
}
