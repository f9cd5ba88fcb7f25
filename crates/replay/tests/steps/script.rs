//! A step as a list of its requests. Invariant: the same script makes the same calls each time it
//! is played, up to the first that fails.

use proptest::prelude::*;
use tightfit_replay::{Address, Allocator, Backing, ReplayError, Size, Trace};

use super::device::{OTHER, OWN};

/// One request.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// This many bytes.
    Allocate(usize),
    /// This many bytes for another thread.
    Beside(usize),
    /// One of the blocks that are held is given back, by its number among them.
    Free(usize),
    /// The same, by another thread.
    FreeBeside(usize),
    /// The first pass ends, one of the blocks is given back, and the second begins.
    Turn(usize),
}

/// A tensor that is held: its position among the step's own allocations, if it is one of them.
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    pub position: Option<usize>,
    pub address: Address,
    pub size: usize,
}

/// Tensors that are held now, and every own allocation that was made.
#[derive(Debug, Default)]
pub struct Played {
    pub out: Vec<Tensor>,
    pub made: Vec<Tensor>,
}

pub fn scripts() -> impl Strategy<Value = Vec<Request>> {
    let request = prop_oneof![
        6 => (1_usize..5000).prop_map(Request::Allocate),
        1 => (1_usize..5000).prop_map(Request::Beside),
        5 => any::<usize>().prop_map(Request::Free),
        1 => any::<usize>().prop_map(Request::FreeBeside),
        1 => any::<usize>().prop_map(Request::Turn),
    ];
    prop::collection::vec(request, 1..60)
}

/// Plays a step; what it leaves allocated is in the result. After each request `look` sees what is
/// held.
pub fn play<B: Backing>(
    allocator: &mut Allocator<B>,
    script: &[Request],
    mut look: impl FnMut(&[Tensor]),
) -> Result<Played, ReplayError> {
    let mut played = Played::default();
    let mut turned = false;
    allocator.open(OWN.0, OWN.1)?;
    for &request in script {
        match request {
            Request::Allocate(size) => {
                let address = allocator.allocate(Size(size), OWN.0, OWN.1)?.unwrap();
                let position = Some(played.made.len());
                played.made.push(Tensor { position, address, size });
                played.out.push(Tensor { position, address, size });
            }
            Request::Beside(size) => {
                let address = allocator.allocate(Size(size), OTHER.0, OTHER.1)?.unwrap();
                played.out.push(Tensor { position: None, address, size });
            }
            Request::Free(index) | Request::FreeBeside(index) => {
                if !played.out.is_empty() {
                    let tensor = played.out.remove(index % played.out.len());
                    let is_own = matches!(request, Request::Free(_));
                    allocator.free(tensor.address, if is_own { OWN.0 } else { OTHER.0 });
                }
            }
            Request::Turn(index) => {
                if !turned {
                    allocator.close()?;
                    if !played.out.is_empty() {
                        let tensor = played.out.remove(index % played.out.len());
                        allocator.free(tensor.address, OTHER.0);
                    }
                    allocator.open(OWN.0, OWN.1)?;
                    turned = true;
                }
            }
        }
        look(&played.out);
    }
    allocator.close()?;
    Ok(played)
}

/// Records a step; allocations whose positions satisfy `is_kept` outlast its last pass, are still
/// there when the next one begins, and are given back then.
pub fn record<B: Backing>(
    allocator: &mut Allocator<B>,
    script: &[Request],
    is_kept: impl Fn(usize) -> bool,
) -> Trace {
    allocator.record();
    let played = play(allocator, script, |_| ()).unwrap();
    let kept = |tensor: &&Tensor| tensor.position.is_some_and(&is_kept);
    let (kept, gone): (Vec<&Tensor>, Vec<&Tensor>) = played.out.iter().partition(kept);
    gone.iter().for_each(|tensor| allocator.free(tensor.address, OWN.0));
    let trace = allocator.leave().unwrap();
    kept.iter().for_each(|tensor| allocator.free(tensor.address, OWN.0));
    trace
}
