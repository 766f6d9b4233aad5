//! The tokens of a trace: ids in one list, where they came from in runs.

use serde::Serialize;
use utoipa::ToSchema;

use crate::engine::{Origin, Token};

/// Every token of an episode, the prompt's first. The lists are as long as the sequence.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceTokens<'a> {
    /// The ids.
    #[serde(serialize_with = "ids")]
    #[schema(value_type = Vec<u32>)]
    pub ids: &'a [Token],
    /// Log-probabilities under the model's full distribution, temperature 1; null for tokens that were not sampled.
    #[serde(serialize_with = "logprobs")]
    #[schema(value_type = Vec<Option<f32>>)]
    pub logprobs: &'a [Token],
    /// Where they came from, run by run; the lengths add up to the sequence's.
    pub runs: Vec<TokenRun>,
}

/// Tokens in a row that came from the same place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct TokenRun {
    /// Where they came from.
    pub origin: TokenOrigin,
    /// Whether the protocol put them in the policy's mouth.
    pub forced: bool,
    /// How many.
    pub tokens: usize,
}

/// Where tokens came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenOrigin {
    /// The prompt.
    Prompt,
    /// The policy: sampled, or forced in its name.
    Policy,
    /// The environment: evidence and other observations.
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
