//! `waymark ask`: answers one question and shows the episode.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::{Map, json};
use waymark_agent::Event;
use waymark_runtime::environment::variable;

use super::dialogue::{Dialogue, conversation_file};
use super::target::TargetArgs;
use super::trace::Printer;
use super::{episode, telemetry};

/// Asks one question and shows thinking, searches and the answer as they stream.
///
/// Loads the model in this process, unless --url names a running server.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark ask --index corpus.index \"Where is the Mona Lisa shown?\"
  waymark ask --index corpus.index --continue \"In which city is it?\"
  waymark ask --url http://127.0.0.1:8080 --json \\
      \"Who painted the Mona Lisa?\" | jq .type")]
pub(crate) struct Args {
    /// The question.
    question: String,

    /// Ask in the conversation of the last `ask`, after its questions and answers.
    #[arg(long = "continue", short = 'c')]
    continued: bool,

    /// File that keeps the conversation for --continue. The default is in the user's state directory; `/dev/null` keeps
    /// none.
    #[arg(long, env = "WAYMARK_CONVERSATION", value_name = "FILE")]
    conversation: Option<PathBuf>,

    /// Sampling seed.
    #[arg(long, default_value_t = 0)]
    seed: i64,

    /// Print the events of the trace, one JSON object per line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    target: TargetArgs,
}

impl Args {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        let serve = self.target.serve.clone();
        telemetry::traced(log, "warn", &serve, self.ask()).await
    }

    async fn ask(self) -> anyhow::Result<()> {
        let file = conversation_file(self.conversation, variable);
        let mut dialogue = if self.continued { continued(file.as_deref())? } else { Dialogue::default() };
        let mut options = Map::from_iter([("seed".to_owned(), json!(self.seed))]);
        if let Some(name) = self.target.policy() {
            options.insert("model".to_owned(), json!(name));
        }
        let question = self.question;
        let mut printer = Printer::new(anstream::stdout());
        let print = |event: &Event| if self.json { print_json(event) } else { Ok(printer.print(event)?) };
        let asked = self
            .target
            .with_client(async |client| episode::ask(&client, &mut dialogue, &question, &options, print).await);
        let answer = asked.await?;
        if let Some(file) = file {
            keep(dialogue, question, answer, &file);
        }
        Ok(())
    }
}

/// Saves a conversation after `question`, which is left out if it has no answer.
fn keep(mut dialogue: Dialogue, question: String, answer: Option<String>, file: &Path) {
    // Saved without an answer as well: --continue would otherwise go on with the conversation before this one.
    if let Some(answer) = answer {
        dialogue.push(question, answer);
    }
    // The question has been asked, so a failed save is not a failure of the command.
    if let Err(error) = dialogue.save(file) {
        tracing::warn!("{error:#}; --continue will not know this question");
    }
}

/// Returns the conversation to continue.
///
/// # Errors
/// If there is none, or its file cannot be read.
fn continued(file: Option<&Path>) -> anyhow::Result<Dialogue> {
    let file = file.context("no home directory keeps a conversation: name its file by --conversation")?;
    match Dialogue::open(file)? {
        Some(dialogue) => Ok(dialogue),
        None => bail!("no conversation to continue in {}: first ask without --continue", file.display()),
    }
}

/// Prints an event as a line of JSON.
fn print_json(event: &Event) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, event).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_question_without_an_answer_ends_the_older_conversation() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("conversation.json");
        let of = |question: &str, answer: &str| {
            let mut dialogue = Dialogue::default();
            dialogue.push(question.to_owned(), answer.to_owned());
            dialogue
        };
        keep(Dialogue::default(), "Who?".to_owned(), Some("Leonardo".to_owned()), &file);
        assert_eq!(continued(Some(&file)).unwrap(), of("Who?", "Leonardo"));
        // Asked with --continue.
        keep(of("Who?", "Leonardo"), "When?".to_owned(), None, &file);
        assert_eq!(continued(Some(&file)).unwrap(), of("Who?", "Leonardo"));
        keep(Dialogue::default(), "Where?".to_owned(), None, &file);
        assert_eq!(continued(Some(&file)).unwrap(), Dialogue::default());
    }
}
