//! Minimum cuts on a fixed network whose capacities change: Dinic's maximum flow. Invariant:
//! capacities are whole numbers, so a cut's value is exact.
//!
//! Source: Dinitz, "Algorithm for solution of a problem of maximum flow in a network with power
//! estimation", 1970.

/// A capacity that no cut crosses.
pub const INFINITE: i64 = 1 << 61;

/// A vertex.
pub type Vertex = u32;

/// A network under construction.
#[derive(Default)]
pub struct ArcList {
    ends: Vec<(Vertex, Vertex)>,
}

/// An arc, by the order in which it was added.
#[derive(Clone, Copy)]
pub struct ArcId(u32);

impl ArcList {
    /// Adds an arc.
    pub fn add(&mut self, from: Vertex, to: Vertex) -> ArcId {
        self.ends.push((from, to));
        ArcId(self.ends.len() as u32 - 1)
    }
}

/// A network with a flow.
pub struct Network {
    /// Where the arcs of each vertex begin, reversed arcs included.
    first: Vec<u32>,
    head: Vec<Vertex>,
    /// The reversed arc of each.
    reverse: Vec<u32>,
    residual: Vec<i64>,
    /// Where each added arc lies.
    place: Vec<u32>,
    level: Vec<u32>,
    cursor: Vec<u32>,
    queue: Vec<Vertex>,
    path: Vec<u32>,
}

const UNREACHED: u32 = u32::MAX;

impl Network {
    /// A network of `vertices`, with all capacities 0.
    pub fn new(vertices: usize, arcs: &ArcList) -> Network {
        let mut first = vec![0u32; vertices + 1];
        for &(from, to) in &arcs.ends {
            first[from as usize + 1] += 1;
            first[to as usize + 1] += 1;
        }
        for vertex in 0..vertices {
            first[vertex + 1] += first[vertex];
        }
        let mut next = first.clone();
        let mut slot = |vertex: Vertex| {
            let slot = next[vertex as usize];
            next[vertex as usize] += 1;
            slot
        };
        let count = 2 * arcs.ends.len();
        let (mut head, mut reverse, mut place) =
            (vec![0; count], vec![0; count], Vec::with_capacity(arcs.ends.len()));
        for &(from, to) in &arcs.ends {
            let (forth, back) = (slot(from), slot(to));
            (head[forth as usize], head[back as usize]) = (to, from);
            (reverse[forth as usize], reverse[back as usize]) = (back, forth);
            place.push(forth);
        }
        Network {
            first,
            head,
            reverse,
            residual: vec![0; count],
            place,
            level: vec![UNREACHED; vertices],
            cursor: vec![0; vertices],
            queue: Vec::with_capacity(vertices),
            path: Vec::new(),
        }
    }

    /// No flow, no capacity.
    pub fn clear(&mut self) {
        self.residual.fill(0);
    }

    /// Raises the capacity of an arc; the flow stays.
    pub fn raise(&mut self, arc: ArcId, by: i64) {
        self.residual[self.place[arc.0 as usize] as usize] += by;
    }

    /// The flow, to be restored later.
    pub fn flow(&self) -> Vec<i64> {
        self.residual.clone()
    }

    /// Restores a flow.
    pub fn set_flow(&mut self, flow: &[i64]) {
        self.residual.copy_from_slice(flow);
    }

    /// Augments the flow until it is a maximum one, or grew by `enough`, and returns by how much it
    /// grew; `None` if `stop` said so, and then the flow is useless.
    pub fn augment(
        &mut self,
        source: Vertex,
        sink: Vertex,
        enough: i64,
        stop: impl Fn() -> bool,
    ) -> Option<i64> {
        let mut total = 0;
        while total < enough && self.reaches(source, sink) {
            if stop() {
                return None;
            }
            self.cursor.copy_from_slice(&self.first[..self.level.len()]);
            total += self.block(source, sink, enough - total, &stop)?;
        }
        Some(total)
    }

    /// After [`Network::augment`]: is `vertex` on the source's side of the minimum cut nearest to
    /// the sink?
    pub fn is_on_source_side(&self, vertex: Vertex) -> bool {
        self.level[vertex as usize] == UNREACHED
    }

    /// Computes distances to the sink along arcs with residual capacity. (Searched from the sink,
    /// so that the blocking flow never walks into a part of the network that does not lead there.
    /// Once the source is reached, vertices farther away are not.)
    fn reaches(&mut self, source: Vertex, sink: Vertex) -> bool {
        self.level.fill(UNREACHED);
        self.level[sink as usize] = 0;
        self.queue.clear();
        self.queue.push(sink);
        let mut next = 0;
        while next < self.queue.len() && self.level[source as usize] == UNREACHED {
            let vertex = self.queue[next] as usize;
            next += 1;
            for arc in self.first[vertex] as usize..self.first[vertex + 1] as usize {
                let from = self.head[arc] as usize;
                if self.level[from] == UNREACHED && self.residual[self.reverse[arc] as usize] > 0 {
                    self.level[from] = self.level[vertex] + 1;
                    self.queue.push(from as Vertex);
                }
            }
        }
        self.level[source as usize] != UNREACHED
    }

