//! Steps of training: rewards rise, runs resume, stages continue.

use waymark_engine::Origin;

use super::*;
use crate::sample::Sample;
use crate::sample_lines;
use crate::sft::VALIDATION;

#[tokio::test(flavor = "multi_thread")]
async fn the_reward_rises_and_rollouts_agree_with_the_learner() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let dir = temp.path().join("run");
    run(&weights, &dir, &settings(), |_| false).await;
    let reward = numbers(&dir, "reward");
    assert_eq!(reward.len(), 12);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(mean(&reward[9..]) > mean(&reward[..3]) + 0.15, "{reward:?}");
    // The sampled tokens had, up to rounding, the probability that the update assumes.
    assert!(
        numbers(&dir, "logprob_drift_max").into_iter().all(|drift| drift < 1e-3),
        "{:?}",
        numbers(&dir, "logprob_drift_max")
    );
    assert!(numbers(&dir, "kl").into_iter().all(|kl| kl >= 0.0));
    assert_eq!(numbers(&dir, "updates"), [2.0; 12]);
    let rows = MetricsFile::read(&dir.join("metrics.jsonl")).unwrap();
    let steps = |phase: &str| rows.iter().filter(|row| row.phase == phase).map(|row| row.step).collect::<Vec<_>>();
    assert_eq!((steps("grpo1"), steps("grpo2")), ((1..=6).collect(), (7..=12).collect()));
    // Validation runs every four steps and at the end of a stage.
    assert_eq!(steps(VALIDATION), [0, 4, 6, 8, 12]);
    assert_eq!(numbers(&dir, "failed"), [0.0; 12]);
    let merits = numbers(&dir, "validation_merit");
    let best = RunLedger::open(&dir, "test = 1\n", Optimizer::default(), 2).unwrap().state().best;
    // Only the second stage counts, and the first of equal steps wins.
    let wanted = if merits[4] > merits[3] { (12, merits[4]) } else { (8, merits[3]) };
    assert!(
        best.is_some_and(|(step, merit)| step == wanted.0 && (merit - wanted.1).abs() < 1e-12),
        "{best:?} {merits:?}"
    );
    let samples = sample_lines::read(&dir.join("samples.jsonl")).unwrap();
    assert_eq!(samples.len(), 12 * 24);
    let group: Vec<f64> = samples[..6].iter().map(|sample| sample.advantage.unwrap()).collect();
    assert!(
        group.iter().sum::<f64>().abs() < 1e-9
            && samples[..6].iter().all(|sample| sample.question == samples[0].question)
    );
    assert!(samples.iter().all(|sample| sample.count(Origin::Policy) <= 8));
    // Other commands refuse the samples of another vocabulary.
    let vocabulary = hash::vocabulary(&Tokenizer::bytes());
    assert!(samples.iter().all(|sample| sample.tokenizer.as_ref() == Some(&vocabulary)));
}

