//! Checks of a description beyond those of its types.

use std::collections::HashSet;
use std::path::Path;

use waymark_index::MAX_K;

use super::file::{Arm, Endpoint, EvaluationSet, Experiment, Stage, StageKind};

/// Maximum number of seeds, stages, arms, sets or endpoints.
const MOST: usize = 64;

/// Maximum length of a name.
const NAME: usize = 64;

/// An invalid field and the reason.
type Flaw = (String, String);

/// Returns the first invalid field of a description, with the reason.
pub(super) fn flaw(experiment: &Experiment) -> Option<Flaw> {
    let names = || {
        named("name", "", [experiment.name.as_str()].into_iter())
            .or_else(|| named("evaluation", ".name", experiment.evaluation.iter().map(|set| set.name.as_str())))
            .or_else(|| named("stage", ".name", experiment.stage.iter().map(|stage| stage.name.as_str())))
            .or_else(|| named("arm", ".name", experiment.arm.iter().map(|arm| arm.name.as_str())))
    };
    let each = |count: usize| 0..count;
    counts(experiment)
        .or_else(names)
        .or_else(|| seeds(experiment))
        .or_else(|| validation(experiment))
        .or_else(|| each(experiment.evaluation.len()).find_map(|at| set(&experiment.evaluation[at], at)))
        .or_else(|| each(experiment.stage.len()).find_map(|at| stage(experiment, at)))
        .or_else(|| each(experiment.arm.len()).find_map(|at| arm(experiment, &experiment.arm[at], at)))
        .or_else(|| each(experiment.endpoint.len()).find_map(|at| endpoint(experiment, &experiment.endpoint[at], at)))
}

fn refuse(field: impl Into<String>, reason: impl Into<String>) -> Option<Flaw> {
    Some((field.into(), reason.into()))
}

fn counts(experiment: &Experiment) -> Option<Flaw> {
    let counts = [
        ("seeds", experiment.seeds.len(), 1),
        ("training", experiment.training.len(), 0),
        ("evaluation", experiment.evaluation.len(), 1),
        ("stage", experiment.stage.len(), 0),
        ("arm", experiment.arm.len(), 1),
        // Several arms need an endpoint: without a bar that is written before the run, any result would confirm the
        // claim. A single arm has nothing to compare.
        ("endpoint", experiment.endpoint.len(), usize::from(experiment.arm.len() > 1)),
    ];
    let (field, count, least) = counts.into_iter().find(|(_, count, least)| !(*least..=MOST).contains(count))?;
    refuse(field, format!("{count} entries: expected {least} to {MOST}"))
}

/// Checks names, which become names of directories.
fn named<'a>(field: &str, end: &str, names: impl Iterator<Item = &'a str>) -> Option<Flaw> {
    let mut seen = HashSet::new();
    for (at, name) in names.enumerate() {
        let field = if end.is_empty() { field.to_owned() } else { format!("{field}[{at}]{end}") };
        let simple = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_'));
        if name.is_empty() || name.len() > NAME || !simple || name.starts_with('-') {
            return refuse(
                field,
                format!("invalid name {name:?}: expected 1 to {NAME} of a-z, 0-9, '_' and '-', not beginning with '-'"),
            );
        }
        // Otherwise the stage `a-seed1` and the seed 1 of the stage `a` would share a directory.
        if name.contains("-seed") {
            return refuse(
                field,
                format!("invalid name {name:?}: \"-seed\" is kept for the seeds of a stage or an arm"),
            );
        }
        if !seen.insert(name) {
            return refuse(field, format!("the name {name:?} is used twice"));
        }
    }
    None
}

fn seeds(experiment: &Experiment) -> Option<Flaw> {
    let mut seen = HashSet::new();
    let twice = experiment.seeds.iter().find(|seed| !seen.insert(**seed))?;
    refuse("seeds", format!("the seed {twice} is listed twice: it would count as two runs"))
}

fn validation(experiment: &Experiment) -> Option<Flaw> {
    let given = experiment.training.iter().filter(|set| set.validation.is_some()).count();
    // The trainer pairs `--validation` with `--questions` by position, so it takes one for each or none.
    if given == 0 || given == experiment.training.len() {
        return None;
    }
    refuse("training", "give `validation` for each entry, or for none")
}

/// Checks that a set has the name by which the evaluation reports it.
fn set(set: &EvaluationSet, at: usize) -> Option<Flaw> {
    let stem = |path: &Path| path.file_stem().map(|name| name.to_string_lossy().into_owned());
    let folder =
        set.questions.parent().and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
    let name = stem(&set.questions).filter(|name| name != "questions").or(folder).unwrap_or_default();
    if name == set.name || (name.is_empty() && set.name == "questions") {
        return None;
    }
    refuse(format!("evaluation[{at}].name"), format!("must be {name:?}, after its file of questions"))
}

