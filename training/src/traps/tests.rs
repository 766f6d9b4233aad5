#![allow(clippy::unwrap_used)]

use std::path::Path;

use waymark_agent::EpisodeEnd;

use super::behavior::Behavior;
use super::play::play;
use super::*;
use crate::data::voice::{protocols, voice};
use crate::recipe::Recipe;
use crate::reward::evidence_measure::EvidenceMeasure;

fn recipe(name: &str, set: &[&str]) -> Recipe {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/recipes")).join(format!("{name}.toml"));
    Recipe::open(&path, &set.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>()).unwrap()
}

async fn table(name: &str, set: &[&str]) -> TrapTable {
    TrapTable::of(&recipe(name, set)).await.unwrap()
}

#[tokio::test]
async fn behaviors_are_what_they_are_called_in_every_protocol() {
    for protocol in protocols() {
        let policy = waymark_agent::Policy::builtin(protocol).unwrap();
        let rounds = policy.budget.turns.clamp(2, 32);
        for behavior in Behavior::all() {
            let sample = play(behavior, &policy, voice(protocol).unwrap(), EvidenceMeasure::Recall).await.unwrap();
            let told = format!("{protocol}, {}: {}", behavior.name(), sample.text);
            let searches = sample.evidence.len();
            let forced = sample.is_forced();
            match behavior {
                Behavior::Right => {
                    assert_eq!((sample.answer.as_deref(), searches, forced), (Some("Leeds"), 2, false), "{told}");
                    assert_eq!(sample.finish, EpisodeEnd::Stop, "{told}");
                    assert!(sample.support.unwrap() > 0.5, "both passages were found: {told}");
                }
                Behavior::Bad(Trap::Repeat) => {
                    assert_eq!((sample.answer.as_deref(), searches, forced), (Some("Paris"), rounds, false), "{told}");
                }
                Behavior::Bad(Trap::Refuse) => {
                    let end = sample.actions.last().unwrap().action.ending().unwrap();
                    assert_eq!((end, searches), ("I could not find an answer.", 0), "{told}");
                }
                Behavior::Bad(Trap::Answer) => {
                    assert_eq!((sample.answer.as_deref(), searches, forced), (Some("Paris"), 0, false), "{told}");
                }
                Behavior::Bad(Trap::Exhaust) => {
                    assert_eq!((searches, sample.actions.len()), (rounds, rounds + 1), "{told}");
                    assert!(forced || sample.answer.is_none(), "{told}");
                    assert!(sample.evidence.iter().all(|found| !sample.supporting.contains(&found.passages[0].0)));
                }
            }
        }
    }
}

#[tokio::test]
async fn bundled_recipes_have_no_traps_that_they_do_not_name() {
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/recipes")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        // Recipes of data have sources and no base.
        if name.ends_with("_data") || name == "cold_start" {
            continue;
        }
        let table = table(name, &[]).await;
        assert!(!table.stages.is_empty(), "{name}");
        table.check().unwrap_or_else(|error| panic!("{name}: {error}\n{table}"));
    }
}

#[tokio::test]
async fn a_reward_of_searches_alone_is_refused_until_it_says_so() {
    let stages = |reward: &str, allowed: &str| format!("grpo.stages=[{{steps=1,reward={reward}{allowed}}}]");
    let attenuated = "{attenuated={first=0.5,decay=0.5}}";
    let open = async |allowed: &str| table("graphrag_r1-smollm2", &[&stages(attenuated, allowed)]).await;
    let silent = open("").await;
    // Two searches in the right form earn 0.5 + 0.5 + 0.25; six of the same one 0.5 + 0.5 (1 − 2⁻⁶) / (1 − ½).
    assert!((silent.stages[0].right - 1.25).abs() < 1e-9 && (silent.stages[0].bad[0] - 1.484_375).abs() < 1e-9);
    assert_eq!(silent.stages[0].traps(), [Trap::Repeat]);
    let error = silent.check().unwrap_err().to_string();
    assert!(error.starts_with("grpo.stages[0]: the behavior `repeat` earns 1.48") && error.contains("[\"repeat\"]"));
    assert!(silent.to_string().contains("repeat beats right: refused"), "{silent}");
    let said = open(",allow_traps=[\"repeat\"]").await;
    assert!(said.check().is_ok() && said.to_string().contains("repeat beats right: allowed"), "{said}");
    let other = open(",allow_traps=[\"exhaust\",\"repeat\"]").await.check().unwrap_err();
    assert!(matches!(other, TrapError::Unneeded { trap: Trap::Exhaust, .. }), "{other}");
    // Both rewards together, and the answer's alone, have no trap.
    for reward in ["{attenuated_cost_aware={}}", "{cost_aware={}}"] {
        let table = table("graphrag_r1-smollm2", &[&stages(reward, "")]).await;
        assert!(table.check().is_ok() && table.stages[0].traps().is_empty(), "{table}");
    }
}

#[tokio::test]
async fn a_bonus_for_any_hit_is_a_trap_of_evo_rag() {
    let open = async |bonus: &str| {
        let stage = format!("{{rounds=1,epochs=1,reward={{evo_rag={{steps=7,bonus=\"{bonus}\"}}}}");
        table("evo_rag-smollm2", &[&format!("dpo.stages=[{stage},pairs={{siblings={{margin=0.2}}}}}}]")]).await
    };
    assert_eq!(open("any").await.stages[0].traps(), [Trap::Repeat]);
    assert_eq!(open("new").await.stages[0].traps(), []);
}

#[tokio::test]
async fn protocols_without_a_voice_have_no_table() {
    let table = table("search_r1", &["policy={protocol=\"plain\"}"]).await;
    assert!(table.stages.is_empty() && table.check().is_ok());
    assert!(table.to_string().contains("nothing to compare"), "{table}");
}
