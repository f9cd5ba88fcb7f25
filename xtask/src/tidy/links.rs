//! Where links of Markdown files lead. Invariant: a link that is relative leads to a file or folder
//! of this repository, and one with an anchor to a heading of that file.

use super::citations::outside_fences;
use super::tree::{File, Finding, Tree};

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (line, target) in links(&outside_fences(&file.text)) {
            if let Some(fault) = fault(tree, file, target) {
                findings.push(Finding::new(file, line, format!("the link `{target}` {fault}")));
            }
        }
    }
    findings
}

/// What is wrong with a link.
fn fault(tree: &Tree, from: &File, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() { from.path.clone() } else { resolved(&from.path, path) };
    if !tree.has(&path) {
        return Some(format!("leads to `{path}`, which does not exist"));
    }
    let found = tree.files.iter().find(|file| file.path == path);
    let has_heading = found.is_none_or(|file| headings(&file.text).any(|slug| slug == anchor));
    (!anchor.is_empty() && !has_heading).then(|| format!("names a heading that `{path}` lacks"))
}

/// The path of a file as seen from another one.
fn resolved(from: &str, path: &str) -> String {
    let mut folders: Vec<&str> = from.split('/').collect();
    folders.pop();
    for part in path.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(folders.pop()),
            part => folders.push(part),
        }
    }
    folders.join("/")
}

/// The targets of `[text](target)`, with their lines; a text may begin on an earlier line.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().flat_map(|(index, line)| {
        let targets = line.match_indices("](").filter_map(move |(at, opening)| {
            let target = &line[at + opening.len()..];
            Some(target[..target.find(')')?].trim())
        });
        targets.map(move |target| (index + 1, target))
    })
}

/// The anchors of a file's headings: words in lower case, joined by hyphens.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let text = outside_fences(text);
    let slugs = text.lines().filter(|line| line.starts_with('#')).map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>()
    });
    slugs.collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_somewhere() {
        let tree = Tree::of(&[
            ("README.md", "[a](doc/page.md), [b](doc/page.md#two-words), [c](doc/), [d](#top)\n"),
            (
                "doc/page.md",
                "# Two `words`\n[e](../README.md#top) [f](https://example.org)\n[g](gone.md)\n\
                 ```\n[h](in-a-fence)\n```\n",
            ),
            (
                "doc/more/deep.md",
                "# Top\n[i](../page.md#two-words) [j](#top) [k](../page.md#one)\n",
            ),
        ]);
        let found: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
        let expected = [
            ("README.md:1", "`#top` names a heading that `README.md` lacks"),
            ("doc/page.md:2", "`../README.md#top` names a heading that `README.md` lacks"),
            ("doc/page.md:3", "`gone.md` leads to `doc/gone.md`, which does not exist"),
            ("doc/more/deep.md:2", "`../page.md#one` names a heading that `doc/page.md` lacks"),
        ];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, (place, words)) in found.iter().zip(expected) {
            assert!(found.starts_with(place) && found.contains(words), "{found}");
        }
    }
}
