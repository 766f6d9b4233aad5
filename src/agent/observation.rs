//! Observations to token ids, within their bound.

use super::AgentError;
use super::generator::Source;
use super::policy::Policy;
use super::protocol::{Format, Injected, Outcome, Seen};
use super::runtime::Runtime;

/// More bytes than a token stands for.
const LONGEST: usize = 256;

/// An observation as it goes into the context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Observation {
    /// Its tokens.
    pub(super) ids: Vec<u32>,
    /// Its text.
    pub(super) text: String,
    /// Whether it was cut.
    pub(super) truncated: bool,
}

/// Encodes an observation into at most `limit` tokens. [`Format::Training`] cuts on the right, closing tag included, as
/// the reference does; [`Format::Evaluation`] shortens what was retrieved and keeps the frame, and so does each where
/// another speaks: [`frame`] is to fit.
pub(super) fn observe<S: Source>(
    runtime: &Runtime<S>,
    parts: &[Injected],
    format: Format,
    limit: usize,
) -> Result<Observation, AgentError> {
    let parts = &within(parts, limit);
    let ids = runtime.encode_parts(parts)?;
    if ids.len() <= limit {
        return Ok(Observation { text: text(runtime, parts, &ids), ids, truncated: false });
    }
    if (format == Format::Evaluation || speaks(parts))
        && let Some((ids, text)) = shortened(runtime, parts, ids.len(), limit)?
    {
        return Ok(Observation { ids, text, truncated: true });
    }
    let ids = ids[..limit].to_vec();
    Ok(Observation { text: runtime.tokenizer.decode(&ids), ids, truncated: true })
}

/// The parts without what was retrieved so far behind the cut that no tokens could bring it in. A passage may be megabytes of
/// text, and to encode all of it would hold up everybody else on this thread.
fn within(parts: &[Injected], limit: usize) -> Vec<Injected> {
    let most = limit.saturating_add(1).saturating_mul(LONGEST);
    let cut = |part: &Injected| match part {
        Injected::Retrieved(text) => Injected::retrieved(&text[..text.floor_char_boundary(most)]),
        part => part.clone(),
    };
    parts.iter().map(cut).collect()
}

/// Tokens of the shortest observation after which the policy can go on; 0 where nobody else speaks, for there any part
/// of one will do.
///
/// # Errors
/// [`AgentError::Speakers`] when others speak in the protocol and the chat template has no words for that.
pub(super) fn frame<S: Source>(runtime: &Runtime<S>, policy: &Policy, format: Format) -> Result<usize, AgentError> {
    let nothing = Outcome::Evidence(Seen::of(&[]));
    let mut parts = policy.protocol.observation(&nothing, format);
    if !speaks(&parts) {
        return Ok(0);
    }
    if let Err(reason) = runtime.speakers() {
        return Err(AgentError::Speakers { policy: policy.name.clone(), reason: reason.to_owned() });
    }
    for part in &mut parts {
        if let Injected::Retrieved(text) = part {
            text.clear();
        }
    }
    Ok(runtime.encode_parts(&parts)?.len())
}

/// Whether another speaks in an observation.
fn speaks(parts: &[Injected]) -> bool {
    parts.iter().any(|part| matches!(part, Injected::Speaker(_)))
}

/// The text of an observation: what its ids say, control tokens left out.
fn text<S: Source>(runtime: &Runtime<S>, parts: &[Injected], ids: &[u32]) -> String {
    if speaks(parts) {
        return runtime.tokenizer.decode(ids);
    }
    parts.iter().map(Injected::text).collect()
}

/// The observation with less of what was retrieved; `None` when the frame alone is too long.
fn shortened<S: Source>(
    runtime: &Runtime<S>,
    parts: &[Injected],
    length: usize,
    limit: usize,
) -> Result<Option<(Vec<u32>, String)>, AgentError> {
    let Some(at) = parts.iter().position(|part| matches!(part, Injected::Retrieved(_))) else { return Ok(None) };
    let retrieved = runtime.literal(parts[at].text())?;
    let mut parts = parts.to_vec();
    // Tokens merge over the seams, so the first guess can miss by a few.
    let mut keep = retrieved.len().saturating_sub(length - limit);
    loop {
        let kept = runtime.tokenizer.decode(&retrieved[..keep]);
        parts[at] = Injected::retrieved(kept.trim_end_matches(char::REPLACEMENT_CHARACTER));
        let ids = runtime.encode_parts(&parts)?;
        if ids.len() <= limit {
            let text = text(runtime, &parts, &ids);
            return Ok(Some((ids, text)));
        }
        if keep == 0 {
            return Ok(None);
        }
        keep = keep.saturating_sub(ids.len() - limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_far_behind_the_cut_is_not_encoded() {
        let parts = [Injected::frame("f".repeat(9000)), Injected::retrieved("a".to_owned() + &"\u{e9}".repeat(9000))];
        let cut = within(&parts, 9);
        assert_eq!(cut[0], parts[0], "the frame stays");
        // The last character would stand half outside.
        assert_eq!(cut[1].text().len(), 10 * LONGEST - 1);
        assert_eq!(within(&parts, usize::MAX), parts);
    }
}
