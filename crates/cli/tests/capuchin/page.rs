//! The example of `doc/theory/capuchin.md` is what the program prints.
//!
//! Tier: quick, since it takes less than a second.

use std::path::Path;

use crate::program::{corpus, run};

/// Each block that opens with a command: the lines after it are printed by the command, one after
/// the other.
#[test]
fn examples_are_printed_by_the_program() {
    let page = corpus().join("../doc/theory/capuchin.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut examples = 0;
    for block in page.split("```text\n$ tightfit ").skip(1) {
        let block = block.split("```").next().unwrap();
        let (command, expected) = block.split_once('\n').unwrap();
        let ran = run(Path::new("."), command);
        let printed = ran.stdout + &ran.stderr;
        assert!(printed.contains(expected), "`{command}` prints\n{printed}\nnot\n{expected}");
        assert!(expected.lines().count() > 3, "{expected}");
        examples += 1;
    }
    assert_eq!(examples, 2);
}
