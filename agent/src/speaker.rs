//! Chat template text for a change of speaker in the middle of a sequence.

use waymark_models::ModelError;
use waymark_models::chat::{ChatTemplate, Message};
use waymark_models::tokenizer::Tokenizer;

use super::AgentError;
use super::conversation::Role;

/// Template text between messages. Its control tokens are encoded as such.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Speakers {
    /// Text from the end of a reply to the beginning of a user message.
    user: String,
    /// Text from the end of a user message to the beginning of a reply. Thoughts are opened by the protocol, if at all.
    assistant: String,
}

impl Speakers {
    /// Extracts the text from a rendered example conversation. White space between the token that ends a reply and the
    /// next one is removed, as in Graph-R1 (`tool_custom_response_template` of its `ppo_trainer.yaml`): a policy's own
    /// turn ends with the token alone.
    ///
    /// # Errors
    /// [`ModelError::Template`] when the template refuses the conversation or does not keep its messages apart.
    pub(super) fn of(template: &ChatTemplate, tokenizer: &Tokenizer) -> Result<Speakers, ModelError> {
        // Texts short enough to be found again in the rendering, and not trusted, unlike those of the template.
        let messages = [("user", "1"), ("assistant", "2"), ("user", "3")];
        let segments = template.render_segments(&messages.map(|(role, said)| Message::new(role, said)), true)?;
        let mixed = || ModelError::Template("it does not keep the messages of a conversation apart".to_owned());
        let said = |text: &str| segments.iter().position(|segment| !segment.trusted && segment.text == text);
        let (Some(reply), Some(last)) = (said("2"), said("3")) else { return Err(mixed()) };
        let words = |from: usize, to: usize| -> Result<String, ModelError> {
            let between = segments.get(from + 1..to).ok_or_else(mixed)?;
            Ok(between.iter().map(|segment| segment.text.as_str()).collect())
        };
        let user = words(reply, last)?;
        let assistant = words(last, segments.len())?;
        Ok(Speakers { user: joined(&user, &tokenizer.control_names()), assistant: unopened(&assistant) })
    }

    /// Returns the text without a template, where messages are joined by line breaks.
    pub(super) fn bare() -> Speakers {
        Speakers { user: "\n".to_owned(), assistant: "\n".to_owned() }
    }

    /// Returns the text before a message of `role`.
    ///
    /// # Errors
    /// [`AgentError::Conversation`] for the system, which may only speak first, and for tools.
    pub(super) fn text(&self, role: Role) -> Result<&str, AgentError> {
        match role {
            Role::User => Ok(&self.user),
            Role::Assistant => Ok(&self.assistant),
            Role::System => Err(AgentError::Conversation("a system message must come first")),
            Role::Tool => Err(AgentError::Conversation("tool messages are not supported as observations")),
        }
    }
}

/// Removes white space between the first two control tokens of `text`, if there is no other text between them.
fn joined(text: &str, control: &[String]) -> String {
    let token = |text: &str| control.iter().find(|name| text.starts_with(name.as_str())).map(String::len);
    let Some((first, rest)) = token(text).map(|length| text.split_at(length)) else { return text.to_owned() };
    let next = rest.trim_start();
    if token(next).is_some() { format!("{first}{next}") } else { text.to_owned() }
}

/// Removes the opening tag of a thought at the end of a template, with the white space after it.
fn unopened(text: &str) -> String {
    text.trim_end().strip_suffix("<think>").unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn found(template: &str) -> Result<Speakers, ModelError> {
        Speakers::of(&ChatTemplate::new(template, "", "").unwrap(), &Tokenizer::bytes())
    }

    #[test]
    fn the_words_between_messages_are_the_templates() {
        let chat = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
        let speakers = found(chat).unwrap();
        assert_eq!(speakers.text(Role::User).unwrap(), "<|im_end|><|im_start|>user\n");
        assert_eq!(speakers.text(Role::Assistant).unwrap(), "<|im_end|>\n<|im_start|>assistant\n");
        assert!(speakers.text(Role::System).is_err());
        let thinks = chat.replace("assistant\n{% endif", "assistant\n<think>\n{% endif");
        assert_eq!(found(&thinks).unwrap(), speakers, "what opens a thought is the protocol's to write");
        let plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}reply:";
        assert_eq!(found(plain).unwrap(), Speakers { user: "\nuser: ".into(), assistant: "\nreply:".into() });
    }

    #[test]
    fn a_template_that_takes_no_such_conversation_is_refused() {
        for template in [
            "{{ raise_exception('no') }}",
            "{{ messages[0].content }}",
            "{{ messages[2].content }}{{ messages[1].content }}",
        ] {
            assert!(matches!(found(template), Err(ModelError::Template(_))), "{template}");
        }
    }
}
