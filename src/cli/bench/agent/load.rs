//! Clients that run episodes over a server.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, ensure};
use tokio::sync::mpsc;
use waymark_agent::{Conversation, Episode, EpisodeOptions, Policy, Runtime, Sampling, Search};
use waymark_models::chat::ChatTemplate;
use waymark_models::tokenizer::Tokenizer;

use super::report::ServerSamples;
use super::schedule::{TurnSchedule, banned};
use super::source::{ScheduledSource, ServerShared};
use super::wire::Wire;

/// Parts of the loop that both servers share.
#[derive(Debug)]
pub(super) struct LoopParts {
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) template: Option<Arc<ChatTemplate>>,
    pub(super) eos: Vec<u32>,
    pub(super) searcher: Arc<dyn Search>,
    pub(super) schedule: TurnSchedule,
    /// Maximum length of a sequence, in tokens.
    pub(super) context: usize,
}

/// Questions, and the loop that answers them.
#[derive(Debug)]
pub(super) struct ClientLoad {
    parts: LoopParts,
    banned: Vec<u32>,
    questions: Arc<Vec<String>>,
    /// Minimum number of questions per measurement.
    count: usize,
}

impl ClientLoad {
    /// Creates a load of at least `count` of the questions, which are repeated if there are fewer.
    pub(super) fn new(parts: LoopParts, questions: Vec<String>, count: usize) -> Self {
        let banned = banned(&parts.tokenizer);
        Self { parts, banned, questions: Arc::new(questions), count }
    }

    /// Measures the server at `url`.
    ///
    /// # Errors
    /// If it does not answer every question by the schedule.
    pub(super) async fn run(
        &self,
        wire: Wire,
        url: &str,
        clients: usize,
        samples: &mut ServerSamples,
    ) -> anyhow::Result<()> {
        let LoopParts { tokenizer, context, .. } = &self.parts;
        let shared = Arc::new(ServerShared::new(wire, url, Arc::clone(tokenizer), &self.banned, *context));
        // One answer per client before anything is timed: connections, pages of memory, and the instructions in the prefix
        // cache, where they are in a server that has run for a while.
        self.ask_all(&shared, &TurnSchedule::answer(), clients, 0..clients).await?;
        shared.take_tally();
        let start = Instant::now();
        let numbers = clients..clients + self.count.max(clients);
        let answers = self.ask_all(&shared, &self.parts.schedule, clients, numbers).await;
        let answers = answers.with_context(|| format!("{} with {clients} clients", wire.name()))?;
        samples.add(start.elapsed().as_secs_f64(), answers, shared.take_tally());
        Ok(())
    }

    /// Asks the questions with these numbers, `clients` at a time. Returns the seconds of each.
    async fn ask_all(
        &self,
        shared: &Arc<ServerShared>,
        schedule: &TurnSchedule,
        clients: usize,
        numbers: Range<usize>,
    ) -> anyhow::Result<Vec<f64>> {
        let LoopParts { tokenizer, template, eos, searcher, .. } = &self.parts;
        let source = ScheduledSource::new(Arc::clone(shared), schedule.clone());
        let searcher = Some(Arc::clone(searcher));
        let runtime = Runtime::new(source, Arc::clone(tokenizer), template.clone(), eos.clone(), searcher);
        let turns = schedule.turns();
        let end = numbers.end;
        let next = Arc::new(AtomicUsize::new(numbers.start));
        let workers: Vec<_> = (0..clients)
            .map(|slot| {
                let runtime = runtime.clone();
                let questions = Arc::clone(&self.questions);
                let next = Arc::clone(&next);
                tokio::spawn(async move {
                    let mut seconds = Vec::new();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= end {
                            return anyhow::Ok(seconds);
                        }
                        let question = &questions[number % questions.len()];
                        seconds.push(ask(runtime.clone(), slot, question, turns).await?);
                    }
                })
            })
            .collect();
        let mut seconds = Vec::new();
        for worker in workers {
            seconds.extend(worker.await??);
        }
        Ok(seconds)
    }
}

/// Runs one episode. Returns its seconds.
async fn ask(runtime: Runtime<ScheduledSource>, slot: usize, question: &str, turns: usize) -> anyhow::Result<f64> {
    let runtime = runtime.with_source(|source| source.asking(slot, question));
    let policy = Policy::builtin("routerag").context("the policy routerag is not built in")?;
    let options = EpisodeOptions { guided: Some(false), sampling: Sampling::greedy(), ..EpisodeOptions::default() };
    let start = Instant::now();
    let episode = Episode::new(&runtime, &policy, Conversation::new(question), options)?;
    let (events, mut heard) = mpsc::channel(64);
    let listening = async { while heard.recv().await.is_some() {} };
    let (record, ()) = tokio::join!(episode.run(events), listening);
    let seconds = start.elapsed().as_secs_f64();
    let record = record?;
    let searches = record.evidence.iter().filter(|search| search.error.is_none() && !search.cached).count();
    ensure!(
        record.answer.is_some() && record.actions.len() == turns && searches == turns - 1,
        "an episode of {} turns and {searches} searches did not follow the schedule of {turns} turns: {:?}, {}",
        record.actions.len(),
        record.finish,
        record.text
    );
    Ok(seconds)
}
