//! Fingerprints of policies: measured on the engine of this process or computed by a trainer, and written into `policy.toml`.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use waymark_agent::{Generator, LogprobFingerprint, Policy, Runtime, SessionSource, Steps};
use waymark_engine::{Generate, Origin, SessionOptions};
use waymark_models::durable_file;
use waymark_models::sampler::SamplingParams;
use waymark_models::tokenizer::{Specials, Tokenizer};

use crate::fleet::PROBE;

/// Header of the fingerprint's table in `policy.toml`.
const HEADER: &str = "[fingerprint]";

/// Measures the fingerprint of a policy whose adapter, if it has one, is loaded into the engine of `runtime`.
///
/// # Errors
/// If the engine fails.
pub async fn measure<S: SessionSource>(runtime: &Runtime<S>, policy: &Policy) -> anyhow::Result<LogprobFingerprint> {
    let ids = probe(&runtime.tokenizer)?;
    let mut session = runtime.engine.open(SessionOptions { adapter: policy.adapter(), ..SessionOptions::default() });
    session.append(&ids[..1], Origin::Prompt, false);
    let spec = Generate {
        sampling: SamplingParams::greedy(),
        max_tokens: ids.len() - 1,
        force: ids[1..].to_vec(),
        ignore_eos: true,
        ..Generate::default()
    };
    let mut turn = session.generate(spec).await?;
    let mut logprobs = Vec::with_capacity(ids.len() - 1);
    while let Some(step) = turn.next().await {
        logprobs.push(step?.logprob);
    }
    drop(turn);
    of_scores(ids, logprobs)
}

/// Encodes the fixed text of fingerprints.
///
/// # Errors
/// If the text cannot be encoded, or has fewer than two tokens.
pub fn probe(tokenizer: &Tokenizer) -> anyhow::Result<Vec<u32>> {
    let ids = tokenizer.encode(PROBE, Specials::Literal)?;
    ensure!(ids.len() > 1, "the tokenizer encodes the probe as {} tokens: at least 2 are needed", ids.len());
    Ok(ids)
}

/// Returns the fingerprint of weights that give `logprobs` to the tokens of the [`probe`] after the first.
///
/// # Errors
/// If a log-probability is missing or not finite.
pub fn of_scores(ids: Vec<u32>, logprobs: Vec<f32>) -> anyhow::Result<LogprobFingerprint> {
    let expected = ids.len().saturating_sub(1);
    ensure!(logprobs.len() == expected, "{} of {expected} tokens of the probe were scored", logprobs.len());
    if let Some(at) = logprobs.iter().position(|logprob| !logprob.is_finite()) {
        bail!("token {} of the probe has the log-probability {}", at + 1, logprobs[at]);
    }
    Ok(LogprobFingerprint { ids, logprobs, tolerance: LogprobFingerprint::TOLERANCE })
}

/// Writes a fingerprint into the file at `path`, a `policy.toml`, in place of an earlier one. The rest of the file stays as
/// it is.
///
/// # Errors
/// If the file cannot be read or written, or would not be a policy any more.
pub fn write(path: &Path, fingerprint: &LogprobFingerprint) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let text = with_fingerprint(&text, fingerprint);
    // A file that writes the fingerprint in another form than a table is not supported, and stays as it is.
    let policy = Policy::parse(&text, path).context("the fingerprint cannot be added: remove the old one by hand")?;
    ensure!(policy.fingerprint.is_some(), "the fingerprint cannot be added to {}", path.display());
    durable_file::replace(path, text.as_bytes()).with_context(|| path.display().to_string())
}

