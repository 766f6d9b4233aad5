//! Logits of a sequence do not depend on its chunks, its batch or its blocks.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;

use fixture::{decoder, decoder_in, path, step, table, whole, whole_in};
use proptest::prelude::*;
use waymark_models::decoder::{Decoder, KvCache, KvKind};
use waymark_models::{AdapterSlot, Arithmetic, BLOCK, ForwardBatch, LogitPositions, Logits, ModelError};

/// Number of blocks in the pool of these tests.
const BLOCKS: usize = 64;

const KINDS: [KvKind; 3] = [KvKind::F32, KvKind::F16, KvKind::Int8];

/// A sequence on its way through a series of steps.
#[derive(Debug, Clone)]
struct Sequence {
    tokens: Vec<u32>,
    /// Sizes of its chunks; the remainder after the last chunk is processed token by token.
    chunks: Vec<usize>,
    /// Positions of each chunk that get logits; the last one if there is no entry.
    wants: Vec<LogitPositions>,
    /// Step in which the sequence enters.
    enters: usize,
    adapted: bool,
}

fn sequences() -> impl Strategy<Value = Vec<Sequence>> {
    let want = prop::sample::select(vec![LogitPositions::Nothing, LogitPositions::Last, LogitPositions::All]);
    let chunk = (1usize..50, want);
    let sequence =
        (prop::collection::vec(0u32..256, 1..100), prop::collection::vec(chunk, 0..5), 0usize..6, any::<bool>())
            .prop_map(|(tokens, chunks, enters, adapted)| {
                let (chunks, wants) = chunks.into_iter().unzip();
                Sequence { tokens, chunks, wants, enters, adapted }
            });
    prop::collection::vec(sequence, 1..7)
}

/// Logits of a sequence, each with its position.
type PlacedLogits = Vec<(usize, Vec<f32>)>;

/// Runs all sequences together, and returns each one's logits at the wanted positions.
fn mixed(
    decoder: &mut Decoder,
    kv: &mut KvCache,
    sequences: &[Sequence],
    blocks: &[u32],
    slot: AdapterSlot,
) -> Vec<PlacedLogits> {
    let mut free = blocks.iter().copied();
    let tables: Vec<Vec<u32>> =
        sequences.iter().map(|s| free.by_ref().take(s.tokens.len().div_ceil(BLOCK)).collect()).collect();
    let mut done = vec![0; sequences.len()];
    let mut logits = vec![Vec::new(); sequences.len()];
    let mut batch = ForwardBatch::new();
    for number in 0.. {
        batch.clear();
        let mut members = Vec::new();
        for (index, sequence) in sequences.iter().enumerate() {
            let left = sequence.tokens.len() - done[index];
            if number < sequence.enters || left == 0 {
                continue;
            }
            let chunk = number - sequence.enters;
            let length = sequence.chunks.get(chunk).copied().unwrap_or(1).min(left);
            let want = sequence.wants.get(chunk).copied().unwrap_or(LogitPositions::Last);
            let start = done[index];
            let end = start + length;
            let adapter = sequence.adapted.then_some(slot);
            batch.push(&sequence.tokens[start..end], start, &tables[index], adapter, want);
            done[index] = end;
            let first = match want {
                LogitPositions::Nothing => end,
                LogitPositions::Last => end - 1,
                LogitPositions::All => start,
            };
            members.extend((first..end).map(|position| (index, position)));
        }
        if batch.is_empty() && number > 6 {
            return logits;
        }
        let rows = step(decoder, &batch, kv);
        assert_eq!(rows.len(), members.len());
        for ((index, position), row) in members.into_iter().zip(rows) {
            logits[index].push((position, row));
        }
    }
    unreachable!()
}

