//! Rows that show the same of layers that follow each other. Invariant: one row stands for several
//! only if their names differ in one number, which counts up by one, and everything else that they
//! show is equal.

/// The row that stands for a run of rows: the name with the numbers of the first and the last, as
/// in `layers.4–15`, and the place of the first.
pub struct Run {
    /// The name of all of them.
    pub name: String,
    /// The first row.
    pub first: usize,
    /// How many there are.
    pub count: usize,
}

/// Runs of rows with these names; `is_same` says whether two rows are equal in everything else.
pub fn runs(names: &[&str], is_same: impl Fn(usize, usize) -> bool) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (index, &name) in names.iter().enumerate() {
        if let Some(run) = runs.last_mut()
            && let Some(joint) = range(names[run.first], name, run.count)
            && is_same(run.first, index)
        {
            run.name = joint;
            run.count += 1;
        } else {
            runs.push(Run { name: name.to_string(), first: index, count: 1 });
        }
    }
    runs
}

/// `h.3.mlp` and `h.5.mlp`, a distance of 2: `h.3–5.mlp`.
fn range(first: &str, other: &str, distance: usize) -> Option<String> {
    let (one, two) = (first.split('.'), other.split('.'));
    if one.clone().count() != two.clone().count() {
        return None;
    }
    let mut differ = one.clone().zip(two).enumerate().filter(|(_, (a, b))| a != b);
    let (at, (low, high)) = differ.next()?;
    if differ.next().is_some() {
        return None;
    }
    let number = |text: &str| text.parse::<usize>().ok().filter(|n| n.to_string() == text);
    if number(high)? != number(low)?.checked_add(distance)? {
        return None;
    }
    let parts = one.enumerate().map(|(index, part)| match index == at {
        true => format!("{low}–{high}"),
        false => part.to_string(),
    });
    Some(parts.collect::<Vec<_>>().join("."))
}

/// The number of bytes at the front of all names that are whole shared components, if there are
/// several names; a number stays with the name of what it counts.
pub fn shared_front(names: &[&str]) -> usize {
    let [first, rest @ ..] = names else { return 0 };
    if rest.is_empty() {
        return 0;
    }
    let counts = |end: usize| names.iter().any(|name| name[end..].starts_with(is_digit));
    let ends = first.match_indices('.').map(|(at, _)| at + 1);
    let shared = ends.take_while(|&end| rest.iter().all(|name| name.starts_with(&first[..end])));
    shared.filter(|&end| !counts(end)).last().unwrap_or(0)
}

fn is_digit(character: char) -> bool {
    character.is_ascii_digit()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str], same: impl Fn(usize, usize) -> bool) -> Vec<String> {
        runs(names, same).into_iter().map(|run| run.name).collect()
    }

    #[test]
    fn layers_that_are_alike() {
        let names = ["h.0.mlp", "h.1.mlp", "h.2.mlp", "h.4.mlp", "h.5.attn", "norm"];
        assert_eq!(named(&names, |_, _| true), ["h.0–2.mlp", "h.4.mlp", "h.5.attn", "norm"]);
        assert_eq!(
            named(&names, |a, b| (a, b) != (0, 2)),
            ["h.0–1.mlp", "h.2.mlp", "h.4.mlp", "h.5.attn", "norm"]
        );
        assert_eq!(named(&["h.0.0", "h.1.1"], |_, _| true), ["h.0.0", "h.1.1"]);
        assert_eq!(named(&["h.01", "h.02"], |_, _| true), ["h.01", "h.02"]);
        assert_eq!(named(&["h.9", "h.10"], |_, _| true), ["h.9–10"]);
    }

    #[test]
    fn fronts_are_whole_components() {
        assert_eq!(shared_front(&["model.layers.0", "model.layers.1"]), "model.".len());
        assert_eq!(shared_front(&["a.h.1.mlp", "a.h.1.attn"]), "a.h.1.".len());
        assert_eq!(shared_front(&["model.lay", "model.layers.1"]), "model.".len());
        assert_eq!(shared_front(&["a.b"]), 0);
        assert_eq!(shared_front(&["a", "a.b"]), 0);
    }
}
