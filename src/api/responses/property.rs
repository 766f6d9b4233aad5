//! Property tests: for any events of an episode, the response follows the rules of the interface.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::Value;
use waymark_agent::{Cited, EpisodeEnd, Event, TokenLogprob, Usage};
use waymark_index::{Hit, HitPath, Mode, Passage};

use super::object::{ReasoningOptions, ResponseObject, ResponseStatus, TextOptions};
use super::request::Truncation;
use super::response_builder::ResponseBuilder;
use super::show::Show;
use crate::api::error::{ApiError, Code};
use crate::api::rag::RagTrace;

pub(super) fn object(background: bool, trace: bool) -> ResponseObject {
    ResponseObject {
        id: "resp_1".into(),
        object: "response",
        created_at: 0,
        status: if background { ResponseStatus::Queued } else { ResponseStatus::InProgress },
        completed_at: None,
        error: None,
        incomplete_details: None,
        background,
        conversation: None,
        instructions: None,
        max_output_tokens: None,
        max_tool_calls: None,
        metadata: Default::default(),
        model: "m".into(),
        output: Vec::new(),
        parallel_tool_calls: true,
        previous_response_id: None,
        prompt_cache_key: None,
        reasoning: ReasoningOptions::default(),
        safety_identifier: None,
        service_tier: "default",
        store: true,
        temperature: 1.0,
        text: TextOptions::default(),
        tool_choice: "auto".into(),
        tools: Vec::new(),
        top_logprobs: 0,
        top_p: 1.0,
        truncation: Truncation::Disabled,
        usage: None,
        user: None,
        rag: trace.then(RagTrace::default),
    }
}

fn token() -> TokenLogprob {
    TokenLogprob { id: 1, text: "x".into(), bytes: vec![120], logprob: Some(-0.5), top: Vec::new() }
}

/// Events that an episode may send; each search has its end.
fn steps() -> impl Strategy<Value = Vec<Event>> {
    let text = || "[ab \n😀]{0,4}";
    let turn = || 1..4_usize;
    let tokens = || prop::collection::vec(Just(token()), 0..3);
    let hit = |id: String| {
        let passage = Passage { id, title: "t".into(), text: "a b".into() };
        Hit { rank: 1, score: 0.5, passage, metadata: None, path: HitPath::default() }
    };
    let search = (turn(), prop::collection::vec("[pq]", 0..3), any::<bool>()).prop_map(move |(turn, ids, fails)| {
        let query = String::from("q");
        let mode = Mode::Passage;
        let error = fails.then(|| "broken".to_owned());
        let started = Event::SearchStarted { turn, query: query.clone(), entities: Vec::new(), mode, k: 3 };
        let hits = ids.into_iter().map(hit).collect();
        let triples = Vec::new();
        let snapshot = Some(1);
        let cached = false;
        let milliseconds = 1.0;
        let neutralised = 0;
        let finished = Event::SearchFinished {
            turn,
            query,
            mode,
            hits,
            triples,
            snapshot,
            cached,
            milliseconds,
            neutralised,
            error,
            cut: None,
        };
        vec![started, finished]
    });
    let one = prop_oneof![
        (turn(), text()).prop_map(|(turn, text)| vec![Event::Think { turn, text, tokens: Vec::new() }]),
        (turn(), text()).prop_map(|(turn, text)| vec![Event::Text { turn, text, tokens: Vec::new() }]),
        (text(), tokens()).prop_map(|(text, tokens)| vec![Event::Answer { text, tokens }]),
        turn().prop_map(|turn| vec![Event::TurnStarted { turn }]),
        turn().prop_map(|turn| vec![Event::Invalid { turn, message: "no".into() }]),
        search,
    ];
    prop::collection::vec(one, 0..12).prop_map(|events| events.concat())
}

/// End of an episode.
#[derive(Debug, Clone, Copy)]
enum End {
    Finished(EpisodeEnd, bool),
    Refused(EpisodeEnd),
    /// Call outside the answer.
    Called,
    /// Answers with a call in it: the text before and after it, and the reason for the end.
    CalledInAnswer(&'static str, &'static str, EpisodeEnd),
    Failed,
    Cancelled,
}

fn end() -> impl Strategy<Value = End> {
    let reason =
        prop_oneof![Just(EpisodeEnd::Stop), Just(EpisodeEnd::Length), Just(EpisodeEnd::Turns), Just(EpisodeEnd::Time)];
    prop_oneof![
        4 => (reason, any::<bool>()).prop_map(|(reason, answered)| End::Finished(reason, answered)),
        1 => prop_oneof![Just(EpisodeEnd::Refused), Just(EpisodeEnd::Length)].prop_map(End::Refused),
        1 => Just(End::Called),
        2 => (prop_oneof![Just(""), Just("a b \n")], prop_oneof![Just(""), Just("\nc")],
            prop_oneof![Just(EpisodeEnd::Stop), Just(EpisodeEnd::Length)])
            .prop_map(|(before, after, reason)| End::CalledInAnswer(before, after, reason)),
        1 => Just(End::Failed),
        1 => Just(End::Cancelled),
    ]
}

