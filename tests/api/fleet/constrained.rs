//! Turns under constraints that the engines do not know.

use std::sync::Arc;

use serde_json::Value;
use waymark_engine::{Constraint, ConstraintState, Generate};
use waymark_models::sampler::TokenMask;

use super::stub::Stub;
use super::{VOCAB, config, connect, opened, run, spec, undisturbed};

const PROMPT: [u32; 5] = [10, 20, 30, 40, 50];

/// Constraint that forbids one token.
#[derive(Debug, Clone, Copy)]
struct Forbids(u32);

impl Constraint for Forbids {
    fn begin(&self) -> Box<dyn ConstraintState> {
        Box::new(*self)
    }
}

impl ConstraintState for Forbids {
    fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
        let mut mask = TokenMask::all(VOCAB);
        mask.forbid(self.0);
        Ok(Some(mask))
    }

    fn accept(&mut self, _id: u32) -> Result<(), String> {
        Ok(())
    }
}

#[tokio::test]
async fn a_withdrawn_token_is_sampled_again_from_another_seed() {
    let stub = Stub::start().await;
    let fleet = connect(&config("vllm", &[&stub.url()])).await.unwrap();
    let forbidden = undisturbed(&PROMPT, 1)[0];
    let constrained = Generate { constraint: Some(Arc::new(Forbids(forbidden))), ..spec(1) };
    let turn = run(&mut opened(&fleet, &PROMPT), constrained).await;
    assert_eq!((turn.error.clone(), turn.steps.len()), (None, 1));
    assert_ne!(turn.steps[0].id, forbidden);
    let requests = stub.streamed();
    let [(_, free), (_, correcting)] = requests.as_slice() else { panic!("{requests:?}") };
    let allowed = |body: &Value| body["sampling_params"]["allowed_token_ids"].as_array().map(Vec::len);
    assert_eq!((allowed(free), allowed(correcting)), (None, Some(VOCAB - 1)));
    // The random number of the withdrawn token is known to lie outside of the allowed ones.
    let seed = |body: &Value| body["sampling_params"]["seed"].as_i64().unwrap();
    assert_ne!(seed(free), seed(correcting));
}
