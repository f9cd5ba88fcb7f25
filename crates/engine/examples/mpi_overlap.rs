//! How much of a message's transfer overlaps with computation. Prints how long is left to wait for
//! a large message after a while, and how fast this computer computes while a rank waits for one:
//!
//! ```text
//! mpirun -n 2 --bind-to none cargo run --release -p tightfit-engine --features mpi \
//!     --example mpi_overlap
//! ```
#![allow(clippy::unwrap_used)] // a measurement that cannot go on panics

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use tightfit::id::RankId;
use tightfit_engine::transport::mpi::Job;
use tightfit_engine::transport::{Awaiting, Header, Lent, Link, Route};

const BYTES: usize = 64 << 20;
const AWAY: Duration = Duration::from_millis(400);
const ROUNDS: u32 = 5;

/// Seconds that a fixed piece of work takes on as many threads as there are processors.
fn compute() -> f64 {
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                let mut x = 1u64;
                for _ in 0..300_000_000u64 {
                    x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
                }
            });
        }
    });
    begun.elapsed().as_secs_f64()
}

fn main() {
    let job = Job::begin(2, Duration::from_secs(60), |cause| eprintln!("{cause}")).unwrap();
    let Some(link) = job.link() else {
        job.end(0);
        return;
    };
    let (first, second) = (RankId::from_u32(0), RankId::from_u32(1));
    let route = Route { from: first, to: second, what: "bytes".to_string() };
    link.expects(vec![route], Duration::from_secs(60)).unwrap();
    let mut bytes = vec![link.rank().as_u32() as u8; BYTES];
    let mut left = Vec::new();
    for step in 0..ROUNDS {
        let header = Header { step, message: 0 };
        link.gather(&[]).unwrap();
        if link.rank() == first {
            // SAFETY: nothing changes them before they were sent.
            link.send(header, unsafe { Lent::new(&bytes) }).unwrap();
            thread::sleep(AWAY);
            link.sent(header).unwrap();
        } else {
            // SAFETY: nothing touches them before they were received.
            link.post(header, unsafe { Awaiting::new(&mut bytes) }).unwrap();
            thread::sleep(AWAY);
            let begun = Instant::now();
            link.receive(header, &mut bytes).unwrap();
            left.push(begun.elapsed().as_secs_f64());
            assert!(bytes.iter().all(|&byte| byte == 0));
            bytes.fill(1);
        }
    }
    // One rank waits for what the other sends late; meanwhile the latter computes on all
    // processors.
    let mut shares = Vec::new();
    for step in ROUNDS..2 * ROUNDS {
        let header = Header { step, message: 0 };
        link.gather(&[]).unwrap();
        if link.rank() == first {
            let beside = compute();
            // SAFETY: nothing changes them before they were sent.
            link.send(header, unsafe { Lent::new(&bytes) }).unwrap();
            link.sent(header).unwrap();
            // Neither rank makes calls of MPI for that long.
            link.gather(&[]).unwrap();
            shares.push((beside, compute()));
        } else {
            link.receive(header, &mut bytes).unwrap();
            link.gather(&[]).unwrap();
            thread::sleep(Duration::from_secs(2));
        }
    }
    if link.rank() == second {
        let best = left.iter().copied().fold(f64::INFINITY, f64::min);
        println!(
            "{} MiB, received after {} ms: {:.3} ms left to wait (best of {ROUNDS}; all {:.3?} ms)",
            BYTES >> 20,
            AWAY.as_millis(),
            best * 1e3,
            left.iter().map(|seconds| seconds * 1e3).collect::<Vec<_>>()
        );
    } else {
        let mut ratios: Vec<f64> = shares.iter().map(|(beside, alone)| alone / beside).collect();
        ratios.sort_by(f64::total_cmp);
        println!(
            "computing next to a rank that waits: {:.3} of the speed when none waits (median of \
             {ROUNDS}; {ratios:.3?})",
            ratios[ratios.len() / 2]
        );
    }
    job.end(0);
}
