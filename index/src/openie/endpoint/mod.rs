//! Triples out of a language model.

mod answer_journal;
mod prompter;
mod stop_signal;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};

use self::answer_journal::AnswerJournal;
use self::prompter::{Answer, Failure, PassagePrompter};
use self::stop_signal::StopSignal;
use crate::complete::Complete;
use crate::corpus::content;
use crate::error::IndexError;
use crate::extract::{Extract, Passages, TripleSink};

/// How a model is asked for triples.
#[derive(Debug, Clone)]
pub struct EndpointOptions {
    /// Passages that are asked about at once.
    pub concurrency: usize,
    /// How often a request is made at most, where it fails for a reason that may pass; at least 1.
    pub attempts: u32,
    /// How often a request is made at most, where the reply cannot be read; at least 1.
    pub readings: u32,
    /// Wait before the second attempt; before each further one it doubles. Up to half of it is taken off at random.
    pub first_wait: Duration,
    /// Longest wait between two attempts, what the endpoint asks for included.
    pub longest_wait: Duration,
    /// What the random part of the waits comes from.
    pub seed: u64,
    /// Tokens of a reply at most.
    pub max_tokens: u32,
    /// Passages that may fail for good, and then have no triples. One more fails the extraction, once all other
    /// passages are done.
    pub tolerated: u64,
    /// File that every answer is appended to as soon as it is there, and taken from the next time the same passage is
    /// asked about with the same model: whatever ends the process, no answer is paid for twice. Its lines can be
    /// imported as [`Imported`](super::Imported).
    pub journal: Option<PathBuf>,
}

impl Default for EndpointOptions {
    fn default() -> EndpointOptions {
        EndpointOptions {
            concurrency: 8,
            attempts: 6,
            readings: 2,
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(60),
            seed: 0,
            max_tokens: 2048,
            tolerated: 0,
            journal: None,
        }
    }
}

/// What was extracted and what was not, for people. The numbers add up over all extractions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndpointReport {
    /// Passages that were asked about.
    pub passages: u64,
    /// Of these, passages whose answer was in the journal.
    pub reused: u64,
    /// Of these, passages that failed for good, and have no triples.
    pub failed: u64,
    /// Of these, passages with a reply that was cut off and mended, and so may lack triples.
    pub mended: u64,
    /// Of these, passages that state nothing, as the model says.
    pub empty: u64,
    /// Requests that were made again.
    pub retries: u64,
    /// Why the first passage failed that did.
    pub first_failure: Option<String>,
}

/// Asks a language model for the triples of passages in two steps, named entities and then triples, as HippoRAG does
/// (with prompts of our own); several passages at once, and once about those of the same title and text.
#[derive(Debug)]
pub struct Endpoint {
    complete: Arc<dyn Complete>,
    options: EndpointOptions,
    report: Mutex<EndpointReport>,
}

impl Endpoint {
    /// An extractor that asks `complete`.
    pub fn new(complete: Arc<dyn Complete>, options: EndpointOptions) -> Endpoint {
        Endpoint { complete, options, report: Mutex::default() }
    }

    /// What was extracted so far.
    pub fn report(&self) -> EndpointReport {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, change: impl FnOnce(&mut EndpointReport)) {
        change(&mut self.report.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// What a worker hands over: the passages of one text, that text, and what came of it.
type Outcome<'a> = (&'a [u32], String, Result<Answer, Failure>);

impl Extract for Endpoint {
    fn id(&self) -> String {
        format!("endpoint {}", self.complete.model())
    }

    fn reads_corpus(&self) -> bool {
        false
    }

    fn extract(&self, passages: &dyn Passages, numbers: &[u32], sink: &mut TripleSink<'_>) -> Result<(), IndexError> {
        let mut journal = self.options.journal.as_deref().map(|path| AnswerJournal::open(path, self.complete.model()));
        let mut journal = journal.take().transpose()?;
        // Passages of the same text say the same, and are asked about together.
        let (mut asked, mut places): (Vec<Vec<u32>>, HashMap<[u8; 32], usize>) = (Vec::new(), HashMap::new());
        for &number in numbers {
            let passage = passages.passage(number)?;
            let text = content(&passage.title, &passage.text);
            match journal.as_mut().map(|journal| journal.find(&text)).transpose()?.flatten() {
                Some(triples) => {
                    self.note(|report| {
                        report.passages += 1;
                        report.reused += 1;
                    });
                    sink(number, triples)?;
                }
                None => {
                    let place = *places.entry(Sha256::digest(&text).into()).or_insert(asked.len());
                    if place == asked.len() {
                        asked.push(Vec::new());
                    }
                    asked[place].push(number);
                }
            }
        }
        let pause = StopSignal::default();
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let (send, receive) = sync_channel(2 * self.options.concurrency.max(1));
            for _ in 0..self.options.concurrency.clamp(1, asked.len().max(1)) {
                let (send, asked, pause, next) = (send.clone(), &asked, &pause, &next);
                scope.spawn(move || self.work(passages, asked, next, pause, &send));
            }
            drop(send);
            let result = self.gather(&receive, journal.as_mut(), sink);
            // Whoever still waits for another attempt is no longer needed.
            pause.stop();
            drop(receive);
            result
        })
    }
}

