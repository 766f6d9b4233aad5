//! `waymark chat`: a conversation in the terminal.

mod input;
mod line_source;

use std::io::{self, IsTerminal, Write};

use owo_colors::OwoColorize;
use serde_json::{Map, Value, json};
use waymark_agent::Event;
use waymark_index::SearchOptions;
use waymark_runtime::printable;

use self::input::{ChatInput, HELP};
use self::line_source::{LineSource, ReadLine};
use super::client::Client;
use super::dialogue::Dialogue;
use super::target::TargetArgs;
use super::trace::Printer;
use super::{episode, telemetry};

/// Holds a conversation: every question is asked after those before it. Ctrl-C stops an answer, Ctrl-D ends the
/// conversation.
///
/// Loads the model in this process, unless --url names a running server. `/help` lists the commands. If standard input
/// is not a terminal, each of its lines is a question.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark chat --index corpus.index
  waymark chat --url http://127.0.0.1:8080
  printf '%s\\n' 'Where is the Mona Lisa shown?' 'In which city is it?' \\
      | waymark chat --index corpus.index")]
pub(crate) struct Args {
    /// Sampling seed.
    #[arg(long, default_value_t = 0)]
    seed: i64,

    #[command(flatten)]
    target: TargetArgs,
}

/// State of a conversation.
#[derive(Debug)]
struct ChatSession {
    client: Client,
    policy: Option<String>,
    seed: i64,
    search: SearchOptions,
    /// If `true`, a person types the questions, and errors do not end the conversation.
    interactive: bool,
    /// If `true`, thinking is shown as well.
    trace: bool,
    dialogue: Dialogue,
}

impl Args {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        let serve = self.target.serve.clone();
        telemetry::traced(log, "warn", &serve, self.chat()).await
    }

    async fn chat(self) -> anyhow::Result<()> {
        let policy = self.target.policy().map(str::to_owned);
        let seed = self.seed;
        let interactive = io::stdin().is_terminal();
        self.target
            .with_client(async |client| {
                let lines = LineSource::open(interactive)?;
                let search = SearchOptions::default();
                let dialogue = Dialogue::default();
                ChatSession { client, policy, seed, search, interactive, trace: false, dialogue }.run(lines).await
            })
            .await
    }
}

impl ChatSession {
    /// Answers lines until they end.
    ///
    /// # Errors
    /// If a line cannot be read, or standard output is closed; and unless the session is interactive, if a question or
    /// a command fails.
    async fn run(mut self, mut lines: LineSource) -> anyhow::Result<()> {
        if self.interactive {
            writeln!(anstream::stdout(), "{}", "/help lists the commands, Ctrl-D ends the conversation".dimmed())?;
        }
        loop {
            // The line editor blocks its thread until a line is complete.
            let line = match tokio::task::block_in_place(|| lines.next())? {
                ReadLine::Line(line) => line,
                ReadLine::Interrupted => continue,
                ReadLine::End => return Ok(()),
            };
            let done = match line.parse() {
                Ok(ChatInput::Quit) => return Ok(()),
                Ok(ChatInput::Question(question)) => self.ask(question).await,
                Ok(input) => self.apply(&input),
                Err(unknown) => Err(unknown),
            };
            match done {
                Err(error) if self.interactive && !is_closed(&error) => {
                    // A server may have written parts of the text.
                    let reason = printable(&format!("{error:#}"));
                    writeln!(anstream::stderr(), "{} {reason}", "error:".red())?;
                }
                // Without a person, a failure ends the run, so a script notices.
                done => done?,
            }
        }
    }

