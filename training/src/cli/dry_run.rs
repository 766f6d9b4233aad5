//! `--dry-run`: the planned work of a run, with estimates of time and memory.

use std::io::{self, Write};
use std::time::Instant;

use waymark_models::Arithmetic;
use waymark_models::decoder::DecoderConfig;
use waymark_models::gradient::{Learner, Score, Slope, Tune};

use super::gpu_plan::GpuPlan;
use super::progress_bar::duration;
use crate::dpo;
use crate::grpo::GrpoTraining;
use crate::pack::{TrainingSequence, pack, passes};
use crate::recipe::dpo::DpoReference;
use crate::recipe::{Recipe, Sft};
use crate::reward::route_shares::RouteShares;
use crate::rollout::{QuestionSet, Rollout};
use crate::sft::{MaskedSequence, SftDataset, SftTraining};

const GIB: f64 = (1u64 << 30) as f64;
/// Cost of a forward pass without gradient, relative to a training pass: one part of three.
const FORWARD: f64 = 1.0 / 3.0;

/// Prints the memory plan of a GPU that was not queried, without a time estimate.
pub(super) fn unqueried_gpu(recipe: &Recipe, config: &DecoderConfig, gpu_plan: &GpuPlan) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "base       {}: {} layers, hidden {}", recipe.base, config.layers, config.hidden)?;
    writeln!(out, "trained    {} values", gpu_plan.need.values)?;
    gpu_plan.write(&mut out)?;
    writeln!(out, "time       not measured: with --memory no GPU is queried")?;
    Ok(())
}

/// Prints the plan of supervised training. The time estimate comes from one training pass, whose gradient is discarded.
pub(super) fn sft(
    recipe: &Recipe,
    settings: &Sft,
    dataset: &SftDataset,
    training: &SftTraining<'_>,
    learner: &mut Learner,
    gpu_plan: Option<&GpuPlan>,
) -> anyhow::Result<()> {
    let steps = training.steps();
    // About eight steps, spread over the run, represent all of them.
    let sampled_steps: Vec<u64> = (1..=steps).step_by((steps as usize).div_ceil(8).max(1)).collect();
    let mut plain = 0;
    let mut computed = 0;
    let mut targets = 0;
    for &step in &sampled_steps {
        let batch = training.batch(step);
        plain += batch.iter().map(|sequence| sequence.tokens.len()).sum::<usize>();
        targets += batch.iter().map(TrainingSequence::targets).sum::<usize>();
        let passes = passes(learner, &batch, settings.pack_tokens);
        computed += passes.into_iter().map(|pass| pack(&batch[pass]).pack.tokens().len()).sum::<usize>();
    }
    let [plain, computed, targets] = [plain, computed, targets].map(|sum| sum / sampled_steps.len().max(1));
    let longest =
        dataset.train.iter().map(|sequence: &MaskedSequence| sequence.sequence().tokens.len()).max().unwrap_or(0);
    let mut out = io::stdout().lock();
    write_head(&mut out, recipe, learner)?;
    let train = dataset.train.len();
    let held_out = dataset.held_out.len();
    let dropped = dataset.dropped;
    writeln!(
        out,
        "data       {train} trajectories of at most {longest} tokens, {held_out} held out, {dropped} dropped"
    )?;
    writeln!(out, "steps      {steps} of {} trajectories, {} epochs", settings.batch, settings.epochs)?;
    writeln!(out, "per step   {plain} tokens, {computed} computed after sharing prompts, {targets} trained on")?;
    write_memory(&mut out, learner, settings.pack_tokens, gpu_plan)?;
    // Shown before the measurement, which may take a while.
    out.flush()?;
    let speed = measure(learner, &training.batch(1), settings.pack_tokens)?;
    let seconds = steps as f64 * computed as f64 / speed;
    writeln!(out, "time       about {} at {speed:.0} tokens/s, measured on one pass", duration(seconds))?;
    Ok(())
}

