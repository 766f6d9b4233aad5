//! Failures of engines: no token is lost, none is repeated, and an engine that is gone gets no requests.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::time::timeout;
use waymark_agent::{Generator, Steps};
use waymark_engine::{Constraint, ConstraintState, EngineError, Generate, Health, Origin, TurnFinish};
use waymark_models::sampler::TokenMask;
use waymark_runtime::config::FleetConfig;

use super::stub::{RouteFault, Stub, StubFault};
use super::{config, connect, opened, run, spec, undisturbed};
use crate::harness::{PATIENCE, ServerPlan, answer, eventually, says};

const PROMPT: [u32; 5] = [10, 20, 30, 40, 50];

#[tokio::test]
async fn a_broken_stream_goes_on_after_the_last_delivered_token() {
    let stub = Stub::start().await;
    let mut config = config("vllm", &[&stub.url()]);
    // The time after which silence counts as the end of a stream.
    config.timeouts.token = Duration::from_secs(3);
    let fleet = connect(&config).await.unwrap();
    for fault in [StubFault::Cut(3), StubFault::Silence(3), StubFault::ErrorEvent(3), StubFault::DoneOnly(3)] {
        let before = stub.streamed().len();
        stub.fail([fault.clone()]);
        let mut session = opened(&fleet, &PROMPT);
        let turn = run(&mut session, spec(10)).await;
        assert_eq!((turn.error.clone(), turn.finish), (None, Some(TurnFinish::Length)), "{fault:?}");
        assert_eq!(turn.ids(), undisturbed(&PROMPT, 10), "{fault:?}");
        assert_eq!(turn.resumed.len(), 1, "{fault:?}: {:?}", turn.resumed);
        let requests = stub.streamed().split_off(before);
        let [(first, _), (second, body)] = requests.as_slice() else { panic!("{fault:?}: {requests:?}") };
        // A router keeps a session at its worker, even at a dead one.
        assert!(first.is_some() && first != second, "{fault:?}");
        let sent = body["token_ids"].as_array().unwrap();
        let delivered = turn.resumed[0].delivered;
        assert_eq!((sent.len(), &body["sampling_params"]["max_tokens"]), (5 + delivered, &(10 - delivered).into()));
        assert!(delivered <= 3, "{fault:?}");
    }
    assert_eq!(fleet.remote_counters().resumptions_total.get(), 4);
}

