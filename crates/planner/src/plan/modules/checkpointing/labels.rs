//! Selective checkpointing as a shortest path through the forward post-order: which modules to
//! checkpoint, without a solver. Invariant: an answer is an optimum, up to a billionth of its
//! seconds; if it would take too much work, there is no answer.
//!
//! Candidates are in the order in which they end. Before each of them a path either steps over it,
//! or over it and all below it at once by checkpointing it; so every path is a choice of modules of
//! which none contains another. A *label* is such a beginning of a path: what it discards at least,
//! in which time, and at which rates its modules may discard more. `doc/theory/selective.md` has
//! the proofs.

use crate::analysis::modules::ModuleInfo;
use crate::effort::Meter;
use crate::plan::modules::candidate::{CheckpointCandidate, Piece};
use crate::plan::modules::memory::MemoryRow;
use crate::units::Bytes;

/// Most labels kept at one place: few often suffice for a proof, and what they find excludes most
/// of the others.
const WIDTHS: [usize; 2] = [64, 1024];
/// Most pieces that are examined, about a second's worth.
const MOST_WORK: u64 = 200_000_000;
/// Pieces that take as long to examine as one operation of a planner.
const PIECES_OF_AN_OPERATION: u64 = 10;
/// Fraction of a byte that is too small to matter for a need.
const CRUMB: f64 = 1e-3;
/// Relative difference in seconds that does not count as faster.
const CLOSE: f64 = 1e-9;

/// The modules that recompute least within a budget; `None` if there is no answer: the budget
/// cannot be met, modules do not end right after those below them, or it takes too much work.
pub fn cheapest<'a>(
    info: &ModuleInfo,
    candidates: &'a [CheckpointCandidate],
    rows: &[MemoryRow],
    budget: Bytes,
    meter: &mut Meter<'_>,
) -> Option<Vec<&'a CheckpointCandidate>> {
    let mut search = Search::new(info, candidates, rows, budget)?;
    let chosen = search.cheapest();
    meter.spend(search.work / PIECES_OF_AN_OPERATION);
    chosen
}

/// Candidates in the order in which they end, and the search's data about them.
struct Search<'a> {
    candidates: Vec<&'a CheckpointCandidate>,
    /// By place: the bytes that those before it have to discard.
    needs: Vec<f64>,
    /// By place: the candidates whose first candidate below, or else the candidate itself, is
    /// there.
    begins: Vec<Vec<usize>>,
    /// By place: the least seconds in which those from there on discard, if fractions of modules
    /// are allowed; convex.
    ahead: Vec<Vec<Piece>>,
    work: u64,
}

/// A beginning of a path.
#[derive(Clone)]
struct Label {
    /// The bytes that it discards at least, and the seconds for them.
    bytes: f64,
    seconds: f64,
    /// What its modules may discard beyond that, by increasing rate.
    left: Vec<Piece>,
    /// The last link of its modules.
    last: Option<usize>,
}

/// A module of a path, by its place, and the link before.
struct Link {
    candidate: usize,
    before: Option<usize>,
}

/// Results of one search over all places.
struct Found<'a> {
    /// The fastest path, if it is faster than the limit.
    best: Option<(f64, Vec<&'a CheckpointCandidate>)>,
    /// No path that was dropped for lack of width takes less.
    excluded: f64,
}

