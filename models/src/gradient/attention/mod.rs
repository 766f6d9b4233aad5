//! Causal attention over the forest of a [`Pack`], forward and backward.
//!
//! Forward: `s = scale · q · k` over the keys visible to a token, `p = softmax(s)` and `out = p · v`. Backward, with
//! `D = dout · out`: `dv = pᵀ · dout`, `ds = p ∘ (dout · vᵀ - D)`, `dq = scale · ds · k`, `dk = scale · dsᵀ · q` (Dao
//! et al. 2022, "FlashAttention", algorithms 2 and 4). A limit of the scores `c · tanh(s / c)` multiplies `ds` by
//! `1 - tanh²(s / c)`. Scores exist only as tiles of `TILE` × `TILE`.
//!
//! On request, the operands of the products that give `dv`, `dq` and `dk` are rounded to bf16. The products for
//! scores and for their gradients always use `f32`. The forward pass has to repeat an engine's log-probabilities, and
//! `ds` is a difference of values that may be almost equal.

mod backward;
mod forest;
mod forward;
mod rounded_tile;
#[cfg(test)]
mod test;

use std::ops::Range;
use std::sync::Mutex;

use super::Pack;
use crate::Arithmetic;
use crate::kernel::attention::{HeadLayout, ScoreRule};
use crate::kernel::bf16_dot::Bf16Support;
use crate::kernel::isa::Isa;
use crate::kernel::lanes::LANES;
use crate::kernel::team::Team;
use backward::TileRun;
use forest::Forest;

/// Number of queries and of keys in a tile of scores, chosen to fit a core's caches together with the vectors
/// behind it.
const TILE: usize = 64;

/// Visibility of tokens in one pack and the division of the attention work, for one shape of heads. The division
/// depends only on the pack and the heads, so results are reproducible to the last bit.
#[derive(Debug)]
pub struct AttentionPlan {
    heads: HeadLayout,
    isa: Isa,
    /// Instructions for the last products of the backward pass, which rounds their operands to bf16. `None` computes in
    /// `f32`.
    rounding: Option<Bf16Support>,
    tokens: usize,
    /// Position of each token in its sequence.
    positions: Vec<usize>,
    forest: Forest,
    /// Tiles of queries, those with the most work first.
    queries: Vec<SegmentPart>,
    /// Runs of key tiles.
    runs: Vec<TileRun>,
    /// Partial gradients of queries per run, reused from layer to layer.
    partial: Mutex<Vec<f32>>,
}

/// Up to `TILE` consecutive tokens of a segment.
#[derive(Debug, Clone)]
struct SegmentPart {
    segment: usize,
    tokens: Range<usize>,
}

/// Inputs and results of a forward pass that the backward pass reads.
#[derive(Debug, Clone, Copy)]
struct AttentionPass<'a> {
    rule: ScoreRule,
    /// Queries, shape (tokens, heads · dim).
    q: &'a [f32],
    /// Keys, shape (tokens, kv heads · dim).
    k: &'a [f32],
    /// Values, shape (tokens, kv heads · dim).
    v: &'a [f32],
    /// Output of attention, shape (tokens, heads · dim).
    out: &'a [f32],
    /// Logarithms of the softmax denominators, shape (tokens, heads).
    lse: &'a [f32],
}

impl AttentionPlan {
    /// Plans the attention of `pack` in `f32`. The plan serves all layers.
    ///
    /// # Panics
    /// If the width of a head is not a multiple of 16, or the number of query heads is not a multiple of the number
    /// of key and value heads.
    pub fn new(pack: &Pack, heads: HeadLayout) -> Self {
        let HeadLayout { query, kv, dim } = heads;
        assert!(dim > 0 && dim.is_multiple_of(LANES), "heads of {dim} values: it must be a multiple of {LANES}");
        assert!(query > 0 && kv > 0 && query.is_multiple_of(kv), "{query} query heads for {kv} key and value heads");
        let forest = Forest::new(pack);
        let parts: Vec<_> = (0..pack.segments().len()).flat_map(|segment| forest.parts(segment)).collect();
        let mut queries = parts.clone();
        queries.sort_by_key(|part| (std::cmp::Reverse(forest.seen(part)), part.tokens.start));
        let runs = backward::runs(&forest, parts, heads);
        let tokens = pack.tokens().len();
        let positions = pack.segments().iter().flat_map(|segment| segment.start..segment.end()).collect();
        let partial = Mutex::default();
        Self { heads, isa: Isa::best(), rounding: None, tokens, positions, forest, queries, runs, partial }
    }

