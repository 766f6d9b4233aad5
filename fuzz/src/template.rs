//! Chat templates: any source ends in bounded time, and no message can spell a control token.
//!
//! Input: the source of a template, a zero byte, and what a message says.

use std::time::{Duration, Instant};

use waymark_models::chat::{ChatTemplate, Message};
use waymark_models::tokenizer::Tokenizer;

use super::file::parts;
use super::test_app::CHATML;

/// Far above what the fuel allows on a busy machine.
const LONGEST: Duration = Duration::from_secs(60);

/// Looks into what messages say, as Qwen3's does.
const SPLITTING: &str = "{% for message in messages %}{% set content = message.content %}\
    {% if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}\
    <|im_start|>{{ message.role }}\n{{ content | trim }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";

pub fn run(data: &[u8]) {
    let [source, content] = parts(data);
    let (source, content) = (String::from_utf8_lossy(source), String::from_utf8_lossy(content));
    any_source(&source, &content);
    for source in [CHATML, SPLITTING] {
        known_source(source, &content);
    }
}

fn messages(content: &str) -> [Message; 3] {
    [Message::new("system", "Be brief."), Message::new("user", content), Message::new("assistant", "Yes.")]
}

fn any_source(source: &str, content: &str) {
    let begun = Instant::now();
    let Ok(template) = ChatTemplate::new(source, "<s>", "<|im_end|>") else { return };
    let whole = template.render(&messages(content), true);
    let segments = template.render_segments(&messages(content), true);
    // The clock may advance between the two renderings.
    if let (Ok(whole), Ok(segments), false) = (whole, segments, source.contains("strftime_now")) {
        let joined: String = segments.iter().map(|segment| segment.text.as_str()).collect();
        assert_eq!(joined, whole, "segments do not make up the whole");
    }
    assert!(begun.elapsed() < LONGEST, "the template took {:?}", begun.elapsed());
}

/// Checks that all control tokens come from the template, whatever the messages contain.
fn known_source(source: &str, content: &str) {
    let tokenizer = Tokenizer::bytes();
    let template = ChatTemplate::new(source, "", "<|im_end|>").expect("a good template");
    let template = template.with_control_tokens(tokenizer.control_names());
    let control = |content: &str| {
        let segments = template.render_segments(&messages(content), true).ok()?;
        let ids = tokenizer.encode_segments(&segments).expect("bytes spell everything");
        Some(ids.into_iter().filter(|&id| tokenizer.is_control(id)).collect::<Vec<_>>())
    };
    if let Some(found) = control(content) {
        assert_eq!(Some(found), control("harmless"), "{content:?} spells control tokens");
    }
}
