//! The thread that makes all calls of MPI. Invariant: a requested transfer begins at once and goes
//! on even if no one waits for it; when a rank has failed, all are told, and no caller learns of it
//! before all transfers have stopped touching this process's memory.
//!
//! MPI moves bytes only while it is called, so this thread polls; between two polls it sleeps,
//! since a library that spins takes a processor from the threads that compute.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tightfit::id::RankId;

use crate::transport::mpi::raw::{Group, Library, MOST, MpiError, Request};
use crate::transport::mpi::slots::{Board, Slot, State, Transfer};
use crate::transport::{Awaiting, Lent, LinkError};

/// Polls without a result after which it sleeps between polls.
const QUESTIONS: u32 = 50;
/// The first sleep; each is a quarter longer than the one before, so that a message is noticed late
/// by at most a quarter of the time that it took, or …
const SHORTEST: Duration = Duration::from_micros(50);
/// … by this much.
const LONGEST: Duration = Duration::from_micros(500);
/// Time from a failure until all ranks must know of it and be quiet, else the job is aborted.
const QUIET: Duration = Duration::from_secs(3);
/// Time after they are quiet until all ranks must have come to their end, else the job is aborted.
const GRACE: Duration = Duration::from_secs(10);
/// Bytes of a rank's note of its failure: small enough to be sent even if no one waits for it.
const NOTE: usize = 2048;
/// The exit code of a job that is aborted because a rank does not answer.
const SILENT: u8 = 12;
/// The exit code of a process that ended by a panic.
const PANICKED: u8 = 101;

/// The groups in which the ranks communicate.
#[derive(Clone, Copy)]
pub struct Groups {
    /// All ranks of the job: they end together.
    pub all: Group,
    /// All of them: notes of failures.
    pub notes: Group,
    /// The ranks of the pipeline: messages, and data gathered between steps.
    pub pipeline: Option<Group>,
    /// The same: bytes between steps.
    pub gives: Option<Group>,
}

/// A part of a transfer.
struct Part {
    slot: usize,
    request: Request,
    receives: bool,
}

/// The state that all ranks are in.
enum Course {
    /// They compute.
    Running,
    /// One has failed, since that instant. The request ends when all of them are quiet.
    Quieting(Instant, Option<Request>),
    /// They are quiet, since then.
    Quiet(Instant),
}

pub struct Carrier {
    pub rank: RankId,
    pub groups: Groups,
    pub board: Arc<Board>,
    /// Called with the cause before the job is aborted.
    pub last_words: fn(&str),
    parts: Vec<Part>,
    course: Course,
    /// Memory for another rank's note that it has failed.
    note: (Box<[u8; NOTE]>, Option<Request>),
    /// The end of all ranks.
    end: Option<End>,
}

/// What ranks exchange at their end: the exit codes of their processes.
struct End {
    request: Request,
    codes: Box<[u8]>,
    /// This rank's, which stays where it is until the request has ended.
    _own: Box<u8>,
}

impl Carrier {
    pub fn new(
        rank: RankId,
        groups: Groups,
        board: Arc<Board>,
        last_words: fn(&str),
    ) -> Result<Carrier, MpiError> {
        let mut note = Box::new([0; NOTE]);
        let into = Awaiting { bytes: note.as_mut_ptr(), length: NOTE };
        let request = groups.notes.receive(into, None, 0)?;
        Ok(Carrier {
            rank,
            groups,
            board,
            last_words,
            parts: Vec::new(),
            course: Course::Running,
            note: (note, Some(request)),
            end: None,
        })
    }

    /// Runs until all ranks have come to their end.
    pub fn run(mut self, library: Library) {
        short_sleeps();
        let (mut unanswered, mut nap) = (0, SHORTEST);
        loop {
            let moved = self.turn().unwrap_or_else(|error| {
                self.fail(LinkError::Mpi { says: error.to_string() });
                true
            });
            if self.has_ended() {
                break;
            }
            let mut state = self.board.lock();
            if moved || std::mem::take(&mut state.is_urgent) {
                (unanswered, nap) = (0, SHORTEST);
            }
            unanswered += 1;
            if unanswered < QUESTIONS {
                drop(state);
                std::thread::yield_now();
            } else if state.asked.is_empty() {
                drop(self.board.asked.wait_timeout(state, nap));
                nap = (nap * 5 / 4).min(LONGEST);
            }
        }
        if let Some(mut request) = self.note.1.take() {
            // No rank sends a note any more, so this ends at once.
            request.cancel().ok();
            request.ended().ok();
        }
        library.end();
    }

