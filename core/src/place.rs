//! Memory plan of a step: every value of a graph gets a fixed offset in one arena; values that are never alive together
//! share bytes. Nothing is allocated when the step runs.

use crate::graph::{ValueId, VerifiedGraph};
use crate::ops::RowsDim;
use crate::os::align_up;

/// The largest step that a plan is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StepShape {
    /// Rows.
    pub max_rows: usize,
    /// Wanted rows in one tile of the head.
    pub max_wanted: usize,
}

/// Offsets of a graph's values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The largest step.
    pub shape: StepShape,
    /// Offset by value, bytes; `None` for values that no node makes.
    pub offsets: Vec<Option<usize>>,
    /// Size of the arena.
    pub n_bytes: usize,
    /// The most bytes alive at once: no plan can be smaller.
    pub lower_bound: usize,
}

/// First and last node between which a value must keep its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Life {
    first: usize,
    last: usize,
    n_bytes: usize,
}

impl Placement {
    /// Places all values: largest first, each at the lowest offset where it meets no other that lives at the same time.
    pub fn new(graph: &VerifiedGraph, shape: StepShape) -> Placement {
        let mut lives = lives(graph, shape);
        let alias = aliases(graph, &mut lives);
        let mut order: Vec<usize> = (0..lives.len()).filter(|&v| lives[v].is_some() && alias[v].is_none()).collect();
        order.sort_by_key(|&v| std::cmp::Reverse(lives[v].map_or(0, |l| l.n_bytes)));
        let mut offsets: Vec<Option<usize>> = vec![None; lives.len()];
        let mut n_bytes = 0;
        for &v in &order {
            let Some(life) = lives[v] else { continue };
            let mut taken: Vec<(usize, usize)> = order
                .iter()
                .filter_map(|&o| Some((offsets[o]?, lives[o]?)))
                .filter(|(_, l)| l.first <= life.last && life.first <= l.last)
                .map(|(offset, l)| (offset, offset + l.n_bytes))
                .collect();
            taken.sort_unstable();
            let mut at = 0;
            for (start, end) in taken {
                if at + life.n_bytes <= start {
                    break;
                }
                at = at.max(end);
            }
            offsets[v] = Some(at);
            n_bytes = n_bytes.max(at + life.n_bytes);
        }
        for v in 0..lives.len() {
            let mut root = v;
            while let Some(of) = alias[root] {
                root = of;
            }
            offsets[v] = offsets[root];
        }
        let lower_bound = (0..graph.nodes.len())
            .map(|i| order.iter().filter_map(|&v| lives[v]).filter(|l| l.first <= i && i <= l.last).map(|l| l.n_bytes).sum())
            .max()
            .unwrap_or(0);
        Placement { shape, offsets, n_bytes, lower_bound }
    }

    /// Offset of a value that a node makes.
    pub fn offset(&self, v: ValueId) -> usize {
        let offset = self.offsets[v.0 as usize];
        debug_assert!(offset.is_some(), "verified graphs use only values that a node makes");
        offset.unwrap_or_default()
    }
}

fn lives(graph: &VerifiedGraph, shape: StepShape) -> Vec<Option<Life>> {
    let mut lives: Vec<Option<Life>> = vec![None; graph.values.len()];
    let end = graph.nodes.len();
    for (i, node) in graph.nodes.iter().enumerate() {
        for &v in &node.outputs {
            let s = graph.shape(v);
            let n_rows = if s.rows == RowsDim::Step { shape.max_rows } else { shape.max_wanted };
            lives[v.0 as usize] = Some(Life { first: i, last: i, n_bytes: align_up(s.n_bytes(n_rows)) });
        }
        for &v in &node.inputs {
            if let Some(life) = &mut lives[v.0 as usize] {
                // The head runs once per tile: what it takes from the body must outlive all tiles.
                let into_head = i >= graph.head_start() && life.first < graph.head_start();
                life.last = if into_head { end } else { i.max(life.last) };
            }
        }
    }
    if let Some(life) = &mut lives[graph.logits().0 as usize] {
        life.last = end;
    }
    lives
}

