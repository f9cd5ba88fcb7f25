//! Processes of an MPI job that exchange bytes. Invariant: whatever is sent arrives where it was to
//! be put; if a rank fails, panics or falls silent, the job comes to its end, with the cause.
//!
//! Each test lets `mpirun` start this very program as the ranks of a job, which then run the test
//! `as_a_rank` and nothing else.
//!
//! Tier: quick, since it takes 8 s.
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

use std::process::Command;
use std::time::Duration;

use tightfit::id::RankId;
use tightfit_engine::transport::mpi::{Job, JobError, MpiLink};
use tightfit_engine::transport::{Awaiting, Header, Lent, Link, Route};

/// The environment variable that says what a rank is to do.
const DEED: &str = "TIGHTFIT_TEST_DEED";

/// A job's output and its exit code.
struct Ended {
    says: String,
    code: Option<i32>,
}

/// Runs a job of this many ranks.
fn job(ranks: u32, deed: &str) -> Ended {
    let output = Command::new("mpirun")
        .args(["-n", &ranks.to_string()])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "as_a_rank", "--nocapture"])
        .env(DEED, deed)
        // Tests run as root in containers, and on fewer processors than there are ranks.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .output()
        .unwrap();
    let says = [output.stdout, output.stderr].concat();
    Ended { says: String::from_utf8_lossy(&says).into_owned(), code: output.status.code() }
}

#[test]
fn bytes_arrive_where_they_are_to_be_put() {
    for ranks in [2, 3] {
        let Ended { says, code } = job(ranks, "exchange");
        assert_eq!(code, Some(0), "{says}");
        assert_eq!(says.matches("all bytes are right").count(), ranks as usize, "{says}");
    }
}

#[test]
fn a_rank_that_fails_stops_all_others() {
    let Ended { says, .. } = job(3, "fail");
    // Some may be ended by `mpirun` before they print, but not before everything was quiet.
    assert!(says.contains("rank1 failed: out of paper"), "{says}");
    assert!(!says.contains("was written after the end"), "{says}");
}

#[test]
fn a_panic_ends_the_job() {
    let Ended { says, code } = job(3, "panic");
    assert!(says.contains("not expected"), "{says}");
    assert_ne!(code, Some(0), "{says}");
}

#[test]
fn a_silent_rank_is_waited_for_until_the_deadline() {
    let Ended { says, code } = job(2, "silent");
    let waited = "rank0 waited 3 s for message 1 of step 1, tensor 1, from rank1: nothing came";
    assert!(says.contains(waited), "{says}");
    assert!(says.contains("rank1 hears: rank0 failed: it waited 3 s for message 1"), "{says}");
    assert_ne!(code, Some(0), "{says}");
}

#[test]
fn ranks_that_are_too_few_or_too_many_know_it() {
    let Ended { says, code } = job(1, "exchange");
    assert!(says.contains("2 ranks are asked for, and the job has 1"), "{says}");
    assert_ne!(code, Some(0));
    let Ended { says, code } = job(4, "pair");
    assert_eq!(code, Some(0), "{says}");
    assert_eq!(says.matches("all bytes are right").count(), 2, "{says}");
    assert_eq!(says.matches("not needed").count(), 2, "{says}");
}

/// What a process of a job does; if started otherwise, it does nothing.
#[test]
fn as_a_rank() {
    let Ok(deed) = std::env::var(DEED) else { return };
    let wanted = match deed.as_str() {
        "pair" => 2,
        _ => std::env::var("OMPI_COMM_WORLD_SIZE").unwrap().parse::<u32>().unwrap().max(2),
    };
    let job = match Job::begin(wanted, Duration::from_secs(60), |cause| eprintln!("{cause}")) {
        Ok(job) => job,
        Err(error @ JobError::Few { .. }) => {
            eprintln!("{error}");
            std::process::exit(2);
        }
        Err(error) => panic!("{error}"),
    };
    let code = match job.link() {
        None => {
            println!("not needed");
            0
        }
        Some(link) => match deed.as_str() {
            "exchange" | "pair" => exchange(link),
            "fail" => fail(link),
            "panic" => panic_beside_others(link),
            "silent" => silent(link),
            other => panic!("{other}"),
        },
    };
    job.end(code);
    std::process::exit(code.into());
}

/// A message from every rank to every other one.
fn routes(ranks: u32) -> Vec<Route> {
    let all = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
    let route = |(number, (from, to))| Route {
        from: RankId::from_u32(from),
        to: RankId::from_u32(to),
        what: format!("tensor {number}"),
    };
    all.filter(|(from, to)| from != to).enumerate().map(route).collect()
}

/// Bytes that identify their message and step.
fn bytes_of(step: u32, message: usize) -> Vec<u8> {
    // From none to more than MPI sends at once without a receiver's request.
    let length = [0, 1, 5_000, 300_000][(step as usize + message) % 4];
    (0..length).map(|index| (index as u32 * 31 + step * 7 + message as u32) as u8).collect()
}

