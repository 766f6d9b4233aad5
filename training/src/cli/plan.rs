//! `--dry-run`: what a run would do, how long it would take and how much memory.

use std::io::{self, Write};
use std::time::Instant;

use waymark_models::Arithmetic;
use waymark_models::decoder::DecoderConfig;
use waymark_models::gradient::{Learner, Score, Slope, Tune};

use super::bar::duration;
use super::card::Planned;
use crate::dpo;
use crate::grpo::Campaign;
use crate::pack::{Sequence, pack, passes};
use crate::recipe::dpo::Reference;
use crate::recipe::{Recipe, Sft};
use crate::rollout::{Field, Rollout};
use crate::sft::{Course, Lesson, Lessons};

const GIB: f64 = (1u64 << 30) as f64;
/// A frozen forward pass beside one with its backward pass: one part of three.
const FORWARD: f64 = 1.0 / 3.0;

/// Says what a run would take of a card that is not asked; how long it takes such a card is not known.
pub(super) fn unasked(recipe: &Recipe, config: &DecoderConfig, planned: &Planned) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "base       {}: {} layers, hidden {}", recipe.base, config.layers, config.hidden)?;
    writeln!(out, "learnt     {} values", planned.need.values)?;
    planned.write(&mut out)?;
    writeln!(out, "time       not measured: --memory says what there is, and no card is asked")?;
    Ok(())
}

/// Says what supervised training would do. The time is that of one pass that is made and forgotten.
pub(super) fn sft(
    recipe: &Recipe,
    settings: &Sft,
    lessons: &Lessons,
    course: &Course<'_>,
    learner: &mut Learner,
    planned: Option<&Planned>,
) -> anyhow::Result<()> {
    let steps = course.steps();
    // A look at eight steps is enough.
    let looked: Vec<u64> = (1..=steps).step_by((steps as usize).div_ceil(8).max(1)).collect();
    let (mut plain, mut computed, mut targets) = (0, 0, 0);
    for &step in &looked {
        let batch = course.batch(step);
        plain += batch.iter().map(|sequence| sequence.tokens.len()).sum::<usize>();
        targets += batch.iter().map(Sequence::targets).sum::<usize>();
        let passes = passes(learner, &batch, settings.pack_tokens);
        computed += passes.into_iter().map(|pass| pack(&batch[pass]).pack.tokens().len()).sum::<usize>();
    }
    let [plain, computed, targets] = [plain, computed, targets].map(|sum| sum / looked.len().max(1));
    let longest = lessons.train.iter().map(|lesson: &Lesson| lesson.sequence().tokens.len()).max().unwrap_or(0);
    let mut out = io::stdout().lock();
    head(&mut out, recipe, learner)?;
    let (train, held_out, dropped) = (lessons.train.len(), lessons.held_out.len(), lessons.dropped);
    writeln!(
        out,
        "data       {train} trajectories of at most {longest} tokens, {held_out} held out, {dropped} left out"
    )?;
    writeln!(out, "steps      {steps} of {} trajectories, {} epochs", settings.batch, settings.epochs)?;
    writeln!(out, "per step   {plain} tokens, {computed} computed with prompts shared, {targets} learnt")?;
    memory(&mut out, learner, settings.pack_tokens, planned)?;
    out.flush()?;
    let speed = measure(learner, &course.batch(1), settings.pack_tokens)?;
    let seconds = steps as f64 * computed as f64 / speed;
    writeln!(out, "time       about {} at {speed:.0} tokens/s, as measured on one pass", duration(seconds))?;
    Ok(())
}

/// Says what training by rewards would do. The time is that of the rollouts of a few questions and of a pass over them.
pub(super) async fn grpo(
    recipe: &Recipe,
    campaign: &Campaign<'_>,
    learner: &mut Learner,
    (kv_bytes, planned): (usize, Option<&Planned>),
) -> anyhow::Result<()> {
    let settings = campaign.settings;
    let began = Instant::now();
    let tried = campaign.try_out(learner).await?;
    let rolled = began.elapsed().as_secs_f64() / tried.len().max(1) as f64;
    let (each, speed) = size(&tried, settings.pack_tokens, learner)?;
    let rollouts = settings.questions * settings.group;
    let scored = [settings.recompute, settings.loss.kl > 0.0, settings.teaching().is_some()];
    let passes = 1.0 + FORWARD * scored.into_iter().filter(|&asked| asked).count() as f64;
    let (rolling, learning) = (rolled * rollouts as f64, each * rollouts as f64 * passes / speed);
    let mut out = io::stdout().lock();
    head(&mut out, recipe, learner)?;
    asked(&mut out, campaign.fields, campaign.goals.iter().any(|goal| goal.reward.counts_hops()))?;
    for goal in campaign.goals {
        writeln!(out, "stage      {}: {} steps, {:?}", goal.phase, goal.steps, goal.reward)?;
    }
    let updates = rollouts.div_ceil(settings.mini_batch);
    writeln!(out, "per step   {rollouts} rollouts of about {each:.0} tokens once shared, {updates} optimizer steps")?;
    memory(&mut out, learner, settings.pack_tokens, planned)?;
    aside(&mut out, learner, settings.refers(), (kv_bytes, planned))?;
    if let Some(teacher) = settings.teaching() {
        let learnt =
            tried.iter().map(|rollout| Lesson::new(&rollout.sample).sequence().targets()).sum::<usize>() as f64;
        let each = learnt / tried.len().max(1) as f64 * (teacher.tokens * (size_of::<u32>() + size_of::<f32>())) as f64;
        let most = each * rollouts as f64 / GIB;
        writeln!(out, "           and at most {most:.1} GiB for what the teacher says, were all of a step taught")?;
    }
    let all = duration(campaign.steps() as f64 * (rolling + learning));
    writeln!(out, "time       about {all}: {rolling:.0} s of rollouts and {learning:.0} s of learning per step,")?;
    writeln!(out, "           as measured on {} rollouts; longer where all groups run side by side", tried.len())?;
    Ok(())
}

