#![allow(clippy::unwrap_used)]

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

/// A pack of segments of the given lengths, each with its parent.
fn forest(segments: &[(usize, Option<usize>)]) -> Pack {
    let mut pack = Pack::new();
    for &(len, parent) in segments {
        pack.push(&vec![0; len], parent);
    }
    pack
}

/// Tokens visible to each token, by the definition: walk up from its segment.
fn seen(pack: &Pack) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new(); pack.tokens().len()];
    for segment in pack.segments() {
        for token in segment.tokens.clone() {
            let mut tokens: Vec<usize> = (segment.tokens.start..=token).collect();
            let mut parent = segment.parent;
            while let Some(index) = parent {
                tokens.extend(pack.segments()[index].tokens.clone());
                parent = pack.segments()[index].parent;
            }
            all[token] = tokens;
        }
    }
    all
}

/// Position of each token in its sequence.
fn positions(pack: &Pack) -> Vec<usize> {
    pack.segments().iter().flat_map(|segment| segment.start..segment.start + segment.tokens.len()).collect()
}

/// Attention and its gradients in `f64`, by the definition: out, lse, dq, dk, dv.
fn definition(
    (pack, rule): (&Pack, ScoreRule),
    heads: HeadLayout,
    q: &[f64],
    k: &[f64],
    v: &[f64],
    dout: &[f64],
) -> [Vec<f64>; 5] {
    let position = positions(pack);
    let HeadLayout { query, kv, dim } = heads;
    let mut out = vec![0.0; q.len()];
    let mut lse = vec![0.0; q.len() / dim];
    let mut dq = vec![0.0; q.len()];
    let mut dk = vec![0.0; k.len()];
    let mut dv = vec![0.0; k.len()];
    let scale = f64::from(rule.scale);
    let cap = rule.cap.map_or(f64::INFINITY, f64::from);
    let limited = |score: f64| if rule.cap.is_some() { cap * (score / cap).tanh() } else { score };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for (token, mut seen) in seen(pack).into_iter().enumerate() {
        seen.retain(|&key| rule.window.is_none_or(|window| position[token] - position[key] < window));
        for head in 0..query {
            let at = token * query + head;
            let row = at * dim..(at + 1) * dim;
            let key = |other: usize| (other * kv + head / heads.group()) * dim;
            let score = |&t: &usize| limited(scale * dot(&q[row.clone()], &k[key(t)..][..dim]));
            let scores: Vec<f64> = seen.iter().map(score).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            lse[at] = largest + scores.iter().map(|s| (s - largest).exp()).sum::<f64>().ln();
            let weights: Vec<f64> = scores.iter().map(|s| (s - lse[at]).exp()).collect();
            for (&other, p) in seen.iter().zip(&weights) {
                (0..dim).for_each(|d| out[at * dim + d] += p * v[key(other) + d]);
            }
            let slopes: Vec<f64> = seen.iter().map(|&t| dot(&dout[row.clone()], &v[key(t)..][..dim])).collect();
            let mean = dot(&weights, &slopes);
            for (((&other, p), slope), score) in seen.iter().zip(&weights).zip(&slopes).zip(&scores) {
                let ds = scale * p * (slope - mean) * (1.0 - (score / cap).powi(2));
                for d in 0..dim {
                    dq[at * dim + d] += ds * k[key(other) + d];
                    dk[key(other) + d] += ds * q[at * dim + d];
                    dv[key(other) + d] += p * dout[at * dim + d];
                }
            }
        }
    }
    [out, lse, dq, dk, dv]
}

struct Case {
    pack: Pack,
    heads: HeadLayout,
    /// q, k, v and dout.
    inputs: [Vec<f32>; 4],
}

impl Case {
    fn new(segments: &[(usize, Option<usize>)], heads: HeadLayout, seed: u64) -> Self {
        let pack = forest(segments);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut values = |count: usize, size: f32| -> Vec<f32> {
            (0..count * pack.tokens().len() * heads.dim).map(|_| random.random_range(-size..size)).collect()
        };
        let inputs = [values(heads.query, 3.0), values(heads.kv, 3.0), values(heads.kv, 1.0), values(heads.query, 1.0)];
        Self { pack, heads, inputs }
    }

