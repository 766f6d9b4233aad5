//! Exchanges recorded from a real vLLM 0.32 (`golden/vllm_wire.json`), replayed to the client.

use serde_json::{Value, json};
use waymark_agent::{Generator, SessionSource};
use waymark_engine::{EngineError, Generate, Origin, SessionOptions, TurnFinish};
use waymark_models::sampler::SamplingParams;

use super::stub::{Stub, StubFault};
use super::{config, connect, opened, run, spec};

/// Returns the recorded exchange with this name.
fn recorded(name: &str) -> Value {
    let text = include_str!("../golden/vllm_wire.json");
    let rows: Vec<Value> = serde_json::from_str(text).unwrap();
    rows.into_iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no exchange {name}"))
}

fn body(row: &Value) -> String {
    row["body"].as_str().unwrap().to_owned()
}

/// Token IDs of the byte tokenizer only, as many as the recorded request has.
fn prompt() -> Vec<u32> {
    (0..100).map(|at| at * 7 % 249).collect()
}

#[tokio::test]
async fn a_recorded_stream_gives_its_tokens_and_alternatives() {
    let stub = Stub::start().await;
    let fleet = connect(&config("vllm", &[&stub.url()])).await.unwrap();
    let row = recorded("stream");
    stub.fail([StubFault::Recorded(body(&row))]);
    let mut session = opened(&fleet, &prompt());
    let sampling = SamplingParams { top_logprobs: 2, ..SamplingParams::greedy() };
    let turn = run(&mut session, Generate { sampling, max_tokens: 6, ..Generate::default() }).await;
    assert_eq!((turn.error, turn.finish), (None, Some(TurnFinish::Length)));
    let ids: Vec<u32> = turn.steps.iter().map(|step| step.id).collect();
    assert_eq!(ids, [184, 272, 184, 272, 184, 272]);
    let step = &turn.steps[0];
    // The sampled token came first and had rank 2.
    assert_eq!(step.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [279, 184]);
    assert_eq!(step.logprob, -5.768_32);
    // The request is the recorded one, as far as it asks for the same.
    let (_, sent) = stub.streamed().pop().unwrap();
    for (field, wanted) in row["request"]["sampling_params"].as_object().unwrap() {
        assert_eq!(sent["sampling_params"][field].as_f64(), wanted.as_f64(), "{field}");
    }
    assert_eq!(
        (&sent["stream"], &sent["stream_options"]),
        (&row["request"]["stream"], &row["request"]["stream_options"])
    );
}

#[tokio::test]
async fn a_minimum_beyond_the_maximum_is_not_sent() {
    let stub = Stub::start().await;
    let fleet = connect(&config("vllm", &[&stub.url()])).await.unwrap();
    for (least, sent) in [(9, 6), (4, 4)] {
        stub.fail([StubFault::Recorded(body(&recorded("stream")))]);
        let mut session = opened(&fleet, &prompt());
        let turn = run(&mut session, Generate { max_tokens: 6, min_tokens: least, ..Generate::default() }).await;
        assert_eq!((turn.error, turn.steps.len()), (None, 6));
        let (_, request) = stub.streamed().pop().unwrap();
        // An engine refuses a minimum above the maximum.
        assert_eq!(request["sampling_params"]["min_tokens"], sent, "{request}");
    }
}

#[tokio::test]
async fn the_recorded_completions_give_the_same_tokens() {
    let stub = Stub::with(false).await;
    let fleet = connect(&config("vllm", &[&stub.url()])).await.unwrap();
    stub.fail([StubFault::Recorded(body(&recorded("completions with ids, streamed")))]);
    let mut session = opened(&fleet, &prompt());
    let turn = run(&mut session, spec(6)).await;
    assert_eq!((turn.error.clone(), turn.ids()), (None, vec![184, 272, 184, 272, 184, 272]));
    assert_eq!(session.cached_prompt_tokens(), 96);
    let (_, sent) = stub.streamed().pop().unwrap();
    assert_eq!((&sent["return_token_ids"], &sent["prompt"][1]), (&Value::Bool(true), &Value::from(7)));
}

/// Returns a stream of completions with the token 7 and these alternatives.
fn completion(listed: &Value) -> StubFault {
    let logprobs = json!({"token_logprobs": [-2.5], "top_logprobs": [listed]});
    let choice = json!({"index": 0, "text": "", "finish_reason": "length", "token_ids": [7], "logprobs": logprobs});
    StubFault::Recorded(format!("data: {}\n\ndata: [DONE]\n\n", json!({"choices": [choice]})))
}

#[tokio::test]
async fn alternatives_over_completions_are_read_by_their_ids() {
    let stub = Stub::with(false).await;
    let fleet = connect(&config("vllm", &[&stub.url()])).await.unwrap();
    let sampling = SamplingParams { top_logprobs: 2, ..SamplingParams::greedy() };
    let ask = || Generate { sampling: sampling.clone(), max_tokens: 1, ..Generate::default() };
    // vLLM lists the sampled token in addition to the two most probable ones.
    stub.fail([completion(&json!({"token_id:7": -2.5, "token_id:30": -0.25, "token_id:4": -1.5}))]);
    let turn = run(&mut opened(&fleet, &prompt()), ask()).await;
    assert_eq!((turn.error.clone(), turn.ids()), (None, vec![7]));
    assert_eq!(turn.steps[0].top, [(30, -0.25), (4, -1.5)]);
    let (_, sent) = stub.streamed().pop().unwrap();
    assert_eq!((&sent["return_tokens_as_token_ids"], &sent["logprobs"]), (&Value::Bool(true), &Value::from(2)));
    // Texts do not say which tokens they are.
    stub.fail((0..3).map(|_| completion(&json!({"": -0.25, "-": -1.5}))));
    let turn = run(&mut opened(&fleet, &prompt()), ask()).await;
    let Some(EngineError::Unavailable(message)) = turn.error else { panic!("{turn:?}") };
    assert!(message.contains("a text instead of a token ID"), "{message}");
}

#[tokio::test]
async fn recorded_refusals_are_told_in_their_own_words() {
    let stub = Stub::start().await;
    let fleet = connect(&config("vllm", &[&stub.url()])).await.unwrap();
    for (name, words) in [("out of vocabulary", "Token id 99999 is out of vocabulary"), ("empty", "too_short")] {
        let row = recorded(name);
        stub.fail([StubFault::Refusal(400, body(&row))]);
        let mut session = fleet.open(SessionOptions::default());
        session.append(&[1], Origin::Prompt, false);
        let turn = run(&mut session, spec(4)).await;
        let Some(EngineError::Request(message)) = turn.error else { panic!("{name}: {turn:?}") };
        assert!(message.contains(words) && turn.resumed.is_empty(), "{message}");
    }
}
