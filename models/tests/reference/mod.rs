//! Reference implementation of a pack's loss in `f64`, from which gradients are measured. Shares only the learner's
//! values and the decoder's rotation table with the tested code.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;

use waymark_models::architecture::{Activation, LayerRotary, NormPlacement};
use waymark_models::decoder::{DecoderConfig, RopeScaling};
use waymark_models::gradient::{Learner, Pack, PackTarget, Score, Slope};
use waymark_models::kernel::rope::Rope;
use waymark_models::weights::Weights;

/// A decoder in `f64`.
pub struct Reference {
    config: DecoderConfig,
    tensors: BTreeMap<String, Vec<f64>>,
    scale: f64,
    rope: Rope,
    /// Rotation of layers with sliding windows, in families that have one of their own.
    local: Option<Rope>,
}

impl Reference {
    /// The checkpoint with a learner's values in it; `scale` multiplies the adapter's update.
    pub fn new(weights: &Weights, learner: &Learner, scale: f64) -> Self {
        let config = weights.config().clone();
        let mut names = vec!["model.embed_tokens.weight".to_owned(), "model.norm.weight".to_owned()];
        if !config.tied_embeddings {
            names.push("lm_head.weight".to_owned());
        }
        for layer in 0..config.layers {
            let parts =
                ["q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"].map(|part| format!("self_attn.{part}"));
            let parts = parts.into_iter().chain(["gate", "up", "down"].map(|part| format!("mlp.{part}_proj")));
            let norms = ["input", "post_attention", "pre_feedforward", "post_feedforward"];
            let norms = norms.map(|part| format!("{part}_layernorm"));
            for part in parts.chain(norms) {
                names.extend(["weight", "bias"].map(|kind| format!("model.layers.{layer}.{part}.{kind}")));
            }
        }
        names.retain(|name| weights.has(name));
        let wide = |values: &[f32]| values.iter().map(|&value| f64::from(value)).collect::<Vec<_>>();
        let mut tensors: BTreeMap<_, _> = names
            .into_iter()
            .map(|name| (name.clone(), wide(&weights.tensor(&name).unwrap().to_f32().unwrap())))
            .collect();
        for parameter in learner.parameters() {
            tensors.insert(parameter.name.clone(), wide(&learner.values()[parameter.range.clone()]));
        }
        let mut rope = Rope::new(config.rotary_dim(), config.rope_base, &config.rope_scaling);
        rope.reserve(config.context);
        let mut local =
            config.architecture.local_rope_base.map(|base| Rope::new(config.rotary_dim(), base, &RopeScaling::None));
        local.iter_mut().for_each(|rope| rope.reserve(config.context));
        Self { config, tensors, scale, rope, local }
    }

    /// One value of a tensor.
    pub fn value(&mut self, name: &str, at: usize) -> &mut f64 {
        &mut self.tensors.get_mut(name).unwrap()[at]
    }

    /// `Σ slope.logprob · logprob + slope.entropy · entropy` over the targets.
    pub fn loss(&self, pack: &Pack, slopes: &[Slope]) -> f64 {
        let scores = self.scores(pack);
        let terms = scores
            .iter()
            .zip(slopes)
            .map(|((logprob, entropy), slope)| f64::from(slope.logprob) * logprob + f64::from(slope.entropy) * entropy);
        terms.sum()
    }

    /// Log-probability and entropy of every target.
    pub fn scores(&self, pack: &Pack) -> Vec<(f64, f64)> {
        let score = |(row, target): (Vec<f64>, &PackTarget)| {
            (row[target.token as usize], -row.iter().map(|l| l.exp() * l).sum::<f64>())
        };
        self.rows(pack).into_iter().zip(pack.targets()).map(score).collect()
    }