    fn wide(&self) -> [Vec<f64>; 4] {
        self.inputs.each_ref().map(|values| values.iter().map(|&value| f64::from(value)).collect())
    }

    /// Results of the kernels: out, lse, dq, dk, dv.
    fn run(&self, isa: Isa, threads: usize, rule: ScoreRule) -> [Vec<f32>; 5] {
        self.run_plan(&AttentionPlan { isa, ..AttentionPlan::new(&self.pack, self.heads) }, threads, rule)
    }

    fn run_plan(&self, plan: &AttentionPlan, threads: usize, rule: ScoreRule) -> [Vec<f32>; 5] {
        let team = Team::new(threads);
        let [q, k, v, dout] = &self.inputs;
        let nan = |like: &[f32]| vec![f32::NAN; like.len()];
        let mut out = nan(q);
        let mut lse = vec![f32::NAN; q.len() / self.heads.dim];
        plan.forward(&team, rule, q, k, v, &mut out, &mut lse);
        let mut dq = nan(q);
        let mut dk = nan(k);
        let mut dv = nan(v);
        plan.backward(&team, rule, q, k, v, &out, &lse, dout, &mut dq, &mut dk, &mut dv);
        [out, lse, dq, dk, dv]
    }
}

/// Largest difference. Infinite if any value is NaN.
fn difference(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let differences = found.iter().zip(expected).map(|(found, expected)| (f64::from(*found) - expected).abs());
    differences.fold(0.0f64, |most, d| if d.is_nan() { f64::INFINITY } else { most.max(d) })
}

const FORESTS: [&[(usize, Option<usize>)]; 6] = [
    &[(1, None)],
    &[(3, None), (40, None), (17, None)],
    &[(70, None), (5, Some(0)), (90, Some(0)), (1, Some(2)), (30, Some(1))],
    &[(130, None)],
    &[(20, None), (9, None), (33, Some(0)), (65, Some(1)), (64, Some(2)), (2, Some(0))],
    &[(200, None), (10, Some(0)), (10, Some(0)), (10, Some(0)), (10, Some(0)), (150, None), (40, Some(5))],
];

#[test]
fn agrees_with_the_definition() {
    let shapes = [(3, 1, 64), (9, 3, 64), (14, 2, 64), (4, 4, 32), (4, 2, 128), (5, 1, 48), (2, 1, 16)];
    for (query, kv, dim) in shapes {
        for (seed, segments) in FORESTS.into_iter().enumerate() {
            let case = Case::new(segments, HeadLayout { query, kv, dim }, seed as u64);
            let [q, k, v, dout] = case.wide();
            let plain = ScoreRule::plain(dim);
            let narrow = ScoreRule { scale: 0.7 * plain.scale, window: Some(9 + 61 * (seed % 2)), cap: Some(2.0) };
            let expected =
                [plain, narrow].map(|rule| (rule, definition((&case.pack, rule), case.heads, &q, &k, &v, &dout)));
            let cases = Isa::available().into_iter().flat_map(|isa| expected.iter().map(move |case| (isa, case)));
            for (isa, (rule, expected)) in cases {
                let rule = *rule;
                let first = case.run(isa, 1, rule);
                for ((name, found), expected) in ["out", "lse", "dq", "dk", "dv"].iter().zip(&first).zip(expected) {
                    // For a single token, dq and dk are 0 up to rounding, whose size is that of values around 1.
                    let size = expected.iter().fold(0.0f64, |most, value| most.max(value.abs()));
                    let (size, bound) = if size > 1e-9 { (size, 2e-5) } else { (1.0, 1e-5) };
                    let difference = difference(found, expected) / size;
                    assert!(difference < bound, "{isa:?} {name}: {difference}, {segments:?} {rule:?} {:?}", case.heads);
                }
                for threads in [2, 3] {
                    assert!(case.run(isa, threads, rule) == first, "{threads} threads, {segments:?}, {:?}", case.heads);
                }
            }
        }
    }
}

/// Bound on the relative error of rounded results.
const ROUNDED: f64 = 1e-2;

/// Size of the error relative to that of the expected values. For a single token, dq and dk are 0 up to rounding, whose
/// size is that of values around 1.
fn relative_error(found: &[f32], expected: &[f64]) -> f64 {
    let size = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
    let errors: Vec<f64> = found.iter().zip(expected).map(|(&found, expected)| f64::from(found) - expected).collect();
    size(&errors) / size(expected).max(1.0)
}

