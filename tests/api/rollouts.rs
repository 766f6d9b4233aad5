//! `/v1/rollouts`: trajectories for trainers that run elsewhere.

use std::sync::Arc;

use serde_json::{Value, json};
use waymark_agent::Policy;
use waymark_engine::mock::Lines;

use crate::harness::{OnePassage, ServerPlan, TestServer, answer, script, tokenizer, with_fields};

const PATH: &str = "/v1/rollouts";

/// Plan of a server whose policy searches once and then answers.
fn plan() -> ServerPlan {
    let lines =
        Lines::new(["<think>Who?</think>\n<search>Faust</search>", "<think>So.</think>\n<answer>Goethe</answer>"])
            .terminator("</information>\n\n");
    let mut plan = ServerPlan { searcher: Some(Arc::new(OnePassage)), ..ServerPlan::new(script(&lines)) };
    let mut policy = Policy::builtin("evo-rag").unwrap();
    // Each byte is one token here.
    policy.budget.context_tokens = 16_384;
    plan.policies.insert(0, policy);
    plan
}

async fn server() -> TestServer {
    plan().build().await
}

fn ids(trajectory: &Value, key: &str) -> Vec<u32> {
    trajectory[key].as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

#[tokio::test]
async fn a_batch_has_every_trajectory_with_its_mask_and_reward() {
    let server = server().await;
    let body = json!({
        "questions": [
            {"id": "q1", "question": "Who wrote Faust?", "answers": ["Goethe"]},
            {"question": "Who wrote Emma?", "answers": ["Austen"]},
        ],
        "n": 2,
        "seed": 7,
        "reward": "exact_match",
    });
    let (status, batch) = answer(server.post(PATH, &body).await).await;
    assert_eq!(status, 200, "{batch}");
    assert_eq!((&batch["object"], &batch["model"]), (&json!("rollout.batch"), &json!("evo-rag")));
    assert_eq!(batch["failures"], json!([]));
    let trajectories = batch["trajectories"].as_array().unwrap();
    let places: Vec<_> = trajectories.iter().map(|one| (&one["question"], &one["sample"])).collect();
    let expected = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(question, sample)| (json!(question), json!(sample)));
    assert_eq!(places, expected.iter().map(|(question, sample)| (question, sample)).collect::<Vec<_>>());
    for (trajectory, reward) in trajectories.iter().zip([1.0, 1.0, 0.0, 0.0]) {
        assert_eq!(trajectory["reward"], json!(reward), "{trajectory}");
        assert_eq!(trajectory["metrics"]["em"], json!(reward));
        assert_eq!((&trajectory["answer"], &trajectory["num_turns"]), (&json!("Goethe"), &json!(2)));
        assert_eq!((&trajectory["metrics"]["searches"], &trajectory["stop_reason"]), (&json!(1), &json!("stop")));
    }
    assert_eq!((&trajectories[0]["question_id"], &trajectories[2]["question_id"]), (&json!("q1"), &Value::Null));
}

#[tokio::test]
async fn the_mask_covers_what_the_policy_wrote_and_nothing_else() {
    let server = server().await;
    let body = json!({"questions": [{"question": "Who wrote Faust?"}]});
    let (_, batch) = answer(server.post(PATH, &body).await).await;
    let trajectory = &batch["trajectories"][0];
    let response = ids(trajectory, "response_ids");
    let mask = ids(trajectory, "response_mask");
    let logprobs = trajectory["response_logprobs"].as_array().unwrap();
    assert_eq!((mask.len(), logprobs.len()), (response.len(), response.len()));
    for (learned, logprob) in mask.iter().zip(logprobs) {
        assert_eq!(*learned == 1, logprob.is_number());
    }
    let of = |wanted: u32| -> String {
        let chosen = response.iter().zip(&mask).filter(|(_, learned)| **learned == wanted).map(|(id, _)| *id);
        tokenizer().decode(&chosen.collect::<Vec<_>>())
    };
    assert!(of(1).contains("<answer>Goethe</answer>") && !of(1).contains("Goethe wrote Faust"), "{}", of(1));
    assert!(of(0).contains("Goethe wrote Faust") && !of(0).contains("<answer>Goethe"), "{}", of(0));
    assert!(tokenizer().decode(&ids(trajectory, "prompt_ids")).contains("Who wrote Faust?"));
    assert_eq!((&trajectory["reward"], &trajectory["metrics"]["em"]), (&Value::Null, &json!(0.0)));
}

