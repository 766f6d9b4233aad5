//! Lines of a conversation: questions and commands.

use std::str::FromStr;

use anyhow::{Context, bail};
use waymark_index::Mode;

/// Answer to `/help`.
pub(super) const HELP: &str = "\
/mode NAME   mode of all searches: passage, graph, hybrid, triples, kag or
             hypergraph; without a name, the policy chooses
/k NUMBER    passages per search; without a number, the policy's own
/trace       show or hide thinking
/reset       forget the conversation
/help        this list
/quit        end the conversation, as Ctrl-D does";

/// Meaning of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ChatInput {
    /// Question for the policy.
    Question(String),
    /// Changes the mode of all searches. `None` leaves it to the policy.
    Mode(Option<Mode>),
    /// Changes the number of passages per search. `None` keeps the policy's own.
    K(Option<usize>),
    /// Shows or hides thinking.
    Trace,
    /// Forgets the conversation.
    Reset,
    /// Lists the commands.
    Help,
    /// Ends the conversation.
    Quit,
    /// Blank line.
    Empty,
}

impl FromStr for ChatInput {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let line = line.trim();
        let Some(command) = line.strip_prefix('/') else {
            return Ok(if line.is_empty() { Self::Empty } else { Self::Question(line.to_owned()) });
        };
        let (name, value) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let value = Some(value.trim()).filter(|value| !value.is_empty());
        Ok(match (name, value) {
            ("mode", mode) => Self::Mode(mode.map(str::parse).transpose()?),
            ("k", k) => {
                let number = k.map(|k| k.parse().with_context(|| format!("/k {k}: expected a number from 1 to 200")));
                Self::K(number.transpose()?)
            }
            ("trace", None) => Self::Trace,
            ("reset", None) => Self::Reset,
            ("help", None) => Self::Help,
            ("quit" | "exit", None) => Self::Quit,
            ("trace" | "reset" | "help" | "quit" | "exit", Some(value)) => bail!("/{name} takes no value: {value}"),
            _ => bail!("unknown command /{name}: /help lists the commands"),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_are_questions_or_commands() {
        for (line, meaning) in [
            (" Who painted it? ", ChatInput::Question("Who painted it?".to_owned())),
            ("  ", ChatInput::Empty),
            ("/mode hybrid", ChatInput::Mode(Some(Mode::Hybrid))),
            ("/mode", ChatInput::Mode(None)),
            ("/k  12 ", ChatInput::K(Some(12))),
            ("/k", ChatInput::K(None)),
            ("/trace", ChatInput::Trace),
            ("/reset", ChatInput::Reset),
            ("/help", ChatInput::Help),
            ("/quit", ChatInput::Quit),
        ] {
            assert_eq!(line.parse::<ChatInput>().unwrap(), meaning, "{line}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (line, words) in [
            ("/mod graph", "/mod"),
            ("/mode psychic", "psychic"),
            ("/k many", "/k many"),
            ("/reset all", "takes no value: all"),
        ] {
            let refused = format!("{:#}", line.parse::<ChatInput>().unwrap_err());
            assert!(refused.contains(words), "{line}: {refused}");
        }
    }
}