/// Checks the rounded results of a case.
fn check_rounded(case: &Case, rule: ScoreRule, support: Bf16Support) {
    let [q, k, v, dout] = case.wide();
    let expected = definition((&case.pack, rule), case.heads, &q, &k, &v, &dout);
    for isa in Isa::available() {
        let run = |threads: usize| {
            let plan = AttentionPlan::new(&case.pack, case.heads);
            case.run_plan(&AttentionPlan { isa, rounding: Some(support), ..plan }, threads, rule)
        };
        let first = run(1);
        for ((name, found), expected) in ["out", "lse", "dq", "dk", "dv"].iter().zip(&first).zip(&expected) {
            let error = relative_error(found, expected);
            assert!(error < ROUNDED, "{isa:?} {name}: {error}, {rule:?} {:?}", case.heads);
        }
        assert!(run(3) == first, "3 threads, {:?}", case.heads);
        let exact = case.run(isa, 1, rule);
        assert!(exact[..2] == first[..2], "the forward pass was rounded, {:?}", case.heads);
        assert!(exact[2..] != first[2..], "nothing was rounded, {:?}", case.heads);
    }
}

#[test]
fn rounded_operands_stay_close_to_the_definition() {
    let Some(support) = Bf16Support::detect() else { return };
    for (query, kv, dim) in [(3, 1, 64), (9, 3, 64), (4, 2, 128), (5, 1, 48), (2, 1, 16)] {
        for (seed, segments) in FORESTS.into_iter().enumerate() {
            let case = Case::new(segments, HeadLayout { query, kv, dim }, seed as u64);
            let plain = ScoreRule::plain(dim);
            let narrow = ScoreRule { scale: 0.7 * plain.scale, window: Some(9 + 61 * (seed % 2)), cap: Some(2.0) };
            check_rounded(&case, plain, support);
            check_rounded(&case, narrow, support);
        }
    }
}

#[test]
fn the_definition_agrees_with_finite_differences() {
    let case = Case::new(&[(4, None), (3, Some(0)), (2, Some(0))], HeadLayout { query: 2, kv: 1, dim: 16 }, 7);
    let rule = ScoreRule { scale: 0.2, window: Some(3), cap: Some(1.5) };
    let [q, k, v, dout] = case.wide();
    let inputs = [q, k, v];
    let loss = |inputs: &[Vec<f64>; 3]| -> f64 {
        let [out, ..] = definition((&case.pack, rule), case.heads, &inputs[0], &inputs[1], &inputs[2], &dout);
        out.iter().zip(&dout).map(|(out, dout)| out * dout).sum()
    };
    let [_, _, gradients @ ..] = definition((&case.pack, rule), case.heads, &inputs[0], &inputs[1], &inputs[2], &dout);
    for (which, gradient) in gradients.iter().enumerate() {
        for at in (0..gradient.len()).step_by(7) {
            let at_step = |step: f64| {
                let mut moved = inputs.clone();
                moved[which][at] += step;
                loss(&moved)
            };
            let slope = (at_step(1e-5) - at_step(-1e-5)) / 2e-5;
            assert!((slope - gradient[at]).abs() < 1e-7, "input {which} at {at}: {slope}, {}", gradient[at]);
        }
    }
}

#[test]
fn packs_of_very_short_sequences_stay_within_the_bounds() {
    for kv in [1, 3, 16] {
        let heads = HeadLayout { query: kv, kv, dim: 16 };
        for count in 1..80 {
            let alone: Vec<_> = (0..count).map(|at| (1 + at % 2, None)).collect();
            let chain: Vec<_> = (0..count).map(|at: usize| (1, at.checked_sub(1))).collect();
            let star: Vec<_> = (0..count).map(|at| (1, (at > 0).then_some(0))).collect();
            for segments in [alone, chain, star] {
                let pack = forest(&segments);
                let tokens = pack.tokens().len();
                let plan = AttentionPlan::new(&pack, heads);
                assert!(plan.runs.len() <= backward::max_runs(tokens, kv), "{} runs of {count}", plan.runs.len());
                assert!(plan.workspace_len() <= AttentionPlan::max_workspace_len(tokens, heads), "{count} segments");
            }
        }
    }
}
