//! How long a million accesses to a hundred thousand tensors take, including decisions and checks.
//! Invariant: each line is one setting; nothing is actually moved.

use std::time::Instant;

use tightfit::id::EntityRef;
use tightfit::units::Bytes;
use tightfit_engine::residency::{
    Access, Figures, GraphKey, Packing, Phase, Residency, ResidencyError, Settings, TensorId,
};

const TENSORS: usize = 100_000;
const ACCESSES: usize = 1_000_000;
const CHUNK: Bytes = Bytes(1 << 20);

/// The same numbers on every machine (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn main() -> Result<(), ResidencyError> {
    let forward = 0..TENSORS;
    let mirrored: Vec<usize> = forward.clone().chain(forward.clone().rev()).collect();
    let mut state = 1;
    let drawn: Vec<usize> =
        (0..2 * TENSORS).map(|_| (random(&mut state) % TENSORS as u64) as usize).collect();
    let one = vec![CHUNK; TENSORS];
    let parts = (0..TENSORS).map(|_| Bytes((1 + random(&mut state) % 16) * CHUNK.0 / 16)).collect();
    let several = (0..TENSORS).map(|_| Bytes((1 + random(&mut state) % 4) * CHUNK.0)).collect();
    for (sizes, what) in
        [(one, "of one chunk"), (parts, "of parts of a chunk"), (several, "of one to four chunks")]
    {
        for (order, name) in [(&mirrored, "forward and back"), (&drawn, "at random")] {
            for prefetch in [0, 16] {
                print!("{what}, {name}, {prefetch} chunks ahead: ");
                measure(&sizes, order, prefetch)?;
            }
        }
    }
    Ok(())
}

/// The region holds half of all chunks.
fn measure(sizes: &[Bytes], order: &[usize], prefetch: u64) -> Result<(), ResidencyError> {
    let all = Packing::new(CHUNK, 1, sizes.iter().copied())?.chunks;
    let prefetch = Bytes(prefetch * CHUNK.0);
    let settings = Settings { prefetch, ..Settings::region(CHUNK, all / 2) };
    let start = Instant::now();
    let mut residency = Residency::new(settings, sizes.iter().copied())?;
    let (mut moves, mut last) = (0, Figures::default());
    for _ in 0..ACCESSES / order.len() {
        residency.begin(GraphKey(0))?;
        for &tensor in order {
            let tensors = [TensorId::new(tensor)];
            let access = Access { reads: &tensors, writes: &[] };
            residency.acquire(access)?;
            residency.release(access, Phase::Forward, Bytes::ZERO)?;
        }
        last = residency.end()?;
        moves += last.moves;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{ACCESSES} accesses to {TENSORS} tensors in {seconds:.3} s, {moves} moves; {last}");
    Ok(())
}