    /// Does what there is to do; returns whether anything happened.
    fn turn(&mut self) -> Result<bool, MpiError> {
        let mut state = self.board.lock();
        if state.panics {
            self.groups.all.abort(PANICKED);
        }
        let asked = std::mem::take(&mut state.asked);
        let (has_failed, ends) = (state.failed.is_some(), state.ends);
        drop(state);
        let mut moved = !asked.is_empty();
        if !has_failed {
            for (slot, transfer) in asked {
                self.begin(slot, transfer)?;
            }
        }
        moved |= self.advance()?;
        moved |= self.listen()?;
        match &mut self.course {
            Course::Running if has_failed => self.quieten()?,
            Course::Running => {}
            Course::Quieting(since, everybody) => {
                let since = *since;
                let is_quiet = match everybody {
                    Some(request) => request.ended()?.is_some(),
                    None => {
                        // Nothing arrives any more, so nothing is written here.
                        if !self.parts.iter().any(|part| part.receives) {
                            *everybody = Some(self.groups.notes.everybody()?);
                        }
                        false
                    }
                };
                if is_quiet {
                    self.told();
                } else if since.elapsed() > QUIET {
                    self.give_up(SILENT);
                }
            }
            Course::Quiet(since) => {
                if since.elapsed() > GRACE {
                    let code = self.board.lock().ends.unwrap_or(SILENT);
                    self.groups.all.abort(code);
                }
            }
        }
        let is_resting = !matches!(self.course, Course::Quieting(..));
        if let Some(code) = ends.filter(|_| is_resting && self.end.is_none()) {
            self.end = Some(self.begin_end(code)?);
        }
        Ok(moved)
    }

    /// Sends the exit code of this rank's process, and begins to receive those of the others.
    fn begin_end(&self, code: u8) -> Result<End, MpiError> {
        let own = Box::new(code);
        let mut codes = vec![0; self.groups.all.size()? as usize].into_boxed_slice();
        let said = Lent { bytes: &raw const *own, length: 1 };
        let heard = Awaiting { bytes: codes.as_mut_ptr(), length: codes.len() };
        let request = self.groups.all.gather(said, heard)?;
        Ok(End { request, codes, _own: own })
    }

    /// Begins a transfer, in as many parts as it takes.
    fn begin(&mut self, slot: usize, transfer: Transfer) -> Result<(), MpiError> {
        let Groups { pipeline: Some(pipeline), gives: Some(gives), .. } = self.groups else {
            return Ok(());
        };
        let before = self.parts.len();
        let mut add = |request, receives| self.parts.push(Part { slot, request, receives });
        match transfer {
            Transfer::Send(bytes, to, tag) => {
                for piece in pieces(bytes.length) {
                    add(pipeline.send(lent(bytes, piece), to, tag)?, false);
                }
            }
            Transfer::Receive(into, from, tag) => {
                for piece in pieces(into.length) {
                    add(pipeline.receive(awaiting(into, piece), Some(from), tag)?, true);
                }
            }
            Transfer::Give(bytes, to) => {
                for piece in pieces(bytes.length) {
                    add(gives.hand_over(lent(bytes, piece), to, 0)?, false);
                }
            }
            Transfer::Take(into, from) => {
                for piece in pieces(into.length) {
                    add(gives.receive(awaiting(into, piece), Some(from), 0)?, true);
                }
            }
            Transfer::Gather(own, all) => add(pipeline.gather(own, all)?, false),
        }
        let parts = (self.parts.len() - before) as u32;
        self.board.lock().slots[slot] = Slot::UnderWay { parts, bytes: 0 };
        Ok(())
    }

    /// Checks which transfers have ended.
    fn advance(&mut self) -> Result<bool, MpiError> {
        let before = self.parts.len();
        let mut index = 0;
        while let Some(part) = self.parts.get_mut(index) {
            let Some(brought) = part.request.ended()? else {
                index += 1;
                continue;
            };
            let Part { slot, .. } = self.parts.swap_remove(index);
            let mut state = self.board.lock();
            if let Slot::UnderWay { parts, bytes } = state.slots[slot] {
                let bytes = bytes + brought;
                state.slots[slot] = match parts {
                    // If its other parts could not be begun, a failure is reported instead.
                    0 | 1 => Slot::Done(bytes),
                    parts => Slot::UnderWay { parts: parts - 1, bytes },
                };
                self.board.done.notify_all();
            }
        }
        Ok(self.parts.len() < before)
    }

