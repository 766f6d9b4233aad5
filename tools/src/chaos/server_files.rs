//! Files of the server under test: an index, and policies to load while it serves.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use waymark_index::{BuildOptions, BuildPhase, BuildProgress, Corpus, Document, build};
use waymark_models::kernel::Team;
use waymark_runtime::assembly;
use waymark_runtime::config::{DEFAULT_EMBEDDER, EmbedderConfig, QueryArithmetic};
use waymark_runtime::embedding::MOCK as MOCK_EMBEDDER;

use crate::client_keys::ClientKeys;
use crate::plan::ChaosPlan;

/// Number of initial passages: enough for commits to append to a log that is merged in the background. Clients ask
/// about the first 200.
const PASSAGES: usize = 2200;

/// The folders of one run.
#[derive(Debug)]
pub(crate) struct ServerFiles {
    /// Root folder, deleted after the run.
    root: PathBuf,
    /// Disk of the index. `None` keeps the index under the root.
    disk: Option<PathBuf>,
    /// Embedder that the index was built with.
    pub(crate) embedder: &'static str,
}

impl ServerFiles {
    /// Writes the index, policies and keys under `root`, an empty folder. If `disk` is given, the index is on it
    /// instead.
    pub(crate) fn build(
        plan: &ChaosPlan,
        root: PathBuf,
        disk: Option<PathBuf>,
    ) -> anyhow::Result<(ServerFiles, ClientKeys)> {
        let embedder = if plan.mock() { MOCK_EMBEDDER } else { DEFAULT_EMBEDDER };
        let files = ServerFiles { root, disk, embedder };
        let documents = (0..PASSAGES).map(|number| passage(number, "as it was at the beginning")).collect();
        let corpus = Corpus::from_documents("chaos", documents);
        let team = Arc::new(Team::new(1));
        let query_arithmetic = QueryArithmetic::default();
        let embedder = EmbedderConfig::Weights { name: embedder.to_owned(), query_arithmetic };
        let embedding = assembly::embedder(&embedder, plan.cache.clone(), team)?;
        build(corpus, &embedding, &files.index(), &BuildOptions::default(), &NoProgress)?;
        for directory in ["one", "two"] {
            files.write_policy(directory, plan)?;
        }
        let keys = ClientKeys::create(&files.keys())?;
        Ok((files, keys))
    }

    /// Directory of the index.
    pub(crate) fn index(&self) -> PathBuf {
        self.disk.as_ref().unwrap_or(&self.root).join("index")
    }

    /// Folder for an undamaged copy of the index.
    pub(crate) fn copy(&self) -> PathBuf {
        self.root.join("copy")
    }

    /// File of API keys.
    pub(crate) fn keys(&self) -> PathBuf {
        self.root.join("keys.toml")
    }

    /// Folder of policies.
    pub(crate) fn policies(&self) -> PathBuf {
        self.root.join("policies")
    }

    /// Writes a policy named `swapped`, with an adapter if there is one for the model. The mock accepts any adapter. A
    /// model that was not trained in the loop keeps to the protocol only with guided decoding.
    fn write_policy(&self, directory: &str, plan: &ChaosPlan) -> anyhow::Result<()> {
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

/// Shows no progress of a build.
pub(crate) struct NoProgress;

impl BuildProgress for NoProgress {
    fn update(&self, _: BuildPhase, _: u64, _: Option<u64>) {}
}
