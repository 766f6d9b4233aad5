//! Parts of the benchmark.

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum BenchPart {
    /// Describe the GPU and compile its kernels.
    Info,
    /// All checks: `kernels`, `agreement`, `batches`, `training` and those that begin with `stress-`.
    Check,
    /// Compare kernels with their references.
    Kernels,
    /// Compare the GPU with the CPU over one model.
    Agreement,
    /// Compare large batches with single rows, and CUDA graphs with plain launches.
    Batches,
    /// Compare a training step with the CPU's.
    Training,
    /// Launch decode attention of 64 rows of up to 8,192 tokens 500 times and compare all outputs.
    StressAttention,
    /// Check attention over one layer's cache of more than 4 GiB.
    StressCache,
    /// Check sampling from a vocabulary of 152,064 tokens.
    StressSampler,
    /// Measure copy bandwidth and matrix multiplication rate.
    Ceilings,
    /// Time the matrix multiplications of a decode step by the default algorithms of cuBLAS.
    Gemm,
    /// Measure decode rates.
    Decode,
    /// Measure prefill rates.
    Prefill,
    /// Run the agentic load.
    Agentic,
    /// Profile a step by kind of work: decoding at the first of `--sequences` and at the largest up to 64, and prefill.
    Profile,
}

impl BenchPart {
    /// Parts that run by default.
    pub(super) const ALL: [Self; 8] = [
        Self::Info,
        Self::Check,
        Self::Ceilings,
        Self::Gemm,
        Self::Decode,
        Self::Prefill,
        Self::Agentic,
        Self::Profile,
    ];

    /// Parts that check kernels at sizes of real use.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU is checked"))]
    pub(super) const STRESS: [Self; 3] = [Self::StressAttention, Self::StressCache, Self::StressSampler];

    /// Returns `true` if `parts` contain this part, or [`Check`](Self::Check) and this part is one of the checks.
    pub(super) fn is_in(self, parts: &[Self]) -> bool {
        let check = matches!(
            self,
            Self::Kernels
                | Self::Agreement
                | Self::Batches
                | Self::Training
                | Self::StressAttention
                | Self::StressCache
                | Self::StressSampler
        );
        parts.contains(&self) || check && parts.contains(&Self::Check)
    }
}

/// A way of launching the kernels of decode steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LaunchMode {
    /// Replay CUDA graphs.
    Graphs,
    /// Launch each kernel by itself.
    Eager,
}

impl LaunchMode {
    pub(super) const ALL: [Self; 2] = [Self::Graphs, Self::Eager];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_stands_for_the_checks_alone() {
        let parts = [BenchPart::Check, BenchPart::Gemm];
        assert!(BenchPart::STRESS.iter().all(|part| part.is_in(&parts)) && BenchPart::Kernels.is_in(&parts));
        assert!(BenchPart::Gemm.is_in(&parts) && !BenchPart::Ceilings.is_in(&parts));
        assert!(!BenchPart::Kernels.is_in(&[BenchPart::Training]));
    }
}
