//! The course of an evaluation: every arm on every question set, over one engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use waymark_agent::Runtime;
use waymark_index::{Complete, LiveIndex, OpenOptions};
use waymark_models::kernel::Team;

use super::arm::EvaluationArm;
use super::judge::Judge;
use super::report_file::ReportFile;
use super::{EvaluationOutcome, EvaluationPlan, LeftOutMetric, Question, SetOutcome, evaluate_arm, similarity};
use crate::config::EmbedderConfig;
use crate::embedding::Embedding;
use crate::{assembly, progress};

/// Timeout of a search: generous, so that scores do not depend on the machine's load.
const SEARCH_DEADLINE: Duration = Duration::from_secs(60);

/// Parts of an evaluation that all question sets share.
pub(super) struct EvalRun {
    /// Engine, without an index.
    pub(super) runtime: Runtime,
    /// Configuration of the embedder.
    pub(super) embedder: EmbedderConfig,
    /// Folder for downloaded weights.
    pub(super) cache: Option<PathBuf>,
    /// Number of search threads.
    pub(super) threads: usize,
    pub(super) plan: EvaluationPlan,
    /// Model that judges answers. `None` leaves its metrics out.
    pub(super) judge: Option<Arc<dyn Complete>>,
}

/// Questions with the index that they are asked over.
pub(super) struct EvalQuestions {
    /// Display name.
    pub(super) name: String,
    /// Directory of the index.
    pub(super) index: PathBuf,
    pub(super) questions: Vec<Question>,
}

/// Results of an evaluation.
pub(super) struct Evaluated {
    pub(super) sets: Vec<SetOutcome>,
    pub(super) left_out: Vec<LeftOutMetric>,
}

impl EvalRun {
    /// Evaluates `arms` on each of `files`.
    pub(super) async fn evaluate(
        mut self,
        arms: &[EvaluationArm],
        files: Vec<EvalQuestions>,
        mut rows: Option<&mut ReportFile>,
    ) -> anyhow::Result<Evaluated> {
        let open = || assembly::embedder(&self.embedder, self.cache.clone(), Arc::new(Team::new(self.threads)));
        let embedder = Arc::new(tokio::task::block_in_place(open)?);
        let mut evaluated = Evaluated { sets: Vec::new(), left_out: Vec::new() };
        if self.judge.is_none() {
            evaluated.leave_out_judge("no --judge-url");
        }
        // All indexes are opened first, so that a missing one is reported before hours of work.
        let open = |file: &EvalQuestions| tokio::task::block_in_place(|| self.live(&file.index, &embedder));
        let indexes = files.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
        if let Some(rows) = &mut rows {
            rows.clear();
        }
        for (mut file, live) in files.into_iter().zip(indexes) {
            let current = live.current();
            let plan = EvaluationPlan { cost: self.plan.cost.over(current.manifest()), ..self.plan.clone() };
            file.questions.iter_mut().for_each(|question| question.support_from(&current));
            self.runtime.searcher = Some(assembly::searcher(&live, self.threads, SEARCH_DEADLINE)?);
            let mut set = SetOutcome {
                corpus: current.manifest().corpus.clone(),
                passages: current.manifest().passages,
                snapshot: current.manifest().snapshot,
                cost: plan.cost,
                ..SetOutcome::named(&file.name)
            };
            for arm in arms {
                let mut outcome = measure(&self.runtime, arm, &file, &plan, rows.as_deref_mut()).await;
                // The embedder and the judge block their thread.
                tokio::task::block_in_place(|| self.add_model_scores(&mut outcome, &embedder, &mut evaluated));
                if let Some(rows) = &mut rows {
                    rows.complete((&file.name, &arm.name), &outcome.rows);
                }
                set.outcomes.push((arm.name.clone(), outcome));
            }
            evaluated.sets.push(set);
        }
        Ok(evaluated)
    }

    /// Opens an index. It does not follow commits, so that all questions are searched in one snapshot.
    fn live(&self, index: &Path, embedder: &Arc<Embedding>) -> anyhow::Result<Arc<LiveIndex>> {
        let options = OpenOptions { concurrency: self.threads, ..OpenOptions::default() };
        Ok(Arc::new(LiveIndex::open(index, Arc::clone(embedder) as Arc<dyn waymark_index::Embed>, options)?))
    }

    /// Adds the scores that the embedder and the judge give. If a model fails, its metric is left out and the
    /// evaluation goes on.
    fn add_model_scores(&mut self, outcome: &mut EvaluationOutcome, embedder: &Embedding, evaluated: &mut Evaluated) {
        if let Err(error) = similarity::fill(&mut outcome.rows, embedder) {
            evaluated.leave_out("SBERT", &error.to_string());
        }
        let Some(model) = &self.judge else { return };
        if let Err(error) = Judge::new(Arc::clone(model)).fill(&mut outcome.rows) {
            evaluated.leave_out_judge(&error.to_string());
            // Every further request would fail too.
            self.judge = None;
        }
    }
}

impl Evaluated {
    fn leave_out(&mut self, metric: &str, reason: &str) {
        let left_out = LeftOutMetric { metric: metric.to_owned(), reason: reason.to_owned() };
        if !self.left_out.contains(&left_out) {
            self.left_out.push(left_out);
        }
    }

    fn leave_out_judge(&mut self, reason: &str) {
        self.leave_out("ACC_L", reason);
        self.leave_out("G-E", reason);
    }
}

/// Evaluates one arm and shows a progress bar.
async fn measure(
    runtime: &Runtime,
    arm: &EvaluationArm,
    file: &EvalQuestions,
    plan: &EvaluationPlan,
    mut rows: Option<&mut ReportFile>,
) -> EvaluationOutcome {
    let name = &arm.name;
    let bar = progress::things();
    bar.set_length(file.questions.len() as u64);
    bar.set_message(name.clone());
    let mut right = 0.0;
    let mut overlap = 0.0;
    let outcome = evaluate_arm(runtime, arm, &file.questions, plan, |row| {
        if let Some(rows) = &mut rows {
            rows.add((&file.name, name), row);
        }
        right += row.em;
        overlap += row.f1;
        bar.inc(1);
        let done = bar.position() as f64 / 100.0;
        bar.set_message(format!("{name} EM {:.1} F1 {:.1}", right / done, overlap / done));
    })
    .await;
    bar.finish_and_clear();
    outcome
}
