//! Episodes that continue an earlier one.

use waymark_models::chat::ChatTemplate;

use crate::continued_episode::ContinuedEpisode;
use crate::conversation::{ConversationMessage, Role};
use crate::trajectory::SearchRecord;

use super::super::offer::{OfferState, offer};
use super::*;

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
     {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Tokens of the earlier episode: more than its conversation takes alone.
const EARLIER: [u32; 3000] = [7; 3000];

/// Builds an episode that continues an earlier one with the result of a call, in a context of `context` tokens. The
/// earlier one found the passages `0` and `1`, and withdrew a search for the passage `0`.
fn continuing(
    name: &str,
    template: Option<&str>,
    context: usize,
    options: EpisodeOptions,
) -> Result<Episode<NoEngine>, AgentError> {
    let template = template.map(|text| Arc::new(ChatTemplate::new(text, "", "<|im_end|>").unwrap()));
    let tokenizer = Arc::new(Tokenizer::bytes());
    let eos = vec![tokenizer.id("<|im_end|>").unwrap()];
    let runtime = Runtime::new(NoEngine, tokenizer, template, eos, Some(Arc::new(NoIndex)));
    let mut policy = Policy::builtin(name).unwrap();
    policy.budget.context_tokens = context;
    let result = ConversationMessage::new(Role::Tool, "21 degrees");
    let messages = vec![
        ConversationMessage::new(Role::User, "Why?"),
        ConversationMessage::new(Role::Assistant, "Let me look."),
        result.clone(),
    ];
    let found = |texts: &[&str]| {
        let asked = SearchRecord::asked(1, "q".to_owned(), Vec::new(), Mode::Passage);
        asked.with_result(Ok(evidence(Mode::Passage, texts)), Duration::ZERO)
    };
    let withdrawn = SearchRecord { withdrawn: Some(2), ..found(&["Rome is a city."]) };
    let earlier = ContinuedEpisode {
        id: "earlier".to_owned(),
        tokens: EARLIER.to_vec(),
        evidence: vec![found(&["Paris is a city.", "Paris is old."]), withdrawn],
        messages: vec![result],
    };
    let options = EpisodeOptions { continues: Some(Arc::new(earlier)), ..options };
    Episode::new(&runtime, &policy, Conversation::from_messages(messages)?, options)
}

/// Builds an episode of RouteRAG in a context that holds the earlier one.
fn searching(options: EpisodeOptions) -> Result<Episode<NoEngine>, AgentError> {
    continuing("routerag", Some(TEMPLATE), 2 * EARLIER.len(), options)
}

/// Returns `true` if the prompt begins with the earlier episode, which the settings must say too.
fn continues(episode: &Episode<NoEngine>) -> bool {
    let begins = episode.prompt.starts_with(&EARLIER);
    assert_eq!(episode.settings.continues.is_some(), begins);
    begins
}

#[test]
fn an_episode_that_leaves_no_room_is_replaced_by_its_conversation() {
    let within = |context| continuing("routerag", Some(TEMPLATE), context, EpisodeOptions::default());
    assert!(continues(&within(2 * EARLIER.len()).unwrap()));
    assert!(!continues(&within(EARLIER.len()).unwrap()));
    let refused = within(1000).err().unwrap();
    assert!(matches!(refused, AgentError::TooLong { limit: 1000, .. }), "{refused}");
}

#[test]
fn an_episode_that_the_template_cannot_continue_is_not_continued() {
    assert!(!continues(&continuing("routerag", None, 2 * EARLIER.len(), EpisodeOptions::default()).unwrap()));
}

#[test]
fn a_prompt_of_plain_text_is_not_continued_in_the_form_of_a_template() {
    let context = 2 * EARLIER.len();
    let episode = continuing("graphrag-r1", Some(TEMPLATE), context, EpisodeOptions::default()).unwrap();
    assert!(!continues(&episode));
    let tokenizer = Tokenizer::bytes();
    assert!(!episode.prompt.iter().any(|&id| tokenizer.is_control(id)));
    let text = tokenizer.decode(&episode.prompt);
    assert!(text.contains("21 degrees") && text.ends_with("Assistant: <think>"), "{text}");
}

#[test]
fn a_passage_in_the_prompt_cannot_be_excluded() {
    let without = |id: &str| EpisodeOptions { without: vec![id.to_owned()], ..EpisodeOptions::default() };
    assert!(continues(&searching(without("other")).unwrap()));
    let refused = searching(without("1")).err().unwrap().to_string();
    assert!(refused.starts_with("without: the passage \"1\"") && refused.contains("\"earlier\""), "{refused}");
    // An episode over the conversation alone searches again.
    let alone = continuing("routerag", Some(TEMPLATE), EARLIER.len(), without("1")).unwrap();
    assert!(!continues(&alone));
}

#[test]
fn a_guided_turn_may_answer_from_earlier_searches() {
    let allowed = |evidence: &[SearchRecord]| {
        let setup = setup(searching(EpisodeOptions { guided: Some(true), ..EpisodeOptions::default() }).unwrap());
        let state = OfferState { turn: 1, room: 500, last: false, exhausted: None, evidence };
        offer(state, &setup)
    };
    let first = allowed(&[]);
    assert!(first.informed && first.answer && first.search);
    assert!(!first.withdraw && !first.refuse, "the evidence in the prompt stays");
    let failed = SearchRecord::asked(1, "q".to_owned(), Vec::new(), Mode::Passage);
    let later = allowed(&[failed]);
    assert!(later.withdraw && !later.refuse, "only the episode's own search found nothing");
}

#[test]
fn earlier_passages_are_cited_unless_they_were_withdrawn() {
    let episode = searching(EpisodeOptions { cites: true, ..EpisodeOptions::default() }).unwrap();
    let mut player = Player::playing(episode, EpisodeMachine::new);
    player.say(SEARCH);
    player.find(&["Paris is big."]);
    player.say(ANSWER);
    player.close();
    let Step::Cite { passages, .. } = player.next() else { panic!("no citations") };
    let texts: Vec<&str> = passages.iter().map(|passage| passage.text.as_str()).collect();
    assert_eq!(texts, ["Paris is a city.", "Paris is old.", "Paris is big."]);
}
