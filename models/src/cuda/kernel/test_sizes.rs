//! Launches on the emulator with buffers of just the required size, and one value short.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::collections::BTreeMap;

use bytemuck::Pod;

use super::emulator::Emulator;
use super::layout::block_len;
use super::*;
use crate::cuda::driver::Driver;
use crate::cuda::plan::Placement;

const DIM: u32 = 64;
const HEADS: u32 = 4;
const KV_HEADS: u32 = 2;
const TOKENS: usize = 3;
const ROWS: usize = 2;
const POSITIONS: usize = 20;
const BLOCKS: usize = 3;
/// Number of values of a token's queries, keys and values.
const QKV: u32 = (HEADS + 2 * KV_HEADS) * DIM;
/// Number of values of a token's queries.
const Q: usize = (HEADS * DIM) as usize;

/// Allocates buffers of zeros, one of them a value too short, and records their names and sizes.
struct BufferMaker<'a> {
    emulator: &'a Emulator,
    short: Option<&'static str>,
    sizes: RefCell<BTreeMap<&'static str, usize>>,
}

impl<'a> BufferMaker<'a> {
    fn new(emulator: &'a Emulator, short: Option<&'static str>) -> Self {
        Self { emulator, short, sizes: RefCell::default() }
    }

    fn make<T: Pod>(&self, name: &'static str, len: usize) -> DeviceSlice<T> {
        self.sizes.borrow_mut().insert(name, len);
        let len = len - usize::from(self.short == Some(name));
        let region = self.emulator.allocate((len * size_of::<T>()).max(16)).unwrap();
        let slice = self.emulator.slice(&region, Placement::<T>::new(0, len));
        self.emulator.upload(&vec![T::zeroed(); len], slice).unwrap();
        slice
    }

    fn index(&self, name: &'static str, len: usize) -> RowIndex {
        RowIndex { rows: self.make(name, len), bound: TOKENS }
    }

    /// Makes the buffers of a batch that `read` names; the others are empty.
    fn batch(&self, read: &[&'static str]) -> BatchView {
        let make = |name: &'static str, len: usize| match read.contains(&name) {
            true => self.make(name, len),
            false => self.make::<u32>("unread", 1).slice(0, 0).unwrap(),
        };
        let batch = BatchView {
            tokens: make("tokens", TOKENS),
            positions: make("positions", TOKENS),
            rows: make("rows", TOKENS),
            first: make("first", ROWS),
            context: make("context", ROWS),
            tables: make("tables", 2 * ROWS),
            stride: 2,
            bounds: BatchBounds { rows: ROWS, tokens: TOKENS, positions: POSITIONS, blocks: BLOCKS },
        };
        self.sizes.borrow_mut().remove("unread");
        batch
    }

    fn cache<T: Pod>(&self) -> DeviceSlice<T> {
        self.make("cache", BLOCKS * block_len(KV_HEADS as usize, DIM as usize))
    }

    fn halves(&self, name: &'static str, len: usize) -> DeviceSlice<half::bf16> {
        self.make(name, len)
    }
}

