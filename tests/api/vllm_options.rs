//! Options of vLLM's interface: forms of the answer, its ends, and variables of the chat template.

use serde_json::{Value, json};
use waymark_engine::MockBackend;
use waymark_engine::mock::Lines;
use waymark_models::chat::ChatTemplate;

use crate::golden::ask;
use crate::harness::{ServerPlan, TestServer, answer, content, says, script, with_fields};
use crate::traces::trace;

/// Fields of a request, and the check of its answer.
type FormCheck<'a> = (Value, &'a dyn Fn(&str) -> bool);

async fn complete(server: &TestServer, extra: &Value) -> (u16, Value) {
    let body = with_fields(json!({"model": "plain", "prompt": "Once", "max_tokens": 100}), extra.clone());
    answer(server.post("/v1/completions", &body).await).await
}

#[tokio::test]
async fn answers_have_the_form_that_is_asked_for() {
    let server = TestServer::new(says("Certainly! I think so.")).await;
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
        "additionalProperties": false});
    let year = |text: &str| text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_digit());
    let ok = |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|value| value["ok"].is_boolean());
    let play = |text: &str| ["Faust", "Tell"].contains(&text);
    let words = |text: &str| text == "ab" || text == "abb";
    let checks: [FormCheck<'_>; 9] = [
        (json!({"structured_outputs": {"json": schema}}), &ok),
        (json!({"guided_json": schema}), &ok),
        (json!({"guided_json": schema.to_string()}), &ok),
        (json!({"structured_outputs": {"regex": "[0-9]{4}"}}), &year),
        (json!({"guided_regex": "[0-9]{4}"}), &year),
        (json!({"structured_outputs": {"choice": ["Faust", "Tell"]}}), &play),
        (json!({"guided_choice": ["Faust", "Tell"]}), &play),
        (json!({"structured_outputs": {"grammar": "start: \"a\" \"b\" \"b\"?"}}), &words),
        (json!({"guided_grammar": "start: \"a\" \"b\" \"b\"?"}), &words),
    ];
    for (extra, fits) in checks {
        let (status, whole) = server.chat(&ask(extra.clone())).await;
        assert!(status == 200 && fits(content(&whole)), "{extra} gave {whole}");
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
        let (status, whole) = complete(&server, &extra).await;
        assert!(status == 200 && fits(whole["choices"][0]["text"].as_str().unwrap()), "{extra} gave {whole}");
    }
    server.quiet().await;
}

#[tokio::test]
async fn the_answer_of_a_policy_that_searches_has_its_form_between_its_tags() {
    let lines = Lines::new(["<think>Hm.</think>\n<answer> maybe </answer>"]);
    let server = TestServer::new(script(&lines)).await;
    let body = ask(json!({"model": "routerag", "guided_choice": ["yes", "no"]}));
    let (status, whole) = server.chat(&body).await;
    assert!(status == 200 && ["yes", "no"].contains(&content(&whole)), "{whole}");
    let (_, kept) = trace(&server, whole["id"].as_str().unwrap()).await;
    assert_eq!((&kept["options"]["form"], &kept["options"]["json"]), (&json!({"choice": ["yes", "no"]}), &Value::Null));
    let refused = ask(json!({"model": "routerag", "guided_choice": ["<1", ">1"]}));
    let (status, whole) = server.chat(&refused).await;
    assert_eq!((status, &whole["error"]["param"]), (400, &json!("guided_choice")), "{whole}");
}

#[tokio::test]
async fn an_answer_ends_at_the_tokens_that_are_asked_for() {
    let server = TestServer::new(says("hi there")).await;
    // Tokens are bytes here: the third one is a space.
    for (extra, tokens, reason, said) in [
        (json!({"stop_token_ids": [32]}), 3, "stop", "hi"),
        (json!({"stop_token_ids": [0, 32], "min_tokens": 2}), 3, "stop", "hi"),
        (json!({"ignore_eos": true, "max_tokens": 20}), 20, "length", "hi there"),
        (json!({"ignore_eos": true, "stop_token_ids": [32]}), 3, "stop", "hi"),
    ] {
        // A stop token counts, and its text is left out. After its own end the mock may say more.
        let fits = |text: &str| text == said || (reason == "length" && text.starts_with(said));
        let (status, whole) = server.chat(&ask(extra.clone())).await;
        assert!(status == 200 && fits(content(&whole)), "{extra} gave {whole}");
        let choice = &whole["choices"][0];
        assert_eq!((&whole["usage"]["completion_tokens"], &choice["finish_reason"]), (&json!(tokens), &json!(reason)));
        let (status, whole) = complete(&server, &extra).await;
        assert!(fits(whole["choices"][0]["text"].as_str().unwrap()), "{extra} gave {whole}");
        assert_eq!((status, &whole["usage"]["completion_tokens"]), (200, &json!(tokens)), "{extra}");
    }
    for least in [9, 30] {
        let (status, whole) = server.chat(&ask(json!({"min_tokens": least, "max_tokens": 40}))).await;
        assert_eq!(status, 200, "{whole}");
        let counted = whole["usage"]["completion_tokens"].as_u64().unwrap();
        assert!(counted >= least && content(&whole).starts_with("hi there"), "{whole}");
    }
    let (_, whole) = server.chat(&ask(json!({"stop_token_ids": [32]}))).await;
    let ends = json!({"stop_ids": [32], "ignores_eos": false, "min_tokens": 0});
    let (_, kept) = trace(&server, whole["id"].as_str().unwrap()).await;
    assert_eq!(kept["options"]["ends"], ends);
    server.quiet().await;
}

