//! Small random Llama model for tests, so that a whole training run takes seconds.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::tensor::{Dtype, TensorView};
use waymark_agent::{
    Action, ActionOutcome, AllowedActions, Budget, Conversation, Format, Guide, Injected, Policy, PolicySearch,
    Protocol, ProtocolPrompt, ReadingRule, Runtime, Search, SearchError, SearchQuery, SegmentKind, Tags,
};
use waymark_engine::{CpuBackend, Engine, EngineConfig, KvBudget};
use waymark_index::{Evidence, Hit, HitPath, Mode, Passage};
use waymark_models::decoder::Decoder;
use waymark_models::gradient::{Learner, Lora, Module, Tune};
use waymark_models::kernel::Team;
use waymark_models::tokenizer::Tokenizer;
use waymark_models::weights::Weights;
use waymark_runtime::evaluate::Question;

use crate::recipe::Recipe;
use crate::reward::Reward;
use crate::rollout::QuestionSet;
use crate::sample::{RewardValue, Sample};

const HIDDEN: usize = 64;
const FFN: usize = 96;
const LAYERS: usize = 2;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = 16;

/// Writes the model with a vocabulary of `vocab` as a Hugging Face directory and opens it.
pub(crate) fn weights(dir: &Path, vocab: usize) -> Weights {
    let config = serde_json::json!({
        "model_type": "llama", "vocab_size": vocab, "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "tie_word_embeddings": true,
        "hidden_act": "silu"
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut tensors = Vec::new();
    let mut add = |name: String, shape: &[usize], spread: f32| {
        let values = (0..shape.iter().product()).map(|_| match shape.len() {
            // Norm weights are 1; projections are random.
            1 => 1.0f32,
            _ => rng.random_range(-spread..spread),
        });
        tensors.push((name, shape.to_vec(), values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>()));
    };
    add("model.embed_tokens.weight".into(), &[vocab, HIDDEN], 0.5);
    add("model.norm.weight".into(), &[HIDDEN], 0.0);
    for layer in 0..LAYERS {
        let name = |name: &str| format!("model.layers.{layer}.{name}.weight");
        add(name("input_layernorm"), &[HIDDEN], 0.0);
        add(name("post_attention_layernorm"), &[HIDDEN], 0.0);
        add(name("self_attn.q_proj"), &[HEADS * HEAD, HIDDEN], 0.2);
        add(name("self_attn.k_proj"), &[KV_HEADS * HEAD, HIDDEN], 0.2);
        add(name("self_attn.v_proj"), &[KV_HEADS * HEAD, HIDDEN], 0.2);
        add(name("self_attn.o_proj"), &[HIDDEN, HEADS * HEAD], 0.2);
        add(name("mlp.gate_proj"), &[FFN, HIDDEN], 0.2);
        add(name("mlp.up_proj"), &[FFN, HIDDEN], 0.2);
        add(name("mlp.down_proj"), &[HIDDEN, FFN], 0.2);
    }
    let views =
        tensors.iter().map(|(name, shape, data)| (name, TensorView::new(Dtype::F32, shape.clone(), data).unwrap()));
    std::fs::write(dir.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    Weights::open(dir).unwrap()
}

/// Adapter on every projection.
pub(crate) fn lora() -> Lora {
    use Module::{DownProj, GateProj, KProj, OProj, QProj, UpProj, VProj};
    let targets = vec![QProj, KProj, VProj, OProj, GateProj, UpProj, DownProj];
    Lora { rank: 8, alpha: 16.0, targets, seed: 5 }
}

/// Learner of an adapter over the model.
pub(crate) fn learner(weights: &Weights) -> Learner {
    Learner::load(weights, Arc::new(Team::new(2)), &Tune::Lora(lora())).unwrap()
}

/// Learner of all weights of the model.
pub(crate) fn whole(weights: &Weights) -> Learner {
    Learner::load(weights, Arc::new(Team::new(2)), &Tune::Full).unwrap()
}

/// Engine for rollouts of the model, with one token per byte.
pub(crate) fn engine(weights: &Weights) -> Runtime {
    let tokenizer = Arc::new(Tokenizer::bytes());
    let decoder = Decoder::load(weights, Arc::new(Team::new(2))).unwrap();
    let backend = CpuBackend::new(decoder, "tiny", weights.generation(), KvBudget::Blocks(512)).unwrap();
    let engine = Engine::start(Box::new(backend), EngineConfig::default(), tokenizer.table()).unwrap();
    Runtime::new(engine, tokenizer, None, vec![257], None)
}

/// Bandit reward with one arm per token: the share of even tokens.
#[derive(Debug)]
pub(crate) struct Even;

impl Reward for Even {
    fn score(&self, samples: &[Sample]) -> Vec<RewardValue> {
        let share = |sample: &Sample| {
            let own = &sample.tokens[sample.prompt_tokens..];
            own.iter().filter(|&&token| token % 2 == 0).count() as f64 / own.len().max(1) as f64
        };
        samples.iter().map(|sample| RewardValue { total: share(sample), ..RewardValue::default() }).collect()
    }
}

/// Recipe for the model whose base model directory is `dir`.
pub(crate) fn recipe(dir: &Path) -> Recipe {
    let base = dir.display();
    let text = format!(
        r#"
        name = "tiny"
        base = "{base}"
        seed = 7
        [policy]
        protocol = "routerag"
        [adapter]
        rank = 8
        alpha = 16.0
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        seed = 5
        "#
    );
    Recipe::parse(&text, Path::new("tiny.toml"), &[]).unwrap()
}

/// Question set and policy of the bandit.
pub(crate) fn bandit(runtime: &Runtime) -> (QuestionSet, Policy) {
    let question = |text: &str| Question { id: text.into(), question: text.into(), ..Question::default() };
    let field = QuestionSet {
        name: "bandit".into(),
        runtime: runtime.clone(),
        index: None,
        questions: ["which arm?", "which arm now?", "and now, which arm?", "this one?", "that one?"]
            .map(question)
            .to_vec(),
        validation: vec![question("what is measured?")],
    };
    let text = "name = \"bandit\"\nprotocol = \"plain\"\n[budget]\nturn_tokens = 8\nsampled_tokens = 8\n";
    (field, Policy::parse(text, Path::new("policy.toml")).unwrap())
}

/// Search that finds the same passage of eight words for every query.
#[derive(Debug)]
pub(crate) struct OnePassage;

impl Search for OnePassage {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        let text = "Paris lies in France, as does Lyon.".to_owned();
        let passage = Passage { id: "1".to_owned(), title: "Paris".to_owned(), text };
        let hit = Hit { rank: 1, score: 1.0, passage, metadata: None, path: HitPath::default() };
        Box::pin(async move { Ok(Evidence::of(1, query.wanted.mode, vec![hit])) })
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage, Mode::Graph, Mode::Hybrid]
    }
}

/// Another protocol, except that every turn is the same search, whatever the model writes.
#[derive(Debug)]
struct AlwaysSearching(Arc<dyn Protocol>);

impl Protocol for AlwaysSearching {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn prompt(&self, conversation: &Conversation, guided: bool) -> ProtocolPrompt {
        self.0.prompt(conversation, guided)
    }

    fn tags(&self) -> &'static Tags {
        self.0.tags()
    }

    fn stops(&self) -> &'static [&'static str] {
        self.0.stops()
    }

    fn parse(&self, _: &str, _: ReadingRule) -> Action {
        Action::Search(PolicySearch::plain("where?"))
    }

    fn observation(&self, outcome: &ActionOutcome<'_>, format: Format) -> Vec<Injected> {
        self.0.observation(outcome, format)
    }

    fn budget(&self) -> Budget {
        self.0.budget()
    }

    fn force_answer(&self, writing: SegmentKind) -> Option<String> {
        self.0.force_answer(writing)
    }

    fn guide(&self, offer: &AllowedActions) -> Option<Guide> {
        self.0.guide(offer)
    }
}