    /// Logarithms of the distribution at every target.
    pub fn rows(&self, pack: &Pack) -> Vec<Vec<f64>> {
        let head = if self.config.tied_embeddings { "model.embed_tokens" } else { "lm_head" };
        let row = |state: Vec<f64>| -> Vec<f64> {
            let architecture = &self.config.architecture;
            let factor = f64::from(architecture.logit_scale);
            let cap = architecture.logit_cap.map(f64::from);
            let logits: Vec<f64> =
                self.linear(head, &state).into_iter().map(|logit| limited(logit * factor, cap)).collect();
            let total = logits.iter().map(|l| l.exp()).sum::<f64>().ln();
            logits.iter().map(|l| l - total).collect()
        };
        self.states(pack).into_iter().map(row).collect()
    }

    /// Hidden state from which each target is predicted.
    pub fn states(&self, pack: &Pack) -> Vec<Vec<f64>> {
        let mut rows = vec![Vec::new(); pack.targets().len()];
        for segment in pack.segments() {
            let mut path = pack.tokens()[segment.tokens.clone()].to_vec();
            let mut parent = segment.parent;
            while let Some(index) = parent {
                path.splice(0..0, pack.tokens()[pack.segments()[index].tokens.clone()].iter().copied());
                parent = pack.segments()[index].parent;
            }
            let mut wanted =
                pack.targets().iter().enumerate().filter(|(_, target)| segment.tokens.contains(&target.at)).peekable();
            if wanted.peek().is_none() {
                continue;
            }
            let states = self.normed(&path);
            for (index, target) in wanted {
                rows[index].clone_from(&states[segment.start + target.at - segment.tokens.start]);
            }
        }
        rows
    }

    /// Residual stream after the last layer and the final norm.
    fn normed(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let config = &self.config;
        let embedding = &self.tensors["model.embed_tokens.weight"];
        let mut stream: Vec<Vec<f64>> =
            tokens.iter().map(|&token| embedding[token as usize * config.hidden..][..config.hidden].to_vec()).collect();
        let factor = f64::from(config.architecture.embedding_scale);
        stream.iter_mut().flatten().for_each(|x| *x *= factor);
        for layer in 0..config.layers {
            self.layer(layer, &mut stream);
        }
        stream.iter().map(|x| self.norm("model.norm", x)).collect()
    }

    fn layer(&self, layer: usize, stream: &mut [Vec<f64>]) {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let dim = self.config.head_dim;
        let architecture = &self.config.architecture;
        let rule = self.config.score_rule(layer);
        let [attention_in, attention_out, ffn_in, ffn_out] = match architecture.norms {
            NormPlacement::Before => ["input", "", "post_attention", ""],
            NormPlacement::After => ["", "post_attention", "", "post_feedforward"],
            NormPlacement::Around => ["input", "post_attention", "pre_feedforward", "post_feedforward"],
        };
        let norm = |part: &str, x: &[f64]| match part {
            "" => x.to_vec(),
            part => self.norm(&name(&format!("{part}_layernorm")), x),
        };
        let residual = f64::from(architecture.residual_scale);
        let add_scaled = |x: &mut [f64], y: &[f64]| x.iter_mut().zip(y).for_each(|(x, y)| *x += residual * y);
        let mut keys = Vec::new();
        let mut values = Vec::new();
        for (position, x) in stream.iter_mut().enumerate() {
            let normed = norm(attention_in, x);
            let q = self.heads(layer, "q", &normed, position);
            keys.push(self.heads(layer, "k", &normed, position));
            let first = rule.window.map_or(0, |window| (position + 1).saturating_sub(window));
            values.push(self.linear(&name("self_attn.v_proj"), &normed));
            let mut attended = Vec::new();
            for (head, q) in q.chunks_exact(dim).enumerate() {
                let at = head / self.config.group() * dim;
                let score = |k: &Vec<f64>| dot(q, &k[at..at + dim]) * f64::from(rule.scale);
                let scores = keys[first..].iter().map(|k| limited(score(k), rule.cap.map(f64::from)));
                let weights: Vec<f64> = scores.map(f64::exp).collect();
                let total: f64 = weights.iter().sum();
                let value =
                    |d: usize| weights.iter().zip(&values[first..]).map(|(w, v)| w * v[at + d]).sum::<f64>() / total;
                attended.extend((0..dim).map(value));
            }
            add_scaled(x, &norm(attention_out, &self.linear(&name("self_attn.o_proj"), &attended)));
            let normed = norm(ffn_in, x);
            let gate = self.linear(&name("mlp.gate_proj"), &normed);
            let up = self.linear(&name("mlp.up_proj"), &normed);
            let activated = |x: f64| match architecture.activation {
                Activation::Silu => x / (1.0 + (-x).exp()),
                Activation::GeluTanh => {
                    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
                    0.5 * x * (1.0 + u.tanh())
                }
            };
            let inner: Vec<f64> = gate.iter().zip(up).map(|(&gate, up)| activated(gate) * up).collect();
            add_scaled(x, &norm(ffn_out, &self.linear(&name("mlp.down_proj"), &inner)));
        }
    }

