//! What a run takes of the card it learns on, and whether the card has it.

use std::io::{self, Write};

use anyhow::Context;
use waymark::agent::Policy;
use waymark::config::ModelConfig;
use waymark_models::cuda::learner::{self, Need, Passes, Rollouts, Serving};
use waymark_models::cuda::plan::gib;
use waymark_models::decoder::DecoderConfig;
use waymark_models::gradient::Tune;

/// Multiprocessors of a card that is not asked: an H200's. More of them take some MiB more in the engine.
const PROCESSORS: u32 = 132;

/// What a run is to learn, as far as memory goes.
#[derive(Debug, Clone)]
pub(super) struct Work {
    /// The recipe's section.
    pub(super) section: &'static str,
    /// Tokens of a pass.
    pub(super) pack_tokens: usize,
    /// Tokens of the longest sequence, where the model's context is not shorter.
    pub(super) longest: usize,
    /// What makes the rollouts, where that is the same card.
    pub(super) guest: Option<Guest>,
}

/// An engine on the card that learns.
#[derive(Debug, Clone)]
pub(super) struct Guest {
    pub(super) model: ModelConfig,
    /// Bytes of its KV, where they were given.
    pub(super) kv: Option<usize>,
}

/// What a card says of itself.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) name: String,
    /// Bytes of its memory that are free.
    pub(super) free: usize,
    /// Its multiprocessors.
    pub(super) processors: u32,
}

/// What a run takes of a card, which is there.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    pub(super) need: Need,
    /// Bytes that may be taken.
    usable: usize,
    /// What the card calls itself, if one was asked.
    card: Option<String>,
}

impl Planned {
    /// What `work` takes of a card, or, where none is asked, of the `limit` that was given.
    ///
    /// # Errors
    /// What is missing, and what would fit.
    pub(super) fn new(
        config: &DecoderConfig,
        tune: &Tune,
        work: &Work,
        seen: Option<Seen>,
        limit: Option<usize>,
    ) -> anyhow::Result<Self> {
        let longest = work.longest.min(config.context);
        let rollouts = work.guest.as_ref().map(|guest| Rollouts {
            limits: guest.model.steps(config.context),
            processors: seen.as_ref().map_or(PROCESSORS, |seen| seen.processors),
            longest,
            kv: guest.kv,
        });
        let there = seen.as_ref().map(|seen| learner::usable(seen.free, rollouts.is_some()));
        let usable = there.into_iter().chain(limit).min().unwrap_or(usize::MAX);
        let passes = Passes { tokens: work.pack_tokens, longest };
        let need =
            Need::plan(config, tune, passes, rollouts.as_ref(), usable).with_context(|| work.settings(longest))?;
        Ok(Self { need, usable, card: seen.map(|seen| seen.name) })
    }

    /// Whether no card was asked.
    pub(super) fn is_unasked(&self) -> bool {
        self.card.is_none()
    }

    /// Whether an engine on the same card is part of it.
    pub(super) fn has_engine(&self) -> bool {
        self.need.engine.is_some()
    }

    /// Says it part by part.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { need, usable, card } = self;
        let of = card.as_deref().unwrap_or("--memory");
        writeln!(
            out,
            "memory     {} of the card's, of which {} may be taken ({of}):",
            gib(need.bytes()),
            gib(*usable)
        )?;
        writeln!(out, "           {} for the frozen weights", gib(need.weights))?;
        writeln!(out, "           {} for the adapter and its gradients", gib(need.adapter))?;
        writeln!(out, "           {} for passes of {} tokens, none of them shared", gib(need.pass), need.tokens)?;
        writeln!(out, "           {} for cuBLAS", gib(need.products))?;
        if let Some(engine) = &need.engine {
            let Serving { plan, adapters } = engine;
            writeln!(out, "           {} for the weights of the engine that rolls out", gib(plan.weights))?;
            writeln!(out, "           {} for what a step of it works in", gib(plan.workspace))?;
            writeln!(out, "           {} for the adapters it has at a time", gib(*adapters))?;
            let tokens = engine.kv() / plan.kv_bytes_per_token();
            writeln!(out, "           {} for the KV of {tokens} tokens", gib(engine.kv()))?;
        }
        let host = 4 * size_of::<f32>() * need.values;
        writeln!(out, "           and {} of this machine's for values, gradients and both moments", gib(host))
    }
}

impl Work {
    /// What it was asked by, for errors.
    fn settings(&self, longest: usize) -> String {
        let Self { section, pack_tokens, guest, .. } = self;
        let beside = guest.as_ref().map_or_else(String::new, |guest| {
            format!(", {section}.concurrent = {} and --kv-bytes on the same card", guest.model.max_batch)
        });
        format!("{section}.pack_tokens = {pack_tokens}, sequences of up to {longest} tokens{beside}")
    }
}