/// Prints the plan of GRPO training. The time estimate comes from the rollouts of a few questions and a training pass
/// over them.
pub(super) async fn grpo(
    recipe: &Recipe,
    training: &GrpoTraining<'_>,
    learner: &mut Learner,
    kv: &str,
    gpu_plan: Option<&GpuPlan>,
) -> anyhow::Result<()> {
    let settings = training.settings;
    let started = Instant::now();
    let trial = training.try_out(learner).await?;
    let seconds_per_rollout = started.elapsed().as_secs_f64() / trial.len().max(1) as f64;
    let (each, speed) = size(&trial, settings.pack_tokens, learner)?;
    let rollouts = settings.questions * settings.group;
    // Recomputed, reference and teacher probabilities each need a forward pass over all trajectories.
    let scored = [settings.recompute, settings.loss.kl > 0.0, settings.active_teacher().is_some()];
    let passes = 1.0 + FORWARD * scored.into_iter().filter(|&needed| needed).count() as f64;
    let rollout_seconds = seconds_per_rollout * rollouts as f64;
    let training_seconds = each * rollouts as f64 * passes / speed;
    let mut out = io::stdout().lock();
    write_head(&mut out, recipe, learner)?;
    write_questions(&mut out, training.question_sets, training.goals.iter().any(|goal| goal.reward.counts_hops()))?;
    for goal in training.goals {
        writeln!(out, "stage      {}: {} steps, {:?}", goal.phase, goal.steps, goal.reward)?;
    }
    let updates = rollouts.div_ceil(settings.mini_batch);
    writeln!(
        out,
        "per step   {rollouts} rollouts of about {each:.0} tokens after sharing prefixes, {updates} optimizer steps"
    )?;
    write_memory(&mut out, learner, settings.pack_tokens, gpu_plan)?;
    write_rollout_memory(&mut out, learner, settings.needs_reference(), kv, gpu_plan)?;
    if let Some(teacher) = settings.active_teacher() {
        let learned =
            trial.iter().map(|rollout| MaskedSequence::new(&rollout.sample).sequence().targets()).sum::<usize>() as f64;
        let each =
            learned / trial.len().max(1) as f64 * (teacher.tokens * (size_of::<u32>() + size_of::<f32>())) as f64;
        let most = each * rollouts as f64 / GIB;
        writeln!(
            out,
            "           and at most {most:.1} GiB for the teacher's targets, if all trajectories of a step are taught"
        )?;
    }
    if let Some(weights) = &settings.routes {
        let shares = RouteShares::of(trial.iter().map(|rollout| &rollout.sample), weights);
        writeln!(out, "routes     {shares}")?;
        if let Some(flaw) = shares.flaw() {
            writeln!(out, "           refused: {flaw}")?;
        }
    }
    let measurements = measurements(training.goals.iter().map(|goal| goal.steps), settings.validate_every);
    let validation: usize = training.question_sets.iter().map(|question_set| question_set.validation.len()).sum();
    let validation_seconds = seconds_per_rollout * (validation * measurements) as f64;
    let all = duration(training.steps() as f64 * (rollout_seconds + training_seconds) + validation_seconds);
    writeln!(
        out,
        "time       about {all}: {rollout_seconds:.0} s of rollouts and {training_seconds:.0} s of training per step,"
    )?;
    if validation > 0 {
        let spent = duration(validation_seconds);
        writeln!(out, "           and {spent} for {measurements} measurements on {validation} validation questions,")?;
    }
    writeln!(out, "           measured on {} rollouts; more when all groups run concurrently", trial.len())?;
    Ok(())
}

/// Number of measurements in a run over stages of these numbers of steps: one before the first step, one at the end of
/// each stage, and others every `every` steps, unless `every` is 0.
fn measurements(stages: impl IntoIterator<Item = usize>, every: usize) -> usize {
    let mut done = 0;
    let mut count = 1;
    for steps in stages {
        let end = done + steps;
        count += (done + 1..=end).filter(|step| *step == end || (every > 0 && step.is_multiple_of(every))).count();
        done = end;
    }
    count
}