/// Says what training by preferences would do. The time is that of the rollouts of a few questions and of a pass over them;
/// how many pairs there will be is not known.
pub(super) async fn dpo(
    recipe: &Recipe,
    campaign: &dpo::Campaign<'_>,
    learner: &mut Learner,
    (kv_bytes, planned): (usize, Option<&Planned>),
) -> anyhow::Result<()> {
    let settings = campaign.settings;
    let began = Instant::now();
    let tried = campaign.try_out(learner).await?;
    let rolled = began.elapsed().as_secs_f64() / tried.len().max(1) as f64;
    let (each, speed) = size(&tried, settings.pack_tokens, learner)?;
    let mut out = io::stdout().lock();
    head(&mut out, recipe, learner)?;
    asked(&mut out, campaign.fields, campaign.goals.iter().any(|goal| goal.reward.counts_hops()))?;
    for goal in campaign.goals {
        let (phase, rounds, epochs, nll) = (&goal.phase, goal.rounds, goal.epochs, goal.terms.nll);
        let made = format!("{rounds} rounds of {epochs} epochs, {:?}, {:?}", goal.reward, goal.rule);
        writeln!(out, "stage      {phase}: {made}, likelihood weighed {nll}")?;
    }
    let questions = settings.questions.min(campaign.fields.iter().map(|field| field.questions.len()).sum());
    let rollouts = questions * settings.group;
    writeln!(
        out,
        "per round  {rollouts} rollouts of about {each:.0} tokens once shared, whose pairs are not yet known,"
    )?;
    writeln!(out, "           {} of them in an optimizer step", settings.batch)?;
    memory(&mut out, learner, settings.pack_tokens, planned)?;
    let encoded = settings.ranking().is_some() && *learner.tune() == Tune::Full;
    aside(&mut out, learner, settings.reference == Reference::Initial || encoded, (kv_bytes, planned))?;
    let held = tried.iter().map(held).sum::<usize>() as f64 / tried.len().max(1) as f64 * rollouts as f64 / GIB;
    writeln!(out, "           and about {held:.1} GiB for the trajectories of a round")?;
    if settings.ranking().is_some() {
        ranker(&mut out, &tried, rollouts, (each, speed), learner)?;
    }
    // Two trajectories, scored and learnt.
    let pair = 2.0 * each * (1.0 + FORWARD) / speed;
    let rolling = duration(rolled * rollouts as f64);
    writeln!(out, "time       about {rolling} of rollouts per round, and {pair:.1} s for each pair in each epoch,")?;
    writeln!(out, "           as measured on {} rollouts; longer where all groups run side by side", tried.len())?;
    Ok(())
}

/// What a ranker takes in each round: a state for each branch, of which a trajectory is at most one a turn, and a forward pass
/// over each.
fn ranker(
    out: &mut impl Write,
    tried: &[Rollout],
    rollouts: usize,
    (each, speed): (f64, f64),
    learner: &Learner,
) -> io::Result<()> {
    let turns = tried.iter().map(|rollout| rollout.sample.actions.len()).sum::<usize>() as f64;
    let branches = turns / tried.len().max(1) as f64 * rollouts as f64;
    let most = branches * (learner.config().hidden * size_of::<f32>()) as f64 / GIB;
    writeln!(out, "           and at most {most:.1} GiB for the states of its branches")?;
    let pass = duration(each * rollouts as f64 * FORWARD / speed);
    writeln!(out, "ranker     about {pass} of each round, for a forward pass over its trajectories")
}

