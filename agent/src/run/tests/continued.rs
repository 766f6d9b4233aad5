//! Prompts of episodes that continue an earlier one.

use waymark_models::chat::ChatTemplate;

use crate::continued_episode::ContinuedEpisode;
use crate::conversation::{ConversationMessage, Role};

use super::*;

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
     {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Tokens of the earlier episode: more than its conversation takes alone.
const EARLIER: [u32; 3000] = [7; 3000];

/// Builds an episode that continues an earlier one with the result of a call, in a context of `context` tokens.
fn continuing(template: Option<&str>, context: usize) -> Result<Episode<NoEngine>, AgentError> {
    let template = template.map(|text| Arc::new(ChatTemplate::new(text, "", "<|im_end|>").unwrap()));
    let tokenizer = Arc::new(Tokenizer::bytes());
    let eos = vec![tokenizer.id("<|im_end|>").unwrap()];
    let runtime = Runtime::new(NoEngine, tokenizer, template, eos, Some(Arc::new(NoIndex)));
    let mut policy = Policy::builtin("routerag").unwrap();
    policy.budget.context_tokens = context;
    let result = ConversationMessage::new(Role::Tool, "21 degrees");
    let messages = vec![
        ConversationMessage::new(Role::User, "Why?"),
        ConversationMessage::new(Role::Assistant, "Let me look."),
        result.clone(),
    ];
    let earlier = ContinuedEpisode { tokens: EARLIER.to_vec(), passages: Vec::new(), messages: vec![result] };
    let options = EpisodeOptions { continues: Some(Arc::new(earlier)), ..EpisodeOptions::default() };
    Episode::new(&runtime, &policy, Conversation::from_messages(messages)?, options)
}

/// Returns `true` if the prompt begins with the earlier episode, which the settings must say too.
fn continues(episode: &Episode<NoEngine>) -> bool {
    let begins = episode.prompt.starts_with(&EARLIER);
    assert_eq!(episode.settings.continues.is_some(), begins);
    begins
}

#[test]
fn an_episode_that_leaves_no_room_is_replaced_by_its_conversation() {
    assert!(continues(&continuing(Some(TEMPLATE), 2 * EARLIER.len()).unwrap()));
    assert!(!continues(&continuing(Some(TEMPLATE), EARLIER.len()).unwrap()));
    let refused = continuing(Some(TEMPLATE), 1000).err().unwrap();
    assert!(matches!(refused, AgentError::TooLong { limit: 1000, .. }), "{refused}");
}

#[test]
fn an_episode_that_the_template_cannot_continue_is_not_continued() {
    assert!(!continues(&continuing(None, 2 * EARLIER.len()).unwrap()));
}
