//! Completions and manual pages. Invariant: shells and `man` know every verb and option that there
//! is.
//!
//! Tier: quick, since it takes less than a second.

use std::fs;

use crate::program::{folder, listing, run};

#[test]
fn every_shell_knows_every_verb() {
    let folder = folder();
    let help = run(folder.path(), "--help").done().stdout;
    let verbs = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let verbs = verbs.take_while(|line| !line.is_empty());
    // Descriptions continue further to the right.
    let verbs = verbs.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let verbs: Vec<&str> = verbs.filter(|verb| !verb.is_empty()).collect();
    assert!(verbs.contains(&"train") && verbs.contains(&"completions"), "{verbs:?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(folder.path(), &format!("completions {shell}")).done().stdout;
        for verb in &verbs {
            assert!(script.contains(verb), "{shell}: {verb}");
        }
        assert!(script.contains("microbatches"), "{shell}: options");
    }
    run(folder.path(), "man FOLDER/man1").done();
    let pages = listing(&folder.path().join("man1"));
    assert!(pages.contains(&"tightfit.1".to_string()), "{pages:?}");
    for verb in verbs.iter().filter(|verb| **verb != "help") {
        assert!(pages.contains(&format!("tightfit-{verb}.1")), "{verb}: {pages:?}");
    }
    let train = fs::read_to_string(folder.path().join("man1/tightfit-train.1")).unwrap();
    assert!(train.contains("\\-\\-microbatches"), "{train}");
    let ran = run(folder.path(), "completions nonsense");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("bash"), "{}", ran.stderr);
}
