//! Scripted turns, written one after the other regardless of the text that the environment injects between them.

use std::collections::HashMap;

use waymark_models::ModelError;
use waymark_models::tokenizer::{Specials, Tokenizer};

use super::random::{append, fold};

/// Scripted turns for each question, chosen by a key that occurs in the prompt.
///
/// The prompt ends with the last `<|im_start|>assistant\n`; without one, the turns are searched in the whole context.
/// A turn continues where it was interrupted. A forced literal that equals the beginning of a turn counts as that
/// beginning. After a turn, the environment's text is skipped up to the end of the first terminator; without a
/// terminator, the next turn begins at once. After the last turn comes the end-of-sequence token.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    rules: Vec<(String, Vec<String>)>,
    turns: Vec<String>,
    terminators: Vec<String>,
}

impl Lines {
    /// Creates lines with the turns for every question that no rule matches.
    pub fn new<S: Into<String>>(turns: impl IntoIterator<Item = S>) -> Self {
        Self { turns: turns.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Adds turns for prompts that contain `key`. The first matching rule applies.
    #[must_use]
    pub fn rule<S: Into<String>>(mut self, key: impl Into<String>, turns: impl IntoIterator<Item = S>) -> Self {
        self.rules.push((key.into(), turns.into_iter().map(Into::into).collect()));
        self
    }

    /// Adds a text that ends the environment's part.
    #[must_use]
    pub fn terminator(mut self, text: impl Into<String>) -> Self {
        self.terminators.push(text.into());
        self
    }
}

/// Lines as token ids, with a cache of script positions.
#[derive(Debug)]
pub(super) struct MockScript {
    /// Keys and turns. The last rule has an empty key and always matches.
    rules: Vec<(Vec<u32>, Vec<Vec<u32>>)>,
    terminators: Vec<Vec<u32>>,
    header: Vec<u32>,
    eos: u32,
    /// Cache of the script position of the next token, by the hash of the whole context.
    places: HashMap<u64, ScriptPosition>,
}

/// Position in a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ScriptPosition {
    rule: usize,
    turn: usize,
    offset: usize,
}

/// Maximum number of cached positions. A full cache is cleared.
const PLACES: usize = 1 << 16;

impl MockScript {
    pub(super) fn new(tokenizer: &Tokenizer, lines: &Lines) -> Result<Self, ModelError> {
        let encode = |text: &String| tokenizer.encode(text, Specials::Parse);
        let encode_all = |texts: &Vec<String>| texts.iter().map(encode).collect::<Result<Vec<_>, _>>();
        let mut rules = Vec::new();
        for (key, turns) in &lines.rules {
            rules.push((encode(key)?, encode_all(turns)?));
        }
        rules.push((Vec::new(), encode_all(&lines.turns)?));
        Ok(Self {
            rules,
            terminators: encode_all(&lines.terminators)?,
            header: tokenizer.encode("<|im_start|>assistant\n", Specials::Parse)?,
            eos: ["<|im_end|>", "<|endoftext|>"].iter().find_map(|name| tokenizer.id(name)).unwrap_or(0),
            places: HashMap::new(),
        })
    }

    /// Returns the token that follows `context`.
    pub(super) fn next(&mut self, context: &[u32]) -> u32 {
        let hash = fold(context);
        // Removed instead of read: a context is continued once, and a repeated one can be located again.
        let place = self.places.remove(&hash).unwrap_or_else(|| self.locate(context));
        let Some(&token) = self.rules[place.rule].1.get(place.turn).and_then(|turn| turn.get(place.offset)) else {
            return self.eos;
        };
        if self.places.len() >= PLACES {
            self.places.clear();
        }
        let next = append(hash, context.len(), token);
        self.places.insert(next, ScriptPosition { offset: place.offset + 1, ..place });
        token
    }

