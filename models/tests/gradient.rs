//! Learner compared with finite differences of an `f64` reference, and with the serving decoder.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;
mod reference;

use std::ops::Range;
use std::sync::Arc;

use fixture::path;
use reference::{Reference, fixed, slopes};
use waymark_models::gradient::{
    DistillationTerm, Learner, Likeliest, Lora, Module, Objective, Pack, Score, ScoredModel, Slope, Tune,
};
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;

const SHAPES: [&str; 3] = ["llama", "qwen2", "qwen3"];
const SCALE: f64 = 2.0;

fn lora() -> Tune {
    Tune::Lora(Lora { rank: 3, alpha: 6.0, targets: Module::ALL.to_vec(), seed: 5 })
}

fn tokens(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * i * 31 + i * 7 + seed * 101) % 256) as u32).collect()
}

/// Segments as (number of tokens, parent, targets): two answers to one prompt, one of which continues in two ways,
/// and a separate sequence.
const FOREST: [(usize, Option<usize>, Range<usize>); 6] =
    [(6, None, 4..6), (4, Some(0), 0..4), (5, None, 2..5), (3, Some(0), 0..3), (2, Some(1), 1..2), (4, Some(1), 0..4)];

fn forest() -> Pack {
    let mut pack = Pack::new();
    for (number, (count, parent, _)) in FOREST.into_iter().enumerate() {
        pack.push(&tokens(count, number), parent);
    }
    for (number, (.., targets)) in FOREST.into_iter().enumerate() {
        targets.for_each(|index| pack.target(number, index));
    }
    pack
}

/// Creates a learner whose adapter, if any, has no zero values.
fn learner(name: &str, tune: &Tune, threads: usize) -> (Weights, Learner) {
    let weights = Weights::open(&path(name)).unwrap();
    let mut learner = Learner::load(&weights, Arc::new(Team::new(threads)), tune).unwrap();
    if matches!(tune, Tune::Lora(_)) {
        stir(&mut learner);
    }
    (weights, learner)
}

fn stir(learner: &mut Learner) {
    let values: Vec<f32> = (0..learner.values().len()).map(|i| ((i * 37 % 101) as f32 - 50.0) / 400.0).collect();
    learner.set_values(&values).unwrap();
}

/// Gradients of the forest's loss, and the scores that the objective received.
fn gradients(learner: &mut Learner, pack: &Pack) -> (Vec<f32>, Vec<Score>) {
    let mut scores = Vec::new();
    learner.zero();
    learner.learn(pack, &mut fixed(&slopes(pack), &mut scores)).unwrap();
    (learner.gradients().to_vec(), scores)
}

/// Indices of a tensor's largest gradients and of a few others.
fn places(gradient: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..gradient.len()).collect();
    order.sort_by(|&a, &b| gradient[b].abs().total_cmp(&gradient[a].abs()));
    let others = (1..4).map(|i| i * 7919 % gradient.len());
    order.into_iter().take(3).chain(others).collect()
}

/// A pack with more tokens than an attention tile, a prompt of more than one tile, and more targets than have
/// logits at once.
fn large() -> Pack {
    let mut pack = Pack::new();
    let prompt = pack.push(&tokens(120, 1), None);
    let answers = [2, 3].map(|seed| pack.push(&tokens(8, seed), Some(prompt)));
    let other = pack.push(&tokens(100, 4), None);
    (1..120).for_each(|index| pack.target(prompt, index));
    answers.into_iter().for_each(|answer| (0..8).for_each(|index| pack.target(answer, index)));
    (50..100).for_each(|index| pack.target(other, index));
    assert!(pack.tokens().len() > 130 && pack.targets().len() > 96);
    pack
}

/// Checks one of every `every` parameters.
fn agrees_with_differences(name: &str, tune: &Tune, pack: &Pack, every: usize) {
    let (weights, mut learner) = learner(name, tune, 2);
    let (found, scores) = gradients(&mut learner, pack);
    let mut reference = Reference::new(&weights, &learner, SCALE);
    for (score, (logprob, entropy)) in scores.iter().zip(reference.scores(pack)) {
        assert!((f64::from(score.logprob) - logprob).abs() < 2e-4, "{name}: {score:?}, {logprob}");
        assert!((f64::from(score.entropy) - entropy).abs() < 2e-4, "{name}: {score:?}, {entropy}");
    }
    let slopes = slopes(pack);
    differ(name, &learner, &mut reference, &found, every, &|reference| reference.loss(pack, &slopes));
}

