//! Recipe and inputs of a GRPO run over the smallest base model that raises the policy's entropy. Trains an adapter
//! or all weights.
#![allow(unreachable_pub)]

use super::word_run;

/// Recipe in which no answer is ever correct, so that only the entropy bonus has an effect.
pub const RECIPE: &str = r#"
name = "tiny"
base = "BASE"
seed = 3
[policy]
protocol = "plain"
[policy.budget]
turn_tokens = 6
sampled_tokens = 6
[grpo]
learning_rate = 3e-2
schedule = "constant"
warmup = 0.0
questions = 2
group = 2
mini_batch = 4
micro_batch = 4
pack_tokens = 400
sampling = { temperature = 1.0 }
concurrent = 2
validation = 1
validate_every = 0
save_every = 1
keep_last = 2
[grpo.loss]
kl = 0.0
entropy = 1.0
[[grpo.stages]]
steps = 4
reward = "exact_match"
"#;
/// Adapter section to append to [`RECIPE`].
pub const ADAPTER: &str = r#"
[adapter]
rank = 4
alpha = 8.0
targets = ["q_proj", "v_proj", "down_proj"]
seed = 1
"#;

/// Creates a directory with a base model, a recipe, questions and an index.
pub fn ready(recipe: &str) -> tempfile::TempDir {
    let question = |at| format!("{{\"id\": \"{at}\", \"question\": \"w1 w{at} w2\", \"answers\": [\"no word\"]}}\n");
    word_run::ready(recipe, (3..13).map(question))
}
