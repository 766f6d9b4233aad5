//! Client of embedders: `/v1/embeddings` as OpenAI, vLLM and Waymark serve it, and `/embed` of
//! text-embeddings-inference.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::http::StatusCode;
use waymark_index::{CompleteError, Embed, EmbedError};

use super::embed_reply::{EmbedForm, vectors};
use super::json_client::{JsonClient, checked_url};
use super::key::EndpointKey;
use super::request_slots::RequestSlots;
use super::{UrlError, is_version};
use crate::trusted_roots::TrustedRoots;

/// Maximum length of a text that is sent, in bytes. The rest of a longer text is cut off: no embedder reads that far.
pub const MAX_EMBEDDED_BYTES: usize = 128 << 10;

/// Maximum number of requests in flight with documents, or with many texts of a client.
const DOCUMENT_SLOTS: usize = 6;

/// Maximum number of requests in flight with queries. Documents cannot take these slots.
const QUERY_SLOTS: usize = 4;

/// Number of texts per request to text-embeddings-inference (its default `--max-client-batch-size`).
const TEI_TEXTS: usize = 32;

/// Number of texts per request to other servers. OpenAI takes 2,048, but a slow server could not embed so many in time.
const TEXTS: usize = 64;

/// Maximum length of all texts of a request together, in bytes. text-embeddings-inference takes requests of up to 2 MB.
const REQUEST_BYTES: usize = 512 << 10;

/// Maximum number of texts in a request with the time limit of a query: the query itself and, in the mode `kag`, its 8
/// entities.
const QUERY_TEXTS: usize = 9;

/// Time limit of a request with more than [`QUERY_TEXTS`] texts, as a multiple of that of a query.
const BATCH_PATIENCE: u32 = 15;

/// Time limit of all attempts of a request with more than [`QUERY_TEXTS`] texts, as a multiple of that of one attempt.
const BATCH_ATTEMPTS: u32 = 2;

/// Wait before the second attempt; each further one doubles it.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// Maximum number of times that the wait doubles.
const DOUBLINGS: u32 = 6;

/// Text that is embedded to measure the length of the vectors.
const PROBE: &str = "length of vectors";

/// An embedder behind an endpoint.
#[derive(Debug)]
pub struct EmbedEndpoint {
    client: JsonClient,
    form: EmbedForm,
    model: String,
    /// Length of the vectors. `None` until it has been measured.
    dims: Option<usize>,
    document_slots: RequestSlots,
    query_slots: RequestSlots,
    /// If `true`, the endpoint does not know `encoding_format`.
    numbers_only: AtomicBool,
}

/// Purpose of a request, which has its own slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestPurpose {
    /// The vector of a query, for which a search waits.
    Query,
    /// Vectors of documents, or of many texts of a client.
    Documents,
}

/// Purpose and time limits of a request.
#[derive(Debug, Clone, Copy)]
struct RequestPatience {
    purpose: RequestPurpose,
    /// Time of one attempt.
    attempt: Duration,
    /// Time of all attempts and the waits between them.
    all: Duration,
}

impl RequestPurpose {
    /// Maximum number of requests in flight.
    fn most(self) -> usize {
        match self {
            RequestPurpose::Query => QUERY_SLOTS,
            RequestPurpose::Documents => DOCUMENT_SLOTS,
        }
    }
}

impl EmbedEndpoint {
    /// Creates a client of the embedder `model` at `url`. A URL that ends in `/embed` is asked in the form of
    /// text-embeddings-inference, any other in that of OpenAI, at `/v1/embeddings` unless the URL says otherwise. The
    /// vector of a query must come within `timeout`. The client trusts `roots`.
    ///
    /// # Errors
    /// If `url` does not begin with `http://` or `https://` and a host.
    pub fn new(
        url: &str,
        model: &str,
        key: Option<EndpointKey>,
        timeout: Duration,
        roots: TrustedRoots,
    ) -> Result<Self, UrlError> {
        let (base, query) = checked_url(url)?;
        let (form, missing) = match base {
            base if base.ends_with("/embed") => (EmbedForm::Tei, ""),
            base if base.ends_with("/embeddings") => (EmbedForm::OpenAi, ""),
            base if is_version(base) => (EmbedForm::OpenAi, "/embeddings"),
            _ => (EmbedForm::OpenAi, "/v1/embeddings"),
        };
        Ok(EmbedEndpoint {
            client: JsonClient::new(&format!("{base}{missing}{query}"), key, timeout, roots),
            form,
            model: model.to_owned(),
            dims: None,
            document_slots: RequestSlots::new(DOCUMENT_SLOTS),
            query_slots: RequestSlots::new(QUERY_SLOTS),
            numbers_only: AtomicBool::new(false),
        })
    }