/// Checks the largest gradients and a few others in one of every `every` parameters against differences of `loss`.
fn differ(
    name: &str,
    learner: &Learner,
    reference: &mut Reference,
    found: &[f32],
    every: usize,
    loss: &dyn Fn(&Reference) -> f64,
) {
    const STEP: f64 = 1e-5;
    for parameter in learner.parameters().iter().step_by(every) {
        let gradient = &found[parameter.range.clone()];
        let places = places(gradient);
        let most = gradient[places[0]].abs();
        assert!(most > 1e-4, "{name} {}: no gradient", parameter.name);
        for at in places {
            let mut shifted = |shift: f64| {
                *reference.value(&parameter.name, at) += shift;
                let loss = loss(reference);
                *reference.value(&parameter.name, at) -= shift;
                loss
            };
            let expected = (shifted(STEP) - shifted(-STEP)) / (2.0 * STEP);
            let error = (f64::from(gradient[at]) - expected).abs();
            let found = gradient[at];
            assert!(error < 1e-3 * f64::from(most), "{name} {} {at}: {found}, not {expected}", parameter.name);
        }
    }
}

#[test]
fn adapters_gradients_agree_with_differences() {
    SHAPES.iter().for_each(|name| agrees_with_differences(name, &lora(), &forest(), 1));
}

#[test]
fn all_weights_gradients_agree_with_differences() {
    SHAPES.iter().for_each(|name| agrees_with_differences(name, &Tune::Full, &forest(), 1));
}

/// Families with features beyond those of the shapes above.
const FAMILIES: [&str; 8] = ["mistral", "smollm3", "phi3", "phi4-mini", "granite", "olmo2", "gemma2", "gemma3"];

/// A prompt longer than the families' windows with two answers, for their vocabulary of 64 tokens.
fn windowed() -> Pack {
    let mut pack = Pack::new();
    let tokens = |count, seed| tokens(count, seed).into_iter().map(|token| token % 64).collect::<Vec<_>>();
    let prompt = pack.push(&tokens(27, 1), None);
    let answers = [2, 3].map(|seed| pack.push(&tokens(6, seed), Some(prompt)));
    (20..27).for_each(|index| pack.target(prompt, index));
    answers.into_iter().for_each(|answer| (0..6).for_each(|index| pack.target(answer, index)));
    pack
}

#[test]
fn further_families_adapters_agree_with_differences() {
    for name in FAMILIES {
        agrees_with_differences(&format!("../families/{name}"), &lora(), &windowed(), 3);
    }
}

#[test]
fn all_weights_of_further_families_agree_with_differences() {
    for name in ["mistral", "smollm3", "granite", "olmo2"] {
        agrees_with_differences(&format!("../families/{name}"), &Tune::Full, &windowed(), 2);
    }
}

#[test]
fn all_weights_that_could_not_be_saved_are_refused() {
    for name in ["phi3", "gemma2", "gemma3"] {
        let weights = Weights::open(&path(&format!("../families/{name}"))).unwrap();
        let error = Learner::load(&weights, Arc::new(Team::new(1)), &Tune::Full).unwrap_err().to_string();
        assert!(error.contains("give the recipe an adapter"), "{error}");
    }
}

#[test]
fn a_large_packs_gradients_agree_with_differences() {
    agrees_with_differences("llama", &lora(), &large(), 5);
    agrees_with_differences("qwen3", &Tune::Full, &large(), 5);
}

/// Objective that consists of distillation terms only.
struct Drawn {
    towards: Vec<Likeliest>,
    apart: f64,
}

impl Drawn {
    /// Creates distributions of twenty tokens for the given number of targets.
    fn new(targets: usize) -> Self {
        let logit = |target: usize, id: usize| ((id * 37 + target * 101) % 64) as f32 / 16.0;
        let logits = |target| (0..256).map(|id| logit(target, id)).collect::<Vec<f32>>();
        Self { towards: (0..targets).map(|target| Likeliest::of(&logits(target), 20)).collect(), apart: 0.0 }
    }

    fn weight(target: usize) -> f32 {
        0.5 + 0.25 * (target % 3) as f32
    }
}

impl Objective for Drawn {
    fn slope(&mut self, _: usize, _: Score) -> Slope {
        Slope::default()
    }

