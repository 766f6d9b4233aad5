//! One episode at a server, shown as it runs.

use anyhow::bail;
use serde_json::{Map, Value};
use waymark_agent::Event;

use super::client::{Client, ServerRefusal};
use super::dialogue::Dialogue;

/// Asks `question` in a conversation, with `options` as further fields of the request, and passes every event to
/// `each`. While the conversation is too long for the model, its oldest exchange is dropped. Returns as [`run`] does.
///
/// # Errors
/// If the request or the episode fails, or `each` does.
pub(super) async fn ask(
    client: &Client,
    dialogue: &mut Dialogue,
    question: &str,
    options: &Map<String, Value>,
    mut each: impl FnMut(&Event) -> anyhow::Result<()>,
) -> anyhow::Result<Option<String>> {
    loop {
        let mut request = dialogue.request(question);
        request.extend(options.clone());
        let asked = run(client, &Value::Object(request), &mut each).await;
        let refusal = asked.as_ref().err().and_then(|error| error.downcast_ref::<ServerRefusal>());
        // Refused before the first event, so nothing is shown twice.
        if !(refusal.is_some_and(ServerRefusal::is_too_long) && dialogue.forget_oldest()) {
            return asked;
        }
    }
}

/// Runs the episode that `request` describes and passes every event to `each`. Returns the text that a conversation
/// keeps of it: the answer, or else the refusal. `None` if it ended without either.
///
/// # Errors
/// If the request or the episode fails, or `each` does.
async fn run(
    client: &Client,
    request: &Value,
    mut each: impl FnMut(&Event) -> anyhow::Result<()>,
) -> anyhow::Result<Option<String>> {
    let mut failed = None;
    let mut refusal = None;
    let mut finished = None;
    client
        .episode(request, |event| {
            each(&event)?;
            match event {
                Event::Failed { message, .. } => failed = Some(message),
                Event::Refusal { text } => refusal = Some(text),
                Event::Finished { answer, .. } => finished = Some(answer),
                _ => {}
            }
            Ok(())
        })
        .await?;
    match (failed, finished) {
        (Some(message), _) => bail!("the episode failed: {message}"),
        (None, Some(answer)) => Ok(answer.or(refusal)),
        (None, None) => bail!("the stream ended before the episode finished"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Starts a server that refuses questions after the exchange `first` as too long, and answers all others.
    fn forgetful() -> String {
        const TOO_LONG: &str = r#"{"error":{"message":"too long","code":"context_length_exceeded"}}"#;
        const END: &str = r#"data: {"type":"finished","reason":"stop","answer":"Paris","usage":{"prompt_tokens":1,"completion_tokens":1,"reasoning_tokens":0,"environment_tokens":0,"cached_tokens":0},"turns":1,"searches":0}

"#;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for mut socket in listener.incoming().map_while(Result::ok) {
                let mut text = String::new();
                let mut chunk = [0; 4096];
                while !text.ends_with('}') {
                    let read = socket.read(&mut chunk).unwrap_or(0);
                    if read == 0 {
                        break;
                    }
                    text.push_str(&String::from_utf8_lossy(&chunk[..read]));
                }
                let (status, body) =
                    if text.contains("first") { ("400 Bad Request", TOO_LONG) } else { ("200 OK", END) };
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                let _ = write!(socket, "{head}{body}");
            }
        });
        base
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_conversation_that_is_too_long_forgets_its_beginning() {
        let client = Client::new(&forgetful());
        let mut dialogue = Dialogue::default();
        for question in ["first", "second"] {
            dialogue.push(question.to_owned(), "yes".to_owned());
        }
        let none = Map::new();
        let answer = ask(&client, &mut dialogue, "Where?", &none, |_| Ok(())).await.unwrap();
        assert_eq!((answer.as_deref(), dialogue.len()), (Some("Paris"), 1));
        let refused = ask(&client, &mut Dialogue::default(), "first of all", &none, |_| Ok(())).await.unwrap_err();
        assert!(refused.to_string().contains("too long"), "{refused}");
    }
}
