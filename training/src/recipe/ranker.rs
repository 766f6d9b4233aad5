//! Recipe settings of EVO-RAG's preference model.

use serde::{Deserialize, Serialize};

use super::dpo::DpoStage;
use super::read::{COUNT, Check, RATE, rate};
use crate::dpo::{HEADS, PairRule};
use crate::reward::RewardChoice;

/// EVO-RAG's preference model (§3.3 of its paper): linear heads over a frozen encoder that learn to tell the better
/// of two branches. See `dpo::ranker`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ranker {
    /// Δ: minimum difference between the rewards of two branches for training on them.
    pub margin: f64,
    /// Number of heads: seven, one for each of EVO-RAG's rewards, or one. 0 in a recipe disables the preference model.
    pub heads: usize,
    /// Labels of the heads.
    pub labels: Labels,
    /// Constant learning rate. The other optimizer settings are those of `[optimizer]`.
    pub learning_rate: f64,
    /// Number of epochs over the pairs of a round.
    pub epochs: usize,
    /// Number of pairs per optimizer step.
    pub batch: usize,
    /// Share of all questions whose pairs are held out to measure accuracy.
    pub held_out: f64,
    /// If `true`, the policy trains on the pairs that the preference model selects, by its score instead of the
    /// reward. If `false`, its scores are only recorded.
    pub selects: bool,
}

impl Default for Ranker {
    fn default() -> Self {
        Self {
            margin: 0.3,
            heads: HEADS,
            labels: Labels::Total,
            learning_rate: 1e-4,
            epochs: 1,
            batch: 64,
            held_out: 0.1,
            selects: false,
        }
    }
}

/// Labels that the heads of a preference model learn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Labels {
    /// Total reward: the branch that earned more is the better one, for all heads. As printed in the paper.
    #[default]
    Total,
    /// The head's own reward, weighted over time. Specific to this project. Pairs with equal values are skipped.
    Own,
}

impl Ranker {
    pub(super) fn checks(&self, stages: &[DpoStage]) -> Vec<Check> {
        let evo_rag = stages.iter().all(|stage| matches!(stage.reward, RewardChoice::EvoRag(_)));
        let siblings = stages.iter().all(|stage| matches!(stage.pairs, PairRule::Siblings(_)));
        vec![
            (
                "dpo.ranker",
                siblings,
                "compares branches of one state: use pairs = { siblings = { margin = … } } in every stage",
            ),
            ("dpo.ranker.margin", self.margin >= 0.0, "must be at least 0"),
            ("dpo.ranker.heads", [1, HEADS].contains(&self.heads), "must be 7, 1, or 0 for none"),
            (
                "dpo.ranker.heads",
                self.heads < HEADS || evo_rag,
                "7 heads match the rewards of evo_rag: use that reward in every stage, or set heads = 1",
            ),
            (
                "dpo.ranker.labels",
                self.labels == Labels::Total || self.heads != 1,
                "labels = own needs one head per reward: set dpo.ranker.heads to 7",
            ),
            ("dpo.ranker.learning_rate", rate(self.learning_rate), RATE),
            ("dpo.ranker.epochs", self.epochs > 0, COUNT),
            ("dpo.ranker.batch", self.batch > 0, COUNT),
            ("dpo.ranker.held_out", (0.0..1.0).contains(&self.held_out), "must be from 0 to below 1"),
        ]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use super::*;
    use crate::recipe::Recipe;

    fn open(name: &str, set: &[&str]) -> Result<Option<Ranker>, String> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes").join(name);
        let set: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
        let recipe = Recipe::open(&path, &set).map_err(|error| error.to_string())?;
        Ok(recipe.dpo(&path).unwrap().ranker)
    }

    #[test]
    fn only_the_evo_rag_recipe_has_a_ranker() {
        assert_eq!(open("evo_rag.toml", &[]), Ok(Some(Ranker::default())));
        assert_eq!(open("tearag.toml", &[]), Ok(None));
        for (name, set) in [("tearag.toml", None), ("evo_rag.toml", Some("dpo.ranker.heads=0".to_owned()))] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes").join(name);
            let recipe = Recipe::open(&path, set.as_slice()).unwrap();
            let text = toml::to_string(&recipe).unwrap();
            assert!(!text.contains("ranker"), "runs started before this field existed could not resume");
            assert_eq!(toml::from_str::<Recipe>(&text).unwrap(), recipe);
        }
    }

    #[test]
    fn invalid_rankers_are_refused() {
        let own = "dpo.ranker.labels=own";
        let rewarded = "dpo.stages=[{rounds=1,epochs=1,reward=\"exact_match\",pairs={siblings={margin=0.2}}}]";
        let paired = "dpo.stages=[{rounds=1,epochs=1,reward={tearag={}},pairs={tearag={}}}]";
        for (set, field, reason) in [
            (&["dpo.ranker.margin=-0.1"][..], "dpo.ranker.margin", "be at least 0"),
            (&["dpo.ranker.heads=3"][..], "dpo.ranker.heads", "7, 1, or 0"),
            (&[own, "dpo.ranker.heads=1"][..], "dpo.ranker.labels", "heads to 7"),
            (&[rewarded][..], "dpo.ranker.heads", "use that reward"),
            (&[paired, "dpo.ranker.heads=1"][..], "dpo.ranker", "siblings"),
            (&["dpo.ranker.learning_rate=0.0"][..], "dpo.ranker.learning_rate", "above 0"),
            (&["dpo.ranker.epochs=0"][..], "dpo.ranker.epochs", "at least 1"),
            (&["dpo.ranker.batch=0"][..], "dpo.ranker.batch", "at least 1"),
            (&["dpo.ranker.held_out=1.0"][..], "dpo.ranker.held_out", "below 1"),
            (&["dpo.ranker.head=1"][..], "dpo.ranker.head", "unknown field `head`"),
        ] {
            let error = open("evo_rag.toml", set).unwrap_err();
            assert!(error.contains(&format!(": {field}: ")) && error.contains(reason), "{set:?}: {error}");
        }
        assert!(open("evo_rag.toml", &[own]).is_ok());
        let one = open("evo_rag.toml", &[rewarded, "dpo.ranker.heads=1"]);
        assert_eq!(one, Ok(Some(Ranker { heads: 1, ..Ranker::default() })));
        assert_eq!(open("evo_rag.toml", &[paired, "dpo.ranker.heads=0"]), Ok(None));
    }
}
