//! Helpers of the agent tests: a scripted token source, a stub search, and a character tokenizer.
#![allow(dead_code, unreachable_pub, missing_debug_implementations, clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::mpsc;
use waymark_agent::{
    AgentError, Conversation, Episode, EpisodeOptions, Event, Generator, Policy, Runtime, Search, SearchError,
    SearchQuery, SessionSource, Steps, Trajectory,
};
use waymark_engine::{EngineError, Generate, Matcher, Origin, SessionOptions, StopSet, Token, TokenStep, TurnFinish};
use waymark_index::{Evidence, Hit, HitPath, Mode, Passage, TripleHit};
use waymark_models::tokenizer::{Specials, Tokenizer};

/// Token source that returns one scripted line per generation and records the context of each.
#[derive(Clone)]
pub struct Script {
    lines: Arc<Mutex<VecDeque<String>>>,
    tokenizer: Arc<Tokenizer>,
    /// Context token IDs of each generation.
    pub seen: Arc<Mutex<Vec<Vec<u32>>>>,
    limit: usize,
}

impl Script {
    pub fn new<S: Into<String>>(tokenizer: Arc<Tokenizer>, lines: impl IntoIterator<Item = S>) -> Script {
        let lines = Arc::new(Mutex::new(lines.into_iter().map(Into::into).collect()));
        Script { lines, tokenizer, seen: Arc::default(), limit: 1 << 20 }
    }

    pub fn with_limit(self, limit: usize) -> Script {
        Script { limit, ..self }
    }

    pub fn generations(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

impl SessionSource for Script {
    type Sequence = ScriptSession;

    fn open(&self, _options: SessionOptions) -> ScriptSession {
        ScriptSession { script: self.clone(), tokens: Vec::new() }
    }

    fn limit(&self) -> usize {
        self.limit
    }
}

pub struct ScriptSession {
    script: Script,
    tokens: Vec<Token>,
}

impl Generator for ScriptSession {
    type Generation<'a> = ScriptTurn<'a>;

    fn append(&mut self, ids: &[u32], origin: Origin, forced: bool) {
        self.tokens.extend(ids.iter().map(|&id| Token::given(id, origin, forced)));
    }

    async fn generate(&mut self, spec: Generate) -> Result<ScriptTurn<'_>, EngineError> {
        let context: Vec<u32> = self.tokens.iter().map(|token| token.id).collect();
        assert!(context.len() < self.script.limit, "the context is exceeded");
        self.script.seen.lock().unwrap().push(context);
        // A policy without a line left says nothing.
        let line = self.script.lines.lock().unwrap().pop_front().unwrap_or_default();
        let mut ids: VecDeque<u32> = self.script.tokenizer.encode(&line, Specials::Literal).unwrap().into();
        // A line that no stop string ends is closed by the end of the sequence.
        ids.extend(spec.eos.first());
        Ok(ScriptTurn { session: self, ids, matcher: Matcher::default(), spec, made: 0, finish: None })
    }

    fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    fn cached_prompt_tokens(&self) -> usize {
        0
    }
}

pub struct ScriptTurn<'a> {
    session: &'a mut ScriptSession,
    ids: VecDeque<u32>,
    matcher: Matcher,
    spec: Generate,
    made: usize,
    finish: Option<TurnFinish>,
}

impl Steps for ScriptTurn<'_> {
    async fn next(&mut self) -> Option<Result<TokenStep, EngineError>> {
        if self.finish.is_some() {
            return None;
        }
        let id = self.ids.pop_front()?;
        let step = TokenStep { id, logprob: -0.5, top: Vec::new() };
        self.session.tokens.push(Token::sampled(&step));
        self.made += 1;
        let stops: &StopSet = &self.spec.stops;
        if let Some(which) = self.matcher.push(stops, self.session.script.tokenizer.bytes_of(id)) {
            self.finish = Some(TurnFinish::Stop(which));
        } else if self.spec.eos.contains(&id) {
            self.finish = Some(TurnFinish::Eos);
        } else if self.made == self.spec.max_tokens {
            self.finish = Some(TurnFinish::Length);
        } else if self.session.tokens.len() == self.session.script.limit {
            self.finish = Some(TurnFinish::Context);
        }
        Some(Ok(step))
    }

    fn finish(&self) -> Option<TurnFinish> {
        self.finish
    }
}

type Find = dyn Fn(&SearchQuery) -> Result<Vec<Passage>, SearchError> + Send + Sync;

/// Stub search that returns the results of a function and records the queries.
pub struct Stub {
    find: Box<Find>,
    pub asked: Mutex<Vec<SearchQuery>>,
    modes: Vec<Mode>,
    triples: Vec<TripleHit>,
    delay: Duration,
}

impl std::fmt::Debug for Stub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stub")
    }
}

impl Stub {
    pub fn new(find: impl Fn(&SearchQuery) -> Result<Vec<Passage>, SearchError> + Send + Sync + 'static) -> Stub {
        let modes = vec![Mode::Passage, Mode::Graph, Mode::Hybrid];
        Stub { find: Box::new(find), asked: Mutex::default(), modes, triples: Vec::new(), delay: Duration::ZERO }
    }

    /// Creates a search that always returns the same passages.
    pub fn of(passages: Vec<Passage>) -> Stub {
        Stub::new(move |_| Ok(passages.clone()))
    }

    pub fn with_modes(self, modes: Vec<Mode>) -> Stub {
        Stub { modes, ..self }
    }