#[tokio::test]
async fn a_stream_sends_each_trajectory_and_then_the_end() {
    let server = server().await;
    let body = json!({
        "questions": [{"question": "Who wrote Faust?", "answers": ["Goethe"]}],
        "n": 3,
        "stream": true,
        "reward": "exact_match",
    });
    let text = server.post(PATH, &body).await.text().await.unwrap();
    let events: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(events, ["trajectory", "trajectory", "trajectory", "finished"]);
    let last: Value =
        serde_json::from_str(text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap()).unwrap();
    assert_eq!((&last["trajectories"], &last["failures"]), (&json!(3), &json!(0)));
    let whole: Value = server.post(PATH, &json!({"questions": [{"question": "x"}]})).await.json().await.unwrap();
    assert_eq!(last["generation"], whole["generation"]);
}

#[tokio::test]
async fn searches_cost_what_the_reward_says() {
    let server = server().await;
    let questions = json!([{"question": "Who wrote Faust?", "answers": ["Goethe"]}]);
    let cost = async |cost: Value| {
        let body = json!({"questions": questions, "n": 2, "reward": {"efficiency": {"cost": cost}}});
        let (status, batch) = answer(server.post(PATH, &body).await).await;
        assert_eq!(status, 200, "{batch}");
        let trajectory = &batch["trajectories"][0];
        assert_eq!(trajectory["reward_parts"]["cost"], trajectory["metrics"]["cost"], "{trajectory}");
        trajectory["metrics"]["cost"].as_f64().unwrap()
    };
    assert!(cost(json!({"model": {"passage": 100.0}})).await > 100.0);
    let own = json!({"model": {"passage": 0.0, "shown": 0.0}});
    assert!(cost(own).await.abs() < f64::EPSILON);
    let priced = cost(json!({"model": {}})).await;
    assert_ne!(cost(json!("wall_time")).await, priced);
}

#[tokio::test]
async fn what_cannot_be_played_or_rewarded_is_refused_by_name() {
    let server = server().await;
    let question = json!({"question": "Who?"});
    let efficiency = json!({"efficiency": {}});
    for (body, param) in [
        (json!({"questions": []}), "questions"),
        (json!({"questions": [question], "n": 0}), "n"),
        (json!({"questions": [question], "concurrency": 65}), "concurrency"),
        (json!({"questions": [{"question": " "}]}), "questions[0].question"),
        (json!({"questions": [question], "rag": {"guided": true}}), "rag.guided"),
        (json!({"questions": [question], "rewards": []}), "rewards"),
        (json!({"questions": [question], "reward": "best"}), "reward"),
    ] {
        let (status, refused) = answer(server.post(PATH, &body).await).await;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(param)), "{body}: {refused}");
    }
    // The error names the relative reward, which a stream cannot have, or the missing setting of that reward.
    let body = json!({"questions": [question], "reward": efficiency, "stream": true});
    let (status, refused) = answer(server.post(PATH, &body).await).await;
    assert_eq!(status, 400, "{refused}");
    assert!(refused["error"]["param"].as_str().unwrap().starts_with("reward"), "{refused}");
}

#[tokio::test]
async fn the_texts_of_a_question_count_where_they_are_kept_for_rewards() {
    let mut plan = plan();
    plan.http.answer_bytes = 1 << 20;
    let server = plan.build().await;
    let question = json!({"question": "Who wrote Faust?", "answers": ["x".repeat(200_000)]});
    let body = json!({"questions": [question], "n": 4});
    let (status, whole) = answer(server.post(PATH, &body).await).await;
    assert_eq!(status, 200, "{whole}");
    let body = with_fields(body, json!({"reward": "exact_match"}));
    let (status, refused) = answer(server.post(PATH, &body).await).await;
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("response_too_large")), "{refused}");
}
