//! What layers make and do not keep, such as the hidden units of an MLP and the scores of
//! attention, in chunks of rows: a wide product of the forward pass, what follows from it, and what
//! the backward pass makes of that. Invariant: each layer is divided by itself, or stays as it is.
//! Sums over the rows are made at once, so chunks change no bit.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};

use crate::graph::Graph;
use crate::id::{NodeId, ValueId};
use crate::operator::Operator;
use crate::split::choice::{self, Products};
use crate::split::cut::Cut;
use crate::split::emit::{Unwritten, written};
use crate::split::region::{Form, Step};
use crate::split::{SplitError, Sums};

/// The step with its layers in as many chunks: those with a product that makes at least half as
/// many elements as the widest one of its kind that can be divided.
///
/// # Errors
/// That of the widest product, if no layer can be divided.
pub fn divided(graph: &Graph, chunks: u64, block: u64) -> Result<Graph, SplitError> {
    let mut layers = Layers::of(graph, chunks, block);
    loop {
        let found = layers.find();
        let parts: Vec<&Cut> =
            found.iter().filter_map(|&at| layers.products[at].cut.as_ref()).collect();
        if parts.is_empty() {
            return Err(layers.refused.unwrap_or(SplitError::NoLayer));
        }
        match written(graph, &parts) {
            Ok(divided) => return Ok(divided),
            Err(Unwritten { part, error }) => layers.refuse(found[part], error),
        }
    }
}

struct Layers<'a> {
    step: Step<'a>,
    chunks: u64,
    block: u64,
    /// The widest first.
    products: Vec<Product>,
    /// Why the widest product that cannot be divided cannot.
    refused: Option<SplitError>,
}

/// A product of a layer.
struct Product {
    node: NodeId,
    value: ValueId,
    elements: u64,
    /// Whether it is of many matrices.
    is_of_matrices: bool,
    /// The ways to divide what follows from it that are not refused, the best one first.
    forms: VecDeque<Form>,
    /// What follows from it, in the first of these ways, once that is known.
    cut: Option<Cut>,
}

impl Layers<'_> {
    fn of(graph: &Graph, chunks: u64, block: u64) -> Layers<'_> {
        let step = Step::of(graph);
        let product = |(node, value): (NodeId, ValueId)| Product {
            node,
            value,
            elements: graph.values()[value].tensor.elements(),
            is_of_matrices: graph.nodes()[node].operator == Some(Operator::Bmm),
            forms: step.forms_of_layer(value).into(),
            cut: None,
        };
        let Products { of_layers, .. } = Products::of(&step);
        let mut products: Vec<Product> = of_layers.into_iter().map(product).collect();
        products.sort_by_key(|product| (Reverse(product.elements), product.node));
        Layers { step, chunks, block, products, refused: None }
    }

    /// The products around which layers can be divided. What two follow from is in the part of the
    /// wider one.
    fn find(&mut self) -> Vec<usize> {
        let (mut found, mut taken, mut widest) = (Vec::new(), BTreeSet::new(), [0; 2]);
        for at in 0..self.products.len() {
            let Product { node, elements, is_of_matrices, .. } = self.products[at];
            let widest = &mut widest[usize::from(is_of_matrices)];
            if elements < *widest / 2 || taken.contains(&node) {
                continue;
            }
            let Some(cut) = self.cut(at) else { continue };
            let calls: BTreeSet<NodeId> = cut.region.calls.keys().copied().collect();
            if calls.is_disjoint(&taken) {
                taken.extend(calls);
                *widest = elements.max(*widest);
                found.push(at);
            }
        }
        found
    }

    /// What follows from a product, in the first way in which it can be divided.
    fn cut(&mut self, at: usize) -> Option<&Cut> {
        while let Some(&form) = self.products[at].forms.front() {
            let Product { node, value, cut: known, .. } = &self.products[at];
            if known.is_some() {
                break;
            }
            let region = choice::part(&self.step, (*node, *value), form, Sums::AtOnce);
            let cut = region
                .and_then(|region| Cut::by_rows(self.step.graph, region, self.chunks, self.block));
            match cut {
                Ok(cut) => self.products[at].cut = Some(cut),
                Err(error) => self.refuse(at, error),
            }
        }
        self.products[at].cut.as_ref()
    }

    /// A product is not divided in the way that came first.
    fn refuse(&mut self, at: usize, error: SplitError) {
        self.refused = self.refused.take().or(Some(error));
        self.products[at].forms.pop_front();
        self.products[at].cut = None;
    }
}