    /// Returns no term for every fourth target.
    fn distillation(&self, target: usize) -> Option<DistillationTerm<'_>> {
        let weight = Self::weight(target);
        (target % 4 != 3).then(|| DistillationTerm { towards: &self.towards[target], weight })
    }

    fn report_divergence(&mut self, target: usize, nats: f64) {
        self.apart += f64::from(Self::weight(target)) * nats;
    }
}

/// Contribution of the distillation terms to the loss, by the definition.
fn divergence(drawn: &Drawn, rows: &[Vec<f64>]) -> f64 {
    let pulled = rows.iter().enumerate().filter_map(|(target, row)| Some((drawn.distillation(target)?, row)));
    let terms = pulled.map(|(DistillationTerm { towards, weight }, row)| {
        let total: f64 = towards.ids().iter().map(|&id| row[id as usize].exp()).sum();
        let pairs = towards.ids().iter().zip(towards.probabilities());
        let term = |(&id, &p): (&u32, &f32)| f64::from(p) * (f64::from(p).ln() - row[id as usize] + total.ln());
        f64::from(weight) * pairs.map(term).sum::<f64>()
    });
    terms.sum()
}

/// Runs with the vocabulary projection frozen, trained, and trained while tied to the embedding.
#[test]
fn what_targets_are_drawn_to_agrees_with_differences() {
    for (name, tune) in SHAPES.into_iter().map(|name| (name, Tune::Full)).chain([("llama", lora())]) {
        let (weights, mut learner) = learner(name, &tune, 2);
        let pack = forest();
        let mut drawn = Drawn::new(pack.targets().len());
        learner.learn(&pack, &mut drawn).unwrap();
        let found = learner.gradients().to_vec();
        let mut reference = Reference::new(&weights, &learner, SCALE);
        let expected = divergence(&drawn, &reference.rows(&pack));
        assert!((drawn.apart - expected).abs() < 1e-3 * expected, "{name}: {}, not {expected}", drawn.apart);
        differ(name, &learner, &mut reference, &found, 1, &|reference| divergence(&drawn, &reference.rows(&pack)));
    }
}

#[test]
fn the_likeliest_tokens_are_the_first_of_all() {
    const COUNT: usize = 7;
    let (weights, mut learner) = learner("qwen3", &lora(), 2);
    let pack = large();
    let rows = Reference::new(&weights, &learner, SCALE).rows(&pack);
    let found = learner.likeliest(&pack, COUNT, ScoredModel::Adapted).unwrap();
    assert_eq!(found.len(), rows.len());
    for (found, row) in found.iter().zip(&rows) {
        let mut sorted = row.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let total: f64 = sorted[..COUNT].iter().map(|log| log.exp()).sum();
        for (rank, (&id, &p)) in found.ids().iter().zip(found.probabilities()).enumerate() {
            // Rounding may swap two tokens of equal probability.
            assert!((row[id as usize] - sorted[rank]).abs() < 5e-4, "{rank}: {} {}", row[id as usize], sorted[rank]);
            assert!((f64::from(p) - sorted[rank].exp() / total).abs() < 1e-3, "{rank}: {p}");
        }
    }
    let base = learner.likeliest(&pack, COUNT, ScoredModel::Base).unwrap();
    assert_ne!(base, found);
    learner.change(|values, _| values.fill(0.0));
    assert_eq!(learner.likeliest(&pack, COUNT, ScoredModel::Adapted).unwrap(), base);
    assert_eq!(learner.likeliest(&Pack::new(), COUNT, ScoredModel::Adapted).unwrap(), []);
    assert!(learner.likeliest(&pack, 0, ScoredModel::Adapted).unwrap_err().to_string().contains("0 most probable"));
    let (_, mut whole) = self::learner("qwen3", &Tune::Full, 1);
    assert!(whole.likeliest(&pack, COUNT, ScoredModel::Base).is_err());
}