    /// Requests one vector and records its length, which all others must have.
    ///
    /// # Errors
    /// If the endpoint gives none within the time of a query.
    pub fn measured(mut self) -> Result<Self, CompleteError> {
        let vectors = self.ask(&[PROBE], self.patience(1))?;
        self.dims = vectors.first().map(Vec::len);
        tracing::info!(url = self.client.url(), model = self.model, dims = self.dims, "embedder elsewhere");
        Ok(self)
    }

    /// Purpose and time limits of a request with `count` texts.
    fn patience(&self, count: usize) -> RequestPatience {
        let query = self.client.timeout();
        if count <= QUERY_TEXTS {
            // A search waits for the reply, so that all attempts share the time of one.
            return RequestPatience { purpose: RequestPurpose::Query, attempt: query, all: query };
        }
        let attempt = query.saturating_mul(BATCH_PATIENCE);
        let all = attempt.saturating_mul(BATCH_ATTEMPTS);
        RequestPatience { purpose: RequestPurpose::Documents, attempt, all }
    }

    /// Number of texts per request.
    fn most_texts(&self) -> usize {
        match self.form {
            EmbedForm::Tei => TEI_TEXTS,
            EmbedForm::OpenAi => TEXTS,
        }
    }

    /// Embeds texts in as many requests as they need, some of them at once.
    fn embed_all(&self, texts: &[&str], patience: RequestPatience) -> Result<Vec<Vec<f32>>, CompleteError> {
        let texts: Vec<&str> = texts.iter().map(|text| sendable(text)).collect();
        let batches = batches(&texts, self.most_texts());
        if let [only] = batches.as_slice() {
            return self.ask(only, patience);
        }
        let next = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let work = || {
            let mut answers = Vec::new();
            while !failed.load(Ordering::Relaxed) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(batch) = batches.get(number) else { break };
                let answer = self.ask(batch, patience);
                failed.fetch_or(answer.is_err(), Ordering::Relaxed);
                answers.push((number, answer));
            }
            answers
        };
        let mut answers = thread::scope(|scope| {
            // A thread that the system refuses leaves its work to the others.
            let others = (1..patience.purpose.most().min(batches.len()))
                .map_while(|_| thread::Builder::new().spawn_scoped(scope, work).ok())
                .collect::<Vec<_>>();
            let mut answers = work();
            // The index refuses the vectors if some are missing after a panic.
            answers.extend(others.into_iter().flat_map(|other| other.join().unwrap_or_default()));
            answers
        });
        answers.sort_unstable_by_key(|(number, _)| *number);
        let mut vectors = Vec::with_capacity(texts.len());
        for (_, answer) in answers {
            vectors.extend(answer?);
        }
        Ok(vectors)
    }

    /// Embeds one request's texts, and tries again where that may help.
    fn ask(&self, texts: &[&str], patience: RequestPatience) -> Result<Vec<Vec<f32>>, CompleteError> {
        // Without this check, each search would hold its thread until its last attempt. Searches that already wait go
        // on, and documents have time.
        if patience.purpose == RequestPurpose::Query
            && let Some(error) = self.client.recently_refused()
        {
            return Err(error);
        }
        let started = Instant::now();
        let mut attempt = 0;
        loop {
            let left = patience.all.saturating_sub(started.elapsed());
            let error = match self.once(texts, patience.purpose, left.min(patience.attempt)) {
                Err(error) => error,
                answer => return answer,
            };
            let CompleteError::Transient { after, .. } = &error else { return Err(error) };
            // An endpoint that asks for no wait would be asked again without end.
            let wait = after.unwrap_or_default().max(FIRST_WAIT * (1 << attempt.min(DOUBLINGS)));
            attempt += 1;
            // An attempt without time would fail for another reason than the endpoint's.
            if started.elapsed().saturating_add(wait).saturating_add(FIRST_WAIT) > patience.all {
                return Err(error);
            }
            tracing::warn!(%error, attempt, "the embedder did not answer");
            thread::sleep(wait);
        }
    }

    fn once(&self, texts: &[&str], purpose: RequestPurpose, timeout: Duration) -> Result<Vec<Vec<f32>>, CompleteError> {
        let url = self.client.url();
        let started = Instant::now();
        let slots = match purpose {
            RequestPurpose::Query => &self.query_slots,
            RequestPurpose::Documents => &self.document_slots,
        };
        let Some(_slot) = slots.take(timeout) else {
            let message = format!("{} requests to {url} are running already", purpose.most());
            return Err(CompleteError::Transient { message, after: None });
        };
        // The wait for a slot and a refused first body share the time. A request always gets some of it, so that its
        // failure is the endpoint's.
        let left = || timeout.saturating_sub(started.elapsed()).max(FIRST_WAIT.min(timeout));
        // Concurrent requests may change the flag meanwhile; the retry depends on the body that this request had.
        let numbers_only = self.numbers_only.load(Ordering::Relaxed);
        let mut response = self.client.post_within(&self.body(texts, numbers_only), left())?;
        let refused = matches!(response.status(), StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY);
        if refused && !numbers_only && self.client.trouble(&response).message.contains("encoding_format") {
            self.numbers_only.store(true, Ordering::Relaxed);
            response = self.client.post_within(&self.body(texts, true), left())?;
        }
        if !response.status().is_success() {
            return Err(self.client.failed(&response));
        }
        vectors(self.form, response.body(), texts.len(), self.dims).map_err(|problem| {
            let model = &self.model;
            CompleteError::Rejected(format!("the reply of {url} for the model {model} cannot be used: {problem}"))
        })
    }

    fn body(&self, texts: &[&str], numbers_only: bool) -> Value {
        match self.form {
            // Without `truncate`, text-embeddings-inference refuses texts that are too long for its model.
            EmbedForm::Tei => json!({"inputs": texts, "normalize": true, "truncate": true}),
            EmbedForm::OpenAi => {
                let mut body = json!({"model": self.model, "input": texts});
                // Base64 takes a third of the size of decimal numbers, and is exact.
                if !numbers_only {
                    body["encoding_format"] = "base64".into();
                }
                body
            }
        }
    }
}

