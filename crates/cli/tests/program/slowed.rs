//! Training through a slowed-down tier. Invariant: transfers are under way at any time, so whatever
//! happens to the run or its tier happens in the middle of one.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use super::{corpus, tightfit};

/// Starts a run in the smallest budget, which saves in the folder of its tier.
pub fn started(step: &str, folder: &Path, steps: u32, rest: &str) -> Child {
    let mut command = tightfit();
    command.current_dir(corpus().parent().unwrap());
    command.args(["train", step, "--budget", "min", "--json", "--roofline", "--threads", "2"]);
    command.args(["--steps", &steps.to_string()]).args(rest.split_whitespace());
    command.arg("--tier").arg(folder).args(["--throttle", "20MB/s"]);
    command.arg("--save").arg(folder.join("save"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until the run has reported this many losses.
pub fn after(child: &mut Child, losses: usize) {
    let stdout = child.stdout.as_mut().unwrap();
    let mut lines = BufReader::with_capacity(1, stdout).lines();
    (0..losses).for_each(|_| assert!(lines.next().unwrap().unwrap().contains("loss")));
}

/// Changes bytes throughout its tier, once.
pub fn damage(child: &Child) {
    flip(&opened(child));
}

/// Changes bytes throughout its tier until it ends, so that something that is brought back is hit.
pub fn damaged(mut child: Child) -> Output {
    let file = opened(&child);
    for _ in 0..200 {
        flip(&file);
        std::thread::sleep(Duration::from_millis(20));
        if child.try_wait().unwrap().is_some() {
            break;
        }
    }
    child.wait_with_output().unwrap()
}

/// Changes a byte of each block.
fn flip(file: &File) {
    let length = file.metadata().unwrap().len();
    for at in (0..length).step_by(4096) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[!byte[0]], at).unwrap();
    }
}

fn opened(child: &Child) -> File {
    OpenOptions::new().read(true).write(true).open(tier_of(child)).unwrap()
}

/// The file of its tier, which has been unlinked.
fn tier_of(child: &Child) -> PathBuf {
    let open = fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
    let is_tier = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|to| {
            to.to_string_lossy().ends_with("(deleted)")
                && fs::metadata(path).is_ok_and(|known| known.len() > 1 << 16)
        })
    };
    open.map(|entry| entry.unwrap().path()).find(is_tier).unwrap()
}
