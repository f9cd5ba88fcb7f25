//! Orders. Invariant: x.
use super::sections::Sections;
use super::*;
use std::cmp::Reverse;

pub(super) fn orders(blocks: &[Lifetime], free: &[u32]) -> Vec<Vec<u32>> {
    let b = |i: u32| blocks[i as usize];
    let d = |i: u32| u64::from(b(i).last - b(i).first) + 1;
    let mut out = vec![];
    let mut o = free.to_vec();
    o.sort_by_key(|&i| (Reverse(b(i).bytes), b(i).first, i));
    out.push(o.clone());
    o.sort_by_key(|&i| (Reverse(u128::from(b(i).bytes.0) * u128::from(d(i))), b(i).first, i));
    out.push(o.clone());
    o.sort_by_key(|&i| (Reverse(d(i)), b(i).first, i));
    out.push(o.clone());
    out
}

pub(super) fn rank(blocks: &[Lifetime], rule: u32, cut: &Sections, noise: f64, random: &mut u64) -> Vec<u32> {
    let mut o: Vec<u32> = (0..blocks.len() as u32).collect();
    let total: Vec<u64> = cut.live.iter().map(|l| l.iter().map(|&b| blocks[b as usize].bytes.0).sum()).collect();
    let mut factor = vec![1.0; blocks.len()];
    for f in &mut factor {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        *f = 1.0 + noise * ((*random >> 11) as f64 / (1u64 << 53) as f64);
    }
    let key = |i: u32| {
        let g = |x: u128| (x as f64 * factor[i as usize]) as u128;
        let b = blocks[i as usize];
        let w = u64::from(b.last - b.first) + 1;
        let a = u128::from(b.bytes.0) * u128::from(w);
        let (f, t) = cut.range[i as usize];
        let t: u64 = (f..t).map(|s| total[s as usize]).max().unwrap();
        match rule {
            0 => (g(w as u128), a, t as u128),
            1 => (t as u128, g(a), w as u128),
            2 => (t as u128, g(w as u128), a),
            _ => (g(b.bytes.0 as u128), a, w as u128),
        }
    };
    o.sort_by_key(|&i| (Reverse(key(i)), i));
    let mut r = vec![0; blocks.len()];
    for (k, &i) in o.iter().enumerate() {
        r[i as usize] = k as u32;
    }
    r
}

pub(super) fn improve(
    _blocks: &[Lifetime],
    _fixed: &[Option<u64>],
    _floor: u64,
    _free: &[u32],
    _target: u64,
    best: Placement,
    _budget: &mut Budget,
) -> Placement {
    best
}