fn exchange(link: &MpiLink) -> u8 {
    const STEPS: u32 = 40;
    let (own, ranks) = (link.rank(), link.ranks());
    let routes = routes(ranks);
    link.expects(routes.clone(), Duration::from_secs(60)).unwrap();
    for step in 0..STEPS {
        let numbered = || (0..).zip(&routes);
        let sent: Vec<(u32, Vec<u8>)> = numbered()
            .filter(|(_, route)| route.from == own)
            .map(|(message, _)| (message, bytes_of(step, message as usize)))
            .collect();
        let mut received: Vec<(u32, Vec<u8>)> = numbered()
            .filter(|(_, route)| route.to == own)
            .map(|(message, _)| (message, vec![0; bytes_of(step, message as usize).len()]))
            .collect();
        // Every other step says early where messages are to be put.
        if step % 2 == 0 {
            for (message, into) in &mut received {
                // SAFETY: nothing touches it before it was received.
                let into = unsafe { Awaiting::new(into) };
                link.post(Header { step, message: *message }, into).unwrap();
            }
        }
        for (message, bytes) in &sent {
            // SAFETY: nothing changes them before they were sent.
            let bytes = unsafe { Lent::new(bytes) };
            link.send(Header { step, message: *message }, bytes).unwrap();
        }
        for (message, into) in &mut received {
            link.receive(Header { step, message: *message }, into).unwrap();
            assert_eq!(*into, bytes_of(step, *message as usize));
        }
        for (message, _) in &sent {
            link.sent(Header { step, message: *message }).unwrap();
        }
        // Between two steps: something long, something short, nothing.
        let said = |rank: u32| vec![rank as u8; [0, 3, 56, 57, 10_000][(step + rank) as usize % 5]];
        let heard = link.gather(&said(own.as_u32())).unwrap();
        assert_eq!(heard, (0..ranks).map(said).collect::<Vec<_>>());
        let first = RankId::from_u32(0);
        for other in (1..ranks).map(RankId::from_u32) {
            let gift = bytes_of(step, 3);
            if own == first {
                link.give(other, &gift).unwrap();
            } else if own == other {
                let mut into = vec![0; gift.len()];
                link.take(first, &mut into).unwrap();
                assert_eq!(into, gift);
            }
        }
    }
    println!("all bytes are right");
    0
}

fn fail(link: &MpiLink) -> u8 {
    let routes = routes(link.ranks());
    link.expects(routes.clone(), Duration::from_secs(60)).unwrap();
    let own = link.rank();
    if let Err(error) = link.gather(&[]) {
        // The failing rank has read what all ranks said, and others have not yet.
        println!("{own}: {error}");
        return 12;
    }
    if own == RankId::from_u32(1) {
        link.abort("out of paper");
        return 3;
    }
    // One message is posted and one is lent, both too large to be sent without the other side.
    let mut into = vec![7; 1 << 20];
    let lent = vec![9; 1 << 20];
    let number = |to_own: bool| {
        let one = RankId::from_u32(1);
        let is_it = |route: &Route| match to_own {
            true => route.from == one && route.to == own,
            false => route.from == own && route.to == one,
        };
        Header { step: 0, message: routes.iter().position(is_it).unwrap() as u32 }
    };
    // SAFETY: both stay until everything is quiet.
    unsafe {
        let posted = link.post(number(true), Awaiting::new(&mut into));
        let sent = link.send(number(false), Lent::new(&lent));
        let waited = posted.and(sent).and_then(|()| link.sent(number(false)));
        println!("{own}: {}", waited.unwrap_err());
    }
    into.fill(1);
    std::thread::sleep(Duration::from_millis(100));
    if into.iter().any(|&byte| byte != 1) {
        println!("memory was written after the end");
    }
    12
}

fn panic_beside_others(link: &MpiLink) -> u8 {
    link.expects(routes(link.ranks()), Duration::from_secs(600)).unwrap();
    link.gather(&[]).unwrap();
    if link.rank() == RankId::from_u32(1) {
        std::thread::spawn(|| panic!("not expected")).join().ok();
    }
    link.receive(Header { step: 0, message: 0 }, &mut [0; 8]).ok();
    unreachable!("the job was ended");
}

fn silent(link: &MpiLink) -> u8 {
    link.expects(routes(link.ranks()), Duration::from_secs(3)).unwrap();
    link.gather(&[]).unwrap();
    if link.rank() == RankId::from_u32(1) {
        // As if it computed for a long time.
        std::thread::sleep(Duration::from_secs(6));
        println!("rank1 hears: {}", link.gather(&[]).unwrap_err());
        return 0;
    }
    // The first message of two ranks goes in the other direction.
    let error = link.receive(Header { step: 0, message: 1 }, &mut [0; 8]).unwrap_err();
    println!("{error}");
    12
}