#[test]
fn states_are_those_of_the_decoder_and_know_no_adapter_where_none_is_asked_for() {
    for name in SHAPES {
        let (weights, mut learner) = learner(name, &lora(), 2);
        let pack = large();
        let expected = Reference::new(&weights, &learner, SCALE).states(&pack);
        let found = learner.states(&pack, ScoredModel::Adapted).unwrap();
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.len(), expected.len());
            let largest = expected.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
            for (found, expected) in found.iter().zip(expected) {
                assert!((f64::from(*found) - expected).abs() < 1e-3 * largest, "{name}: {found}, not {expected}");
            }
        }
        let base = learner.states(&pack, ScoredModel::Base).unwrap();
        assert_ne!(base, found);
        learner.change(|values, _| values.iter_mut().for_each(|value| *value *= -2.0));
        assert_eq!(learner.states(&pack, ScoredModel::Base).unwrap(), base);
        learner.change(|values, _| values.fill(0.0));
        assert_eq!(learner.states(&pack, ScoredModel::Adapted).unwrap(), base);
    }
    let (_, mut whole) = learner("qwen3", &Tune::Full, 1);
    assert!(whole.states(&large(), ScoredModel::Base).is_err());
    assert_eq!(whole.states(&Pack::new(), ScoredModel::Adapted).unwrap(), Vec::<Vec<f32>>::new());
}

#[test]
fn a_shared_prompt_counts_as_if_it_were_written_out() {
    for (name, tune) in SHAPES.into_iter().flat_map(|name| [(name, lora()), (name, Tune::Full)]) {
        let (_, mut learner) = learner(name, &tune, 2);
        let pack = forest();
        let (shared, scores) = gradients(&mut learner, &pack);
        let slopes = slopes(&pack);
        let mut alone = Vec::new();
        learner.zero();
        for (number, (_, parent, targets)) in FOREST.into_iter().enumerate() {
            let above = std::iter::successors(parent, |&above| FOREST[above].1);
            let mut path = tokens(FOREST[number].0, number);
            above.for_each(|above| drop(path.splice(0..0, tokens(FOREST[above].0, above))));
            let mut sequence = Pack::new();
            sequence.push(&path, None);
            targets.for_each(|index| sequence.target(0, path.len() - FOREST[number].0 + index));
            let first = alone.len();
            let slopes = &slopes[first..];
            let mut objective = |target: usize, score: Score| {
                alone.push(score);
                slopes[target]
            };
            learner.learn(&sequence, &mut objective).unwrap();
        }
        for (score, alone) in scores.iter().zip(&alone) {
            assert!((score.logprob - alone.logprob).abs() < 1e-4, "{name}: {score:?}, alone {alone:?}");
        }
        let most = shared.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        for (shared, alone) in shared.iter().zip(learner.gradients()) {
            assert!((shared - alone).abs() < 1e-4 * most, "{name}: {shared}, alone {alone}");
        }
    }
}

#[test]
fn threads_memory_and_what_came_before_change_no_bit() {
    for (name, tune) in [("llama", lora()), ("qwen2", Tune::Full), ("qwen3", lora()), ("qwen3", Tune::Full)] {
        let pack = forest();
        let (_, mut first) = learner(name, &tune, 1);
        let expected = gradients(&mut first, &pack);
        for threads in [1, 2, 3] {
            let (_, mut other) = learner(name, &tune, threads);
            let mut before = Pack::new();
            let segment = before.push(&tokens(33, 8), None);
            (1..33).for_each(|index| before.target(segment, index));
            gradients(&mut other, &before);
            assert!(gradients(&mut other, &pack) == expected, "{name}, {threads} threads");
            other.set_limit(Some(0));
            other.set_limit(Some(other.bytes_of(&pack)));
            assert!(gradients(&mut other, &pack) == expected, "{name}, {threads} threads, computed again");
            let scores = other.score(&pack, ScoredModel::Adapted).unwrap();
            assert!(scores == expected.1, "{name}, {threads} threads, scores");
            assert!(other.bytes(1000) < first.bytes(1000), "{name}: less memory");
        }
    }
}

#[test]
fn a_change_counts_in_the_next_pass_and_the_base_stays() {
    let pack = forest();
    for tune in [lora(), Tune::Full] {
        let (_, mut learner) = learner("qwen3", &tune, 2);
        let (gradient, before) = gradients(&mut learner, &pack);
        let base = learner.score(&pack, ScoredModel::Base);
        let slopes = slopes(&pack);
        let loss = |scores: &[Score]| -> f64 {
            let term = |(score, slope): (&Score, &waymark_models::gradient::Slope)| {
                f64::from(score.logprob * slope.logprob + score.entropy * slope.entropy)
            };
            scores.iter().zip(&slopes).map(term).sum()
        };
        let norm: f64 = gradient.iter().map(|&g| f64::from(g).powi(2)).sum();
        let rate = 0.05 / norm.sqrt();
        learner.change(|values, gradients| {
            values.iter_mut().zip(gradients).for_each(|(value, gradient)| *value -= rate as f32 * *gradient);
        });
        let after = learner.score(&pack, ScoredModel::Adapted).unwrap();
        let found = loss(&before) - loss(&after);
        let expected = rate * norm;
        assert!((found - expected).abs() < 0.1 * expected, "{tune:?}: the loss fell by {found}, not {expected}");
        match tune {
            Tune::Lora(_) => assert_eq!(learner.score(&pack, ScoredModel::Base).unwrap(), base.unwrap()),
            Tune::Full => assert!(base.is_err()),
        }
    }
}