impl Endpoint {
    /// Asks about one text after the other until none is left or nobody listens. Each is that of its first passage.
    fn work<'a>(
        &self,
        passages: &dyn Passages,
        asked: &'a [Vec<u32>],
        next: &AtomicUsize,
        pause: &StopSignal,
        send: &SyncSender<Result<Outcome<'a>, IndexError>>,
    ) {
        let asking = PassagePrompter { complete: self.complete.as_ref(), options: &self.options, pause };
        while let Some(numbers) = asked.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = passages.passage(numbers[0]).map(|passage| {
                let text = content(&passage.title, &passage.text);
                let answer = asking.passage(numbers[0], &text);
                (numbers.as_slice(), text, answer)
            });
            if send.send(outcome).is_err() || pause.stopped() {
                return;
            }
        }
    }

    /// Takes answers as they come, writes them down and hands them on.
    fn gather(
        &self,
        receive: &Receiver<Result<Outcome<'_>, IndexError>>,
        mut journal: Option<&mut AnswerJournal>,
        sink: &mut TripleSink<'_>,
    ) -> Result<(), IndexError> {
        // So many transient failures without one answer between them: the endpoint is down, and the rest need not wait.
        let hopeless = 3 * self.options.concurrency.max(1);
        let (mut failed, mut in_a_row) = (0, 0);
        for outcome in receive {
            let (numbers, text, answer) = outcome?;
            let count = numbers.len() as u64;
            self.note(|report| report.passages += count);
            match answer {
                Ok(answer) => {
                    in_a_row = 0;
                    if let Some(journal) = journal.as_mut() {
                        journal.add(&text, &answer)?;
                    }
                    self.note(|report| {
                        report.retries += answer.retries;
                        report.mended += u64::from(answer.mended) * count;
                        report.empty += u64::from(answer.triples.is_empty()) * count;
                    });
                    numbers.iter().try_for_each(|&number| sink(number, answer.triples.clone()))?;
                }
                Err(Failure { message, kind, retries }) => {
                    failed += count;
                    in_a_row = if kind == prompter::FailureScope::Transient { in_a_row + 1 } else { 0 };
                    tracing::warn!(passages = ?numbers, message, "no triples");
                    self.note(|report| {
                        report.failed += count;
                        report.retries += retries;
                        report.first_failure.get_or_insert_with(|| message.clone());
                    });
                    if kind == prompter::FailureScope::Refused || in_a_row >= hopeless {
                        return Err(IndexError::Extract { what: self.id(), source: message.into() });
                    }
                    numbers.iter().try_for_each(|&number| sink(number, Vec::new()))?;
                }
            }
        }
        if let Some(journal) = journal {
            journal.sync()?;
        }
        if failed > self.options.tolerated { Err(self.too_many(failed)) } else { Ok(()) }
    }

    fn too_many(&self, failed: u64) -> IndexError {
        let first = self.report().first_failure.unwrap_or_default();
        let kept = if self.options.journal.is_some() { "; what was extracted is kept for the next try" } else { "" };
        let message =
            format!("{failed} passages failed, {} may{kept}. The first failure: {first}", self.options.tolerated);
        IndexError::Extract { what: self.id(), source: message.into() }
    }
}

#[cfg(test)]
mod tests;