    /// Plans attention like [`new`](Self::new), with a backward pass in the given arithmetic. A CPU that does not
    /// multiply bf16 values by itself computes it in `f32`, which is faster there.
    ///
    /// # Panics
    /// The same as for [`new`](Self::new).
    pub(crate) fn with(pack: &Pack, heads: HeadLayout, arithmetic: Arithmetic) -> Self {
        let rounding = Bf16Support::detect().filter(|_| arithmetic == Arithmetic::Bf16);
        Self { rounding, ..Self::new(pack, heads) }
    }

    /// Computes attention by `rule` for every token. q and `out` have shape (tokens, heads · dim), k and v (tokens, kv
    /// heads · dim), already rotated where the model requires it. `lse`, shape (tokens, heads), receives the logarithm
    /// of each softmax's denominator.
    ///
    /// # Panics
    /// If a slice does not have its shape.
    #[allow(clippy::too_many_arguments, reason = "each is a matrix of its own")]
    pub fn forward(
        &self,
        team: &Team,
        rule: ScoreRule,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
        lse: &mut [f32],
    ) {
        self.check(AttentionPass { rule, q, k, v, out, lse });
        forward::run(self, team, rule, (q, k, v), out, lse);
    }

    /// Computes the gradients of q, k and v from that of `out`, with the shapes, `out` and `lse` of
    /// [`forward`](Self::forward). Overwrites dq, dk and dv.
    ///
    /// # Panics
    /// If a slice does not have its shape.
    #[allow(clippy::too_many_arguments, reason = "each is a matrix of its own")]
    pub fn backward(
        &self,
        team: &Team,
        rule: ScoreRule,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &[f32],
        lse: &[f32],
        dout: &[f32],
        dq: &mut [f32],
        dk: &mut [f32],
        dv: &mut [f32],
    ) {
        let pass = AttentionPass { rule, q, k, v, out, lse };
        self.check(pass);
        self.check(AttentionPass { rule, q: dq, k: dk, v: dv, out: dout, lse });
        backward::run(self, team, pass, dout, [dq, dk, dv]);
    }

    /// Number of values in the working memory of [`backward`](Self::backward): partial query gradients and `D`.
    pub(crate) fn workspace_len(&self) -> usize {
        let HeadLayout { query, dim, .. } = self.heads;
        backward::partial(&self.runs) * query * dim + self.tokens * query
    }

    /// Upper bound of [`workspace_len`](Self::workspace_len) for packs of `tokens` tokens.
    pub(crate) fn max_workspace_len(tokens: usize, heads: HeadLayout) -> usize {
        let HeadLayout { query, kv, dim } = heads;
        backward::max_runs(tokens, kv) * tokens * query * dim + tokens * query
    }

    fn check(&self, pass: AttentionPass<'_>) {
        let HeadLayout { query, kv, dim } = self.heads;
        assert!([pass.q.len(), pass.out.len()] == [self.tokens * query * dim; 2], "queries and outputs");
        assert!([pass.k.len(), pass.v.len()] == [self.tokens * kv * dim; 2], "keys and values");
        assert!(pass.lse.len() == self.tokens * query, "denominators");
    }
}

/// Compiles a generic function over [`Lanes`](crate::kernel::lanes::Lanes) for every instruction set, and calls the
/// version for `$isa`.
macro_rules! on_lanes {
    ($isa:expr, $body:ident($($arg:ident: $type:ty = $value:expr),*)) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f")]
        unsafe fn avx512($($arg: $type),*) {
            // SAFETY: guaranteed by the caller.
            unsafe { $body::<std::arch::x86_64::__m512>($($arg),*) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2($($arg: $type),*) {
            // SAFETY: the caller's promise.
            unsafe { $body::<[std::arch::x86_64::__m256; 2]>($($arg),*) }
        }
        match $isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512($($value),*),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2($($value),*),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => $body::<crate::kernel::neon::Floats>($($value),*),
            Isa::Portable => $body::<[f32; LANES]>($($value),*),
        }
    }};
}
pub(super) use on_lanes;