/// Prints the plan of DPO training. The time estimate comes from the rollouts of a few questions and a training pass
/// over them; the number of pairs is unknown.
pub(super) async fn dpo(
    recipe: &Recipe,
    training: &dpo::DpoTraining<'_>,
    learner: &mut Learner,
    kv: &str,
    gpu_plan: Option<&GpuPlan>,
) -> anyhow::Result<()> {
    let settings = training.settings;
    let started = Instant::now();
    let trial = training.try_out(learner).await?;
    let seconds_per_rollout = started.elapsed().as_secs_f64() / trial.len().max(1) as f64;
    let (each, speed) = size(&trial, settings.pack_tokens, learner)?;
    let mut out = io::stdout().lock();
    write_head(&mut out, recipe, learner)?;
    write_questions(&mut out, training.question_sets, training.goals.iter().any(|goal| goal.reward.counts_hops()))?;
    for goal in training.goals {
        let phase = &goal.phase;
        let rounds = goal.rounds;
        let epochs = goal.epochs;
        let nll = goal.terms.nll;
        let made = format!("{rounds} rounds of {epochs} epochs, {:?}, {:?}", goal.reward, goal.rule);
        writeln!(out, "stage      {phase}: {made}, likelihood weight {nll}")?;
    }
    let questions =
        settings.questions.min(training.question_sets.iter().map(|question_set| question_set.questions.len()).sum());
    // The number of branches depends on the number of turns.
    let asked = trial.chunk_by(|one, other| one.group == other.group).count().max(1);
    let rollouts = (questions as f64 * trial.len() as f64 / asked as f64).round() as usize;
    writeln!(
        out,
        "per round  {rollouts} rollouts of about {each:.0} tokens after sharing prefixes; the number of pairs is unknown,"
    )?;
    writeln!(out, "           {} of them per optimizer step", settings.batch)?;
    write_memory(&mut out, learner, settings.pack_tokens, gpu_plan)?;
    let encoded = settings.ranker.is_some() && *learner.tune() == Tune::Full;
    write_rollout_memory(&mut out, learner, settings.reference == DpoReference::Initial || encoded, kv, gpu_plan)?;
    let round_gib =
        trial.iter().map(rollout_bytes).sum::<usize>() as f64 / trial.len().max(1) as f64 * rollouts as f64 / GIB;
    writeln!(out, "           and about {round_gib:.1} GiB for the trajectories of a round")?;
    if settings.ranker.is_some() {
        write_ranker_cost(&mut out, &trial, rollouts, each, speed, learner)?;
    }
    // Each pair has two trajectories, each of which is scored and then trained on.
    let pair = 2.0 * each * (1.0 + FORWARD) / speed;
    let rollout_seconds = duration(seconds_per_rollout * rollouts as f64);
    writeln!(out, "time       about {rollout_seconds} of rollouts per round, and {pair:.1} s per pair and epoch,")?;
    writeln!(out, "           measured on {} rollouts; more when all groups run concurrently", trial.len())?;
    Ok(())
}

/// Prints the cost of a ranker per round: one hidden state for each branch, at most one branch per turn of a
/// trajectory, and a forward pass over all branches.
fn write_ranker_cost(
    out: &mut impl Write,
    trial: &[Rollout],
    rollouts: usize,
    each: f64,
    speed: f64,
    learner: &Learner,
) -> io::Result<()> {
    let turns = trial.iter().map(|rollout| rollout.sample.actions.len()).sum::<usize>() as f64;
    let branches = turns / trial.len().max(1) as f64 * rollouts as f64;
    let most = branches * (learner.config().hidden * size_of::<f32>()) as f64 / GIB;
    writeln!(out, "           and at most {most:.1} GiB for the states of its branches")?;
    let pass = duration(each * rollouts as f64 * FORWARD / speed);
    writeln!(out, "ranker     about {pass} of each round, for a forward pass over its trajectories")
}

/// Approximate memory of a rollout during its round, in bytes: its token IDs and log-probabilities, its text twice, and
/// the texts of the supporting passages.
fn rollout_bytes(rollout: &Rollout) -> usize {
    let sample = &rollout.sample;
    let numbers = size_of_val(sample.tokens.as_slice()) + size_of_val(sample.logprobs.as_slice());
    numbers + 2 * sample.text.len() + rollout.support.iter().map(String::len).sum::<usize>()
}

/// Mean number of tokens of a rollout with shared prefixes counted once, and training speed in tokens per second.
fn size(trial: &[Rollout], pack_tokens: usize, learner: &mut Learner) -> anyhow::Result<(f64, f64)> {
    let masked: Vec<MaskedSequence> = trial.iter().map(|rollout| MaskedSequence::new(&rollout.sample)).collect();
    let sequences: Vec<TrainingSequence<'_>> = masked.iter().map(MaskedSequence::sequence).collect();
    let passes = passes(learner, &sequences, pack_tokens).into_iter();
    let computed: usize = passes.map(|pass| pack(&sequences[pass]).pack.tokens().len()).sum();
    let speed = measure(learner, &sequences, pack_tokens)?;
    Ok((computed as f64 / trial.len().max(1) as f64, speed))
}

