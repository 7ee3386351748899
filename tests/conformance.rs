//! Backends against the reference, value by value: what every node of every architecture gives on the CPU, in its fused
//! graph, lies near what the reference gives under the same name. Plans and engines on the backend that computes nothing.
//! Dumps of three graphs.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use selvedge::{CancelToken, Engine, KvElem, PlanOptions, SeqId, TokenId};
use selvedge_core::graph::VerifiedGraph;
use selvedge_core::ops::{Elem, Op};
use selvedge_tests::{GEMMA, SMOLLM2, Setup, real_model, rows, stem, synthetic, tiny_models, tiny_tokens};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Values by name, all steps after each other.
fn values(engine: &mut Engine, tokens: &[TokenId], chunks: &[usize]) -> BTreeMap<String, Vec<f32>> {
    let mut found: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    let names: Vec<String> = engine.graph().values.iter().map(|v| v.name.clone()).collect();
    let mut first = 0;
    for &n in chunks {
        let step = rows(0, first, &tokens[first..first + n], &(0..usize::MAX));
        let mut tap = |v: selvedge::ValueId, xs: &[f32]| found.entry(names[v.0 as usize].clone()).or_default().extend_from_slice(xs);
        engine.step_tapped(&step, &CancelToken::new(), &mut |_, _| {}, Some(&mut tap)).unwrap();
        first += n;
    }
    assert_eq!(engine.len(SeqId(0)), first);
    found
}

/// Mean square of the difference over mean square of the expected.
fn nmse(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let error: f64 = found.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    error / expected.iter().map(|&x| square(x)).sum::<f64>().max(1e-30)
}

/// Floats in another order, and keys and values in half precision, are all that differs where weights are floats.
const FLOATS: f64 = 1e-6;

/// By value: the sum of the tolerances of its node and of all before it, as each node's error joins those that come in.
/// Attention counts what its layer added before it twice: errors of queries and keys go into its weights, those of the
/// values into what is weighted.
fn tolerances(graph: &VerifiedGraph) -> BTreeMap<String, f64> {
    let (mut sum, mut all) = (0.0_f64, BTreeMap::new());
    let (mut layer, mut before) = (None, 0.0);
    for node in &graph.nodes {
        if node.layer != layer {
            (layer, before) = (node.layer, sum);
        }
        if let Op::Attention(_) = node.op {
            sum += sum - before;
        }
        let quantised = match &node.op {
            Op::MatMul(_) => graph.shape(node.inputs[0]).elem == Elem::Act8,
            Op::RmsNorm(norm) => norm.out == Elem::Act8,
            Op::Quantize(_) => true,
            _ => false,
        };
        let adds = matches!(node.op, Op::MatMul(_) | Op::RmsNorm(_) | Op::Quantize(_) | Op::Attention(_));
        if adds {
            sum += if quantised { node.op.tolerance() } else { node.op.tolerance().min(FLOATS) };
        }
        for &v in &node.outputs {
            all.insert(graph.values[v.0 as usize].name.clone(), sum.max(FLOATS));
        }
    }
    all
}

/// Compares all values that both graphs have; names of the ops that were compared.
fn compare(path: &Path, tokens: &[TokenId], chunks: &[usize], n_ctx: usize) -> BTreeSet<&'static str> {
    let name = stem(path);
    let setup = Setup { n_ctx, chunk: 64, max_wanted: 64, ..Setup::default() };
    let mut cpu = setup.engine(path);
    let mut reference = Setup { backend: "reference", kv: KvElem::F32, ..setup }.engine(path);
    let (found, expected) = (values(&mut cpu, tokens, chunks), values(&mut reference, tokens, chunks));
    let allowed = tolerances(cpu.graph());
    let (mut worst, mut compared) = ((0.0, ""), BTreeSet::new());
    for node in &cpu.graph().nodes {
        for &v in &node.outputs {
            let value = cpu.graph().values[v.0 as usize].name.as_str();
            let (Some(a), Some(b)) = (found.get(value), expected.get(value)) else { continue };
            assert_eq!(a.len(), b.len(), "{name}: {value}");
            let error = nmse(a, b);
            assert!(error <= allowed[value], "{name}: {value} ({}) is off by {error:.2e}, allowed {:.2e}", node.op.name(), allowed[value]);
            compared.insert(node.op.name());
            if error / allowed[value] > worst.0 {
                worst = (error / allowed[value], value);
            }
        }
    }
    println!("{name}: {:.1} % of what is allowed, at {}", 100.0 * worst.0, worst.1);
    // Products, attention and the logits are values of both, whatever was fused.
    for op in ["matmul", "attention"] {
        assert!(compared.iter().any(|c| c.contains(op)), "{name}: {op} was not compared: {compared:?}");
    }
    assert!(found.contains_key(&cpu.graph().values[cpu.graph().logits().0 as usize].name), "{name}: logits");
    compared
}