#[tokio::test]
async fn a_full_queue_is_told_as_such_and_another_engine_helps() {
    let [first, second] = [Stub::start().await, Stub::start().await];
    let full =
        || StubFault::Refusal(503, r#"{"error":{"message":"full","type":"x","param":null,"code":503}}"#.to_owned());
    let alone = connect(&config("vllm", &[&first.url()])).await.unwrap();
    first.fail([full(), full(), full()]);
    let turn = run(&mut opened(&alone, &PROMPT), spec(4)).await;
    assert_eq!(turn.error, Some(EngineError::QueueFull { limit: 64 }));
    assert_eq!(alone.health(), Health::Ready, "a full queue is no illness");
    let both = connect(&config("vllm", &[&first.url(), &second.url()])).await.unwrap();
    first.fail([full()]);
    second.fail([full()]);
    let turn = run(&mut opened(&both, &PROMPT), spec(4)).await;
    assert_eq!(turn.ids(), undisturbed(&PROMPT, 4));
}

#[tokio::test]
async fn readiness_follows_the_engines() {
    let [mut first, mut second] = [Stub::start().await, Stub::start().await];
    let fleet = connect(&config("vllm", &[&first.url(), &second.url()])).await.unwrap();
    let plan = ServerPlan { fleet: Some(fleet.clone()), ..ServerPlan::new(says("unused")) };
    let server = plan.build().await;
    let mut session = opened(&fleet, &PROMPT);
    assert_eq!(run(&mut session, spec(3)).await.ids(), undisturbed(&PROMPT, 3));
    first.kill().await;
    // The session was at the first engine, and continues at the second.
    session.append(&[1, 2, 3], Origin::Environment, false);
    let all: Vec<u32> = session.tokens().iter().map(|token| token.id).collect();
    assert_eq!(run(&mut session, spec(3)).await.ids(), undisturbed(&all, 3));
    assert_eq!(server.get("/ready").await.status(), 200);
    assert_eq!(fleet.remote_counters().engines_usable.get(), 1);
    second.kill().await;
    let turn = run(&mut opened(&fleet, &PROMPT), spec(3)).await;
    assert!(matches!(turn.error, Some(EngineError::Unavailable(_))), "{turn:?}");
    let (status, body) = answer(server.get("/ready").await).await;
    assert_eq!((status, body["error"]["code"].as_str()), (503, Some("engine_unavailable")), "{body}");
    first.serve().await;
    eventually("an engine that is back is ready", || fleet.health() == Health::Ready).await;
    assert_eq!(run(&mut opened(&fleet, &PROMPT), spec(3)).await.ids(), undisturbed(&PROMPT, 3));
}

#[tokio::test]
async fn an_engine_that_passes_its_checks_and_breaks_its_streams_is_taken_out() {
    let [first, second] = [Stub::start().await, Stub::start().await];
    let mut config = config("vllm", &[&first.url(), &second.url()]);
    // The engine is not found healthy again before the end of the test.
    config.timeouts.recheck = 10 * PATIENCE;
    let fleet = connect(&config).await.unwrap();
    let usable = || fleet.remote_counters().engines_usable.get();
    first.fail([StubFault::Cut(2), StubFault::Cut(2), StubFault::Cut(2)]);
    for _ in 0..3 {
        assert_eq!(usable(), 2);
        assert_eq!(run(&mut opened(&fleet, &PROMPT), spec(6)).await.ids(), undisturbed(&PROMPT, 6));
    }
    assert_eq!((usable(), first.streamed().len()), (1, 3));
    assert_eq!(run(&mut opened(&fleet, &PROMPT), spec(6)).await.ids(), undisturbed(&PROMPT, 6));
    assert_eq!(first.streamed().len(), 3);
}

#[tokio::test]
async fn an_engine_that_does_not_accept_the_key_gets_no_more_requests() {
    let [first, second] = [Stub::start().await, Stub::start().await];
    let mut config = config("vllm", &[&first.url(), &second.url()]);
    // The engine is not found healthy again before the end of the test.
    config.timeouts.recheck = 10 * PATIENCE;
    for status in [401, 403] {
        let refusal = || StubFault::Refusal(status, r#"{"error":"Unauthorized"}"#.to_owned());
        let both = connect(&config).await.unwrap();
        first.fail([refusal()]);
        let turn = run(&mut opened(&both, &PROMPT), spec(4)).await;
        assert_eq!((turn.error.clone(), turn.ids()), (None, undisturbed(&PROMPT, 4)), "{status}: {turn:?}");
        assert_eq!(both.remote_counters().engines_usable.get(), 1, "{status}");
        let alone = FleetConfig { engines: config.engines[..1].to_vec(), ..config.clone() };
        let alone = connect(&alone).await.unwrap();
        first.fail([refusal()]);
        let turn = run(&mut opened(&alone, &PROMPT), spec(4)).await;
        assert!(matches!(turn.error, Some(EngineError::Unavailable(_))), "{status}: {turn:?}");
        let Health::Dead { reason } = alone.health() else { panic!("{status}: the engine is still used") };
        assert!(reason.contains(&status.to_string()) && reason.contains("check the API key"), "{reason}");
    }
}

#[tokio::test]
async fn an_engine_that_refuses_its_check_is_no_clients_fault() {
    let [first, second] = [Stub::start().await, Stub::start().await];
    let fleet = connect(&config("vllm", &[&first.url(), &second.url()])).await.unwrap();
    let usable = || fleet.remote_counters().engines_usable.get();
    *first.state.checks.lock().unwrap() = Some(RouteFault::Refusal(400));
    first.fail([StubFault::Cut(2)]);
    // The first turn breaks there, and the second one needs the check.
    for left in [2, 1] {
        let turn = run(&mut opened(&fleet, &PROMPT), spec(6)).await;
        assert_eq!((turn.error.clone(), turn.ids()), (None, undisturbed(&PROMPT, 6)), "{turn:?}");
        assert_eq!(usable(), left);
    }
    *first.state.checks.lock().unwrap() = None;
    eventually("the engine is used again", || usable() == 2).await;
}

#[tokio::test]
async fn a_request_that_always_fails_does_not_take_an_engine_from_the_others() {
    let stub = Stub::start().await;
    let mut config = config("vllm", &[&stub.url()]);
    // The engine is not found healthy again before the end of the test.
    config.timeouts.recheck = 10 * PATIENCE;
    let fleet = connect(&config).await.unwrap();
    let cut = || StubFault::Cut(0);
    stub.fail([cut(), cut(), cut()]);
    let turn = run(&mut opened(&fleet, &PROMPT), spec(4)).await;
    assert!(matches!(turn.error, Some(EngineError::Unavailable(_))), "{turn:?}");
    assert_eq!((fleet.health(), stub.streamed().len()), (Health::Ready, 3));
    assert_eq!(run(&mut opened(&fleet, &PROMPT), spec(4)).await.ids(), undisturbed(&PROMPT, 4));
    // Checks are the server's own requests, so that each of their failures counts.
    *stub.state.checks.lock().unwrap() = Some(RouteFault::Refusal(500));
    stub.fail([cut()]);
    let turn = run(&mut opened(&fleet, &PROMPT), spec(4)).await;
    assert!(matches!(turn.error, Some(EngineError::Unavailable(_))), "{turn:?}");
    assert!(matches!(fleet.health(), Health::Dead { .. }));
}

#[tokio::test]
async fn while_an_engine_is_checked_new_sessions_go_to_another() {
    let [first, second] = [Stub::start().await, Stub::start().await];
    let fleet = connect(&config("vllm", &[&first.url(), &second.url()])).await.unwrap();
    first.fail([StubFault::Cut(2)]);
    assert_eq!(run(&mut opened(&fleet, &PROMPT), spec(3)).await.ids(), undisturbed(&PROMPT, 3));
    *first.state.checks.lock().unwrap() = Some(RouteFault::Silence);
    let [mut checking, mut other] = [opened(&fleet, &PROMPT), opened(&fleet, &PROMPT)];
    let turn = tokio::select! {
        // In this order, so that the first session waits for the check.
        biased;
        turn = run(&mut checking, spec(3)) => panic!("the check has ended: {turn:?}"),
        turn = run(&mut other, spec(3)) => turn,
    };
    assert_eq!((turn.error.clone(), turn.ids()), (None, undisturbed(&PROMPT, 3)), "{turn:?}");
    assert_eq!((first.streamed().len(), second.streamed().len()), (1, 2));
}

#[tokio::test]
async fn a_turn_that_our_own_stops_complete_ends_a_row_of_failures() {
    let stub = Stub::start().await;
    let fleet = connect(&config("vllm", &[&stub.url()])).await.unwrap();
    let text = undisturbed(&PROMPT, 8);
    let stop: Vec<u8> = text[5..].iter().map(|id| u8::try_from(*id).unwrap()).collect();
    let stops = std::sync::Arc::new(waymark_engine::StopSet::new([&stop]));
    for _ in 0..4 {
        stub.fail([StubFault::Cut(2)]);
        let turn = run(&mut opened(&fleet, &PROMPT), Generate { stops: stops.clone(), ..spec(40) }).await;
        assert_eq!((turn.error.clone(), turn.ids()), (None, text.clone()));
    }
    assert_eq!((fleet.remote_counters().failures_total.get(), fleet.health()), (4, Health::Ready));
}

#[tokio::test]
async fn swapped_weights_end_the_turn_and_other_weights_keep_an_engine_out() {
    let stub = Stub::start().await;
    let fleet = connect(&config("vllm", &[&stub.url()])).await.unwrap();
    stub.fail([StubFault::OtherVersion]);
    let turn = run(&mut opened(&fleet, &PROMPT), spec(4)).await;
    let Some(EngineError::Unavailable(message)) = turn.error else { panic!("{turn:?}") };
    assert!(message.contains("version default was checked, step-2 has answered"), "{message}");
    // The stub's weights are still the same, so it is trusted again; then they change.
    eventually("the same weights are taken again", || fleet.health() == Health::Ready).await;
    *stub.state.seed.lock().unwrap() = 1234;
    stub.fail([StubFault::Cut(0)]);
    let turn = run(&mut opened(&fleet, &PROMPT), spec(4)).await;
    let Some(EngineError::Unavailable(message)) = turn.error else { panic!("{turn:?}") };
    assert!(message.contains("its weights differ"), "{message}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    let Health::Dead { reason } = fleet.health() else { panic!("other weights were taken") };
    assert!(reason.contains("its weights differ"), "{reason}");
}

/// Constraint that allows every token.
#[derive(Debug)]
struct AllowsAll;

impl Constraint for AllowsAll {
    fn begin(&self) -> Box<dyn ConstraintState> {
        Box::new(AllowsAll)
    }
}

impl ConstraintState for AllowsAll {
    fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
        Ok(None)
    }

    fn accept(&mut self, _id: u32) -> Result<(), String> {
        Ok(())
    }
}

#[tokio::test]
async fn an_engine_that_writes_nothing_is_not_asked_forever() {
    let stub = Stub::start().await;
    let fleet = connect(&config("vllm", &[&stub.url()])).await.unwrap();
    let constrained = || Generate { constraint: Some(std::sync::Arc::new(AllowsAll)), ..spec(6) };
    let end = r#"{"choices":[{"index":0,"finish_reason":"length","token_ids":[]}]}"#;
    let empty = || StubFault::Recorded(format!("data: {end}\n\ndata: [DONE]\n\n"));
    stub.fail([empty()]);
    let turn = run(&mut opened(&fleet, &PROMPT), constrained()).await;
    assert_eq!((turn.error.clone(), turn.ids()), (None, undisturbed(&PROMPT, 6)));
    assert_eq!((turn.resumed.len(), stub.streamed().len()), (1, 2));
    stub.fail((0..20).map(|_| empty()));
    let turn = run(&mut opened(&fleet, &PROMPT), constrained()).await;
    let Some(EngineError::Unavailable(message)) = turn.error else { panic!("{turn:?}") };
    assert!(message.contains("without a token"), "{message}");
    assert_eq!(stub.streamed().len(), 5);
}

#[tokio::test]
async fn a_dropped_generation_closes_its_socket() {
    let stub = Stub::start().await;
    let fleet = connect(&config("vllm", &[&stub.url()])).await.unwrap();
    stub.fail([StubFault::Silence(2)]);
    let mut session = opened(&fleet, &PROMPT);
    let mut turn = session.generate(spec(100)).await.unwrap();
    for _ in 0..2 {
        turn.next().await.unwrap().unwrap();
    }
    assert!(timeout(Duration::from_millis(50), turn.next()).await.is_err());
    drop(turn);
    eventually("the stream is closed", || stub.state.streams.load(SeqCst) == 0).await;
    assert_eq!(session.tokens().len(), 7, "the delivered tokens stay");
    // Parked: the next turn sends all of them.
    let all: Vec<u32> = session.tokens().iter().map(|token| token.id).collect();
    assert_eq!(run(&mut session, spec(2)).await.ids(), undisturbed(&all, 2));
}

#[tokio::test]
async fn more_generations_than_allowed_are_refused_here() {
    let stub = Stub::start().await;
    let fleet = connect(&FleetConfig { requests: 1, ..config("vllm", &[&stub.url()]) }).await.unwrap();
    let mut first = opened(&fleet, &PROMPT);
    let _running = first.generate(spec(4)).await.unwrap();
    let mut second = opened(&fleet, &PROMPT);
    let refused = second.generate(spec(4)).await.err();
    assert_eq!(refused, Some(EngineError::QueueFull { limit: 1 }));
}

#[tokio::test]
async fn a_session_that_has_begun_waits_where_a_new_one_is_refused() {
    let stub = Stub::start().await;
    let fleet = connect(&FleetConfig { requests: 1, ..config("vllm", &[&stub.url()]) }).await.unwrap();
    let mut begun = opened(&fleet, &PROMPT);
    let turn = run(&mut begun, spec(2)).await;
    assert_eq!((turn.error.clone(), turn.ids()), (None, undisturbed(&PROMPT, 2)));
    let all: Vec<u32> = begun.tokens().iter().map(|token| token.id).collect();
    let mut other = opened(&fleet, &PROMPT);
    let running = other.generate(spec(4)).await.unwrap();
    let mut waiting = begun.generate(spec(2)).await.unwrap();
    assert!(timeout(Duration::from_millis(50), waiting.next()).await.is_err());
    assert_eq!(stub.streamed().len(), 1, "the engine gets no request without a permit");
    let mut new = opened(&fleet, &PROMPT);
    let refused = new.generate(spec(4)).await.err();
    assert_eq!(refused, Some(EngineError::QueueFull { limit: 1 }));
    drop(running);
    let mut ids = Vec::new();
    while let Some(step) = waiting.next().await {
        ids.push(step.unwrap().id);
    }
    assert_eq!(ids, undisturbed(&all, 2));
}

#[tokio::test]
async fn our_own_stops_end_a_turn_and_recorded_tokens_are_scored() {
    let stub = Stub::start().await;
    let fleet = connect(&config("vllm", &[&stub.url()])).await.unwrap();
    let text = undisturbed(&PROMPT, 40);
    let stop: Vec<u8> = text[5..8].iter().map(|id| u8::try_from(*id).unwrap()).collect();
    let stops = std::sync::Arc::new(waymark_engine::StopSet::new([&stop]));
    let turn = run(&mut opened(&fleet, &PROMPT), Generate { stops, ..spec(40) }).await;
    assert_eq!((turn.ids(), turn.finish), (text[..8].to_vec(), Some(TurnFinish::Stop(0))));
    let turn = run(&mut opened(&fleet, &PROMPT), Generate { eos: vec![text[4]], ..spec(40) }).await;
    assert_eq!(turn.finish, Some(TurnFinish::Eos));
    let force = text[..6].to_vec();
    let turn = run(&mut opened(&fleet, &PROMPT), Generate { force: force.clone(), ignore_eos: true, ..spec(6) }).await;
    assert_eq!((turn.ids(), turn.finish), (force, Some(TurnFinish::Length)));
    assert!(turn.steps.iter().any(|step| step.logprob < 0.0));
}