fn finished(reason: EpisodeEnd, answer: Option<String>) -> Event {
    Event::Finished { reason, answer, usage: Usage::default(), turns: 0, searches: 0, citations: Vec::new() }
}

/// Returns the events of a stream as JSON, and the final response.
fn play(events: Vec<Event>, end: End, show: Show, background: bool, trace: bool) -> (Vec<Value>, Value) {
    // Answers are read both with and without functions that they may call.
    let offers = show.results || matches!(end, End::CalledInAnswer(..));
    let tools = if offers { vec!["look".to_owned()] } else { Vec::new() };
    let mut builder = ResponseBuilder::new(object(background, trace), show, &tools);
    builder.begin();
    let mut told = builder.take_events();
    for event in events {
        builder.handle(event);
        told.extend(builder.take_events());
    }
    let cite = |end| Cited { start: 0, end, passage: "p".into(), title: "t".into(), stated: true };
    match end {
        End::Finished(reason, answered) => {
            let answer = answered.then(String::new);
            let usage = Usage::default();
            let citations = vec![cite(0), cite(1)];
            builder.handle(Event::Finished { reason, answer, usage, turns: 0, searches: 0, citations });
        }
        End::Refused(reason) => {
            builder.handle(Event::Refusal { text: "no, and that is all".into() });
            builder.handle(finished(reason, None));
        }
        End::Called => {
            builder.handle(Event::ToolCall { turn: 1, name: "look".into(), arguments: "{\"a\":1}".into() });
            builder.handle(finished(EpisodeEnd::Called, None));
        }
        End::CalledInAnswer(before, after, reason) => {
            const CALL: &str = "<tool_call>{\"name\": \"look\", \"arguments\": {}}</tool_call>";
            // In two pieces, since a call is written over several steps.
            let text = format!("{before}{CALL}{CALL}{after}");
            let (head, tail) = text.split_at(before.len() + 9);
            for piece in [head, tail] {
                builder.handle(Event::Answer { text: piece.to_owned(), tokens: Vec::new() });
            }
            builder.handle(finished(reason, Some(text)));
        }
        End::Failed => builder.fail(ApiError::new(Code::Internal, "broken")),
        End::Cancelled => builder.cancel(),
    }
    assert!(builder.is_over());
    told.extend(builder.take_events());
    let json = |event: &super::event::ResponseEvent| {
        let value = serde_json::to_value(event).unwrap();
        assert_eq!(value["type"], event.event.name());
        value
    };
    (told.iter().map(json).collect(), serde_json::to_value(builder.object().shown(show)).unwrap())
}

/// Client that reconstructs the output from the stream events alone.
#[derive(Default)]
struct Reader {
    items: Vec<Value>,
    done: Vec<bool>,
}

impl Reader {
    fn read(&mut self, event: &Value) {
        let kind = event["type"].as_str().unwrap();
        let Some(index) = event["output_index"].as_u64().map(|index| index as usize) else { return };
        if kind == "response.output_item.added" {
            assert_eq!(index, self.items.len(), "an item is added at the end");
            assert_eq!(event["item"]["status"], "in_progress");
            self.items.push(event["item"].clone());
            self.done.push(false);
            return;
        }
        assert!(!self.done[index], "{kind} after its item was done");
        if kind == "response.output_item.done" {
            assert_ne!(event["item"]["status"], "in_progress");
            // Everything but the status and the search results was sent before.
            for field in ["id", "type", "role", "queries", "summary", "content", "call_id", "name", "arguments"] {
                assert_eq!(event["item"][field], self.items[index][field], "{field}");
            }
            self.items[index] = event["item"].clone();
            self.done[index] = true;
            return;
        }
        assert_eq!(event["item_id"], self.items[index]["id"]);
        if let Some(step) = kind.strip_prefix("response.function_call_arguments.") {
            let item = &mut self.items[index];
            match step {
                "delta" => {
                    item["arguments"] =
                        (item["arguments"].as_str().unwrap().to_owned() + event["delta"].as_str().unwrap()).into()
                }
                _ => assert_eq!((&event["name"], &event["arguments"]), (&item["name"], &item["arguments"])),
            }
            return;
        }
        self.read_part(kind, index, event);
    }