impl<'a> Search<'a> {
    fn new(
        info: &ModuleInfo,
        candidates: &'a [CheckpointCandidate],
        rows: &[MemoryRow],
        budget: Bytes,
    ) -> Option<Search<'a>> {
        let mut candidates: Vec<&CheckpointCandidate> = candidates.iter().collect();
        candidates.sort_by_key(|candidate| candidate.position);
        let count = candidates.len();
        let mut needs = vec![0.0f64; count + 1];
        for row in rows {
            let before = candidates.partition_point(|unit| unit.position < row.position);
            needs[before] = needs[before].max(row.bytes.saturating_sub(budget).0 as f64);
        }
        // What is discarded stays discarded.
        for place in 1..=count {
            needs[place] = needs[place].max(needs[place - 1]);
        }
        let mut begins = vec![Vec::new(); count + 1];
        for (at, candidate) in candidates.iter().enumerate() {
            let contains =
                |below: &&&CheckpointCandidate| info.contains(candidate.module, below.module);
            let adjoining = candidates[..at].iter().rev().take_while(contains).count();
            if candidates[..at].iter().filter(contains).count() > adjoining {
                return None;
            }
            begins[at - adjoining].push(at);
        }
        let mut search = Search { candidates, needs, begins, ahead: vec![Vec::new()], work: 0 };
        for place in (0..count).rev() {
            let next = |at: usize| &search.ahead[count - at];
            let mut corners = corners(0.0, 0.0, next(place + 1));
            for &at in &search.begins[place] {
                let candidate = search.candidates[at];
                let mut own = vec![(0.0, 0.0)];
                own.extend(self::corners(0.0, candidate.fixed, &candidate.pieces));
                let with = merged(&lower_hull(own), next(at + 1));
                corners.extend(self::corners(0.0, 0.0, &with));
            }
            search.ahead.push(lower_hull(corners));
        }
        search.ahead.reverse();
        Some(search)
    }

    /// The candidates of the fastest path; `None` if it is not found.
    fn cheapest(&mut self) -> Option<Vec<&'a CheckpointCandidate>> {
        let mut best: Option<(f64, Vec<&CheckpointCandidate>)> = None;
        for width in WIDTHS {
            let limit = best.as_ref().map_or(f64::INFINITY, |(seconds, _)| *seconds);
            let found = self.paths(width, limit)?;
            if let Some(better) = found.best {
                best = Some(better);
            }
            let (seconds, chosen) = best.as_ref()?;
            if found.excluded >= seconds * (1.0 - CLOSE) {
                return Some(chosen.clone());
            }
        }
        None
    }

    /// Follows at most `width` labels from each place to the next ones; `None` if that is too much
    /// work.
    fn paths(&mut self, width: usize, limit: f64) -> Option<Found<'a>> {
        let count = self.candidates.len();
        let whole = self.needs[count];
        let mut links: Vec<Link> = Vec::new();
        let mut open: Vec<Vec<Label>> = vec![Vec::new(); count + 1];
        open[0].push(Label { bytes: 0.0, seconds: 0.0, left: Vec::new(), last: None });
        let mut excluded = f64::INFINITY;
        for place in 0..count {
            let labels = std::mem::take(&mut open[place]);
            let mut bounded: Vec<(f64, Label)> = Vec::with_capacity(labels.len());
            for label in labels {
                let Some(label) = label.discarding(self.needs[place]) else { continue };
                let together = merged(&label.left, &self.ahead[place]);
                self.work += together.len() as u64;
                let least = label.seconds + seconds(&together, whole - label.bytes);
                if least < limit * (1.0 - CLOSE) {
                    bounded.push((least, label));
                }
            }
            bounded.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.seconds.total_cmp(&b.1.seconds)));
            let mut kept: Vec<Label> = Vec::new();
            for (least, label) in bounded {
                if kept.iter().any(|other| other.beats(&label, whole, &mut self.work)) {
                    continue;
                }
                if kept.len() == width {
                    excluded = excluded.min(least);
                    break; // The others are not faster.
                }
                kept.push(label);
            }
            if self.work > MOST_WORK {
                return None;
            }
            for label in kept {
                for &at in &self.begins[place] {
                    // While it is passed, no module below it discards.
                    let Some(before) = label.clone().discarding(self.needs[at]) else { continue };
                    let candidate = self.candidates[at];
                    links.push(Link { candidate: at, before: label.last });
                    open[at + 1].push(Label {
                        bytes: before.bytes,
                        seconds: before.seconds + candidate.fixed,
                        left: merged(&before.left, &candidate.pieces),
                        last: Some(links.len() - 1),
                    });
                }
                open[place + 1].push(label);
            }
        }
        let ended = open[count].drain(..).filter_map(|label| label.discarding(whole));
        let fastest = ended.min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let best = fastest.filter(|label| label.seconds < limit).map(|label| {
            let path = std::iter::successors(label.last, |&at| links[at].before);
            (label.seconds, path.map(|at| self.candidates[links[at].candidate]).collect())
        });
        Some(Found { best, excluded })
    }
}