/// Tokens of the longest trajectory of a policy, as far as its budget says.
pub(super) fn longest(policy: &Policy) -> usize {
    let context = policy.budget.context_tokens;
    // Where turns see the end of the sequence only, it is the prompt, which is cut to the context, and as much again.
    if policy.variant.cuts() { context.saturating_mul(2) } else { context }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;
    use waymark::agent::Variant;
    use waymark::config::{Device, DeviceConfig};
    use waymark_models::decoder::RopeScaling;
    use waymark_models::gradient::{Lora, Module};

    use super::super::machine::Machine;
    use super::super::rolling::Rolling;
    use super::*;
    use crate::tiny;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        rolling: Rolling,
        #[command(flatten)]
        machine: Machine,
    }

    /// The shape of Qwen2.5-3B.
    fn config() -> DecoderConfig {
        DecoderConfig {
            vocab: 151_936,
            hidden: 2048,
            layers: 36,
            heads: 16,
            kv_heads: 2,
            head_dim: 128,
            ffn: 11_008,
            context: 32_768,
            rope_base: 1e6,
            rope_scaling: RopeScaling::None,
            rms_eps: 1e-6,
            tied_embeddings: true,
            qkv_bias: true,
            qk_norm: false,
        }
    }

    fn tune() -> Tune {
        Tune::Lora(Lora { rank: 32, alpha: 64.0, targets: vec![Module::QProj, Module::VProj], seed: 1 })
    }

    /// 32 rollouts at a time, with the flags that are given.
    fn work(flags: &[&str]) -> Work {
        let temp = tempfile::tempdir().unwrap();
        let flags = Flags::parse_from([&["train", "--device", "cuda"][..], flags].concat());
        let device = DeviceConfig::of(Device::Cuda(0));
        let guest = flags.rolling.guest(&tiny::recipe(temp.path()), 32, device, &flags.machine);
        Work { section: "grpo", pack_tokens: 16_384, longest: 4096, guest }
    }

    const GIB: usize = 1 << 30;

    #[test]
    fn a_plan_names_every_part() {
        let planned = Planned::new(&config(), &tune(), &work(&[]), None, Some(80 * GIB)).unwrap();
        assert!(planned.is_unasked() && planned.has_engine());
        let mut text = Vec::new();
        planned.write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for part in [
            "of which 80.00 GiB may be taken (--memory)",
            "for the frozen weights",
            "for the adapter and its gradients",
            "for passes of 16384 tokens",
            "for the weights of the engine that rolls out",
            "for the KV of 131072 tokens",
            "for values, gradients and both moments",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        let given = Planned::new(&config(), &tune(), &work(&["--kv-bytes", "1GiB"]), None, Some(80 * GIB)).unwrap();
        assert!(given.need.engine.is_some_and(|engine| engine.kv() <= GIB));
    }

    #[test]
    fn a_card_keeps_something_aside_and_a_limit_is_kept_on_one() {
        let alone = Work { guest: None, ..work(&[]) };
        let seen = |free| Some(Seen { name: "a card".into(), free, processors: 132 });
        let plan = |seen, limit| Planned::new(&config(), &tune(), &alone, seen, limit);
        let bytes = plan(None, None).unwrap().need.bytes();
        assert!(plan(seen(bytes + GIB), None).is_ok() && plan(seen(bytes + GIB - 1), None).is_err());
        assert!(plan(seen(bytes + GIB), Some(bytes)).is_ok() && plan(seen(bytes + GIB), Some(bytes - 1)).is_err());
    }

    #[test]
    fn what_does_not_fit_is_said_with_what_asks_for_it_and_what_would() {
        let error = format!("{:#}", Planned::new(&config(), &tune(), &work(&[]), None, Some(20 * GIB)).unwrap_err());
        for part in [
            "grpo.pack_tokens = 16384, sequences of up to 4096 tokens, grpo.concurrent = 32 and --kv-bytes",
            "frozen weights 5.",
            "of which 20.00 GiB may be taken",
            "would fit",
        ] {
            assert!(error.contains(part), "{part} is missing in {error}");
        }
    }

    #[test]
    fn a_trajectory_is_as_long_as_its_budget_allows() {
        let temp = tempfile::tempdir().unwrap();
        let mut policy = tiny::recipe(temp.path()).policy().unwrap();
        assert_eq!(longest(&policy), policy.budget.context_tokens);
        policy.variant = Variant::Training;
        assert_eq!(longest(&policy), 2 * policy.budget.context_tokens);
    }
}
