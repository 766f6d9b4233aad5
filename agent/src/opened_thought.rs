//! Thoughts that the prompt has opened.

use waymark_models::chat::ChatTemplate;
use waymark_models::tokenizer::Tokenizer;

use super::segment::{SegmentKind, Tag, Tags};

/// Returns the tag that opens a thought at the end of a prompt, so that the first turn begins inside the thought.
/// Templates of models that always think end with one. `None` if the prompt does not end with such a tag, or no template
/// wrote it: a tag at its end is then part of the question.
pub fn opened_thought(
    template: Option<&ChatTemplate>,
    tokenizer: &Tokenizer,
    tags: &Tags,
    prompt: &[u32],
) -> Option<&'static str> {
    /// Number of tokens to decode: more than such a tag takes with the white space around it.
    const END: usize = 16;
    template?;
    // The question ends before the last control token.
    let control = prompt.iter().rposition(|&id| tokenizer.is_control(id))?;
    let reply = &prompt[control + 1..];
    let end = tokenizer.decode(&reply[reply.len().saturating_sub(END)..]);
    let opens = |tag: &&Tag| tag.kind == SegmentKind::Think && end.trim_end().ends_with(tag.open);
    tags.pairs.iter().find(opens).map(|tag| tag.open)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_models::tokenizer::Specials;

    use super::super::tag::TAGS;
    use super::*;

    #[test]
    fn only_the_end_of_a_template_opens_a_thought() {
        let tokenizer = Tokenizer::bytes();
        let template = ChatTemplate::new("", "", "").unwrap();
        let ids = |prompt: &str| tokenizer.encode(prompt, Specials::Parse).unwrap();
        let opened = |prompt: &str| opened_thought(Some(&template), &tokenizer, &TAGS, &ids(prompt));
        assert_eq!(opened("<|im_start|>assistant\n<think>\n"), Some("<think>"));
        assert_eq!(opened("<|im_start|>assistant\n"), None);
        assert_eq!(opened("<|im_start|>assistant\n<think>\n\n</think>\n\n"), None);
        // Without a template, the question ends the prompt, even if a BOS begins it.
        assert_eq!(opened("What does a template write? <think>"), None);
        let prompt = ids("<|im_start|>What does a template write? <think>");
        assert_eq!(opened_thought(None, &tokenizer, &TAGS, &prompt), None);
    }
}