    /// Checks for another rank's note of its failure.
    fn listen(&mut self) -> Result<bool, MpiError> {
        let (text, Some(request)) = (&self.note.0, &mut self.note.1) else { return Ok(false) };
        let Some(bytes) = request.ended()? else { return Ok(false) };
        self.note.1 = None;
        let Some((rank, cause)) = text[..bytes].split_first_chunk() else { return Ok(true) };
        let rank = RankId::from_u32(u32::from_le_bytes(*rank));
        let cause = String::from_utf8_lossy(cause).into_owned();
        self.fail(LinkError::Aborted { rank, cause });
        Ok(true)
    }

    fn fail(&self, failure: LinkError) {
        self.board.lock().failed.get_or_insert(failure);
    }

    /// Tells the others, if they do not know, and cancels what was to be received.
    fn quieten(&mut self) -> Result<(), MpiError> {
        self.course = Course::Quieting(Instant::now(), None);
        for part in self.parts.iter_mut().filter(|part| part.receives) {
            part.request.cancel()?;
        }
        let failed = self.board.lock().failed.clone();
        let cause = match failed {
            Some(LinkError::Aborted { rank, .. }) if rank != self.rank => return Ok(()),
            Some(LinkError::Aborted { cause, .. }) => cause,
            Some(LinkError::Deadline { awaited, waited, .. }) => {
                format!("it waited {} s for {awaited}", waited.as_secs())
            }
            Some(other) => other.to_string(),
            None => return Ok(()),
        };
        let mut text = self.rank.as_u32().to_le_bytes().to_vec();
        text.extend_from_slice(cause.as_bytes());
        text.truncate(NOTE);
        // It goes to all ranks and is never changed, so it is leaked.
        let text: &'static [u8] = Vec::leak(text);
        for to in (0..self.groups.notes.size()?).filter(|&to| to != self.rank.as_u32()) {
            let bytes = Lent { bytes: text.as_ptr(), length: text.len() };
            // A note is so small that it has been sent when this returns.
            self.groups.notes.send(bytes, to, 0)?;
        }
        Ok(())
    }

    /// Nothing touches what is lent here any more: threads that wait are told.
    fn told(&mut self) {
        self.course = Course::Quiet(Instant::now());
        // What was sent to ranks that do not receive it belongs to no one.
        self.parts.clear();
        let mut state = self.board.lock();
        let State { failed, failure, .. } = &mut *state;
        failure.clone_from(failed);
        self.board.done.notify_all();
    }

    /// Some rank does not even learn of the failure.
    fn give_up(&self, code: u8) -> ! {
        let failed = self.board.lock().failed.clone();
        (self.last_words)(&failed.map(|failed| failed.to_string()).unwrap_or_default());
        self.groups.all.abort(code)
    }

    /// Whether all ranks have come to their end.
    fn has_ended(&mut self) -> bool {
        let Some(End { request, codes, .. }) = &mut self.end else { return false };
        match request.ended() {
            Ok(None) => return false,
            Ok(Some(_)) => self.board.lock().codes = codes.to_vec(),
            Err(_) => {}
        }
        true
    }
}

/// Splits this many bytes into parts that MPI can count; one part if there are none.
fn pieces(length: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..length.div_ceil(MOST).max(1)).map(move |part| {
        let begin = part * MOST;
        (begin, (length - begin).min(MOST))
    })
}

fn lent(bytes: Lent, (begin, length): (usize, usize)) -> Lent {
    Lent { bytes: bytes.bytes.wrapping_add(begin), length }
}

fn awaiting(into: Awaiting, (begin, length): (usize, usize)) -> Awaiting {
    Awaiting { bytes: into.bytes.wrapping_add(begin), length }
}

/// Lets this thread sleep as briefly as requested; the system would add 50 µs.
fn short_sleeps() {
    #[cfg(target_os = "linux")]
    // SAFETY: sets a parameter of this thread.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong);
    }
}