impl Label {
    /// The label that discards at least `need`, at the lowest rates; `None` if it cannot.
    fn discarding(mut self, need: f64) -> Option<Label> {
        let mut used = 0;
        for piece in &mut self.left {
            let short = need - self.bytes;
            if short <= 0.0 {
                break;
            }
            let taken = short.min(piece.bytes);
            self.bytes += taken;
            self.seconds += taken * piece.rate;
            piece.bytes -= taken;
            used += usize::from(piece.bytes <= 0.0);
        }
        self.left.drain(..used);
        (need - self.bytes <= CRUMB).then_some(self)
    }

    /// Whether it discards every amount up to `whole` in no more time than the other. Seconds are
    /// convex, so only the corners of the other have to be compared.
    fn beats(&self, other: &Label, whole: f64, work: &mut u64) -> bool {
        let (mut bytes, mut spent) = (other.bytes, other.seconds);
        let mut rest = other.left.iter();
        loop {
            *work += self.left.len() as u64 + 1;
            let ours = self.seconds + seconds(&self.left, bytes - self.bytes);
            if ours > spent * (1.0 + CLOSE / 1e3) {
                return false;
            }
            let Some(piece) = rest.next().filter(|_| bytes < whole) else { return true };
            let taken = piece.bytes.min(whole - bytes);
            bytes += taken;
            spent += taken * piece.rate;
        }
    }
}

/// Seconds of `bytes` at the lowest rates; infinite if the pieces have fewer bytes.
fn seconds(pieces: &[Piece], bytes: f64) -> f64 {
    let (mut short, mut spent) = (bytes, 0.0);
    for piece in pieces {
        if short <= 0.0 {
            break;
        }
        let taken = short.min(piece.bytes);
        spent += taken * piece.rate;
        short -= taken;
    }
    if short > CRUMB { f64::INFINITY } else { spent }
}

/// The pieces of both, by increasing rate.
fn merged(a: &[Piece], b: &[Piece]) -> Vec<Piece> {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    let mut both: Vec<Piece> = Vec::with_capacity(a.len() + b.len());
    loop {
        let from_a = match (a.peek(), b.peek()) {
            (Some(left), Some(right)) => left.rate <= right.rate,
            (left, _) => left.is_some(),
        };
        let Some(&piece) = (if from_a { a.next() } else { b.next() }) else { return both };
        match both.last_mut() {
            Some(last) if last.rate == piece.rate => last.bytes += piece.bytes,
            _ => both.push(piece),
        }
    }
}

/// Bytes and seconds at which pieces meet.
fn corners(bytes: f64, seconds: f64, pieces: &[Piece]) -> Vec<(f64, f64)> {
    let mut at = (bytes, seconds);
    let mut corners = vec![at];
    for piece in pieces {
        at = (at.0 + piece.bytes, at.1 + piece.bytes * piece.rate);
        corners.push(at);
    }
    corners
}

/// The pieces of the highest convex curve that is nowhere above these points, the first of which is
/// zero bytes in zero seconds.
fn lower_hull(mut points: Vec<(f64, f64)>) -> Vec<Piece> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut hull: Vec<(f64, f64)> = Vec::new();
    for point in points {
        match hull.last() {
            Some(last) if point.0 - last.0 < CRUMB && point.1 >= last.1 => continue,
            Some(last) if point.0 - last.0 < CRUMB => drop(hull.pop()),
            _ => {}
        }
        while let [.., before, last] = hull[..] {
            let rate = |from: (f64, f64), to: (f64, f64)| (to.1 - from.1) / (to.0 - from.0);
            if rate(before, last) < rate(last, point) {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
    let piece = |ends: &[(f64, f64)]| {
        let bytes = ends[1].0 - ends[0].0;
        Piece { bytes, rate: (ends[1].1 - ends[0].1) / bytes }
    };
    hull.windows(2).map(piece).collect()
}