    /// Adds triples to the results of triple searches.
    pub fn with_triples(self, triples: &[[&str; 3]]) -> Stub {
        let hit = |(triple, rank): (&[&str; 3], usize)| {
            let [subject, relation, object] = triple.map(str::to_owned);
            TripleHit { rank, score: 1.0, subject, relation, object, passages: Vec::new() }
        };
        Stub { triples: triples.iter().zip(1..).map(hit).collect(), modes: vec![Mode::Passage, Mode::Triples], ..self }
    }

    /// Adds triples with these ranks to the results of searches that rank passages and triples together.
    pub fn with_kag(self, triples: &[(usize, [&str; 3])]) -> Stub {
        let plain: Vec<[&str; 3]> = triples.iter().map(|(_, triple)| *triple).collect();
        let mut stub = self.with_triples(&plain).with_modes(vec![Mode::Passage, Mode::Kag]);
        stub.triples.iter_mut().zip(triples).for_each(|(hit, (rank, _))| hit.rank = *rank);
        stub
    }

    pub fn with_delay(self, delay: Duration) -> Stub {
        Stub { delay, ..self }
    }

    pub fn written(&self) -> Vec<String> {
        self.asked.lock().unwrap().iter().map(|query| query.written.clone()).collect()
    }
}

impl Search for Stub {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        Box::pin(async move {
            self.asked.lock().unwrap().push(query.clone());
            tokio::time::sleep(self.delay).await;
            let passages = (self.find)(&query)?;
            let hits = passages.into_iter().take(query.wanted.k).enumerate().map(|(i, passage)| Hit {
                rank: i + 1,
                score: 1.0 / (i + 1) as f32,
                passage,
                metadata: None,
                path: HitPath::default(),
            });
            let evidence = Evidence::of(1, query.wanted.mode, hits.collect());
            let triples = self.triples.iter().filter(|_| matches!(query.wanted.mode, Mode::Triples | Mode::Kag));
            Ok(Evidence { triples: triples.take(query.wanted.triples).cloned().collect(), ..evidence })
        })
    }

    fn modes(&self) -> Vec<Mode> {
        self.modes.clone()
    }
}

/// Formats a document as the reference systems do: title, line break, text.
pub fn passage(document: &str) -> Passage {
    let (title, text) = document.split_once('\n').unwrap_or((document, ""));
    Passage { id: title.to_owned(), title: title.to_owned(), text: text.to_owned() }
}

/// Runs an episode to its end. Returns the trajectory and the events.
pub async fn run<S: SessionSource>(
    runtime: &Runtime<S>,
    policy: &Policy,
    question: &str,
    options: EpisodeOptions,
) -> Result<(Trajectory, Vec<Event>), AgentError> {
    let episode = Episode::new(runtime, policy, Conversation::new(question), options)?;
    // Smaller than an episode, so the loop has to wait for its reader.
    let (sender, mut receiver) = mpsc::channel(4);
    let (trajectory, events) = tokio::join!(episode.run(sender), async {
        let mut events = Vec::new();
        while let Some(event) = receiver.recv().await {
            events.push(event);
        }
        events
    });
    Ok((trajectory?, events))
}

/// Mask of a trajectory: `true` for each token that the policy sampled itself.
pub fn own_mask(trajectory: &Trajectory) -> impl Iterator<Item = bool> {
    trajectory.tokens.iter().map(|token| token.origin == Origin::Policy && !token.forced)
}

/// Concatenates the answer deltas that a client receives.
pub fn streamed_answer(events: &[Event]) -> String {
    let answer = |event: &Event| match event {
        Event::Answer { text, .. } => Some(text.clone()),
        _ => None,
    };
    events.iter().filter_map(answer).collect()
}

/// Builds a byte-level BPE tokenizer with `<|im_end|>` in which every character of `text` is one token; its only merges
/// build these characters and `words`.
pub fn character_tokenizer(text: &str, words: &[&str]) -> Tokenizer {
    // GPT-2's table of bytes as visible characters.
    let spell = |byte: u8| -> char {
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let odd = (0..=255u8).filter(|b| !matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff));
        let place = u32::try_from(odd.take_while(|&b| b < byte).count()).unwrap();
        if printable { char::from(byte) } else { char::from_u32(0x100 + place).unwrap() }
    };
    let mut names: Vec<String> = (0..=255).map(|byte| spell(byte).to_string()).collect();
    let mut merges: Vec<[String; 2]> = Vec::new();
    let characters = text.chars().filter(|c| !c.is_ascii()).map(String::from).collect::<BTreeSet<String>>();
    for whole in characters.into_iter().chain(words.iter().map(|word| (*word).to_owned())) {
        let mut name = String::new();
        for byte in whole.bytes() {
            let next = spell(byte).to_string();
            if !name.is_empty() {
                let merge = [name.clone(), next.clone()];
                if !merges.contains(&merge) {
                    merges.push(merge);
                    names.push(format!("{name}{next}"));
                }
            }
            name += &next;
        }
    }
    let vocab: serde_json::Map<String, serde_json::Value> =
        names.iter().enumerate().map(|(id, name)| (name.clone(), id.into())).collect();
    let byte_level = serde_json::json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false
    });
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "added_tokens": [{
            "id": names.len(), "content": "<|im_end|>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true
        }],
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": merges
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    std::fs::write(&path, json.to_string()).unwrap();
    Tokenizer::from_file(&path).unwrap()
}
