//! The teacher's term.

use super::*;
use crate::recipe::TeacherSettings;
use crate::reward::Reward;
use crate::rollout::{RolloutSettings, rollouts};
use crate::sample::{RewardValue, Sample};

/// Reward that is the same for all trajectories.
#[derive(Debug)]
struct Same;

impl Reward for Same {
    fn score(&self, samples: &[Sample]) -> Vec<RewardValue> {
        vec![RewardValue::default(); samples.len()]
    }
}

/// Two groups of three, trained on the teacher's term alone.
fn settings_with_teacher() -> Grpo {
    Grpo {
        learning_rate: 5e-3,
        schedule: ScheduleShape::Constant,
        questions: 2,
        group: 3,
        mini_batch: 3,
        micro_batch: 2,
        pack_tokens: 3000,
        loss: PolicyLossTerms { kl: 0.0, entropy: 0.0, ..PolicyLossTerms::default() },
        teacher: Some(TeacherSettings { tokens: 32, weight: 1.0, warmup: 2, enough: 0.1 }),
        skip_flat: true,
        ..settings()
    }
}

/// Policy with a single PathRouter turn and no search.
fn answering() -> Policy {
    let budget = "turns = 0\nturn_tokens = 12\nsampled_tokens = 16\n";
    let text = format!("name = \"taught\"\nprotocol = \"path-router\"\n[budget]\n{budget}");
    Policy::parse(&text, Path::new("policy.toml")).unwrap()
}

/// Trains an adapter that differs from the reference, in PathRouter's format, on questions for which no support is
/// found.
async fn taught(
    weights: &Weights,
    dir: &Path,
    settings: &Grpo,
    reward: fn() -> Box<dyn Reward>,
    stop: impl FnMut(&MetricsRow) -> bool + Send,
) -> Vec<f32> {
    let runtime = engine(weights);
    let policy = answering();
    let question = |text: &str| {
        let support = vec!["Faust A tragedy in two parts by Goethe.".to_owned(), "Goethe A poet of Weimar.".to_owned()];
        Question { question: text.into(), support, ..Question::default() }
    };
    let questions = ["Who wrote Faust?", "Where did he live?", "When was that?"].map(question).to_vec();
    let question_set = QuestionSet { questions, ..question_set(runtime.clone()) };
    let mut learner = tiny::learner(weights);
    let reference = learner.values().to_vec();
    tiny::nudge(&mut learner);
    let goal = |phase| GrpoGoal { reward: RewardScorer::new(reward(), Arc::new(Embedding::Mock)), ..goal(phase) };
    let goals = ["grpo1", "grpo2"].map(goal);
    let setup = TestSetup {
        question_sets: &[question_set],
        policy: &policy,
        engine: &runtime.engine,
        goals: &goals,
        reference: &reference,
    };
    setup.train(learner, dir, settings, stop).await
}

/// The teacher's term also applies to flat groups while `skip_flat` is on.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_approaches_its_teacher_and_resumes_identically() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let whole = temp.path().join("whole");
    let parts = temp.path().join("parts");
    let settings = settings_with_teacher();
    let same = || -> Box<dyn Reward> { Box::new(Same) };
    let wanted = taught(&weights, &whole, &settings, same, |_| false).await;
    let apart = numbers(&whole, "teacher_kl");
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(apart.len() == 12 && mean(&apart[9..]) < 0.7 * mean(&apart[..3]), "{apart:?}");
    assert_eq!(numbers(&whole, "teacher_weight"), [[0.5].as_slice(), &[1.0; 11]].concat());
    assert_eq!((numbers(&whole, "poor"), numbers(&whole, "teacher_left_out")), (vec![1.0; 12], vec![0.0; 12]));
    assert_eq!((numbers(&whole, "updates"), numbers(&whole, "flat_groups")), (vec![2.0; 12], vec![1.0; 12]));
    let losses = numbers(&whole, "loss");
    assert!((losses[0] - 0.5 * apart[0]).abs() < 1e-9 && (losses[5] - apart[5]).abs() < 1e-9, "{losses:?} {apart:?}");
    for stop in [2, 5] {
        taught(&weights, &parts, &settings, same, |row| row.step == stop).await;
    }
    assert_eq!(taught(&weights, &parts, &settings, same, |_| false).await, wanted);
    for name in ["teacher_kl", "gradient_norm", "loss"] {
        assert_eq!(numbers(&parts, name), numbers(&whole, name), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_enough_support_no_trajectory_is_taught() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let teacher = |enough| Some(TeacherSettings { enough, ..TeacherSettings::default() });
    let even = || -> Box<dyn Reward> { Box::new(Even) };
    let mut ends = Vec::new();
    for (name, teacher) in [("without", None), ("enough", teacher(0.0)), ("poor", teacher(0.1))] {
        let dir = temp.path().join(name);
        let settings = Grpo { teacher, ..settings_with_teacher() };
        ends.push(taught(&weights, &dir, &settings, even, |row| row.step == 3).await);
        let poor = [vec![], vec![0.0; 3], vec![1.0; 3]];
        assert_eq!(numbers(&dir, "poor"), poor[ends.len() - 1], "{name}");
        assert!(name == "poor" || numbers(&dir, "teacher_kl").iter().all(|&apart| apart == 0.0), "{name}");
    }
    assert_eq!(ends[0], ends[1]);
    assert_ne!(ends[0], ends[2]);
}

/// A trajectory that is too long with the passages in front is still trained on, but not taught.
#[tokio::test(flavor = "multi_thread")]
async fn a_trajectory_too_long_for_the_teacher_is_not_taught() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let runtime = engine(&weights);
    let settings = settings_with_teacher();
    let policy = answering();
    let question =
        |support: String| Question { question: "who?".into(), support: vec![support], ..Question::default() };
    let short = question("a passage".into());
    let long = question("a long one ".repeat(400));
    let question_sets = [question_set(runtime.clone())];
    let rollout_settings = RolloutSettings { group: 2, step: 1, ..RolloutSettings::new(&settings.sampling, 4, 2) };
    let batch = rollouts(&policy, &[(&question_sets[0], &short), (&question_sets[0], &long)], &rollout_settings)
        .await
        .unwrap()
        .rollouts;
    let mut learner = tiny::learner(&weights);
    let reference = learner.values().to_vec();
    let training = GrpoTraining {
        settings: &settings,
        seed: 11,
        goals: &[goal("grpo1")],
        earlier_steps: 0,
        scheduled_steps: 6,
        question_sets: &question_sets,
        policy: &policy,
        engine: &runtime.engine,
        vocabulary: "",
        reference: &reference,
        adapter_dir: PathBuf::new(),
    };
    let (taught, row) = training.teach(MetricsRow::new(1, "grpo1", 0.0), &batch, &mut learner).unwrap();
    assert_eq!(taught.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, false]);
    assert_eq!((row.values["poor"], row.values["teacher_left_out"]), (1.0, 2.0));
    for (taught, rollout) in taught.iter().flatten().zip(&batch) {
        let own = rollout.sample.loss_mask();
        let learned = (0..own.len()).filter(|&token| own[token]);
        assert!(taught.by_token.iter().map(|(token, _)| *token).eq(learned), "{}", rollout.sample.text);
        assert!(taught.by_token.iter().all(|(_, likeliest)| likeliest.ids().len() == 32));
    }
}