#[tokio::test]
async fn all_tokens_are_kept_by_a_top_k_of_minus_1() {
    let server = TestServer::new(MockBackend::random(7, 259).with_confidence(0.0)).await;
    for top_k in [-1, 0] {
        let sampled = json!({"seed": 5, "max_tokens": 12, "top_k": top_k});
        let (status, whole) = server.chat(&ask(sampled.clone())).await;
        assert_eq!(status, 200, "{whole}");
        let all = server.chat(&ask(json!({"seed": 5, "max_tokens": 12}))).await.1;
        assert_eq!(content(&whole), content(&all), "{top_k}");
        let (status, whole) = complete(&server, &sampled).await;
        assert_eq!(status, 200, "{whole}");
        let all = complete(&server, &json!({"seed": 5, "max_tokens": 12})).await.1;
        assert_eq!(whole["choices"][0]["text"], all["choices"][0]["text"], "{top_k}");
    }
}

#[tokio::test]
async fn a_switch_of_the_template_is_set() {
    const SOURCE: &str = "{% if enable_thinking is defined and not enable_thinking %}<|im_start|>system\n\
        Do not think.<|im_end|>\n{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n\
        {{ message.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let template = ChatTemplate::new(SOURCE, "", "<|im_end|>").unwrap();
    let lines = Lines::new(["thoughtful"]).rule("Do not think.", ["quick"]);
    let server = ServerPlan { template, ..ServerPlan::new(script(&lines)) }.build().await;
    for (kwargs, said) in [
        (Value::Null, "thoughtful"),
        (json!({}), "thoughtful"),
        (json!({"enable_thinking": true}), "thoughtful"),
        (json!({"enable_thinking": false}), "quick"),
    ] {
        let (status, whole) = server.chat(&ask(json!({"chat_template_kwargs": kwargs}))).await;
        assert_eq!((status, content(&whole)), (200, said), "{kwargs}");
    }
}

#[tokio::test]
async fn what_cannot_be_had_is_refused_by_name() {
    let server = TestServer::new(says("hi")).await;
    let invalid = "invalid_value";
    let unsupported = "unsupported_parameter";
    let strict = json!([{"type": "function", "function": {"name": "look", "strict": true}}]);
    for (extra, code, param) in [
        (json!({"structured_outputs": {}}), invalid, "structured_outputs"),
        (
            json!({"structured_outputs": {"structural_tag": "{}"}}),
            "unknown_parameter",
            "structured_outputs.structural_tag",
        ),
        (json!({"structured_outputs": {"regex": "("}}), invalid, "structured_outputs.regex"),
        (json!({"structured_outputs": {"grammar": "root ::= \"a\""}}), invalid, "structured_outputs.grammar"),
        (json!({"guided_choice": []}), invalid, "guided_choice"),
        (json!({"guided_json": "{"}), invalid, "guided_json"),
        (json!({"guided_json": {"type": "nonsense"}}), invalid, "guided_json"),
        (json!({"guided_regex": "a", "guided_choice": ["a"]}), invalid, "guided_choice"),
        (json!({"guided_regex": "a", "response_format": {"type": "json_object"}}), invalid, "guided_regex"),
        (json!({"stop_token_ids": [1_000_000]}), invalid, "stop_token_ids"),
        (json!({"stop_token_ids": vec![1; 65]}), invalid, "stop_token_ids"),
        (json!({"min_tokens": 5, "max_tokens": 4}), invalid, "min_tokens"),
        (json!({"min_tokens": 5, "guided_regex": "a"}), unsupported, "min_tokens"),
        (json!({"min_tokens": 5, "tools": strict}), unsupported, "min_tokens"),
        (json!({"ignore_eos": true, "tools": strict}), unsupported, "ignore_eos"),
        (json!({"stop_token_ids": [32], "tools": strict}), unsupported, "stop_token_ids"),
        (json!({"ignore_eos": true, "model": "routerag"}), unsupported, "ignore_eos"),
        (json!({"skip_special_tokens": false}), unsupported, "skip_special_tokens"),
        (
            json!({"chat_template_kwargs": {"enable_thinking": false}}),
            unsupported,
            "chat_template_kwargs.enable_thinking",
        ),
        (json!({"chat_template_kwargs": {"documents": []}}), "unknown_parameter", "chat_template_kwargs.documents"),
    ] {
        let (status, whole) = server.chat(&ask(extra.clone())).await;
        let error = &whole["error"];
        assert_eq!(
            (status, &error["code"], &error["param"]),
            (400, &json!(code), &json!(param)),
            "{extra} gave {error}"
        );
    }
    // Options that ask for nothing are accepted.
    let harmless = json!({"skip_special_tokens": true, "include_stop_str_in_output": false, "min_tokens": 0,
        "ignore_eos": false, "stop_token_ids": [], "add_generation_prompt": true, "chat_template_kwargs": {}});
    assert_eq!(server.chat(&ask(harmless)).await.0, 200);
}