fn stage(experiment: &Experiment, at: usize) -> Option<Flaw> {
    let stage = &experiment.stage[at];
    let field = |name: &str| format!("stage[{at}].{name}");
    for (name, from) in [("init", &stage.init), ("reference", &stage.reference)] {
        let Some(from) = from else { continue };
        let Some(earlier) = experiment.stage[..at].iter().find(|other| other.name == *from) else {
            return refuse(field(name), format!("{from:?} is no earlier stage"));
        };
        // A stage with its own seed is trained once, and cannot start from several runs.
        if stage.seed.is_some() && earlier.seed.is_none() {
            return refuse(field("seed"), format!("{from:?} is trained for each seed: set a seed there too"));
        }
    }
    if stage.init.is_some() && stage.policy.is_some() {
        return refuse(field("policy"), "conflicts with `init`");
    }
    let grpo = stage.kind == StageKind::Grpo;
    let unused = [("reference", stage.reference.is_some()), ("part", stage.part.is_some())];
    if let Some((name, _)) = unused.into_iter().find(|(_, given)| *given && !grpo) {
        return refuse(field(name), "applies to the kind `grpo` only");
    }
    material(experiment, stage).and_then(|(name, reason)| refuse(field(name), reason)).or_else(|| overrides(stage, at))
}

/// Checks that a stage has something to learn from.
fn material(experiment: &Experiment, stage: &Stage) -> Option<(&'static str, &'static str)> {
    match (stage.kind, stage.data.is_empty()) {
        (StageKind::Sft, true) => Some(("data", "the kind `sft` needs trajectories")),
        (StageKind::Grpo | StageKind::Dpo, false) => Some(("data", "applies to the kind `sft` only")),
        (StageKind::Grpo | StageKind::Dpo, true) if experiment.training.is_empty() => {
            Some(("kind", "needs questions to train on: add [[training]]"))
        }
        _ => None,
    }
}

fn overrides(stage: &Stage, at: usize) -> Option<Flaw> {
    let own = stage.override_of("seed")?;
    refuse(format!("stage[{at}].set[{own}]"), "the seed comes from `seeds`, or from the stage's `seed`")
}

fn arm(experiment: &Experiment, arm: &Arm, at: usize) -> Option<Flaw> {
    let field = |name: &str| format!("arm[{at}].{name}");
    match (&arm.stage, &arm.policy) {
        (None, None) => return refuse(format!("arm[{at}]"), "needs a `stage` or a `policy`"),
        (Some(_), Some(_)) => return refuse(field("policy"), "conflicts with `stage`"),
        (Some(stage), None) if experiment.stage(stage).is_none() => {
            return refuse(field("stage"), format!("{stage:?} is no stage"));
        }
        (None, Some(policy)) if policy.is_empty() || policy.starts_with('-') => {
            return refuse(field("policy"), format!("invalid policy {policy:?}"));
        }
        _ => {}
    }
    let k = arm.k.filter(|k| !(1..=MAX_K).contains(k))?;
    refuse(field("k"), format!("must be from 1 to {MAX_K}, not {k}"))
}

fn endpoint(experiment: &Experiment, endpoint: &Endpoint, at: usize) -> Option<Flaw> {
    let field = |name: &str| format!("endpoint[{at}].{name}");
    for (name, arm) in [("arm", &endpoint.arm), ("against", &endpoint.against)] {
        if experiment.arm.iter().all(|known| known.name != *arm) {
            return refuse(field(name), format!("{arm:?} is no arm"));
        }
    }
    if endpoint.arm == endpoint.against {
        return refuse(field("against"), "compares an arm with itself");
    }
    if let Some(set) = endpoint.sets.iter().find(|set| experiment.evaluation.iter().all(|known| known.name != **set)) {
        return refuse(field("sets"), format!("{set:?} is no evaluation set"));
    }
    let mut seen = HashSet::new();
    if let Some(twice) = endpoint.sets.iter().find(|set| !seen.insert(set.as_str())) {
        return refuse(field("sets"), format!("the set {twice:?} is listed twice: it would count as two sets"));
    }
    match (endpoint.at_least, endpoint.at_most) {
        (Some(bar), None) | (None, Some(bar)) if bar.is_finite() => None,
        (Some(_), None) => refuse(field("at_least"), "must be a finite number"),
        (None, Some(_)) => refuse(field("at_most"), "must be a finite number"),
        (None, None) => refuse(field("at_least"), "needs a bar: `at_least` or `at_most`"),
        (Some(_), Some(_)) => refuse(field("at_most"), "conflicts with `at_least`"),
    }
}