/// For each value, the value whose bytes it takes over: the first input of an op that may work in place, where it dies.
fn aliases(graph: &VerifiedGraph, lives: &mut [Option<Life>]) -> Vec<Option<usize>> {
    let mut alias: Vec<Option<usize>> = vec![None; lives.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        let (true, Some(&x), [out]) = (node.op.in_place(), node.inputs.first(), &node.outputs[..]) else {
            continue;
        };
        let (x, out) = (x.0 as usize, out.0 as usize);
        let mut root = x;
        while let Some(of) = alias[root] {
            root = of;
        }
        let used_twice = node.inputs[1..].iter().any(|v| v.0 as usize == x);
        if let (Some(life), Some(out_life)) = (lives[root], lives[out])
            && life.last == i
            && life.n_bytes == out_life.n_bytes
            && !used_twice
        {
            alias[out] = Some(root);
            lives[root] = Some(Life { last: out_life.last, ..life });
        }
    }
    alias
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;
    use crate::ops::{Act, Add, Embed, Glu, MatMul, Select, WeightDecl};
    use proptest::prelude::*;
    use selvedge_gguf::TensorType;

    /// A random graph of sums, products and gates over random earlier values.
    fn random_graph(choices: &[(u8, u16, u16)]) -> VerifiedGraph {
        let mut g = Graph::default();
        let w = g.weight(WeightDecl { tensor: "e".into(), ty: TensorType::F32, n_in: 32, n_out: 32 });
        let wide = g.weight(WeightDecl { tensor: "w".into(), ty: TensorType::F32, n_in: 32, n_out: 96 });
        let mut narrow = vec![g.push1(None, Embed { weight: w, n_vocab: 32, scale: 1.0 }, &[], "e").unwrap()];
        for (i, &(op, a, b)) in choices.iter().enumerate() {
            let a = narrow[a as usize % narrow.len()];
            let b = narrow[b as usize % narrow.len()];
            let name = format!("v{i}");
            let v = match op % 4 {
                0 => g.push1(None, Add { scale: 1.0 }, &[a, b], &name),
                1 => g.push1(None, Glu { act: Act::Silu }, &[a, b], &name),
                2 => g.push1(None, MatMul::new(w, 32, None), &[a], &name),
                _ => {
                    g.push1(None, MatMul::new(wide, 96, None), &[a], &format!("w{i}")).unwrap();
                    g.push1(None, MatMul::new(w, 32, None), &[b], &name)
                }
            };
            narrow.push(v.unwrap());
        }
        let last = narrow[narrow.len() - 1];
        let s = g.push1(None, Select, &[last], "wanted").unwrap();
        g.logits = Some(g.push1(None, MatMul::new(w, 32, None), &[s], "logits").unwrap());
        g.verify().unwrap()
    }

    proptest! {
        #[test]
        fn values_alive_together_never_overlap(choices in proptest::collection::vec((any::<u8>(), any::<u16>(), any::<u16>()), 0..40)) {
            let g = random_graph(&choices);
            let shape = StepShape { max_rows: 7, max_wanted: 3 };
            let p = Placement::new(&g, shape);
            let lives = lives(&g, shape);
            for a in 0..lives.len() {
                for b in 0..a {
                    let (Some(la), Some(lb)) = (lives[a], lives[b]) else { continue };
                    // A value made in place shares bytes with its input at exactly the node that makes it.
                    let handed_over = la.first == lb.last && p.offsets[a] == p.offsets[b];
                    if la.first <= lb.last && lb.first <= la.last && !handed_over {
                        let (oa, ob) = (p.offsets[a].unwrap(), p.offsets[b].unwrap());
                        prop_assert!(oa + la.n_bytes <= ob || ob + lb.n_bytes <= oa, "{a} and {b} overlap");
                    }
                }
                if let Some(l) = lives[a] {
                    prop_assert!(p.offsets[a].unwrap() + l.n_bytes <= p.n_bytes);
                }
            }
            prop_assert!(p.n_bytes >= p.lower_bound);
        }
    }
}
