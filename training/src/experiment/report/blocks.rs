//! Contents of a report.

use waymark_runtime::evaluate::{Interval, KindSummary};

use super::ExperimentReport;
use super::arm_report::{ArmReport, SetScores};
use super::block::{Block, Grid, Whisker};
use crate::experiment::endpoint::{EndpointOutcome, Metric};
use crate::experiment::file::{Arm, Endpoint, Experiment, Stage};

/// Returns the blocks of a report.
pub(super) fn blocks(report: &ExperimentReport) -> Vec<Block> {
    let experiment = &report.experiment;
    let verdict = match report.holds {
        None => "No endpoint was set: the experiment describes and decides nothing.",
        Some(true) => "The claim holds: every endpoint passed its bar.",
        Some(false) => "The claim does not hold: not every endpoint passed its bar.",
    };
    let mut blocks = vec![
        Block::Heading(1, experiment.name.clone()),
        Block::Text(format!("Claim: {}", experiment.claim)),
        Block::Text(verdict.to_owned()),
        Block::Text(arithmetic(experiment)),
    ];
    if !report.endpoints.is_empty() {
        blocks.push(Block::Heading(2, "What was decided".to_owned()));
        blocks.push(Block::Grid(endpoints(&report.endpoints)));
        blocks.push(Block::Forest(report.endpoints.iter().filter_map(whisker).collect()));
    }
    for set in &experiment.evaluation {
        let questions =
            report.arms.iter().filter_map(|arm| scores(arm, &set.name)).map(|scores| scores.questions).next();
        blocks.push(Block::Heading(2, format!("{}, {} questions", set.name, questions.unwrap_or(0))));
        blocks.push(Block::Grid(arms(report, &set.name)));
        if let Some(oracle) = report.oracle.iter().find(|oracle| oracle.set == set.name) {
            blocks.push(Block::Text(format!(
                "Best arm for each question (part of its lead is chance): EM {}, F1 {}. Best single arm: {}, EM {}.",
                Metric::Em.show(oracle.em),
                Metric::F1.show(oracle.f1),
                oracle.best,
                Metric::Em.show(oracle.best_em)
            )));
        }
        blocks.extend(kinds(report, &set.name));
    }
    blocks.push(Block::Heading(2, "How".to_owned()));
    blocks.push(Block::Grid(sources(&experiment.arm)));
    if !experiment.stage.is_empty() {
        blocks.push(Block::Grid(stages(&experiment.stage)));
        let seeds: Vec<String> = experiment.seeds.iter().map(u64::to_string).collect();
        blocks.push(Block::Text(format!(
            "Seeds: {}. Stages chose their best step on validation questions, or took the last one where they had none; \
             no evaluation question was among those that they trained on.",
            seeds.join(", ")
        )));
    }
    blocks.push(Block::Text(
        "± is the standard error over questions and seeds together. Intervals hold 95 % of 2000 bootstrap resamples of \
         seeds and questions, paired by question; sets count alike."
            .to_owned(),
    ));
    blocks.push(Block::Text(format!(
        "Hash of the description and of all files that it names, before the run: {}",
        report.inputs
    )));
    blocks
}

/// States the arithmetic of the evaluations.
fn arithmetic(experiment: &Experiment) -> String {
    match experiment.arithmetic {
        Some(arithmetic) => format!("Arithmetic of the evaluations: {arithmetic}."),
        None => "Arithmetic of the evaluations: on a CPU f32, or int16 with K-quants; on a GPU bf16.".to_owned(),
    }
}

fn scores<'a>(arm: &'a ArmReport, set: &str) -> Option<&'a SetScores> {
    arm.sets.iter().find(|scores| scores.set == set)
}

fn endpoints(outcomes: &[EndpointOutcome]) -> Grid {
    let mut grid = Grid::new(["metric", "arm", "against", "sets", "difference", "95 %", "by seed", "bar", "passed"]);
    for outcome in outcomes {
        let Endpoint { metric, arm, against, .. } = &outcome.endpoint;
        let seeds: Vec<String> = outcome
            .by_seed
            .iter()
            .map(|value| value.map_or_else(|| "-".to_owned(), |value| metric.show_difference(value)))
            .collect();
        grid.rows.push(vec![
            metric.to_string(),
            arm.clone(),
            against.clone(),
            format!("{} ({} questions)", outcome.sets.join(", "), outcome.questions),
            outcome.show_difference(),
            outcome.show_interval(),
            seeds.join(" "),
            bar(&outcome.endpoint),
            if outcome.passed { "yes" } else { "no" }.to_owned(),
        ]);
    }
    grid
}

fn bar(endpoint: &Endpoint) -> String {
    let metric = endpoint.metric;
    let what = if endpoint.interval { "interval" } else { "mean" };
    match (endpoint.at_least, endpoint.at_most) {
        (Some(bar), _) => format!("{what} ≥ {}", metric.show_difference(bar)),
        (None, Some(bar)) => format!("{what} ≤ {}", metric.show_difference(bar)),
        (None, None) => String::new(),
    }
}

