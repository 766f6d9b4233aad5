//! Memory of training beneath experts: the allocator's count against the announcement.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod counting;
mod expert_file;

use std::path::Path;
use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value;
use counting::{counted, forget_peak};
use expert_file::ExpertFile;
use waymark_models::gradient::{Learner, Lora, Module, Pack, Score, Slope, Tune};
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;

/// Sixteen sequences of 32 tokens.
const TOKENS: usize = 512;
const LAYERS: usize = 3;

fn pack() -> Pack {
    let mut pack = Pack::new();
    for sequence in 0..16 {
        let tokens: Vec<u32> =
            (0..32).map(|at| (at * at + 7 * at + 5 * sequence) % expert_file::VOCAB as u32).collect();
        let segment = pack.push(&tokens, None);
        (1..tokens.len()).for_each(|at| pack.target(segment, at));
    }
    assert_eq!(pack.tokens().len(), TOKENS);
    pack
}

/// Memory of one pass beyond the loaded weights, in bytes: allocated at most at any time, and announced.
fn measured(path: &Path, team: &Arc<Team>, pack: &Pack, limited: bool) -> [usize; 2] {
    let weights = Weights::open(path).unwrap();
    let targets = vec![Module::QProj, Module::KProj, Module::VProj, Module::OProj];
    let tune = Tune::Lora(Lora { rank: 2, alpha: 4.0, targets, seed: 5 });
    let mut learner = Learner::load(&weights, Arc::clone(team), &tune).unwrap();
    let loaded = learner.bytes_of(&Pack::new());
    if limited {
        learner.set_limit(Some(0));
        let least = learner.bytes_of(pack);
        learner.set_limit(Some(least));
    }
    let before = counted().live;
    forget_peak();
    learner.learn(pack, &mut |_: usize, _: Score| Slope { logprob: -1.0, entropy: 0.0 }).unwrap();
    [counted().peak - before, learner.bytes_of(pack) - loaded]
}

#[test]
fn passes_allocate_what_is_announced() {
    // A single test, because allocations are counted for the whole process.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let team = Arc::new(Team::new(2));
    let pack = pack();
    // Each token chooses 8 of 64 experts.
    let chosen = [("qwen3moe.expert_used_count", Value::U32(8))];
    let mut allocated = Vec::new();
    for width in [32, 96] {
        ExpertFile { count: 64, layers: LAYERS, width, ..ExpertFile::new(GgmlDType::F32) }.write(&path, &chosen);
        // The first pass allocates the buffers of the team, which are not announced.
        measured(&path, &team, &pack, false);
        for limited in [false, true] {
            let [found, announced] = measured(&path, &team, &pack, limited);
            println!("experts of {width}, limited {limited}: {found} bytes allocated, {announced} announced");
            // Not announced are positions, their rotations and the plan of attention. The choices of experts take more:
            // per token, 4 bytes for each of 64 experts and 36 for each of 8.
            let choices = TOKENS * (4 * 64 + 36 * 8);
            let slack = choices / 5;
            assert!(
                found >= announced && found <= announced + slack,
                "{width}, {limited}: {found} of {announced} bytes"
            );
            allocated.push(found);
        }
    }
    // Experts are computed again in the backward pass, so their width adds to the working memory alone: gate, up,
    // and the activated gate with its gradient. No layer keeps any of them.
    let wider = 4 * TOKENS * (96 - 32) * size_of::<f32>();
    for place in [0, 1] {
        let more = allocated[place + 2] - allocated[place];
        assert!(more.abs_diff(wider) < wider / 10, "{more} bytes more, not {wider}");
    }
}
