//! Client of rerankers: `/v1/rerank` as Cohere, Jina, vLLM and Waymark serve it, and `/rerank` of
//! text-embeddings-inference.

use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use waymark_index::{CompleteError, Rerank, RerankError, RerankScore};
use waymark_models::reranker::sigmoid;

use super::json_client::{JsonClient, checked_url};
use super::key::EndpointKey;
use super::{UrlError, is_version};
use crate::trusted_roots::TrustedRoots;

/// Maximum number of attempts of a request.
const ATTEMPTS: u32 = 3;

/// Wait before the second attempt; each further one doubles it.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// Number of documents per request to text-embeddings-inference (its default `--max-client-batch-size`).
const TEI_DOCUMENTS: usize = 32;

/// Number of documents per request to other servers; Cohere recommends at most 1,000.
const DOCUMENTS: usize = 500;

/// A reranker behind an endpoint.
#[derive(Debug)]
pub struct RerankEndpoint {
    client: JsonClient,
    form: RerankForm,
    model: Option<String>,
    id: String,
}

/// Form of requests and replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RerankForm {
    /// `{model, query, documents, top_n}` and `{results: [{index, relevance_score}]}`.
    Cohere,
    /// `{query, texts}` and `[{index, score}]`.
    Tei,
}

#[derive(Deserialize)]
struct CohereReply {
    results: Vec<EndpointScore>,
}

#[derive(Deserialize)]
struct EndpointScore {
    index: usize,
    #[serde(alias = "relevance_score")]
    score: f32,
}

impl RerankEndpoint {
    /// Creates a client of the reranker `model` at `url`. A URL that ends in `/rerank` without a version before it is
    /// asked in the form of text-embeddings-inference, any other in that of Cohere and Jina, at `/v1/rerank` unless the
    /// URL says otherwise. A request fails after `timeout`, together with its retries. Documents that do not fit into
    /// one request are sent in several, one after another, each with a `timeout` of its own. The client trusts `roots`.
    ///
    /// # Errors
    /// If `url` does not begin with `http://` or `https://` and a host.
    pub fn new(
        url: &str,
        model: Option<String>,
        key: Option<EndpointKey>,
        timeout: Duration,
        roots: TrustedRoots,
    ) -> Result<Self, UrlError> {
        let (base, query) = checked_url(url)?;
        let (form, missing) = match base.strip_suffix("/rerank") {
            Some(before) if is_version(before) => (RerankForm::Cohere, ""),
            Some(_) => (RerankForm::Tei, ""),
            None if is_version(base) => (RerankForm::Cohere, "/rerank"),
            None => (RerankForm::Cohere, "/v1/rerank"),
        };
        let client = JsonClient::new(&format!("{base}{missing}{query}"), key, timeout, roots);
        let id = model.clone().unwrap_or_else(|| client.url().to_owned());
        Ok(RerankEndpoint { client, form, model, id })
    }

    fn body(&self, query: &str, documents: &[&str]) -> Value {
        match self.form {
            // Without `truncate`, text-embeddings-inference refuses texts that are too long for its model.
            RerankForm::Tei => json!({"query": query, "texts": documents, "raw_scores": false, "truncate": true}),
            RerankForm::Cohere => {
                let mut body = json!({"query": query, "documents": documents, "top_n": documents.len()});
                if let Some(model) = &self.model {
                    body["model"] = model.as_str().into();
                }
                // Jina returns the texts unless it is told not to, and Cohere's second version does not know the field.
                if !self.client.url().ends_with("/v2/rerank") {
                    body["return_documents"] = false.into();
                }
                body
            }
        }
    }

    /// Scores one request's documents, and tries again where that may help.
    fn ask(&self, query: &str, documents: &[&str]) -> Result<Vec<f32>, CompleteError> {
        let body = self.body(query, documents);
        let timeout = self.client.timeout();
        let started = Instant::now();
        let mut attempt = 0;
        loop {
            // The wait before an attempt may have taken longer than it should.
            let left = timeout.saturating_sub(started.elapsed()).max(FIRST_WAIT.min(timeout));
            let error = match self.once(&body, documents.len(), left) {
                Err(error @ CompleteError::Transient { .. }) => error,
                result => return result,
            };
            attempt += 1;
            let CompleteError::Transient { after, .. } = &error else { return Err(error) };
            let wait = after.unwrap_or(FIRST_WAIT * (1 << (attempt - 1)));
            // A search waits for the reply, so that all attempts share the time of one. An attempt without time would
            // fail for another reason than the endpoint's.
            if attempt == ATTEMPTS || started.elapsed().saturating_add(wait).saturating_add(FIRST_WAIT) > timeout {
                return Err(error);
            }
            tracing::warn!(%error, attempt, "the reranker did not answer");
            thread::sleep(wait);
        }
    }

    fn once(&self, body: &Value, count: usize, timeout: Duration) -> Result<Vec<f32>, CompleteError> {
        let response = self.client.post_within(body, timeout)?;
        if !response.status().is_success() {
            return Err(self.client.failed(&response));
        }
        self.scores(response.body(), count).map_err(|problem| {
            CompleteError::Rejected(format!("the reply of {} is not a reranking: {problem}", self.client.url()))
        })
    }

    /// Parses a reply and puts its scores into the order of the documents.
    fn scores(&self, reply: &str, count: usize) -> Result<Vec<f32>, String> {
        let found = match self.form {
            RerankForm::Tei => serde_json::from_str::<Vec<EndpointScore>>(reply),
            RerankForm::Cohere => serde_json::from_str::<CohereReply>(reply).map(|reply| reply.results),
        };
        let found = found.map_err(|error| error.to_string())?;
        // Replies are ordered by relevance, not as the documents were sent.
        let mut scores = vec![None; count];
        for EndpointScore { index, score } in found {
            let place = scores.get_mut(index).ok_or_else(|| format!("index {index} of {count} documents"))?;
            if place.replace(score).is_some() {
                return Err(format!("index {index} twice"));
            }
        }
        let scored = |(index, score): (usize, Option<f32>)| score.ok_or_else(|| format!("no score for index {index}"));
        scores.into_iter().enumerate().map(scored).collect()
    }
}

impl Rerank for RerankEndpoint {
    fn id(&self) -> &str {
        &self.id
    }

    fn rerank(&self, query: &str, documents: &[&str]) -> Result<Vec<RerankScore>, RerankError> {
        let most = if self.form == RerankForm::Tei { TEI_DOCUMENTS } else { DOCUMENTS };
        let mut scores = Vec::with_capacity(documents.len());
        for chunk in documents.chunks(most) {
            scores.extend(self.ask(query, chunk)?);
        }
        // Some servers return logits. One score out of range shows that all are logits.
        let raw = scores.iter().any(|score| !(0.0..=1.0).contains(score));
        let score = |score: f32| {
            if raw {
                RerankScore { relevance: sigmoid(score), logit: Some(score) }
            } else {
                RerankScore { relevance: score, logit: None }
            }
        };
        Ok(scores.into_iter().map(score).collect())
    }
}

#[cfg(test)]
mod tests;