/// Prints the question sets, and the number of multi-hop questions if a reward counts hops.
fn write_questions(out: &mut impl Write, question_sets: &[QuestionSet], hops: bool) -> io::Result<()> {
    for question_set in question_sets {
        let questions = question_set.questions.len();
        let validation = question_set.validation.len();
        writeln!(out, "questions  {}: {questions} for training, {validation} for validation", question_set.name)?;
        if hops {
            let several = question_set.multi_hop_count();
            writeln!(out, "           {several} multi-hop; {} single-hop or of unknown support", questions - several)?;
        }
    }
    Ok(())
}

fn write_head(out: &mut impl Write, recipe: &Recipe, learner: &Learner) -> io::Result<()> {
    let config = learner.config();
    writeln!(out, "base       {}: {} layers, hidden {}", recipe.base, config.layers, config.hidden)?;
    writeln!(out, "trained    {} values in {} tensors", learner.values().len(), learner.parameters().len())?;
    let arithmetic = match recipe.arithmetic {
        _ if learner.on_gpu() => "bf16 on a GPU, trained parameters in f32",
        // A recipe with integers is refused when it is read.
        Arithmetic::F32 | Arithmetic::Int16 => "f32",
        Arithmetic::Bf16 => "bf16 with frozen weights and in gradients of attention, f32 otherwise",
    };
    writeln!(out, "arithmetic {arithmetic}")
}

fn write_memory(out: &mut impl Write, learner: &Learner, tokens: usize, gpu_plan: Option<&GpuPlan>) -> io::Result<()> {
    if let Some(gpu_plan) = gpu_plan {
        return gpu_plan.write(out);
    }
    // AdamW keeps two moments of every value.
    let optimizer = 2 * size_of::<f32>() * learner.values().len();
    let gib = (learner.bytes(tokens) + optimizer) as f64 / GIB;
    writeln!(out, "memory     {gib:.1} GiB with passes of {tokens} tokens")
}

/// Prints the memory of rollouts that the learner's plan leaves out. When all weights are trained, the engine has its
/// own copy, and the reference values stay in memory. The printed copies are those of a checkpoint, which is built in
/// memory first (values and both moments). At other times there are only two temporary copies: while the engine takes
/// new weights, and while the divergence is measured.
fn write_rollout_memory(
    out: &mut impl Write,
    learner: &Learner,
    measured: bool,
    kv: &str,
    gpu_plan: Option<&GpuPlan>,
) -> io::Result<()> {
    // The GPU plan already includes the engine.
    if gpu_plan.is_some_and(GpuPlan::has_engine) {
        return Ok(());
    }
    if *learner.tune() != Tune::Full {
        return writeln!(out, "           and {kv} for the KV cache of the rollouts, and the engine's weights");
    }
    let set = size_of_val(learner.values()) as f64 / GIB;
    let reference = if measured { set } else { 0.0 };
    writeln!(out, "           and {kv} for the KV cache of the rollouts, {set:.1} GiB for the engine's weights,")?;
    writeln!(out, "           {reference:.1} GiB for the reference weights,")?;
    writeln!(out, "           {:.1} GiB for copies, while a checkpoint is written", 3.0 * set)
}

/// Measured speed of training in tokens per second, on the first pass over `sequences`. The gradient is reset to zero.
fn measure(learner: &mut Learner, sequences: &[TrainingSequence<'_>], budget: usize) -> anyhow::Result<f64> {
    /// Tokens of the measured pass: enough to be representative, and fast.
    const TRIED: usize = 2048;
    let pass = passes(learner, sequences, budget.min(TRIED)).into_iter().next().unwrap_or(0..0);
    let packed = pack(&sequences[pass]).pack;
    // The first pass allocates memory, so only the second one is timed.
    learner.learn(&packed, &mut |_, _: Score| Slope::default())?;
    let started = Instant::now();
    learner.learn(&packed, &mut |_, _: Score| Slope::default())?;
    learner.zero();
    Ok(packed.tokens().len() as f64 / started.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::measurements;

    #[test]
    fn each_stage_ends_with_a_measurement() {
        // At the steps 0, 10, 20, 26, 30 and 38.
        assert_eq!(measurements([26, 12], 10), 6);
        assert_eq!(measurements([26, 12], 0), 3);
        // A stage may end with a step at which a measurement is due anyway, and may have no steps.
        assert_eq!(measurements([20, 0, 5], 10), 4);
    }
}
