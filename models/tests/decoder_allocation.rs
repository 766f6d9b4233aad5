//! A step does not allocate if an earlier step had the same size.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod counting;
mod fixture;

use counting::counted;
use fixture::{decoder_in, path, table};
use waymark_models::{Arithmetic, ForwardBatch, LogitPositions, Logits};

#[test]
fn warm_steps_do_not_allocate() {
    // A single test, because allocations are counted for the whole process.
    [Arithmetic::F32, Arithmetic::Bf16].into_iter().for_each(|arithmetic| {
        measure("qwen3", Some("qwen3-adapters/full"), arithmetic);
        measure("../experts/qwen2-moe", None, arithmetic);
    });
}

fn measure(name: &str, adapter: Option<&str>, arithmetic: Arithmetic) {
    let mut decoder = decoder_in(&path(name), arithmetic);
    let slot = adapter.map(|adapter| decoder.load_adapter(&path(adapter)).unwrap());
    let mut kv = decoder.kv_cache(128);
    let mut logits = Logits::new();
    let mut batch = ForwardBatch::new();
    let tables: Vec<Vec<u32>> = (0..16).map(|row| table(row * 8, 128)).collect();
    let prompt: Vec<u32> = (0..40).collect();
    let mut counts = Vec::new();
    for round in 0..3 {
        let before = counted().calls;
        for position in (0..120).step_by(40) {
            batch.clear();
            for (row, table) in tables.iter().enumerate() {
                // Decoding rows and prefill chunks, with and without an adapter.
                let tokens = if row % 3 == 0 { &prompt[..] } else { &prompt[..1] };
                batch.push(tokens, position, table, slot.filter(|_| row % 2 == 0), LogitPositions::Last);
            }
            decoder.forward(&batch, &mut kv, &mut logits).unwrap();
        }
        counts.push(counted().calls - before);
        assert!(round == 0 || counts[round] == 0, "allocations per round of {name} in {arithmetic}: {counts:?}");
    }
}