    /// Queries or keys: projected, normalized where the model does so, and rotated.
    fn heads(&self, layer: usize, side: &str, x: &[f64], position: usize) -> Vec<f64> {
        let name = format!("model.layers.{layer}.self_attn.{side}");
        let mut all = self.linear(&format!("{name}_proj"), x);
        let norm = format!("{name}_norm");
        if let Some(width) = self.tensors.get(&format!("{norm}.weight")).map(Vec::len) {
            for part in all.chunks_exact_mut(width) {
                let normed = self.norm(&norm, part);
                part.copy_from_slice(&normed);
            }
        }
        let rope = match self.config.architecture.layer(layer).rotary {
            LayerRotary::Global => &self.rope,
            LayerRotary::Local => self.local.as_ref().unwrap(),
            LayerRotary::None => return all,
        };
        let half = self.config.rotary_dim() / 2;
        // Reads cosines and sines of the table by rotating (1, …, 1, 0, …, 0).
        let mut turned: Vec<f32> = (0..2 * half).map(|d| f32::from(d < half)).collect();
        rope.rotate(&mut turned, position);
        for head in all.chunks_exact_mut(self.config.head_dim) {
            let (left, right) = head[..2 * half].split_at_mut(half);
            for (d, (left, right)) in left.iter_mut().zip(right).enumerate() {
                let cos = f64::from(turned[d]);
                let sin = f64::from(turned[d + half]);
                (*left, *right) = (*left * cos - *right * sin, *right * cos + *left * sin);
            }
        }
        all
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let factor = 1.0 / (dot(x, x) / x.len() as f64 + f64::from(self.config.rms_eps)).sqrt();
        x.iter().zip(&self.tensors[&format!("{name}.weight")]).map(|(x, weight)| x * factor * weight).collect()
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mut y = product(&self.tensors[&format!("{name}.weight")], x);
        if let Some(bias) = self.tensors.get(&format!("{name}.bias")) {
            add(&mut y, bias);
        }
        let side = |side: &str| self.tensors.get(&format!("base_model.model.{name}.lora_{side}.weight"));
        if let (Some(a), Some(b)) = (side("A"), side("B")) {
            let small: Vec<f64> = product(a, x).iter().map(|h| h * self.scale).collect();
            add(&mut y, &product(b, &small));
        }
        y
    }
}

/// Slopes that give every target a different weight.
pub fn slopes(pack: &Pack) -> Vec<Slope> {
    let slope = |i: usize| Slope { logprob: -0.5 - 0.1 * (i % 7) as f32, entropy: 0.3 - 0.2 * (i % 4) as f32 };
    (0..pack.targets().len()).map(slope).collect()
}

/// Objective with fixed slopes that records the scores.
pub fn fixed<'a>(slopes: &'a [Slope], scores: &'a mut Vec<Score>) -> impl FnMut(usize, Score) -> Slope + 'a {
    move |target, score| {
        assert_eq!(target, scores.len(), "asked in order");
        scores.push(score);
        slopes[target]
    }
}

/// `cap · tanh(x / cap)`, or `x` without a limit.
fn limited(x: f64, cap: Option<f64>) -> f64 {
    cap.map_or(x, |cap| cap * (x / cap).tanh())
}

fn product(matrix: &[f64], x: &[f64]) -> Vec<f64> {
    matrix.chunks_exact(x.len()).map(|row| dot(row, x)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(y: &mut [f64], x: &[f64]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
}
