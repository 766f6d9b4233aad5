//! Display of an episode in a terminal: thinking, searches and the answer as they stream.

use std::io::{self, Write};

use owo_colors::OwoColorize;
use waymark_agent::{Cited, EpisodeEnd, Event, Usage};
use waymark_index::Hit;
use waymark_runtime::printable;

/// Width of the label column.
const LABEL: usize = 8;

/// Writes the events of one episode as text. The stream below (`anstream`) removes colors where a terminal does not
/// show them.
#[derive(Debug)]
pub struct Printer<W> {
    out: W,
    section: Option<&'static str>,
    /// Pending line breaks of the section, written once more text follows.
    breaks: usize,
}

impl<W: Write> Printer<W> {
    /// Creates a printer that writes to `out`.
    pub fn new(out: W) -> Self {
        Self { out, section: None, breaks: 0 }
    }

    /// Writes an event.
    ///
    /// # Errors
    /// If the stream below fails, a broken pipe included.
    pub fn print(&mut self, event: &Event) -> io::Result<()> {
        match event {
            Event::Started { question, model, .. } => {
                self.head("ask")?;
                let question = printable(question);
                let model = printable(model);
                write!(self.out, "{} {}", question.bold(), format_args!("({model})").dimmed())?;
            }
            Event::Think { text, .. } => self.delta("think", text, |text| text.dimmed().to_string())?,
            Event::Text { text, .. } => self.delta("text", text, |text| text.dimmed().to_string())?,
            Event::Query { text, .. } => self.delta("search", text, |text| text.cyan().to_string())?,
            Event::Answer { text, .. } => self.delta("answer", text, |text| text.bold().to_string())?,
            Event::SearchFinished { hits, error, milliseconds, cached, neutralised, cut, .. } => {
                self.found(hits, error.as_deref(), *milliseconds, *cached, *neutralised)?;
                if let Some(cut) = cut {
                    write!(self.out, "\n{:LABEL$}{} more left out", "", cut.left_out)?;
                }
            }
            Event::Finished { reason, usage, turns, searches, answer, citations } => {
                self.cited(citations)?;
                self.finished(*reason, *usage, *turns, *searches, answer.is_some())?;
            }
            Event::Failed { message, .. } => {
                self.head("failed")?;
                writeln!(self.out, "{}", printable(message).red())?;
            }
            event => {
                if let Some((label, text)) = event.remark() {
                    self.note(label, &text)?;
                }
            }
        }
        // Tokens arrive one at a time, and would otherwise wait in the buffer for a line break.
        self.out.flush()
    }

    /// Ends the current line and begins one with `label`.
    fn head(&mut self, label: &'static str) -> io::Result<()> {
        if self.section.is_some() {
            writeln!(self.out)?;
        }
        self.section = Some(label);
        self.breaks = 0;
        write!(self.out, "{:LABEL$}", label.green())
    }

    /// Continues under `label`, on a new line if another label was being written.
    fn delta(&mut self, label: &'static str, text: &str, style: impl Fn(&str) -> String) -> io::Result<()> {
        let text = printable(text);
        let mut text = text.as_str();
        if self.section != Some(label) {
            // Policies often write a line break after a tag.
            text = text.trim_start();
            if text.is_empty() {
                return Ok(());
            }
            self.head(label)?;
        }
        for (number, line) in text.split('\n').enumerate() {
            // Line breaks are written only before more text, so no section ends in empty lines.
            self.breaks += usize::from(number > 0);
            if line.is_empty() || (self.breaks > 0 && line.trim().is_empty()) {
                continue;
            }
            for _ in 0..std::mem::take(&mut self.breaks) {
                write!(self.out, "\n{:LABEL$}", "")?;
            }
            write!(self.out, "{}", style(line))?;
        }
        Ok(())
    }

    fn note(&mut self, label: &'static str, text: &str) -> io::Result<()> {
        self.head(label)?;
        write!(self.out, "{}", printable(text).yellow())
    }

    fn found(
        &mut self,
        hits: &[Hit],
        error: Option<&str>,
        milliseconds: f64,
        cached: bool,
        neutralised: usize,
    ) -> io::Result<()> {
        let source = if cached { "from this episode".to_owned() } else { format!("{milliseconds:.1} ms") };
        write!(self.out, "  {}", source.dimmed())?;
        if neutralised > 0 {
            write!(self.out, "  {}", format_args!("{neutralised} tags neutralized").yellow())?;
        }
        if let Some(error) = error {
            return self.note("search", error);
        }
        for hit in hits {
            let title = printable(&hit.passage.title);
            write!(self.out, "\n{:LABEL$}{} {}  {}", "", hit.rank, title.cyan(), route(hit).dimmed())?;
        }
        // No label is shown, but a query that follows has to begin with its own.
        self.section = Some("found");
        Ok(())
    }