    /// Fills the shortest paths, until that is enough.
    fn block(
        &mut self,
        source: Vertex,
        sink: Vertex,
        enough: i64,
        stop: &impl Fn() -> bool,
    ) -> Option<i64> {
        let (mut total, mut paths) = (0, 0u32);
        self.path.clear();
        let mut vertex = source;
        loop {
            if vertex == sink {
                paths += 1;
                if paths.is_multiple_of(1024) && stop() {
                    return None;
                }
                let least =
                    self.path.iter().map(|&arc| self.residual[arc as usize]).min().unwrap_or(0);
                total += least;
                let mut full = 0;
                for (index, &arc) in self.path.iter().enumerate().rev() {
                    self.residual[arc as usize] -= least;
                    self.residual[self.reverse[arc as usize] as usize] += least;
                    if self.residual[arc as usize] == 0 {
                        full = index;
                    }
                }
                if total >= enough {
                    return Some(total);
                }
                vertex = self.tail(self.path[full]);
                self.path.truncate(full);
                continue;
            }
            match self.step_from(vertex) {
                Some(arc) => {
                    self.path.push(arc);
                    vertex = self.head[arc as usize];
                }
                None => {
                    let Some(arc) = self.path.pop() else { return Some(total) };
                    vertex = self.tail(arc);
                    self.cursor[vertex as usize] += 1;
                }
            }
        }
    }

    fn tail(&self, arc: u32) -> Vertex {
        self.head[self.reverse[arc as usize] as usize]
    }

    /// The next arc with residual capacity that leads one step nearer to the sink.
    fn step_from(&mut self, vertex: Vertex) -> Option<u32> {
        let index = vertex as usize;
        let end = self.first[index + 1];
        while self.cursor[index] < end {
            let arc = self.cursor[index];
            let to = self.head[arc as usize] as usize;
            if self.residual[arc as usize] > 0
                && self.level[to] != UNREACHED
                && self.level[to] + 1 == self.level[index]
            {
                return Some(arc);
            }
            self.cursor[index] += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The least cut by trying all of them.
    fn least_cut(vertices: usize, arcs: &[(Vertex, Vertex, i64)]) -> i64 {
        (0..1u32 << vertices)
            .filter(|side| side & 1 == 1 && side >> (vertices - 1) & 1 == 0)
            .map(|side| {
                arcs.iter()
                    .filter(|(from, to, _)| side >> from & 1 == 1 && side >> to & 1 == 0)
                    .map(|arc| arc.2)
                    .sum()
            })
            .min()
            .unwrap_or(0)
    }

    #[test]
    fn a_maximum_flow_is_a_minimum_cut_also_after_capacities_grow() {
        let mut random = 3u64;
        let mut below = |n: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % n
        };
        for _ in 0..300 {
            let vertices = 2 + below(6) as usize;
            let mut list: Vec<(Vertex, Vertex, i64)> = (0..below(14))
                .map(|_| {
                    (
                        below(vertices as u64) as Vertex,
                        below(vertices as u64) as Vertex,
                        below(9) as i64,
                    )
                })
                .filter(|(from, to, _)| from != to)
                .collect();
            let mut arcs = ArcList::default();
            let ids: Vec<ArcId> = list.iter().map(|&(from, to, _)| arcs.add(from, to)).collect();
            let mut network = Network::new(vertices, &arcs);
            list.iter().zip(&ids).for_each(|(arc, &id)| network.raise(id, arc.2));
            let (source, sink) = (0, vertices as Vertex - 1);
            let mut flow = network.augment(source, sink, i64::MAX, || false).unwrap_or(-1);
            assert_eq!(flow, least_cut(vertices, &list));
            for (arc, &id) in list.iter_mut().zip(&ids) {
                let more = below(4) as i64;
                arc.2 += more;
                network.raise(id, more);
            }
            flow += network.augment(source, sink, i64::MAX, || false).unwrap_or(-1);
            assert_eq!(flow, least_cut(vertices, &list));
            let cut: i64 = list
                .iter()
                .filter(|(from, to, _)| {
                    network.is_on_source_side(*from) && !network.is_on_source_side(*to)
                })
                .map(|arc| arc.2)
                .sum();
            assert_eq!(flow, cut);
        }
    }
}
