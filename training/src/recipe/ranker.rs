//! EVO-RAG's preference model, as a recipe has it.

use serde::{Deserialize, Serialize};

use super::dpo::Stage;
use super::read::{COUNT, Check, RATE, rate};
use crate::dpo::{HEADS, Rule};
use crate::reward::Choice;

/// The preference model of EVO-RAG (§3.3 of its paper): linear heads over a frozen encoder, which learn to tell the better of
/// two branches. See `dpo::ranker`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ranker {
    /// Δ: by how much the rewards of two branches differ at least from which it learns.
    pub margin: f64,
    /// How many heads: seven, one for each of EVO-RAG's rewards, or one; with none there is no ranker.
    pub heads: usize,
    /// What a head is to say.
    pub labels: Labels,
    /// Its learning rate, always the same; the rest of its optimizer is `[optimizer]`.
    pub learning_rate: f64,
    /// How often each pair of a round is seen.
    pub epochs: usize,
    /// Pairs of one of its optimizer steps.
    pub batch: usize,
    /// Share of all questions whose pairs it never learns from, and is measured on.
    pub held_out: f64,
    /// Whether the policy learns from the pairs that it says, by its score in place of the reward. Otherwise it is measured
    /// and its scores are noted, and the policy learns as without it.
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

/// What a head of a ranker is to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Labels {
    /// Which of two branches earned more in all: the same for all heads, as the paper prints it.
    #[default]
    Total,
    /// Which of them earned more of the head's own reward, weighed over time; ours. Of two that earned the same of it the
    /// head learns nothing.
    Own,
}

impl Ranker {
    pub(super) fn checks(&self, stages: &[Stage]) -> Vec<Check> {
        let evo_rag = stages.iter().all(|stage| matches!(stage.reward, Choice::EvoRag(_)));
        let siblings = self.heads == 0 || stages.iter().all(|stage| matches!(stage.pairs, Rule::Siblings(_)));
        vec![
            (
                "dpo.ranker",
                siblings,
                "tells branches of a state: take pairs = { siblings = { margin = … } } in every stage",
            ),
            ("dpo.ranker.margin", self.margin >= 0.0, "must not be below 0"),
            ("dpo.ranker.heads", [0, 1, HEADS].contains(&self.heads), "must be 7, 1, or 0 for none"),
            (
                "dpo.ranker.heads",
                self.heads < HEADS || evo_rag,
                "7 heads are those of the rewards of evo_rag: take that reward in every stage, or heads = 1",
            ),
            (
                "dpo.ranker.labels",
                self.labels == Labels::Total || self.heads != 1,
                "own labels take a head for each reward: set dpo.ranker.heads to 7",
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
        Ok(recipe.dpo(&path).unwrap().ranking().copied())
    }

    #[test]
    fn the_recipe_has_the_papers_and_others_have_none() {
        assert_eq!(open("evo_rag.toml", &[]), Ok(Some(Ranker::default())));
        assert_eq!(open("tearag.toml", &[]), Ok(None));
        for (name, set) in [("tearag.toml", None), ("evo_rag.toml", Some("dpo.ranker.heads=0".to_owned()))] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes").join(name);
            let text = toml::to_string(&Recipe::open(&path, set.as_slice()).unwrap()).unwrap();
            assert!(!text.contains("ranker"), "a run from before it would not go on");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let own = "dpo.ranker.labels=own";
        let rewarded = "dpo.stages=[{rounds=1,epochs=1,reward=\"exact_match\",pairs={siblings={margin=0.2}}}]";
        let paired = "dpo.stages=[{rounds=1,epochs=1,reward={tearag={}},pairs={tearag={}}}]";
        for (set, field, reason) in [
            (&["dpo.ranker.margin=-0.1"][..], "dpo.ranker.margin", "not be below 0"),
            (&["dpo.ranker.heads=3"][..], "dpo.ranker.heads", "7, 1, or 0"),
            (&[own, "dpo.ranker.heads=1"][..], "dpo.ranker.labels", "heads to 7"),
            (&[rewarded][..], "dpo.ranker.heads", "take that reward"),
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