/// Policy that searches for passages once, and is then asked for an answer.
pub(crate) fn searching() -> Policy {
    let text = "name = \"searching\"\nprotocol = \"routerag\"\n[budget]\nturns = 1\nturn_tokens = 8\n";
    let policy = Policy::parse(text, Path::new("policy.toml")).unwrap();
    let protocol: Arc<dyn Protocol> = Arc::new(AlwaysSearching(Arc::clone(&policy.protocol)));
    Policy { protocol, ..policy }
}

/// Moves an adapter away from its initial values, half of which are zero.
pub(crate) fn nudge(learner: &mut Learner) {
    learner.change(|values, _| {
        values.iter_mut().enumerate().for_each(|(at, value)| *value += ((at * 7) % 13) as f32 * 0.01 - 0.06);
    });
}

/// Five sequences with a common prefix, and the training targets of each.
pub(crate) fn forest(vocab: usize) -> (Vec<Vec<u32>>, Vec<Vec<bool>>) {
    let tokens: Vec<Vec<u32>> = (0..5u32)
        .map(|own| (0..24 + 3 * own).map(|at| (at * (1 + at / 18 * own) + 5) % vocab as u32).collect())
        .collect();
    let learned = tokens.iter().map(|own| (0..own.len()).map(|at| at >= 18 && at % 4 != 3).collect()).collect();
    (tokens, learned)
}

/// Checks `gradient` at the learner's values against finite differences of `loss`: along the gradient and in
/// unrelated directions.
pub(crate) fn check_slopes(learner: &mut Learner, gradient: &[f32], loss: impl Fn(&mut Learner) -> f64) {
    const STEP: f32 = 5e-3;
    let before = learner.values().to_vec();
    let norm = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
    let along: Vec<f32> = gradient.iter().map(|&g| (f64::from(g) / norm) as f32).collect();
    let across = |kind: usize| -> Vec<f32> {
        let sign = |at: usize| if (at * (2 * kind + 3) / 7).is_multiple_of(2) { 1.0 } else { -1.0 };
        (0..before.len()).map(|at| sign(at) / (before.len() as f32).sqrt()).collect()
    };
    for direction in [along, across(1), across(2)] {
        let slope: f64 = gradient.iter().zip(&direction).map(|(&g, &d)| f64::from(g) * f64::from(d)).sum();
        // Central differences, whose error is quadratic in the step size.
        let mut at = |step: f32| {
            let values: Vec<f32> = before.iter().zip(&direction).map(|(value, d)| value + step * d).collect();
            learner.set_values(&values).unwrap();
            loss(learner)
        };
        let measured = (at(STEP) - at(-STEP)) / f64::from(2.0 * STEP);
        assert!((measured - slope).abs() < 0.01 * norm, "{measured} measured, {slope} computed, norm {norm}");
    }
}
