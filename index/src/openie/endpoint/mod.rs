//! Extracts triples with a language model.

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

/// Options of an [`Endpoint`].
#[derive(Debug, Clone)]
pub struct EndpointOptions {
    /// Number of passages in progress at once.
    pub concurrency: usize,
    /// Maximum number of attempts of a request that fails temporarily; at least 1.
    pub attempts: u32,
    /// Maximum number of attempts of a request whose reply cannot be parsed; at least 1.
    pub readings: u32,
    /// Wait before the second attempt. Doubles for each further attempt; up to half of it is subtracted at random.
    pub first_wait: Duration,
    /// Maximum wait between two attempts, even if the endpoint asks for more.
    pub longest_wait: Duration,
    /// Seed of the random part of the waits.
    pub seed: u64,
    /// Maximum number of tokens in a reply.
    pub max_tokens: u32,
    /// Number of passages that may fail permanently, leaving them without triples. One more fails the extraction, after
    /// all other passages are done.
    pub tolerated: u64,
    /// Journal to which every answer is appended, and from which answers for the same passage and model are taken, so
    /// that no answer is paid for twice even after a crash. Its lines can be imported as [`Imported`](super::Imported).
    /// `None` keeps no journal.
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

/// Summary of an extraction. Counts add up over all extractions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndpointReport {
    /// Number of passages requested.
    pub passages: u64,
    /// Number of passages answered from the journal.
    pub reused: u64,
    /// Number of passages that failed permanently and have no triples.
    pub failed: u64,
    /// Number of passages with a repaired reply, which may lack triples because it was cut off.
    pub mended: u64,
    /// Number of passages that state nothing, according to the model.
    pub empty: u64,
    /// Number of repeated requests.
    pub retries: u64,
    /// Error of the first failed passage. `None` if no passage failed.
    pub first_failure: Option<String>,
}

/// Extractor that asks a language model for triples in two steps, named entities and then triples, as HippoRAG does
/// (with our own prompts). Handles several passages at once, and passages of the same title and text only once.
#[derive(Debug)]
pub struct Endpoint {
    complete: Arc<dyn Complete>,
    options: EndpointOptions,
    report: Mutex<EndpointReport>,
}

impl Endpoint {
    /// Builds an extractor that asks `complete`.
    pub fn new(complete: Arc<dyn Complete>, options: EndpointOptions) -> Endpoint {
        Endpoint { complete, options, report: Mutex::default() }
    }

    /// Returns the counts so far.
    pub fn report(&self) -> EndpointReport {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, change: impl FnOnce(&mut EndpointReport)) {
        change(&mut self.report.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Result of a worker: the passages with one text, that text, and the answer or failure.
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
        // Passages with the same text have the same triples, so they share one request.
        let mut asked: Vec<Vec<u32>> = Vec::new();
        let mut places: HashMap<[u8; 32], usize> = HashMap::new();
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
            // Bounded, so that workers wait for a slow disk instead of filling the memory with answers.
            let (send, receive) = sync_channel(2 * self.options.concurrency.max(1));
            for _ in 0..self.options.concurrency.clamp(1, asked.len().max(1)) {
                let send = send.clone();
                let asked = &asked;
                let pause = &pause;
                let next = &next;
                scope.spawn(move || self.work(passages, asked, next, pause, &send));
            }
            // The receiver ends when the last sender is gone, and the workers have their own.
            drop(send);
            let result = self.gather(&receive, journal.as_mut(), sink);
            // Workers that still wait before another attempt are no longer needed.
            pause.stop();
            drop(receive);
            result
        })
    }
}

impl Endpoint {
    /// Processes one text after the other until none is left or the receiver is gone. Uses the number of the first
    /// passage with the text.
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

    /// Receives answers, appends them to the journal and passes them on.
    fn gather(
        &self,
        receive: &Receiver<Result<Outcome<'_>, IndexError>>,
        mut journal: Option<&mut AnswerJournal>,
        sink: &mut TripleSink<'_>,
    ) -> Result<(), IndexError> {
        // So many temporary failures in a row mean that the endpoint is down, so the rest need not be tried.
        let hopeless = 3 * self.options.concurrency.max(1);
        let mut failed = 0;
        let mut in_a_row = 0;
        for outcome in receive {
            let (numbers, text, answer) = outcome?;
            let count = numbers.len() as u64;
            self.note(|report| report.passages += count);
            match answer {
                Ok(answer) => {
                    in_a_row = 0;
                    // First into the journal: the answer is paid for, whatever the sink does with it.
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
                    // An empty list marks the passage as asked, so that later commits do not ask again.
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