fn same((name, arithmetic, kind): (&str, Arithmetic, KvKind), sequences: &[Sequence], blocks: &[u32]) {
    let mut decoder = decoder_in(&path(name), arithmetic);
    let slot = decoder.load_adapter(&path("qwen3-adapters/full"));
    let (slot, sequences) = match slot {
        Ok(slot) => (slot, sequences.to_vec()),
        Err(_) => (AdapterSlot(0), sequences.iter().map(|s| Sequence { adapted: false, ..s.clone() }).collect()),
    };
    let mut kv = decoder.kv_cache_of(kind, BLOCKS);
    // The second round finds leftovers of the first one in every block.
    for _ in 0..2 {
        let together = mixed(&mut decoder, &mut kv, &sequences, blocks, slot);
        for (sequence, mixed) in sequences.iter().zip(together) {
            let alone = whole_in(&mut decoder, kind, &sequence.tokens, sequence.adapted.then_some(slot));
            for (position, logits) in mixed {
                assert_eq!(
                    alone[position], logits,
                    "{name}, {arithmetic}, KV in {kind}, position {position}: not the same to the last bit"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn logits_depend_on_the_sequence_alone(
        sequences in sequences(),
        blocks in Just((0..BLOCKS as u32).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        for case in [
            ("qwen3", Arithmetic::F32, KvKind::F32),
            ("llama", Arithmetic::F32, KvKind::F32),
            ("qwen3", Arithmetic::Bf16, KvKind::F32),
            ("qwen3", Arithmetic::F32, KvKind::Int8),
        ] {
            same(case, &sequences, &blocks);
        }
    }
}

#[test]
fn a_batch_of_one_and_a_batch_of_eight_agree() {
    let sequences: Vec<_> = (0..8u32)
        .map(|i| Sequence {
            tokens: (0..40 + i).map(|t| (t * 7 + i * 31) % 256).collect(),
            chunks: vec![32],
            wants: vec![[LogitPositions::Nothing, LogitPositions::Last, LogitPositions::All][i as usize % 3]],
            enters: 0,
            adapted: i % 2 == 0,
        })
        .collect();
    for kind in KINDS {
        same(("qwen3", Arithmetic::F32, kind), &sequences, &(0..BLOCKS as u32).rev().collect::<Vec<_>>());
    }
}

#[test]
fn unwanted_logits_are_not_computed() {
    let mut decoder = decoder(&path("qwen2"));
    let mut kv = decoder.kv_cache(BLOCKS);
    let tokens: Vec<u32> = (0..30).collect();
    let all = whole(&mut decoder, &tokens, None);
    let mut batch = ForwardBatch::new();
    batch.push(&tokens, 0, &table(0, 30), None, LogitPositions::Last);
    batch.push(&tokens, 0, &table(8, 30), None, LogitPositions::Nothing);
    batch.push(&tokens[..9], 0, &table(16, 9), None, LogitPositions::Last);
    let logits = step(&mut decoder, &batch, &mut kv);
    assert_eq!(logits, [all[29].clone(), all[8].clone()]);
    batch.clear();
    batch.push(&tokens[..3], 0, &table(0, 3), None, LogitPositions::Nothing);
    assert!(step(&mut decoder, &batch, &mut kv).is_empty());
}

#[test]
fn blocks_shared_as_a_prefix_serve_both_sequences() {
    let mut decoder = decoder(&path("llama"));
    let prefix: Vec<u32> = (100..132).collect();
    let left = [prefix.clone(), vec![1, 2, 3]].concat();
    let right = [prefix.clone(), vec![9; 20]].concat();
    for kind in KINDS {
        let mut kv = decoder.kv_cache_of(kind, BLOCKS);
        let mut batch = ForwardBatch::new();
        batch.push(&prefix, 0, &[5, 6], None, LogitPositions::Nothing);
        step(&mut decoder, &batch, &mut kv);
        batch.clear();
        batch.push(&left[32..], 32, &[5, 6, 0], None, LogitPositions::All);
        batch.push(&right[32..], 32, &[5, 6, 1, 2], None, LogitPositions::All);
        let logits = step(&mut decoder, &batch, &mut kv);
        assert_eq!(logits[..3], whole_in(&mut decoder, kind, &left, None)[32..]);
        assert_eq!(logits[3..], whole_in(&mut decoder, kind, &right, None)[32..]);
    }
}

/// A prefix of more than a run of blocks, which several rows attend to together, with one to five new tokens each.
#[test]
fn rows_with_a_long_common_prefix_have_the_logits_of_each_alone() {
    // The fixture's own context is shorter.
    let dir = tempfile::tempdir().unwrap();
    let from = path("qwen2");
    std::fs::copy(from.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    config["max_position_embeddings"] = 256.into();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let mut decoder = decoder(dir.path());
    let prefix: Vec<u32> = (0..144).map(|at| (at * 7 + 3) % 256).collect();
    let tails: Vec<Vec<u32>> =
        (0..10).map(|row| (0..1 + row % 5).map(|at| (row * 31 + at * 5) % 256).collect()).collect();
    for kind in KINDS {
        let mut kv = decoder.kv_cache_of(kind, BLOCKS);
        let mut batch = ForwardBatch::new();
        batch.push(&prefix, 0, &table(0, 144), None, LogitPositions::Nothing);
        step(&mut decoder, &batch, &mut kv);
        batch.clear();
        for (row, tail) in (9..).zip(&tails) {
            let table = [table(0, 144), vec![row]].concat();
            batch.push(tail, 144, &table, None, LogitPositions::All);
        }
        let logits = step(&mut decoder, &batch, &mut kv);
        let alone = tails.iter().flat_map(|tail| {
            let whole = whole_in(&mut decoder, kind, &[prefix.as_slice(), tail].concat(), None);
            whole[144..].to_vec()
        });
        assert_eq!(logits, alone.collect::<Vec<_>>(), "KV in {kind}");
    }
}

/// A copied block continues with its own tokens, and the original keeps its ones.
#[test]
fn a_copied_block_serves_another_sequence() {
    let mut decoder = decoder(&path("llama"));
    let prefix: Vec<u32> = (100..120).collect();
    let left = [prefix.clone(), vec![1, 2, 3]].concat();
    let right = [prefix.clone(), vec![9, 8]].concat();
    for kind in KINDS {
        let mut kv = decoder.kv_cache_of(kind, BLOCKS);
        let mut batch = ForwardBatch::new();
        batch.push(&prefix, 0, &[5, 6], None, LogitPositions::Nothing);
        step(&mut decoder, &batch, &mut kv);
        assert!(kv.copy_block(6, 9));
        batch.clear();
        batch.push(&left[20..], 20, &[5, 6], None, LogitPositions::All);
        batch.push(&right[20..], 20, &[5, 9], None, LogitPositions::All);
        let logits = step(&mut decoder, &batch, &mut kv);
        assert_eq!(logits[..3], whole_in(&mut decoder, kind, &left, None)[20..]);
        assert_eq!(logits[3..], whole_in(&mut decoder, kind, &right, None)[20..]);
    }
}

#[test]
fn what_does_not_exist_is_refused_by_name() {
    let mut decoder = decoder(&path("qwen3"));
    let mut kv = decoder.kv_cache(8);
    let other = fixture::decoder(&path("llama"));
    let long = vec![1; 129];
    let row = |tokens: &[u32], start: usize, table: &[u32], adapter: Option<AdapterSlot>| {
        let mut batch = ForwardBatch::new();
        batch.push(tokens, start, table, adapter, LogitPositions::Last);
        batch
    };
    let mut collision = row(&[1], 0, &[4], None);
    collision.push(&[2], 0, &[4], None, LogitPositions::Last);
    for (batch, needle) in [
        (row(&[256], 0, &[0], None), "token 256"),
        (row(&[1], 0, &[8], None), "block 8"),
        (row(&[1, 2, 3], 15, &[3, 3], None), "written twice"),
        (row(&[1], 0, &[0], Some(AdapterSlot(3))), "slot 3"),
        (row(&long, 0, &[0, 1, 2, 3, 4, 5, 6, 7, 7], None), "context"),
        (row(&[], 0, &[0], None), "no tokens"),
        (collision, "written twice"),
    ] {
        let error = decoder.forward(&batch, &mut kv, &mut Logits::new()).unwrap_err();
        assert!(matches!(&error, ModelError::Input(reason) if reason.contains(needle)), "{error} for {needle}");
    }
    let error = decoder.forward(&row(&[1], 0, &[4], None), &mut other.kv_cache(8), &mut Logits::new()).unwrap_err();
    assert!(error.to_string().contains("another decoder"), "{error}");
}