    /// Carries out a command.
    fn apply(&mut self, input: &ChatInput) -> anyhow::Result<()> {
        let said = match input {
            ChatInput::Question(_) | ChatInput::Quit | ChatInput::Empty => return Ok(()),
            ChatInput::Help => HELP.to_owned(),
            ChatInput::Mode(mode) => {
                self.search.mode = *mode;
                mode.map_or("the policy chooses the mode".to_owned(), |mode| format!("all searches are in mode {mode}"))
            }
            ChatInput::K(k) => {
                // Checked as a copy, so a refused number changes nothing.
                let search = SearchOptions { k: *k, ..self.search.clone() };
                search.check()?;
                self.search = search;
                k.map_or("the policy's number of passages".to_owned(), |k| format!("{k} passages per search"))
            }
            ChatInput::Trace => {
                self.trace = !self.trace;
                if self.trace { "thinking is shown" } else { "thinking is not shown" }.to_owned()
            }
            ChatInput::Reset => {
                let exchanges = std::mem::take(&mut self.dialogue).len();
                format!("forgot {exchanges} questions and answers")
            }
        };
        writeln!(anstream::stdout(), "{}", said.dimmed())?;
        Ok(())
    }

    /// Asks a question and adds it to the conversation once it is answered.
    async fn ask(&mut self, question: String) -> anyhow::Result<()> {
        let options = self.options();
        let trace = self.trace;
        let mut printer = Printer::new(anstream::stdout());
        let print = |event: &Event| -> anyhow::Result<()> {
            if trace || is_brief(event) {
                printer.print(event)?;
            }
            Ok(())
        };
        let asked = tokio::select! {
            asked = episode::ask(&self.client, &mut self.dialogue, &question, &options, print) => asked?,
            () = interrupted(self.interactive) => {
                writeln!(anstream::stdout(), "\n{}", "stopped; the conversation continues without this question".dimmed())?;
                return Ok(());
            }
        };
        if let Some(answer) = asked {
            self.dialogue.push(question, answer);
        }
        writeln!(anstream::stdout())?;
        Ok(())
    }

    /// Returns the fields of a request other than the question and the conversation.
    fn options(&self) -> Map<String, Value> {
        let mut options = Map::from_iter([("seed".to_owned(), json!(self.seed))]);
        if let Some(policy) = &self.policy {
            options.insert("model".to_owned(), json!(policy));
        }
        let search = [("mode", self.search.mode.map(|mode| json!(mode))), ("k", self.search.k.map(|k| json!(k)))];
        let given = search.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let rag = Map::from_iter(given);
        if !rag.is_empty() {
            options.insert("rag".to_owned(), Value::Object(rag));
        }
        options
    }
}

/// Waits for Ctrl-C in an interactive session. In any other one Ctrl-C ends the process: once tokio listens to the
/// signal, the process no longer ends by itself, and the wait for a line of standard input would ignore Ctrl-C.
async fn interrupted(interactive: bool) {
    if interactive && tokio::signal::ctrl_c().await.is_ok() {
        return;
    }
    std::future::pending().await
}

/// Returns `true` if standard output is closed, so nobody reads the answers.
fn is_closed(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Returns `true` for events that are shown without `/trace`: searches, the answer, and the end.
fn is_brief(event: &Event) -> bool {
    !matches!(event, Event::Started { .. } | Event::Think { .. } | Event::Text { .. })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn session() -> ChatSession {
        ChatSession {
            client: Client::new("http://127.0.0.1:1"),
            policy: None,
            seed: 7,
            search: SearchOptions::default(),
            interactive: false,
            trace: false,
            dialogue: Dialogue::default(),
        }
    }

    #[test]
    fn commands_change_the_next_request() {
        let mut session = session();
        assert_eq!(Value::Object(session.options()), json!({ "seed": 7 }));
        for line in ["/mode graph", "/k 4"] {
            session.apply(&line.parse().unwrap()).unwrap();
        }
        assert_eq!(session.options()["rag"], json!({ "mode": "graph", "k": 4 }));
        assert!(session.apply(&"/k 0".parse().unwrap()).unwrap_err().to_string().contains("1 to 200"));
        session.apply(&"/mode".parse().unwrap()).unwrap();
        assert_eq!(session.options()["rag"], json!({ "k": 4 }), "a refused value changes nothing");
    }

    #[test]
    fn a_reset_forgets_the_conversation() {
        let mut session = session();
        session.dialogue.push("Where is it?".to_owned(), "In the Louvre.".to_owned());
        session.apply(&ChatInput::Reset).unwrap();
        assert_eq!(session.dialogue, Dialogue::default());
    }
}
