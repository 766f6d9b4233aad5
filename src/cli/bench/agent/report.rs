//! Results: one row per server and number of clients.

use std::fmt;

use serde::Serialize;
use waymark_agent::metric::quantile;

use super::source::RequestTally;

/// Samples of all rounds of one server at one number of clients.
#[derive(Debug, Default)]
pub(super) struct ServerSamples {
    questions: usize,
    seconds: f64,
    answers: Vec<f64>,
    tally: RequestTally,
}

/// Results of one server at one number of clients. Times are in seconds.
#[derive(Debug, Serialize)]
pub(super) struct ServerRow {
    questions: usize,
    questions_per_second: f64,
    first_token_p50: f64,
    answer_p50: f64,
    answer_p95: f64,
    prompt_tokens_computed: usize,
    prompt_tokens_recomputed: usize,
    sampled_tokens: usize,
}

/// Results of both servers at one number of clients.
#[derive(Debug, Serialize)]
pub(super) struct ClientsRow {
    pub(super) clients: usize,
    pub(super) waymark: ServerRow,
    pub(super) llama_server: ServerRow,
    /// Ratio of the questions per second.
    pub(super) ratio: f64,
}

impl ServerSamples {
    /// Adds a round. `answers` are the seconds that its questions took.
    pub(super) fn add(&mut self, seconds: f64, answers: Vec<f64>, tally: RequestTally) {
        self.questions += answers.len();
        self.seconds += seconds;
        self.answers.extend(answers);
        self.tally.computed += tally.computed;
        self.tally.recomputed += tally.recomputed;
        self.tally.sampled += tally.sampled;
        self.tally.first_token.extend(tally.first_token);
    }

    /// Returns the results.
    pub(super) fn row(mut self) -> ServerRow {
        ServerRow {
            questions: self.questions,
            questions_per_second: self.questions as f64 / self.seconds,
            first_token_p50: quantile(&mut self.tally.first_token, 0.5),
            answer_p50: quantile(&mut self.answers, 0.5),
            answer_p95: quantile(&mut self.answers, 0.95),
            prompt_tokens_computed: self.tally.computed,
            prompt_tokens_recomputed: self.tally.recomputed,
            sampled_tokens: self.tally.sampled,
        }
    }
}

impl ClientsRow {
    /// Compares two servers.
    pub(super) fn new(clients: usize, waymark: ServerRow, llama_server: ServerRow) -> Self {
        let ratio = waymark.questions_per_second / llama_server.questions_per_second;
        Self { clients, waymark, llama_server, ratio }
    }
}

/// Head of the table.
pub(super) const HEAD: &str = "\
| clients | server | questions | questions/s | ratio | first token p50 | answer p50 | p95 | prompt tokens computed | of these again | sampled |
|---|---|---|---|---|---|---|---|---|---|---|";

impl fmt::Display for ClientsRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clients = self.clients.to_string();
        let ratio = format!("**{:.2}**", self.ratio);
        writeln!(f, "| {clients} | waymark | {} |", self.waymark.cells(&ratio))?;
        write!(f, "| | llama-server | {} |", self.llama_server.cells(""))
    }
}

impl ServerRow {
    fn cells(&self, ratio: &str) -> String {
        let rate = self.questions_per_second;
        let rate = if rate < 1.0 { format!("{rate:.3}") } else { format!("{rate:.2}") };
        format!(
            "{} | {rate} | {ratio} | {:.2} s | {:.2} s | {:.2} s | {} | {} | {}",
            self.questions,
            self.first_token_p50,
            self.answer_p50,
            self.answer_p95,
            self.prompt_tokens_computed,
            self.prompt_tokens_recomputed,
            self.sampled_tokens
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_added_and_compared() {
        let tally = |computed| RequestTally { computed, recomputed: 1, sampled: 5, first_token: vec![0.25] };
        let mut ours = ServerSamples::default();
        ours.add(1.0, vec![0.5, 1.0], tally(10));
        ours.add(1.0, vec![0.5, 0.75], tally(20));
        let mut theirs = ServerSamples::default();
        theirs.add(4.0, vec![1.0, 2.0], tally(40));
        let row = ClientsRow::new(2, ours.row(), theirs.row());
        assert_eq!(row.ratio, 4.0);
        let text = row.to_string();
        assert!(
            text.starts_with("| 2 | waymark | 4 | 2.00 | **4.00** | 0.25 s | 0.50 s | 1.00 s | 30 | 2 | 10 |\n"),
            "{text}"
        );
        assert!(text.ends_with("| | llama-server | 2 | 0.500 |  | 0.25 s | 1.00 s | 2.00 s | 40 | 1 | 5 |"), "{text}");
        let columns = |line: &str| line.matches('|').count();
        assert!(text.lines().chain(HEAD.lines()).all(|line| columns(line) == columns(&text) / 2), "{text}");
    }
}