    /// Lists the passages that support the answer on one line, each once: by title, or by ID if it has none.
    fn cited(&mut self, citations: &[Cited]) -> io::Result<()> {
        let mut names: Vec<String> = Vec::new();
        for Cited { passage, title, .. } in citations {
            let title = if title.trim().is_empty() { passage } else { title };
            // A title may have line breaks, and the list is one line.
            let name = printable(title).split_whitespace().collect::<Vec<_>>().join(" ");
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.is_empty() {
            return Ok(());
        }
        self.head("cited")?;
        write!(self.out, "{}", names.join(", ").cyan())
    }

    fn finished(
        &mut self,
        reason: EpisodeEnd,
        usage: Usage,
        turns: usize,
        searches: usize,
        answered: bool,
    ) -> io::Result<()> {
        if !answered {
            let why = match reason {
                EpisodeEnd::Stop => "the policy stopped without an answer",
                EpisodeEnd::Length => "no tokens left",
                EpisodeEnd::Turns => "no turns, searches or evidence left",
                EpisodeEnd::Time => "no time left",
                EpisodeEnd::Refused => "the policy refused",
                EpisodeEnd::Called => "the policy called a tool",
            };
            self.note("answer", &format!("none: {why}"))?;
        }
        writeln!(
            self.out,
            "\n{:LABEL$}{}",
            "",
            format_args!(
                "{turns} turns, {searches} searches, {} tokens written, {} read",
                usage.completion_tokens,
                usage.prompt_tokens + usage.environment_tokens
            )
            .dimmed()
        )
    }
}

/// Formats the retrieval path of a passage in a few characters.
pub(crate) fn route(hit: &Hit) -> String {
    let mut route = format!("{:.4}", hit.score);
    for (name, place) in [("bm25", hit.path.bm25), ("dense", hit.path.dense)] {
        if let Some(place) = place {
            route.push_str(&format!(" · {name} #{}", place.rank));
        }
    }
    if let Some(arrival) = &hit.path.graph {
        route.push_str(&format!(" · graph #{}", arrival.rank));
    }
    if let Some(reranked) = &hit.path.rerank {
        route.push_str(&format!(" · before reranking #{}", reranked.rank));
    }
    route
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use waymark_index::{HitPath, HitRank, Mode, Passage};

    fn printed(events: &[Event]) -> String {
        let mut plain = anstream::StripStream::new(Vec::new());
        let mut printer = Printer::new(&mut plain);
        for event in events {
            printer.print(event).unwrap();
        }
        String::from_utf8(plain.into_inner()).unwrap()
    }

    fn think(text: &str) -> Event {
        Event::Think { turn: 1, text: text.into(), tokens: vec![] }
    }

    fn finished(citations: Vec<Cited>) -> Event {
        let reason = EpisodeEnd::Stop;
        let answer = Some("Leonardo".to_owned());
        let usage = Usage::default();
        Event::Finished { reason, answer, usage, turns: 2, searches: 1, citations }
    }

    #[test]
    fn what_is_cited_is_named_once_and_in_one_line() {
        let cited = |passage: &str, title: &str| Cited {
            start: 0,
            end: 8,
            passage: passage.into(),
            title: title.into(),
            stated: true,
        };
        let citations = vec![cited("m", "Mona\nLisa"), cited("l", "Louvre"), cited("m", "Mona\nLisa"), cited("x", " ")];
        let text = printed(&[Event::Answer { text: "Leonardo".into(), tokens: vec![] }, finished(citations)]);
        let expected = "answer  Leonardo\ncited   Mona Lisa, Louvre, x\n        2 turns, 1 searches, 0 tokens written, \
                        0 read\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn deltas_of_one_kind_share_a_line_and_every_kind_has_its_label() {
        let hit = Hit {
            rank: 1,
            score: 0.5,
            passage: Passage { id: "m".into(), title: "Mona Lisa".into(), text: "…".into() },
            metadata: None,
            path: HitPath { bm25: Some(HitRank { rank: 2, score: 1.0 }), ..HitPath::default() },
        };
        let text = printed(&[
            think("\nwho"),
            think(" was\n"),
            think("it"),
            think(" "),
            think("was\n\n"),
            Event::Query { turn: 1, text: "Mona".into(), tokens: vec![] },
            Event::SearchFinished {
                turn: 1,
                query: "Mona".into(),
                mode: Mode::Passage,
                hits: vec![hit],
                triples: vec![],
                snapshot: Some(1),
                cached: false,
                milliseconds: 1.25,
                neutralised: 0,
                error: None,
                cut: None,
            },
            Event::Answer { text: "Leonardo".into(), tokens: vec![] },
            finished(vec![]),
        ]);
        let expected = "think   who was\n        it was\nsearch  Mona  1.2 ms\n        1 Mona Lisa  0.5000 · bm25 #2\n\
                        answer  Leonardo\n        2 turns, 1 searches, 0 tokens written, 0 read\n";
        assert_eq!(text, expected);
    }
}