    fn locate(&self, context: &[u32]) -> ScriptPosition {
        let header = context.windows(self.header.len()).rposition(|window| window == self.header);
        let begin = header.map_or(0, |at| at + self.header.len());
        let prompt = if header.is_some() { &context[..begin] } else { context };
        let applies = |(key, _): &(Vec<u32>, _)| find(prompt, key).is_some();
        let rule = self.rules.iter().position(applies).unwrap_or(self.rules.len() - 1);
        let turns = &self.rules[rule].1;
        let mut rest = &context[begin..];
        for (turn, words) in turns.iter().enumerate() {
            let Some(at) = find(rest, words) else {
                return ScriptPosition { rule, turn, offset: overlap(rest, words) };
            };
            rest = &rest[at + words.len()..];
            if rest.is_empty() {
                return ScriptPosition { rule, turn, offset: words.len() };
            }
            let ends = self.terminators.iter().filter_map(|text| Some(find(rest, text)? + text.len()));
            rest = &rest[ends.min().unwrap_or(0)..];
        }
        ScriptPosition { rule, turn: turns.len(), offset: 0 }
    }
}

/// Returns the first offset of `part` in `whole`.
fn find(whole: &[u32], part: &[u32]) -> Option<usize> {
    let Some(first) = part.first() else { return Some(0) };
    let mut from = 0;
    while let Some(at) = whole[from..].iter().position(|id| id == first) {
        if whole[from + at..].starts_with(part) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

/// Returns the length of the longest proper prefix of `turn` that `text` ends with.
fn overlap(text: &[u32], turn: &[u32]) -> usize {
    let most = turn.len().saturating_sub(1).min(text.len());
    (1..=most).rev().find(|&len| text.ends_with(&turn[..len])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Generates until the end-of-sequence token or until the text ends with `stop`.
    fn speak(script: &mut MockScript, context: &mut Vec<u32>, stop: &str) -> String {
        let tokenizer = Tokenizer::bytes();
        let begin = context.len();
        loop {
            let token = script.next(context);
            context.push(token);
            let said = tokenizer.decode(&context[begin..]);
            if token == script.eos || said.ends_with(stop) {
                return said;
            }
        }
    }

    fn encode(text: &str) -> Vec<u32> {
        Tokenizer::bytes().encode(text, Specials::Parse).unwrap()
    }

    fn script() -> MockScript {
        let lines = Lines::new(["<answer>none</answer>"])
            .rule("Tower", ["<think>a</think>\n<search>t</search>", "<search>u</search>", "<answer>Paris</answer>"])
            .terminator("</information>\n\n")
            .terminator("Let me try again.\n");
        MockScript::new(&Tokenizer::bytes(), &lines).unwrap()
    }

    #[test]
    fn turns_follow_each_other_over_what_the_environment_says() {
        let mut script = script();
        let mut context = encode("<|im_start|>user\nTower?<|im_end|>\n<|im_start|>assistant\n");
        assert_eq!(speak(&mut script, &mut context, "</search>"), "<think>a</think>\n<search>t</search>");
        context.extend(encode("\n\n<information><answer>Paris</answer><search>u</search></information>\n\n"));
        assert_eq!(speak(&mut script, &mut context, "</search>"), "<search>u</search>");
        context.extend(encode("\nMy action is not correct. Let me try again.\n"));
        assert_eq!(speak(&mut script, &mut context, "</answer>"), "<answer>Paris</answer>");
        assert_eq!(script.next(&context), script.eos);
    }

    #[test]
    fn a_forced_literal_is_taken_as_the_turns_beginning() {
        let mut script = script();
        let mut context = encode("<|im_start|>assistant\nsomething else<answer>");
        assert_eq!(speak(&mut script, &mut context, "</answer>"), "none</answer>");
    }

    #[test]
    fn without_a_template_the_turns_are_found_in_the_whole_context() {
        let mut script = script();
        let mut context = encode("Question: the Tower? Say <search> or <answer>.\n");
        assert_eq!(speak(&mut script, &mut context, "</search>"), "<think>a</think>\n<search>t</search>");
        context.extend(encode(" unknown environment "));
        assert_eq!(speak(&mut script, &mut context, "</search>"), "<search>u</search>");
    }

    #[test]
    fn a_remembered_place_is_the_place_that_would_be_found() {
        let mut script = script();
        let mut context = encode("<|im_start|>user\nTower?<|im_end|>\n<|im_start|>assistant\n");
        for _ in 0..30 {
            let token = script.next(&context);
            script.places.clear();
            assert_eq!(script.next(&context), token);
            context.push(token);
        }
    }
}
