//! Tokens of a trace: a list of IDs, and their origins in runs.

use serde::Serialize;
use utoipa::ToSchema;
use waymark_engine::{Origin, Token};

/// All tokens of an episode, beginning with the prompt. The lists have the length of the sequence.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceTokens<'a> {
    /// Token IDs.
    #[serde(serialize_with = "ids")]
    #[schema(value_type = Vec<u32>)]
    pub ids: &'a [Token],
    /// Log-probabilities under the model's full distribution at temperature 1. Null for tokens that were not sampled.
    #[serde(serialize_with = "logprobs")]
    #[schema(value_type = Vec<Option<f32>>)]
    pub logprobs: &'a [Token],
    /// Runs of tokens with the same origin; their lengths add up to the length of the sequence.
    pub runs: Vec<TokenRun>,
}

/// Run of consecutive tokens with the same origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct TokenRun {
    /// Origin of the tokens.
    pub origin: TokenOrigin,
    /// If `true`, the protocol forced the tokens on the policy.
    pub forced: bool,
    /// Number of tokens.
    pub tokens: usize,
}

/// Origin of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenOrigin {
    /// Prompt.
    Prompt,
    /// Policy: sampled, or forced in its name.
    Policy,
    /// Environment: evidence and other observations.
    Environment,
}

impl<'a> TraceTokens<'a> {
    pub(super) fn new(tokens: &'a [Token]) -> TraceTokens<'a> {
        TraceTokens { ids: tokens, logprobs: tokens, runs: runs(tokens) }
    }
}

impl From<Origin> for TokenOrigin {
    fn from(origin: Origin) -> TokenOrigin {
        match origin {
            Origin::Prompt => TokenOrigin::Prompt,
            Origin::Policy => TokenOrigin::Policy,
            Origin::Environment => TokenOrigin::Environment,
        }
    }
}

fn runs(tokens: &[Token]) -> Vec<TokenRun> {
    let same = |a: &Token, b: &Token| (a.origin, a.forced) == (b.origin, b.forced);
    // `chunk_by` yields no empty chunk.
    let run = |run: &[Token]| TokenRun { origin: run[0].origin.into(), forced: run[0].forced, tokens: run.len() };
    tokens.chunk_by(same).map(run).collect()
}

fn ids<S: serde::Serializer>(tokens: &[Token], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(tokens.iter().map(|token| token.id))
}

fn logprobs<S: serde::Serializer>(tokens: &[Token], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(tokens.iter().map(|token| token.logprob))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    fn token() -> impl Strategy<Value = Token> {
        let origin = prop_oneof![Just(Origin::Prompt), Just(Origin::Policy), Just(Origin::Environment)];
        (any::<u32>(), origin, prop::option::of(-20f32..0.0), any::<bool>())
            .prop_map(|(id, origin, logprob, forced)| Token { id, origin, logprob, forced })
    }

    proptest! {
        #[test]
        fn runs_say_of_every_token_where_it_came_from(tokens in prop::collection::vec(token(), 0..40)) {
            let runs = runs(&tokens);
            let said: Vec<_> = runs.iter().flat_map(|run| std::iter::repeat_n((run.origin, run.forced), run.tokens)).collect();
            let were: Vec<_> = tokens.iter().map(|token| (token.origin.into(), token.forced)).collect();
            prop_assert_eq!(said, were);
            prop_assert!(runs.windows(2).all(|pair| (pair[0].origin, pair[0].forced) != (pair[1].origin, pair[1].forced)));
            let json = serde_json::to_value(TraceTokens::new(&tokens)).unwrap();
            prop_assert_eq!(json["ids"].as_array().unwrap().len(), tokens.len());
            prop_assert_eq!(json["logprobs"].as_array().unwrap().len(), tokens.len());
        }
    }
}