/// Returns the text of a policy's file in which `fingerprint` replaces any earlier one.
fn with_fingerprint(text: &str, fingerprint: &LogprobFingerprint) -> String {
    let mut kept = String::new();
    // Comments and blank lines after the last entry of the table, which belong to the next table.
    let mut after = String::new();
    let mut inside = false;
    for line in text.lines() {
        let line_start = line.trim_start();
        if line_start.starts_with('[') {
            inside = line_start.trim_end() == HEADER;
            kept.push_str(&std::mem::take(&mut after));
        }
        let into = match inside {
            false => &mut kept,
            true if line_start.starts_with('#') || (line_start.is_empty() && !after.is_empty()) => &mut after,
            true => {
                after.clear();
                continue;
            }
        };
        into.push_str(line);
        into.push('\n');
    }
    kept.push_str(&after);
    let LogprobFingerprint { ids, logprobs, tolerance } = fingerprint;
    // Four digits are more than the tolerance can tell apart.
    let logprobs: Vec<String> = logprobs.iter().map(|logprob| format!("{:.4}", logprob.min(0.0))).collect();
    let kept = kept.trim_end();
    format!("{kept}\n\n{HEADER}\nids = {ids:?}\nlogprobs = [{}]\ntolerance = {tolerance}\n", logprobs.join(", "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const FILE: &str = "# mine\nname = \"a\"\nprotocol = \"plain\"\n\n[budget]\nseconds = 9.0 # short\n";

    fn fingerprint(ids: &[u32]) -> LogprobFingerprint {
        let logprobs = ids[1..].iter().map(|&id| -(id as f32) / 3.0).collect();
        LogprobFingerprint { ids: ids.to_vec(), logprobs, tolerance: 0.25 }
    }

    #[test]
    fn the_rest_of_the_file_stays_and_the_old_fingerprint_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.toml");
        std::fs::write(&path, format!("{FILE}[training]\nsteps = 1\n")).unwrap();
        for ids in [[1, 2, 3].as_slice(), &[4, 5]] {
            write(&path, &fingerprint(ids)).unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.starts_with(FILE) && text.matches(HEADER).count() == 1, "{text}");
            let policy = Policy::parse(&text, &path).unwrap();
            let read = policy.fingerprint.unwrap();
            assert_eq!((read.ids.as_slice(), read.tolerance), (ids, 0.25));
            assert!(read.compare(&fingerprint(ids).logprobs).is_ok());
            assert_eq!(policy.training.unwrap()["steps"].as_integer(), Some(1));
        }
    }

    #[test]
    fn scores_that_are_missing_or_not_finite_are_refused() {
        let said = |logprobs: &[f32]| of_scores(vec![1, 2, 3], logprobs.to_vec()).map_err(|error| error.to_string());
        assert_eq!(said(&[-1.0, -2.0]).unwrap().logprobs, [-1.0, -2.0]);
        assert_eq!(said(&[-1.0]).unwrap_err(), "1 of 2 tokens of the probe were scored");
        assert_eq!(said(&[-1.0, f32::NAN]).unwrap_err(), "token 2 of the probe has the log-probability NaN");
    }

    #[test]
    fn comments_after_the_old_fingerprint_stay() {
        let old = "[fingerprint]\n# of the table\nids = [\n    1,\n    # of the list\n    2,\n]\nlogprobs = [-1.0]\n\n";
        let next = "# of training\n\n# and more\n[training]\nsteps = 1\n";
        let text = with_fingerprint(&format!("{FILE}\n{old}{next}"), &fingerprint(&[4, 5]));
        assert!(text.starts_with(&format!("{FILE}\n{next}\n{HEADER}\nids = [4, 5]\n")), "{text}");
        let end = with_fingerprint(&format!("{FILE}\n{old}# the end\n"), &fingerprint(&[4, 5]));
        assert!(end.starts_with(&format!("{FILE}\n# the end\n\n{HEADER}\n")), "{end}");
        assert_eq!(with_fingerprint(&end, &fingerprint(&[4, 5])), end);
    }

    #[test]
    fn a_file_that_is_not_understood_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.toml");
        let inline = format!("fingerprint = {{ ids = [1, 2], logprobs = [-1.0] }}\n{FILE}");
        std::fs::write(&path, &inline).unwrap();
        assert!(write(&path, &fingerprint(&[1, 2])).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), inline);
    }
}