    fn read_part(&mut self, kind: &str, index: usize, event: &Value) {
        let content = &mut self.items[index]["content"];
        match kind.strip_prefix("response.").unwrap() {
            "content_part.added" => content.as_array_mut().unwrap().push(event["part"].clone()),
            "reasoning_text.delta" | "output_text.delta" => {
                let text = content[0]["text"].as_str().unwrap().to_owned() + event["delta"].as_str().unwrap();
                content[0]["text"] = text.into();
                if let Some(tokens) = event["logprobs"].as_array() {
                    content[0]["logprobs"].as_array_mut().unwrap().extend(tokens.iter().cloned());
                }
            }
            "output_text.annotation.added" => {
                let annotations = content[0]["annotations"].as_array_mut().unwrap();
                assert_eq!(event["annotation_index"], annotations.len());
                annotations.push(event["annotation"].clone());
            }
            "refusal.delta" => {
                let text = content[0]["refusal"].as_str().unwrap().to_owned() + event["delta"].as_str().unwrap();
                content[0]["refusal"] = text.into();
            }
            "refusal.done" => assert_eq!(event["refusal"], content[0]["refusal"]),
            "reasoning_text.done" | "output_text.done" => assert_eq!(event["text"], content[0]["text"]),
            "content_part.done" => assert_eq!(event["part"], content[0]),
            search => assert!(search.starts_with("file_search_call."), "{search}"),
        }
    }
}

proptest! {
    #[test]
    fn the_stream_tells_the_response(
        events in steps(), end in end(), results: bool, logprobs: bool, background: bool, trace: bool,
    ) {
        let (told, last) = play(events, end, Show { results, logprobs, sealed: false }, background, trace);
        let kind = |at: usize| told[at]["type"].as_str().unwrap();
        let numbers: Vec<_> = told.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
        prop_assert_eq!(numbers, (0..told.len() as u64).collect::<Vec<_>>());
        prop_assert_eq!(kind(0), "response.created");
        prop_assert_eq!(kind(1), if background { "response.queued" } else { "response.in_progress" });
        let status = last["status"].as_str().unwrap();
        let known = if status == "cancelled" { "incomplete" } else { status };
        prop_assert_eq!(kind(told.len() - 1), format!("response.{known}"));
        prop_assert_eq!(&told[told.len() - 1]["response"], &last);

        let mut reader = Reader::default();
        told.iter().for_each(|event| reader.read(event));
        let output = last["output"].as_array().unwrap();
        if !matches!(end, End::Failed | End::Cancelled) {
            prop_assert!(reader.done.iter().all(|done| *done));
            let said: Vec<&Value> = output.iter().filter(|item| item["type"] == "message").collect();
            // A message before a call is complete.
            let in_answer = matches!(end, End::CalledInAnswer(..));
            prop_assert!(said.iter().all(|item| in_answer || item["status"] == status), "{said:?}");
            let calls = output.iter().filter(|item| item["type"] == "function_call");
            let expected = match end {
                End::Called => 1,
                End::CalledInAnswer(..) => 2,
                _ => 0,
            };
            prop_assert_eq!(calls.count(), expected);
            prop_assert_eq!(output, &reader.items);
        } else {
            // Items that were cut off keep the content sent so far, and are marked incomplete.
            prop_assert_eq!(output.len(), reader.items.len());
            for ((item, known), done) in output.iter().zip(&reader.items).zip(reader.done) {
                prop_assert_eq!(&item["content"], &known["content"]);
                prop_assert!(done || item["status"] == "incomplete");
            }
        }
    }

    #[test]
    fn nothing_is_shown_that_was_not_asked_for_and_no_text_is_lost(events in steps(), results: bool, logprobs: bool) {
        let answer: String = events.iter().filter_map(|event| match event {
            Event::Answer { text, .. } => Some(text.as_str()),
            _ => None,
        }).collect();
        let mut thoughts: HashMap<usize, String> = HashMap::new();
        for event in &events {
            if let Event::Think { turn, text, .. } | Event::Text { turn, text, .. } = event {
                thoughts.entry(*turn).or_default().push_str(text);
            }
        }
        let searches = events.iter().filter(|event| matches!(event, Event::SearchStarted { .. })).count();
        let show = Show { results, logprobs, sealed: false };
        let (told, last) = play(events, End::Finished(EpisodeEnd::Stop, true), show, false, false);
        let items = |kind: &str| -> Vec<&Value> {
            last["output"].as_array().unwrap().iter().filter(|item| item["type"] == kind).collect()
        };
        prop_assert_eq!(items("message").len(), 1);
        prop_assert_eq!(&items("message")[0]["content"][0]["text"], &answer);
        let squeeze = |text: &str| text.split_whitespace().collect::<String>();
        let reasoning: String = items("reasoning").iter().map(|item| item["content"][0]["text"].as_str().unwrap()).collect();
        let thought: String = thoughts.values().map(String::as_str).collect();
        // A map has its turns in no order, so only the amount of text is compared.
        prop_assert_eq!(squeeze(&reasoning).len(), squeeze(&thought).len());
        prop_assert_eq!(items("file_search_call").len(), searches);
        let text = serde_json::to_string(&told).unwrap();
        prop_assert!(results || !text.contains("\"results\":["));
        prop_assert!(logprobs || !text.contains("\"logprob\":"));
        prop_assert!(!text.contains("response.rag"));
    }
}
