//! llama.cpp's own benchmark as a peer: run on the same file with the same threads, parsed from its table.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

/// One row of `llama-batched-bench`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LlamaRates {
    /// Sequences.
    pub(crate) sequences: usize,
    /// Prompt tokens per second over all sequences.
    pub(crate) prefill: f64,
    /// Generated tokens per second over all sequences.
    pub(crate) decode: f64,
}

/// Runs `binary` once for `sequences` sequences of `prompt` + `generate` tokens.
pub(crate) fn run(
    binary: &Path,
    model: &Path,
    threads: usize,
    prompt: usize,
    generate: usize,
    sequences: usize,
) -> anyhow::Result<LlamaRates> {
    let context = (prompt + generate) * sequences + 64;
    let output = Command::new(binary)
        .arg("-m")
        .arg(model)
        .args(["-c", &context.to_string(), "-b", "512", "-ub", "512"])
        .args(["-npp", &prompt.to_string(), "-ntg", &generate.to_string(), "-npl", &sequences.to_string()])
        .args(["-t", &threads.to_string(), "-tb", &threads.to_string(), "--output-format", "md"])
        .output()
        .with_context(|| format!("cannot run {}", binary.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "{} failed: {}",
        binary.display(),
        String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("no message")
    );
    text.lines().find_map(parse).with_context(|| format!("no result in the output of {}", binary.display()))
}

/// Parses a line `| PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | … |`.
fn parse(line: &str) -> Option<LlamaRates> {
    let cells: Vec<&str> = line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect();
    let number = |index: usize| cells.get(index)?.parse::<f64>().ok();
    Some(LlamaRates { sequences: number(2)? as usize, prefill: number(5)?, decode: number(7)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_row_and_skips_the_head() {
        assert_eq!(parse("|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |"), None);
        let row =
            parse("|   128 |    64 |    8 |   1536 |    4.615 |   221.90 |    4.654 |   110.02 |    9.269 | 165.71 |");
        assert_eq!(row, Some(LlamaRates { sequences: 8, prefill: 221.9, decode: 110.02 }));
    }
}