#[test]
fn every_value_of_every_architecture_is_near_the_reference() {
    let Some(paths) = tiny_models() else { return };
    let mut compared = BTreeSet::new();
    for path in &paths {
        // A long step, a short one, single rows: all ways through attention, past windows and page borders.
        compared.extend(compare(path, &tiny_tokens(140, 1), &[60, 3, 1, 12, 1, 60, 1, 2], 256));
    }
    println!("ops compared: {compared:?}");
    assert!(compared.len() >= 6, "{compared:?}");
}

#[test]
fn every_value_of_smollm2_is_near_the_reference() {
    let Some(path) = real_model(SMOLLM2) else { return };
    compare(&path, &synthetic(14, None), &[12, 1, 1], 64);
}

#[test]
#[ignore = "long: the reference backend on a vocabulary of 262144"]
fn every_value_of_gemma_is_near_the_reference() {
    let Some(path) = real_model(GEMMA) else { return };
    compare(&path, &synthetic(14, Some(2)), &[12, 1, 1], 64);
}

/// Plans, engines and sessions work without a single weight.
#[test]
fn plans_and_engines_work_on_the_null_backend() {
    let Some(paths) = tiny_models() else { return };
    for path in &paths {
        for n_seq in [1, 3] {
            let setup = Setup { backend: "null", n_seq, n_ctx: 100, chunk: 32, ..Setup::default() };
            let planned = selvedge::plan(path, &setup.options()).unwrap();
            assert_eq!((planned.plan.anonymous.pack, planned.plan.segments.len()), (0, 1), "{}", path.display());
            assert_eq!(planned.plan.segments[0].nodes, 0..planned.graph.nodes.len());
            let mut engine = setup.engine(path);
            let mut n_logits = 0;
            for first in (0..96).step_by(32) {
                for seq in 0..n_seq as u32 {
                    let step = rows(seq, first, &tiny_tokens(96, seq)[first..first + 32], &(90..96));
                    engine
                        .step(&step, &CancelToken::new(), &mut |_, l| n_logits += usize::from(l.len() == planned.graph.n_vocab()))
                        .unwrap();
                }
            }
            assert_eq!(n_logits, 6 * n_seq);
            assert!((0..n_seq as u32).all(|seq| engine.len(SeqId(seq)) == 96));
        }
    }
    // More context costs more, a longer chunk too, and nothing else grows with either.
    let plan = |plan: PlanOptions| {
        let mut options = Setup { backend: "null", ..Setup::default() }.options();
        options.plan = plan;
        selvedge::plan(&paths[0], &options).unwrap().plan.anonymous
    };
    let base = PlanOptions { n_ctx: Some(256), chunk: 32, ..PlanOptions::default() };
    let (small, long, wide) = (plan(base), plan(PlanOptions { n_ctx: Some(512), ..base }), plan(PlanOptions { chunk: 64, ..base }));
    assert!(long.kv > small.kv && long.tokenizer == small.tokenizer && long.pack == small.pack, "{small:?} {long:?}");
    assert!(wide.arena > small.arena && wide.pack == small.pack, "{small:?} {wide:?}");
}

/// Graphs as the CPU runs them. A dump that changes is looked at, then written anew with `SELVEDGE_BLESS=1`.
#[test]
fn graphs_are_what_they_were() {
    let Some(paths) = tiny_models() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/graphs");
    for name in ["llama.q8", "gemma3.q8", "phi3.f32"] {
        let path = paths.iter().find(|p| stem(p) == name).unwrap();
        let dump = selvedge::plan(path, &Setup::default().options()).unwrap().graph.dump();
        let kept = folder.join(format!("{name}.txt"));
        if std::env::var_os("SELVEDGE_BLESS").is_some_and(|v| v == "1") {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&kept, &dump).unwrap();
        }
        let expected = std::fs::read_to_string(&kept).unwrap_or_default();
        for (i, (found, expected)) in dump.lines().zip(expected.lines()).enumerate() {
            assert_eq!(found, expected, "{name}: line {}", i + 1);
        }
        assert_eq!(dump.lines().count(), expected.lines().count(), "{name}: lines");
    }
}