impl Embed for EmbedEndpoint {
    fn id(&self) -> &str {
        &self.model
    }

    fn dims(&self) -> usize {
        self.dims.unwrap_or_default()
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        Ok(self.embed_all(texts, self.patience(texts.len()))?)
    }

    fn embed_documents(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        // No search waits, even if the texts are few.
        Ok(self.embed_all(texts, self.patience(usize::MAX))?)
    }

    fn least_batch(&self) -> usize {
        DOCUMENT_SLOTS * self.most_texts()
    }
}

/// Returns the part of a text that is sent.
fn sendable(text: &str) -> &str {
    // Servers refuse empty texts.
    if text.is_empty() { " " } else { &text[..text.floor_char_boundary(MAX_EMBEDDED_BYTES)] }
}

/// Splits texts into requests of at most `most` texts and [`REQUEST_BYTES`].
fn batches<'a, 't>(texts: &'a [&'t str], most: usize) -> Vec<&'a [&'t str]> {
    let mut batches = Vec::new();
    let mut first = 0;
    let mut bytes = 0;
    for (at, text) in texts.iter().enumerate() {
        if at > first && (at - first == most || bytes + text.len() > REQUEST_BYTES) {
            batches.push(&texts[first..at]);
            first = at;
            bytes = 0;
        }
        bytes += text.len();
    }
    if first < texts.len() {
        batches.push(&texts[first..]);
    }
    batches
}

#[cfg(test)]
mod tests;