/// About how many bytes a rollout takes while its round is made: its ids and their log-probabilities, its text twice, and
/// the passages that its question takes.
fn held(rollout: &Rollout) -> usize {
    let sample = &rollout.sample;
    let numbers = size_of_val(sample.tokens.as_slice()) + size_of_val(sample.logprobs.as_slice());
    numbers + 2 * sample.text.len() + rollout.support.iter().map(String::len).sum::<usize>()
}

/// Tokens of a rollout, what is shared counted once, and tokens per second of learning from them.
fn size(tried: &[Rollout], pack_tokens: usize, learner: &mut Learner) -> anyhow::Result<(f64, f64)> {
    let lessons: Vec<Lesson> = tried.iter().map(|rollout| Lesson::new(&rollout.sample)).collect();
    let sequences: Vec<Sequence<'_>> = lessons.iter().map(Lesson::sequence).collect();
    let passes = passes(learner, &sequences, pack_tokens).into_iter();
    let computed: usize = passes.map(|pass| pack(&sequences[pass]).pack.tokens().len()).sum();
    let speed = measure(learner, &sequences, pack_tokens)?;
    Ok((computed as f64 / tried.len().max(1) as f64, speed))
}

/// What is asked; and where a reward counts hops, how many questions are of several.
fn asked(out: &mut impl Write, fields: &[Field], hops: bool) -> io::Result<()> {
    for field in fields {
        let (questions, validation) = (field.questions.len(), field.validation.len());
        writeln!(out, "questions  {}: {questions} to learn from, {validation} to measure with", field.name)?;
        if hops {
            let several = field.composed();
            writeln!(
                out,
                "           {several} of several hops; {} of one, or of unknown support",
                questions - several
            )?;
        }
    }
    Ok(())
}

fn head(out: &mut impl Write, recipe: &Recipe, learner: &Learner) -> io::Result<()> {
    let config = learner.config();
    writeln!(out, "base       {}: {} layers, hidden {}", recipe.base, config.layers, config.hidden)?;
    writeln!(out, "learnt     {} values in {} tensors", learner.values().len(), learner.parameters().len())?;
    let arithmetic = match recipe.arithmetic {
        _ if learner.on_card() => "bf16 on a card, what is learnt in f32",
        Arithmetic::F32 => "f32",
        Arithmetic::Bf16 => "bf16 in products with frozen weights, f32 otherwise",
    };
    writeln!(out, "arithmetic {arithmetic}")
}

fn memory(out: &mut impl Write, learner: &Learner, tokens: usize, planned: Option<&Planned>) -> io::Result<()> {
    if let Some(planned) = planned {
        return planned.write(out);
    }
    let optimizer = 2 * size_of::<f32>() * learner.values().len();
    let gib = (learner.bytes(tokens) + optimizer) as f64 / GIB;
    writeln!(out, "memory     {gib:.1} GiB with passes of {tokens} tokens")
}

/// What rollouts take beside the learner. Of all weights the engine has a set of its own, and those that the divergence is
/// measured from stay. A checkpoint is made in memory first, values and moments; that is more than what is there for a
/// moment while the engine takes new weights, a copy and a second set, or while the divergence is measured.
fn aside(
    out: &mut impl Write,
    learner: &Learner,
    measured: bool,
    (kv_bytes, planned): (usize, Option<&Planned>),
) -> io::Result<()> {
    // It was said of the card.
    if planned.is_some_and(Planned::has_engine) {
        return Ok(());
    }
    let kv = kv_bytes as f64 / GIB;
    if *learner.tune() != Tune::Full {
        return writeln!(out, "           and {kv:.1} GiB for the KV of the rollouts, and the engine's weights");
    }
    let set = size_of_val(learner.values()) as f64 / GIB;
    let reference = if measured { set } else { 0.0 };
    writeln!(out, "           and {kv:.1} GiB for the KV of the rollouts, {set:.1} GiB for the engine's weights,")?;
    writeln!(out, "           {reference:.1} GiB for those that the run began with,")?;
    writeln!(out, "           {:.1} GiB for copies, while a checkpoint is written", 3.0 * set)
}

/// Tokens per second, forward and backward, of the first pass over `sequences`; the gradient is left at zero.
fn measure(learner: &mut Learner, sequences: &[Sequence<'_>], budget: usize) -> anyhow::Result<f64> {
    /// Enough to be of the same kind, and short.
    const TRIED: usize = 2048;
    let pass = passes(learner, sequences, budget.min(TRIED)).into_iter().next().unwrap_or(0..0);
    let packed = pack(&sequences[pass]).pack;
    // Once for the memory, once for the clock.
    learner.learn(&packed, &mut |_, _: Score| Slope::default())?;
    let began = Instant::now();
    learner.learn(&packed, &mut |_, _: Score| Slope::default())?;
    learner.zero();
    Ok(packed.tokens().len() as f64 / began.elapsed().as_secs_f64())
}