#[test]
fn a_new_adapter_changes_nothing_and_depends_on_its_seed() {
    let weights = Weights::open(&path("llama")).unwrap();
    let load = |seed| {
        let tune = Tune::Lora(Lora { rank: 2, alpha: 4.0, targets: vec![Module::QProj, Module::DownProj], seed });
        Learner::load(&weights, Arc::new(Team::new(1)), &tune).unwrap()
    };
    let mut one = load(1);
    let same = load(1);
    let other = load(2);
    assert_eq!(one.values(), same.values());
    assert_ne!(one.values(), other.values());
    let adapted = one.score(&forest(), ScoredModel::Adapted).unwrap();
    assert_eq!(adapted, one.score(&forest(), ScoredModel::Base).unwrap());
    let names: Vec<_> = one.parameters().iter().map(|parameter| parameter.name.as_str()).collect();
    assert_eq!(names[0], "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
    assert_eq!(names[7], "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight");
    for parameter in one.parameters() {
        let values = &one.values()[parameter.range.clone()];
        let bound = match parameter.name.contains("lora_A") {
            true => 1.0 / (parameter.shape[1] as f32).sqrt(),
            false => 0.0,
        };
        let most = values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        assert!(most <= bound && most >= 0.9 * bound, "{}: {most}, bound {bound}", parameter.name);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (weights, mut learner) = learner("llama", &lora(), 1);
    let mut pack = Pack::new();
    pack.push(&[1, 256], None);
    pack.target(0, 1);
    let error = learner.score(&pack, ScoredModel::Adapted).unwrap_err().to_string();
    assert!(error.contains("segment 0, position 1: token 256"), "{error}");
    pack.clear();
    let prompt = pack.push(&tokens(100, 1), None);
    pack.push(&tokens(29, 1), Some(prompt));
    let error = learner.learn(&pack, &mut |_, _| Default::default()).unwrap_err().to_string();
    assert!(error.contains("segment 1 ends a sequence of 129 tokens, but the context is 128"), "{error}");
    assert!(learner.set_values(&[0.0]).is_err());
    let load = |rank, alpha, targets: &[Module]| {
        let tune = Tune::Lora(Lora { rank, alpha, targets: targets.to_vec(), seed: 0 });
        Learner::load(&weights, Arc::new(Team::new(1)), &tune).map_err(|error| error.to_string())
    };
    let refused = |rank, alpha, targets: &[Module]| load(rank, alpha, targets).unwrap_err();
    assert!(refused(0, 1.0, &[Module::QProj]).contains("rank is 0"));
    assert!(refused(1, 1.0, &[]).contains("targets are empty: name at least one of q_proj, "));
    assert!(refused(1, f32::NAN, &[Module::QProj]).contains("alpha NaN"));
    assert!(refused(2, 1.0, &[Module::VProj, Module::UpProj, Module::VProj]).contains("v_proj twice"));
    // Keys have one head of 16 values, queries three.
    assert!(load(16, 1.0, &[Module::QProj, Module::KProj]).is_ok());
    let error = refused(17, 1.0, &[Module::QProj, Module::KProj]);
    assert!(error.contains("rank 17 on k_proj") && error.contains("16 at most"), "{error}");
}

#[test]
fn a_pack_without_targets_learns_nothing() {
    let (_, mut learner) = learner("llama", &lora(), 1);
    for pack in [Pack::new(), {
        let mut pack = Pack::new();
        pack.push(&[1, 2], None);
        pack
    }] {
        assert_eq!(learner.score(&pack, ScoredModel::Adapted).unwrap(), []);
        assert!(gradients(&mut learner, &pack).0.iter().all(|&gradient| gradient == 0.0));
    }
}