/// Builds the drawing of a difference. `None` without a difference or an interval.
fn whisker(outcome: &EndpointOutcome) -> Option<Whisker> {
    let Endpoint { metric, arm, against, at_least, at_most, .. } = &outcome.endpoint;
    let Interval { low, high } = outcome.interval?;
    Some(Whisker {
        label: format!("{metric}: {arm} − {against}"),
        low,
        value: outcome.difference?,
        high,
        bar: at_least.or(*at_most).unwrap_or(0.0),
        passed: outcome.passed,
    })
}

/// Builds the table of all arms on a set.
fn arms(report: &ExperimentReport, set: &str) -> Grid {
    let mut head = vec!["arm".to_owned()];
    head.extend(Metric::SHOWN.map(|metric| metric.to_string()));
    head.extend(["p/g/h", "EM by seed", "failed"].map(str::to_owned));
    let mut grid = Grid::new(head);
    for arm in &report.arms {
        let Some(scores) = scores(arm, set) else { continue };
        let mut row = vec![arm.name.clone()];
        for metric in Metric::SHOWN {
            let Some(score) = scores.scores.get(&metric) else {
                row.push("-".to_owned());
                continue;
            };
            let mean = metric.show(score.mean);
            let sure = matches!(metric, Metric::Em | Metric::F1);
            row.push(if sure { format!("{mean} ± {}", metric.show(score.error)) } else { mean });
        }
        let [passage, graph, hybrid, triples, kag, hypergraph] = scores.modes;
        let others = triples + kag + hypergraph;
        let modes = format!("{passage:.2}/{graph:.2}/{hybrid:.2}");
        row.push(if others > 0.0 { format!("{modes}/{others:.2}") } else { modes });
        let em = scores.scores.get(&Metric::Em).map(|score| score.by_seed.as_slice()).unwrap_or_default();
        row.push(em.iter().map(|value| Metric::Em.show(*value)).collect::<Vec<_>>().join(" "));
        row.push(scores.failed.to_string());
        grid.rows.push(row);
    }
    grid
}

/// Builds the table of a set by kind of question: EM, found support and the mode of the first search, for each arm.
fn kinds(report: &ExperimentReport, set: &str) -> Option<Block> {
    let mut grid = Grid::new(["type", "questions", "arm", "EM", "support found", "first searches"]);
    let all: Vec<(&ArmReport, &SetScores)> =
        report.arms.iter().filter_map(|arm| Some((arm, scores(arm, set)?))).collect();
    let mut names: Vec<&str> =
        all.iter().flat_map(|(_, scores)| &scores.kinds).map(|kind| kind.kind.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        for (arm, scores) in &all {
            let Some(kind) = scores.kinds.iter().find(|kind| kind.kind == name) else { continue };
            let KindSummary { em, supported, first_modes, .. } = kind;
            let modes: Vec<String> =
                first_modes.iter().map(|(mode, share)| format!("{mode} {:.0} %", share * 100.0)).collect();
            let found = if supported.count > 0 { Metric::Em.show(supported.mean) } else { "-".to_owned() };
            let em_shown = format!("{} ± {}", Metric::Em.show(em.mean), Metric::Em.show(em.error));
            let count = em.count / report.seeds_of(arm).max(1);
            grid.rows.push(vec![
                name.to_owned(),
                count.to_string(),
                arm.name.clone(),
                em_shown,
                found,
                modes.join(", "),
            ]);
        }
    }
    (!grid.rows.is_empty()).then_some(Block::Grid(grid))
}

fn sources(arms: &[Arm]) -> Grid {
    let mut grid = Grid::new(["arm", "policy", "mode", "k"]);
    for arm in arms {
        let policy = match (&arm.stage, &arm.policy) {
            (Some(stage), _) => format!("of stage {stage}"),
            (None, policy) => policy.clone().unwrap_or_default(),
        };
        let mode = arm.mode.map_or_else(|| "free".to_owned(), |mode| mode.to_string());
        let k = arm.k.map_or_else(|| "own".to_owned(), |k| k.to_string());
        grid.rows.push(vec![arm.name.clone(), policy, mode, k]);
    }
    grid
}

fn stages(stages: &[Stage]) -> Grid {
    let mut grid = Grid::new(["stage", "command", "recipe", "overrides", "from", "seed"]);
    for stage in stages {
        let part = stage.part.map_or_else(String::new, |part| format!(" --stage {part}"));
        let policy = || stage.policy.as_ref().map(|dir| dir.display().to_string());
        grid.rows.push(vec![
            stage.name.clone(),
            format!("train {}{part}", stage.kind.command()),
            stage.recipe.display().to_string(),
            stage.set.join(" "),
            stage.init.clone().or_else(policy).unwrap_or_else(|| "base model".to_owned()),
            stage.seed.map_or_else(|| "each".to_owned(), |seed| seed.to_string()),
        ]);
    }
    grid
}
