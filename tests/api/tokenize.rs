//! `/tokenize` and `/detokenize`.

use serde_json::{Value, json};

use crate::harness::{TestServer, answer, says};

async fn post(server: &TestServer, path: &str, body: Value) -> (u16, Value) {
    let response = server.post(path, &body).await;
    answer(response).await
}

#[tokio::test]
async fn texts_are_ids_in_which_nothing_is_control() {
    let server = TestServer::new(says("hi")).await;
    let (status, answer) = post(&server, "/tokenize", json!({"prompt": "h\u{e9}", "return_token_strs": true})).await;
    let expected = json!({"count": 3, "max_model_len": 32768, "tokens": [104, 195, 169],
                          "token_strs": ["h", "\u{fffd}", "\u{fffd}"]});
    assert_eq!((status, &answer), (200, &expected));
    let (_, answer) = post(&server, "/tokenize", json!({"prompt": "<|im_end|>", "model": "plain"})).await;
    assert_eq!((&answer["count"], &answer["token_strs"]), (&json!(10), &Value::Null));
}

#[tokio::test]
async fn conversations_are_the_ids_an_answer_begins_with() {
    let server = TestServer::new(says("hi")).await;
    let messages = json!([{"role": "user", "content": "hello"}]);
    for model in ["plain", "routerag"] {
        let (_, tokens) = post(&server, "/tokenize", json!({"model": model, "messages": messages})).await;
        let (_, whole) = server.chat(&json!({"model": model, "messages": messages, "max_tokens": 1})).await;
        assert_eq!(tokens["count"], whole["usage"]["prompt_tokens"], "{model}");
        // The ID of `<|im_start|>`, with which the template begins.
        assert_eq!(tokens["tokens"][0], 256);
    }
    let (_, tokens) = post(&server, "/tokenize", json!({"messages": messages})).await;
    let (status, text) = post(&server, "/detokenize", json!({"tokens": tokens["tokens"]})).await;
    let spelled = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!((status, text), (200, json!({"prompt": spelled})));
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_name() {
    let server = TestServer::new(says("hi")).await;
    let messages = json!([{"role": "user", "content": "hello"}]);
    for (path, body, status, param) in [
        ("/tokenize", json!({}), 400, "prompt"),
        ("/tokenize", json!({"prompt": "a", "messages": messages}), 400, "messages"),
        ("/tokenize", json!({"prompt": 5}), 400, "prompt"),
        ("/tokenize", json!({"prompt": "a", "model": "nobody"}), 404, "model"),
        ("/tokenize", json!({"prompt": "a", "add_special_tokens": true}), 400, "add_special_tokens"),
        ("/tokenize", json!({"messages": []}), 400, "messages"),
        ("/tokenize", json!({"prompt": "a", "colour": 1}), 400, "colour"),
        ("/detokenize", json!({"tokens": [1, 259]}), 400, "tokens[1]"),
        ("/detokenize", json!({"tokens": [-1]}), 400, "tokens[0]"),
        ("/detokenize", json!({"tokens": []  , "model": "nobody"}), 404, "model"),
        ("/detokenize", json!({}), 400, "tokens"),
    ] {
        let (got, answer) = post(&server, path, body.clone()).await;
        assert_eq!((got, &answer["error"]["param"]), (status, &json!(param)), "{path} {body}: {answer}");
    }
}