/// Requires that `launch` works, and that it names each buffer that is a value too short.
fn refuses(name: &str, launch: impl Fn(&BufferMaker<'_>, &Emulator) -> Result<(), KernelError>) {
    let Some(emulator) = Emulator::new(DIM as usize, 7) else { return };
    let enough = BufferMaker::new(&emulator, None);
    launch(&enough, &emulator).unwrap();
    let sizes = enough.sizes.into_inner();
    assert!(sizes.len() > 1, "{name}");
    for (buffer, needed) in sizes {
        let error = launch(&BufferMaker::new(&emulator, Some(buffer)), &emulator).unwrap_err();
        let given = needed - 1;
        let text = error.to_string();
        assert!(text.starts_with(&format!("{name}: buffer `{buffer}` has {given} values")), "{name}: {text}");
        assert!(text.ends_with(&format!("expected {needed} or more")), "{text}");
    }
}

const ROWS_OF_BATCH: [&str; 3] = ["first", "context", "tables"];

#[test]
fn attention_refuses_buffers_that_are_too_small() {
    let tokens = TOKENS;
    refuses("attend_decode", |make, on| {
        AttendDecode {
            batch: make.batch(&ROWS_OF_BATCH),
            qkv: make.make("qkv", tokens * QKV as usize),
            stride: QKV,
            cache: make.cache(),
            workspace: make.make("workspace", AttendDecode::workspace(ROWS as u32, 2, HEADS, DIM)),
            arrived: make.make("arrived", ROWS * KV_HEADS as usize),
            out: make.make("out", tokens * Q),
            rows: ROWS as u32,
            splits: 2,
            heads: HEADS,
            kv_heads: KV_HEADS,
            dim: DIM,
        }
        .launch(on)
    });
    refuses("attend_prefill", |make, on| {
        AttendPrefill {
            batch: make.batch(&["positions", "first", "context", "tables"]),
            tiles: make.make("tiles", 4),
            qkv: make.make("qkv", tokens * QKV as usize),
            stride: QKV,
            cache: make.cache(),
            out: make.make("out", tokens * Q),
            lse: Some(make.make("lse", tokens * HEADS as usize)),
            count: 2,
            heads: HEADS,
            kv_heads: KV_HEADS,
            dim: DIM,
        }
        .launch(on)
    });
    refuses("attend_backward_queries", |make, on| {
        AttendBackward {
            batch: make.batch(&ROWS_OF_BATCH),
            tiles: make.make("tiles", 4),
            blocks: make.make("blocks", 2),
            qkv: make.make("qkv", tokens * QKV as usize),
            stride: QKV,
            cache: make.cache(),
            out: make.make("out", tokens * Q),
            gradient: make.make("gradient", tokens * Q),
            lse: make.make("lse", tokens * HEADS as usize),
            delta: make.make("delta", tokens * HEADS as usize),
            qkv_gradient: make.make("qkv_gradient", tokens * QKV as usize),
            tokens: tokens as u32,
            tile_count: 2,
            block_count: 1,
            heads: HEADS,
            kv_heads: KV_HEADS,
            dim: DIM,
        }
        .launch(on)
    });
}

#[test]
fn rotations_refuse_buffers_that_are_too_small() {
    let width = QKV as usize;
    let norms = |make: &BufferMaker<'_>| Some([make.make("head norm", 64), make.make("head norm", 64)]);
    refuses("rotary", |make, on| {
        Rotary {
            batch: make.batch(&["positions", "rows", "tables"]),
            qkv: make.make("qkv", TOKENS * width),
            bias: Some(make.make("bias", width)),
            head_norms: norms(make),
            table: make.make("table", POSITIONS * DIM as usize),
            cache: make.cache(),
            count: TOKENS as u32,
            heads: HEADS,
            kv_heads: KV_HEADS,
            dim: DIM,
            eps: 1e-5,
        }
        .launch(on)
    });
    refuses("rotary_backward", |make, on| {
        RotaryBackward {
            batch: make.batch(&["positions", "rows"]),
            raw: make.make("raw", TOKENS * width),
            bias: Some(make.make("bias", width)),
            head_norms: norms(make),
            table: make.make("table", POSITIONS * DIM as usize),
            gradient: make.make("gradient", TOKENS * width),
            count: TOKENS as u32,
            heads: HEADS,
            kv_heads: KV_HEADS,
            dim: DIM,
            eps: 1e-5,
        }
        .launch(on)
    });
}

#[test]
fn norms_refuse_buffers_that_are_too_small_with_an_index_and_without() {
    // An index of two rows into a stream of three, and two rows without an index.
    for (indexed, of) in [(true, TOKENS), (false, ROWS)] {
        let rows = ROWS as u32;
        refuses("rms_norm", |make, on| {
            let index = indexed.then(|| make.index("index", ROWS));
            let weight = make.make("weight", 8);
            let out = make.halves("out", 8 * ROWS);
            RmsNorm { stream: make.make("stream", 8 * of), index, weight, out, rows, width: 8, eps: 1e-5 }.launch(on)
        });
        refuses("rms_norm_backward", |make, on| {
            RmsNormBackward {
                stream: make.make("stream", 8 * of),
                index: indexed.then(|| make.index("index", ROWS)),
                weight: make.make("weight", 8),
                gradient: make.make("gradient", 8 * ROWS),
                stream_gradient: make.make("stream_gradient", 8 * of),
                rows,
                width: 8,
                eps: 1e-5,
            }
            .launch(on)
        });
    }
}

#[test]
fn adapters_refuse_buffers_that_are_too_small() {
    refuses("lora_shrink", |make, on| {
        LoraShrink {
            factors: make.make("factors", 1),
            tiles: make.make("tiles", 2),
            order: RowIndex { rows: make.make::<u32>("unused", 2), bound: TOKENS },
            x: make.make("x", TOKENS * 32),
            small: make.make("small", TOKENS * 16),
            stride: 16,
            count: 2,
            inn: 32,
        }
        .launch(on)
        .inspect(|()| {
            make.sizes.borrow_mut().remove("unused");
        })
    });
    for stream in [false, true] {
        refuses(if stream { "lora_expand_stream" } else { "lora_expand" }, |make, on| {
            LoraExpand {
                factors: make.make("factors", 1),
                tiles: make.make("tiles", 2),
                order: RowIndex { rows: make.make::<u32>("unused", 2), bound: TOKENS },
                small: make.make("small", TOKENS * 16),
                stride: 16,
                y: match stream {
                    true => LoraOut::Stream(make.make("y", TOKENS * 48)),
                    false => LoraOut::Activation(make.make("y", TOKENS * 48)),
                },
                count: 2,
                ends: [16, 32, 48],
            }
            .launch(on)
            .inspect(|()| {
                make.sizes.borrow_mut().remove("unused");
            })
        });
    }
}

#[test]
fn the_other_kernels_refuse_buffers_that_are_too_small() {
    let rows = ROWS as u32;
    refuses("embed", |make, on| {
        let batch = make.batch(&["tokens"]);
        let stream = make.make("stream", TOKENS * 8);
        EmbedTokens { batch, table: make.make("table", 40), stream, count: TOKENS as u32, width: 8, vocab: 5 }
            .launch(on)
    });
    refuses("silu_mul", |make, on| {
        SiluMul { gate_up: make.make("gate_up", 2 * 8 * ROWS), out: make.make("out", 8 * ROWS), rows, width: 8 }
            .launch(on)
    });
    refuses("silu_mul_backward", |make, on| {
        let gate_up_gradient = make.make("gate_up_gradient", 2 * 8 * ROWS);
        let gradient = make.make("gradient", 8 * ROWS);
        SiluMulBackward { gate_up: make.make("gate_up", 2 * 8 * ROWS), gradient, gate_up_gradient, rows, width: 8 }
            .launch(on)
    });
    refuses("widen", |make, on| {
        WidenToF32 { from: make.make("from", 16), to: make.make("to", 16), count: 16 }.launch(on)
    });
    refuses("narrow_all", |make, on| {
        NarrowToBf16 { from: make.make("from", 16), to: make.make("to", 16), count: 16 }.launch(on)
    });
    refuses("sample_scan", |make, on| {
        SampleTokens {
            logits: make.make("logits", ROWS * 10),
            settings: make.make("settings", ROWS),
            adjustments: make.make("adjustments", 4),
            adjusted: 4,
            scratch: make.make("scratch", ROWS * SampleTokens::SCRATCH),
            ids: make.make("ids", ROWS),
            logprobs: make.make("logprobs", ROWS),
            status: make.make("status", ROWS),
            rows,
            vocab: 10,
        }
        .launch(on)
    });
    refuses("score", |make, on| {
        let scores = make.make("scores", ROWS * SCORES);
        let targets = make.make("targets", ROWS);
        ScoreTargets { logits: make.make("logits", ROWS * 10), targets, scores, rows, vocab: 10 }.launch(on)
    });
    refuses("score_backward", |make, on| {
        ScoreTargetsBackward {
            logits: make.make("logits", ROWS * 10),
            targets: make.make("targets", ROWS),
            scores: make.make("scores", ROWS * SCORES),
            slopes: make.make("slopes", ROWS * 2),
            gradient: make.make("gradient", ROWS * 10),
            rows,
            vocab: 10,
        }
        .launch(on)
    });
}

#[test]
fn products_of_few_rows_refuse_buffers_that_are_too_small() {
    type Target = fn(&BufferMaker<'_>) -> SkinnyTarget;
    let targets: [(&str, usize, Target); 4] = [
        ("skinny", 5, |make| SkinnyTarget::Half(make.make("target", ROWS * 5))),
        ("skinny", 5, |make| SkinnyTarget::Single(make.make("target", ROWS * 5))),
        ("skinny", 5, |make| SkinnyTarget::Sum(make.make("target", ROWS * 5))),
        ("skinny_silu", 10, |make| SkinnyTarget::SiluMul(make.make("target", ROWS * 5))),
    ];
    for (name, weight_rows, target) in targets {
        refuses(name, |make, on| {
            SkinnyMatMul {
                x: make.halves("x", ROWS * 32),
                weights: SkinnyWeights::Half(make.halves("weights", weight_rows * 32)),
                target: target(make),
                rows: ROWS,
                inner: 32,
                columns: 5,
            }
            .launch(on)
        });
    }
    refuses("skinny_fp8", |make, on| {
        SkinnyMatMul {
            x: make.halves("x", ROWS * 32),
            weights: SkinnyWeights::Fp8(make.make("weights", 5 * 32), make.make("scales", 5)),
            target: SkinnyTarget::Half(make.make("target", ROWS * 5)),
            rows: ROWS,
            inner: 32,
            columns: 5,
        }
        .launch(on)
    });
    refuses("dequantize_fp8", |make, on| {
        DequantizeFp8 {
            values: make.make("values", 5 * 32),
            scales: make.make("scales", 5),
            to: make.halves("to", 5 * 32),
            rows: 5,
            inner: 32,
        }
        .launch(on)
    });
    refuses("quantize_fp8", |make, on| {
        QuantizeFp8 {
            x: make.halves("x", ROWS * 32),
            values: make.make("values", ROWS * 32),
            scales: make.make("scales", ROWS),
            rows: ROWS,
            inner: 32,
        }
        .launch(on)
    });
}

#[test]
fn strides_and_bounds_that_contradict_the_shape_are_refused() {
    let Some(emulator) = Emulator::new(DIM as usize, 7) else { return };
    let make = BufferMaker::new(&emulator, None);
    let decode = AttendDecode {
        batch: make.batch(&ROWS_OF_BATCH),
        qkv: make.make("qkv", TOKENS * QKV as usize),
        stride: QKV,
        cache: make.cache(),
        workspace: make.make("workspace", AttendDecode::workspace(ROWS as u32 + 1, 2, HEADS, DIM)),
        arrived: make.make("arrived", (ROWS + 1) * KV_HEADS as usize),
        out: make.make("out", TOKENS * Q),
        rows: ROWS as u32,
        splits: 2,
        heads: HEADS,
        kv_heads: KV_HEADS,
        dim: DIM,
    };
    let narrow = AttendDecode { stride: Q as u32 - 8, ..decode }.launch(&emulator).unwrap_err().to_string();
    assert!(narrow.contains("a stride of 248: expected a multiple of 8, 256 or more"), "{narrow}");
    let many = AttendDecode { rows: ROWS as u32 + 1, ..decode }.launch(&emulator).unwrap_err().to_string();
    assert!(many.contains("3 rows in the grid, but the batch has 2 at most"), "{many}");
}
