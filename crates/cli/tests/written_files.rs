//! Files that verbs write, on all kinds of disks and in all kinds of places. Invariant: links,
//! devices and permissions stay what they were, and if writing fails the earlier file is there,
//! alone.
//!
//! Tier: quick, since it takes less than a second.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::program::{Ran, corpus, folder, listing, run, tightfit};

const TRAIN: &str =
    "train corpus/steps/mlp-digits --budget 100% --steps 1 --threads 2 --eval-batches 0 --roofline";
const PLAN: &str = "plan corpus/steps/mlp-digits --budget 100% --threads 2 --roofline";

/// Runs the program after a line of shell: a limit, a mask.
fn behind(folder: &Path, line: &str, arguments: &str) -> Ran {
    let inner = tightfit();
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{line}; exec \"$0\" \"$@\"")).arg(inner.get_program());
    command.envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let folder = folder.to_str().unwrap();
    command.args(arguments.split_whitespace().map(|word| word.replace("FOLDER", folder)));
    command.current_dir(corpus().parent().unwrap()).output().unwrap().into()
}

/// Every option that names a file to be written, as a command.
fn writers(name: &str) -> Vec<String> {
    let train = ["--save", "--dump", "-o", "--trace"]
        .map(|option| format!("{TRAIN} {option} FOLDER/{name}"));
    let plan = ["-o", "--svg"].map(|option| format!("{PLAN} {option} FOLDER/{name}"));
    [&train[..], &plan[..]].concat()
}

#[test]
fn the_umask_holds_for_new_files_and_a_replaced_one_keeps_its_mode() {
    for command in writers("file") {
        let folder = folder();
        let path = folder.path().join("file");
        let mode = || std::fs::metadata(&path).unwrap().mode() & 0o7777;
        behind(folder.path(), "umask 027", &command).done();
        assert_eq!(mode(), 0o640, "{command}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o604)).unwrap();
        behind(folder.path(), "umask 077", &command).done();
        assert_eq!(mode(), 0o604, "{command}");
        assert_eq!(listing(folder.path()), ["file"], "{command}");
    }
}

#[test]
fn links_are_followed_and_pipes_are_written_to() {
    for command in writers("name") {
        let folder = folder();
        let at = |name: &str| folder.path().join(name);
        symlink("far", at("name")).unwrap();
        behind(folder.path(), ":", &command).done();
        assert!(at("name").is_symlink() && at("far").metadata().unwrap().len() > 100, "{command}");

        std::fs::remove_file(at("name")).unwrap();
        assert!(Command::new("mkfifo").arg(at("name")).status().unwrap().success());
        let reader = std::thread::spawn({
            let pipe = at("name");
            move || std::fs::read(pipe).unwrap()
        });
        behind(folder.path(), ":", &command).done();
        assert!(reader.join().unwrap().len() > 100, "{command}");
        assert_eq!(listing(folder.path()), ["far", "name"], "{command}");
    }
}

#[test]
fn a_circle_of_links_is_refused_before_anything_runs() {
    for command in writers("a") {
        let folder = folder();
        symlink("b", folder.path().join("a")).unwrap();
        symlink("a", folder.path().join("b")).unwrap();
        let ran = behind(folder.path(), ":", &command);
        assert_eq!(ran.code, Some(4), "{command}");
        assert!(ran.stderr.contains("symbolic links") && ran.stdout.is_empty(), "{}", ran.stderr);
        assert!(folder.path().join("a").is_symlink(), "{command}");
    }
}

/// A limit of the system stands for a full disk: the write fails in the middle of the file.
#[test]
fn a_save_that_does_not_fit_leaves_the_earlier_one() {
    let folder = folder();
    let earlier = || std::fs::read(folder.path().join("save")).unwrap();
    run(folder.path(), &format!("{TRAIN} --seed 7 --save FOLDER/save").replace(" --roofline", ""))
        .done();
    let before = earlier();
    let ran = behind(folder.path(), "ulimit -f 100", &format!("{TRAIN} --save FOLDER/save"));
    assert_eq!(ran.code, Some(4), "{}", ran.stderr);
    assert!(ran.stderr.contains("File too large"), "{}", ran.stderr);
    assert_eq!(earlier(), before);
    assert_eq!(listing(folder.path()), ["save"]);
}

/// The same limit stands for a folder with little space. A tier is measured with as much of it as
/// there is, so that one that fits is not refused.
#[test]
fn a_folder_with_room_for_a_small_tier_takes_one() {
    let folder = folder();
    let train = "train corpus/steps/gpt-nano --budget min --tier FOLDER --iterations 1000 \
                 --steps 1 --eval-batches 0 --threads 2 --roofline";
    behind(folder.path(), "ulimit -f 16384", train).done();
    // Less than is measured at once.
    let refused = behind(folder.path(), "ulimit -f 1000", train);
    assert_eq!(refused.code, Some(4), "{}", refused.stderr);
    assert!(refused.stderr.contains("has no room for that"), "{}", refused.stderr);
    assert_eq!(listing(folder.path()), [""; 0]);
}

/// Files that killed writers left are gone after the next save.
#[test]
fn the_next_save_removes_what_a_killed_one_left() {
    let folder = folder();
    let left = folder.path().join(".save.tightfit-0123456789abcdef");
    std::fs::write(&left, "half of it").unwrap();
    behind(folder.path(), ":", &format!("{TRAIN} --save FOLDER/save")).done();
    assert_eq!(listing(folder.path()), ["save"]);
}
