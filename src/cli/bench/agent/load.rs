//! Clients that run episodes over a server.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use tokio::sync::mpsc;
use waymark_agent::{Conversation, Episode, EpisodeOptions, Policy, Runtime, Sampling, Search};
use waymark_models::chat::ChatTemplate;
use waymark_models::tokenizer::Tokenizer;

use super::report::ServerSamples;
use super::schedule::{TurnSchedule, banned};
use super::server_kind::ServerKind;
use super::source::{ScheduledSource, ServerShared};
use crate::cli::bench::parallel::in_parallel;

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

/// Loop over a server, by one schedule. Clones share it.
#[derive(Debug, Clone)]
struct ScheduledLoop {
    runtime: Runtime<ScheduledSource>,
    questions: Arc<Vec<String>>,
    turns: usize,
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
        kind: ServerKind,
        url: &str,
        clients: usize,
        samples: &mut ServerSamples,
    ) -> anyhow::Result<()> {
        let LoopParts { tokenizer, context, .. } = &self.parts;
        let shared = Arc::new(ServerShared::new(kind, url, Arc::clone(tokenizer), &self.banned, *context));
        let of_server = || format!("{} with {clients} clients", kind.name());
        // One answer in each slot before anything is timed. It opens connections, touches pages of memory, and puts the
        // instructions into the prefix cache, as in a server that has run for a while.
        let warm_up = self.scheduled(&shared, &TurnSchedule::answer());
        let answers: Vec<_> = (0..clients).map(|slot| tokio::spawn(warm_up.clone().ask(slot, slot))).collect();
        for answer in answers {
            answer.await?.with_context(of_server)?;
        }
        shared.take_tally();
        let measured = self.scheduled(&shared, &self.parts.schedule);
        let start = Instant::now();
        let numbers = clients..clients + self.count.max(clients);
        let answers = in_parallel(clients, numbers, move |slot, number| measured.clone().ask(slot, number)).await;
        let answers = answers.with_context(of_server)?;
        samples.add(start.elapsed().as_secs_f64(), answers, shared.take_tally());
        Ok(())
    }

    fn scheduled(&self, shared: &Arc<ServerShared>, schedule: &TurnSchedule) -> ScheduledLoop {
        let LoopParts { tokenizer, template, eos, searcher, .. } = &self.parts;
        let source = ScheduledSource::new(Arc::clone(shared), schedule.clone());
        let searcher = Some(Arc::clone(searcher));
        let runtime = Runtime::new(source, Arc::clone(tokenizer), template.clone(), eos.clone(), searcher);
        ScheduledLoop { runtime, questions: Arc::clone(&self.questions), turns: schedule.turns() }
    }
}

impl ScheduledLoop {
    /// Runs one episode, about the question with this number. Returns its seconds.
    async fn ask(self, slot: usize, number: usize) -> anyhow::Result<f64> {
        let turns = self.turns;
        let question = &self.questions[number % self.questions.len()];
        let runtime = self.runtime.clone().with_source(|source| source.with_question(slot, question));
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
}
