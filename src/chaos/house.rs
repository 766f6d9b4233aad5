//! What a server needs on disk: an index, and policies to load while it serves.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use waymark::cli::assembly;
use waymark::cli::embedding::MOCK as MOCK_EMBEDDER;
use waymark_index::{BuildOptions, BuildProgress, Corpus, Document, Phase, build};
use waymark_models::kernel::Team;

use crate::plan::Plan;

/// The catalog's embedder for servers with weights.
const EMBEDDER: &str = "all-minilm-l6-v2";

/// Passages that are there from the beginning.
const PASSAGES: usize = 200;

/// The folders of one run.
#[derive(Debug)]
pub(crate) struct House {
    /// Holds everything; gone with the run.
    root: PathBuf,
    /// Which embedder the index was built with.
    pub(crate) embedder: &'static str,
}

impl House {
    /// Builds the index and writes the policies under `root`, an empty folder.
    pub(crate) fn build(plan: &Plan, root: PathBuf) -> anyhow::Result<House> {
        let embedder = if plan.mock() { MOCK_EMBEDDER } else { EMBEDDER };
        let house = House { root, embedder };
        let documents = (0..PASSAGES).map(|number| passage(number, "as it was at the beginning")).collect();
        let corpus = Corpus::from_documents("chaos", documents);
        let team = Arc::new(Team::new(1));
        let embedding = assembly::embedder(embedder, plan.cache.clone(), team)?;
        build(corpus, &embedding, &house.index(), &BuildOptions::default(), &Quiet)?;
        for directory in ["one", "two"] {
            house.policy(directory, plan)?;
        }
        Ok(house)
    }

    /// The index.
    pub(crate) fn index(&self) -> PathBuf {
        self.root.join("index")
    }

    /// The folder of policies.
    pub(crate) fn policies(&self) -> PathBuf {
        self.root.join("policies")
    }

    /// A policy called `swapped`, with an adapter where there is one for the model. The mock takes any; a model that was
    /// not trained in the loop stays in its form only when it is guided.
    fn policy(&self, directory: &str, plan: &Plan) -> anyhow::Result<()> {
        let folder = self.policies().join(directory);
        std::fs::create_dir_all(&folder)?;
        let mut text = "name = \"swapped\"\nprotocol = \"routerag\"\n".to_owned();
        if plan.mock() {
            std::fs::write(folder.join("adapter_config.json"), "{}")?;
        } else {
            text.push_str("guided = true\n");
        }
        if let Some(adapter) = &plan.adapter {
            let adapter = adapter.canonicalize().with_context(|| format!("--adapter {}", adapter.display()))?;
            text.push_str(&format!("adapter = {:?}\n", adapter.display().to_string()));
        }
        std::fs::write(folder.join("policy.toml"), text)?;
        Ok(())
    }
}

/// A passage of the corpus.
pub(crate) fn passage(number: usize, what: &str) -> Document {
    Document {
        id: format!("p{number}"),
        title: format!("Subject {number}"),
        text: format!("Subject {number} is what the question is about, {what}."),
        triples: None,
        metadata: None,
    }
}

struct Quiet;

impl BuildProgress for Quiet {
    fn update(&self, _: Phase, _: u64, _: Option<u64>) {}
}