/// Prompts recur from step to step, so KV cached under earlier weights would show here.
#[tokio::test(flavor = "multi_thread")]
async fn all_weights_train_and_the_engine_uses_them_at_once() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let dir = temp.path().join("run");
    let settings = Grpo { learning_rate: 3e-3, ..settings() };
    let last = run_with(tiny::whole(&weights), &weights, &dir, &settings, |_| false).await;
    let reward = numbers(&dir, "reward");
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(mean(&reward[9..]) > mean(&reward[..3]) + 0.15, "{reward:?}");
    let drift = numbers(&dir, "logprob_drift_max");
    assert!(drift.len() == 12 && drift.iter().all(|&drift| drift < 1e-3), "{drift:?}");
    // The weights that answered differ from the initial ones, and in the end every tensor does.
    let kl = numbers(&dir, "kl");
    assert!(kl.iter().all(|&kl| kl >= 0.0) && mean(&kl[9..]) > 1e-2, "{kl:?}");
    let first = tiny::whole(&weights);
    let samples = sample_lines::read(&dir.join("samples.jsonl")).unwrap();
    let masked: Vec<MaskedSequence> = samples[11 * 24..].iter().map(MaskedSequence::new).collect();
    let sequences: Vec<_> = masked.iter().map(MaskedSequence::sequence).collect();
    let stale = logprobs(&mut tiny::whole(&weights), &sequences, 1000, ScoredModel::Adapted).unwrap();
    let apart = |(sample, stale): (&Sample, &Vec<f32>)| {
        let sampled = sample.sampled_logprobs().into_iter().zip(sample.loss_mask()).zip(stale);
        sampled.filter_map(|((own, learned), stale)| Some((own.filter(|_| learned)? - stale).abs())).fold(0.0, f32::max)
    };
    let most = samples[11 * 24..].iter().zip(&stale).map(apart).fold(0.0, f32::max);
    assert!(most > 0.1, "the weights before would say the same: {most}");
    for parameter in first.parameters() {
        let name = &parameter.name;
        let range = parameter.range.clone();
        assert!(first.values()[range.clone()] != last[range], "{name} has learned nothing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_training_ends_in_the_same_weights() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    // An adapter and full weights reach the rollout engine in different ways.
    for learner in [tiny::learner, tiny::whole] {
        interrupted(&weights, &temp.path().join(format!("{}", learner(&weights).values().len())), learner).await;
    }
}

async fn interrupted(weights: &Weights, dir: &Path, learner: fn(&Weights) -> Learner) {
    std::fs::create_dir(dir).unwrap();
    let whole = dir.join("whole");
    let parts = dir.join("parts");
    let settings = Grpo { recompute: false, skip_flat: true, reference: GrpoReference::Base, ..settings() };
    let wanted = run_with(learner(weights), weights, &whole, &settings, |_| false).await;
    for stop in [2, 4, 11] {
        run_with(learner(weights), weights, &parts, &settings, |row| row.step == stop).await;
    }
    assert_eq!(run_with(learner(weights), weights, &parts, &settings, |_| false).await, wanted);
    for name in ["reward", "kl", "gradient_norm", "bandit/em"] {
        assert_eq!(numbers(&parts, name), numbers(&whole, name), "{name}");
    }
    let tokens = |dir: &Path| -> Vec<_> {
        let samples = sample_lines::read(&dir.join("samples.jsonl")).unwrap();
        samples.into_iter().map(|sample| (sample.id, sample.tokens)).collect()
    };
    assert_eq!(tokens(&parts), tokens(&whole));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_divergence_is_reported_only_if_it_has_a_weight() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    for (kl, count) in [(0.0, 0), (0.1, 1)] {
        let dir = temp.path().join(format!("kl-{kl}"));
        let loss = PolicyLossTerms { kl, ..PolicyLossTerms::default() };
        run(&weights, &dir, &Grpo { loss, ..settings() }, |row| row.step == 1).await;
        assert_eq!((numbers(&dir, "kl").len(), numbers(&dir, "policy_loss").len()), (count, 1), "{kl}");
    }
}

/// Without divergence and entropy, skipping flat groups does not change the gradient.
#[test]
fn flat_groups_carry_no_policy_gradient() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 48);
    let loss = PolicyLossTerms { kl: 0.0, entropy: 0.0, ..PolicyLossTerms::default() };
    let settings = Grpo { loss, ..settings() };
    let learned: Vec<bool> = (0..30).map(|at| at >= 20).collect();
    let tokens: Vec<Vec<u32>> =
        // The first 20 tokens, the prompt, are the same in all trajectories; `own` changes the rest.
        (0..12u32).map(|own| (0..30).map(|at| (at * (1 + at / 20 * own)) % 48).collect()).collect();
    let gradients = |skip: bool| {
        let mut learner = tiny::learner(&weights);
        let sequences: Vec<_> =
            tokens.iter().map(|tokens| crate::pack::TrainingSequence { tokens, learned: &learned }).collect();
        let old = logprobs(&mut learner, &sequences, 1000, ScoredModel::Adapted).unwrap();
        let flat = |own: usize| own % 6 < 3;
        let trajectory = |own: usize| LossTrajectory {
            sequence: sequences[own],
            old: &old[own],
            reference: &old[own],
            advantage: if flat(own) { 0.0 } else { own as f32 - 6.0 },
            taught: None,
            active: !(skip && flat(own)),
        };
        let trajectories: Vec<_> = (0..12).map(trajectory).collect();
        let mut optimizer = AdamW::new(Optimizer::default(), learner.values().len());
        update(&mut learner, &mut optimizer, &trajectories, &settings, 1e-3, 0.0).unwrap();
        optimizer.moments().0.to_vec()
    };
    let all = gradients(false);
    let some = gradients(true);
    let most = all.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    assert!(most > 0.0 && all.iter().zip(&some).all(|(a, b)| (a - b).abs() < 1e-4 * most));
}

#[tokio::test]
async fn separate_stages_continue_rate_and_questions() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let runtime = engine(&weights);
    let settings = settings();
    let question = |at: usize| Question { question: format!("question {at}?"), ..Question::default() };
    let question_sets = [QuestionSet { questions: (0..9).map(question).collect(), ..question_set(runtime.clone()) }];
    let policy = searching();
    let goals = ["grpo1", "grpo2"].map(goal);
    let of = |part: std::ops::Range<usize>, earlier_steps: u64| GrpoTraining {
        settings: &settings,
        seed: 11,
        goals: &goals[part],
        earlier_steps,
        scheduled_steps: 12,
        question_sets: &question_sets,
        policy: &policy,
        engine: &runtime.engine,
        vocabulary: "",
        reference: &[],
        adapter_dir: PathBuf::new(),
    };
    let all = of(0..2, 0);
    let second = of(1..2, 6);
    assert_eq!((all.steps(), second.steps()), (12, 6));
    for step in 1..=6 {
        assert_eq!(second.rate(step), all.rate(6 + step));
        let asked = |training: &GrpoTraining<'_>, step| -> Vec<String> {
            training.questions(step).into_iter().map(|(_, question)| question.question.clone()).collect()
        };
        assert_eq!(asked(&second, step), asked(&all, 6 + step));
        let at = |stage: StageAt<'_>| (stage.goal.phase.clone(), stage.before);
        assert_eq!(at(all.stage(6 + step)), ("grpo2".to_owned(), 6));
        assert_eq!(at(second.stage(step)), ("grpo2".to_owned(), 0));
    }
    assert!(all.rate(12) > 0.0 && all.rate(12) < second.rate(1));
    assert_eq!(all.stage(0).goal.phase, "grpo1");
}
