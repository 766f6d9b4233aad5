//! `waymark policy`: policies in folders.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use waymark_agent::{Policy, Sampling, family_members};
use waymark_index::{GraphOptions, GraphOverrides, SearchOptions};
use waymark_models::kernel::Team;
use waymark_models::sampler::SamplingParams;
use waymark_runtime::config::{LogFormat, ModelArgs};
use waymark_runtime::{PrintableWriter, assembly, fingerprint, logging};

/// Policies.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum PolicyCommand {
    List(ListPolicies),
    Show(ShowPolicy),
    Check(Box<CheckPolicy>),
    Fingerprint(Box<FingerprintPolicy>),
}

/// Lists the policies in a folder and in the families there. Without a folder, lists the built-in policies.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  waymark policy list policies")]
pub(crate) struct ListPolicies {
    /// Folder of policies or of families of policies.
    dir: Option<PathBuf>,
}

/// Prints a policy as JSON as it is served, including the settings that its file leaves to its protocol. `null` means
/// none, and for `rerank` that only the mode `kag` reranks.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  waymark policy show policies/routerag\n  waymark policy show search-r1 | jq .budget"
)]
pub(crate) struct ShowPolicy {
    /// Directory of a policy or a family, or the name of a built-in policy.
    policy: String,
}

/// Checks that a policy can be served: reads its file, loads its base model, and loads its adapter into it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  waymark policy check policies/routerag\n  waymark policy check policies/routerag --files-only"
)]
pub(crate) struct CheckPolicy {
    /// Directory of a policy or a family.
    dir: PathBuf,

    /// Read the policy's own files only, without its base model.
    #[arg(long)]
    files_only: bool,

    #[command(flatten)]
    model: ModelArgs,
}

/// Writes the fingerprint of a policy's weights into its `policy.toml`: log-probabilities of a fixed text, which
/// identify the weights on remote engines. Loads the base model and the policy's adapter.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  waymark policy fingerprint policies/routerag")]
pub(crate) struct FingerprintPolicy {
    /// Directory of a policy or a family.
    dir: PathBuf,

    /// Print the fingerprint, and leave the file as it is.
    #[arg(long)]
    print: bool,

    #[command(flatten)]
    model: ModelArgs,
}

impl PolicyCommand {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        logging::start(log, "warn", LogFormat::Text)?;
        match self {
            PolicyCommand::List(list) => list.run(),
            PolicyCommand::Show(show) => show.run(),
            PolicyCommand::Check(check) => check.run().await,
            PolicyCommand::Fingerprint(fingerprint) => fingerprint.run().await,
        }
    }
}

impl ListPolicies {
    fn run(self) -> anyhow::Result<()> {
        let mut out = PrintableWriter(io::stdout().lock());
        let Some(root) = self.dir else {
            for policy in Policy::BUILTIN.iter().filter_map(|name| Policy::builtin(name)) {
                writeln!(out, "{}", row(&policy.name, &policy))?;
            }
            return Ok(());
        };
        let dirs = policy_dirs(&root)?;
        if dirs.is_empty() {
            bail!("no policy in {}: a policy is a folder with a policy.toml", root.display());
        }
        for dir in dirs {
            let place = dir.display().to_string();
            match Policy::open(&dir) {
                Ok(policy) => writeln!(out, "{}", row(&place, &policy))?,
                // One invalid folder must not hide the others.
                Err(error) => writeln!(out, "{place}  invalid: {error}")?,
            }
        }
        Ok(())
    }
}

/// Returns the directories of the policies at `root`, in it, and in the families in it.
fn policy_dirs(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if root.join("policy.toml").is_file() {
        return Ok(vec![root.to_owned()]);
    }
    let entries = std::fs::read_dir(root).with_context(|| format!("cannot read {}", root.display()))?;
    let folders = entries.filter_map(Result::ok).map(|entry| entry.path()).filter(|path| path.is_dir());
    let members = |dir: &Path| family_members(dir).into_iter().map(|name| dir.join(name)).collect::<Vec<_>>();
    let mut dirs = members(root);
    dirs.extend(folders.flat_map(|folder| members(&folder)));
    dirs.sort();
    Ok(dirs)
}

/// Describes a policy in one line.
fn row(place: &str, policy: &Policy) -> String {
    let base = policy.base.as_deref().unwrap_or("any base model");
    let adapter = if policy.adapter_dir.is_some() { ", with an adapter" } else { "" };
    format!("{place}  {} of protocol {}, over {base}{adapter}", policy.name, policy.protocol.name())
}

impl ShowPolicy {
    fn run(self) -> anyhow::Result<()> {
        let policy = match assembly::builtin(&self.policy, false) {
            // A folder takes precedence over a name.
            Some(policy) if !Path::new(&self.policy).is_dir() => policy,
            _ if !Path::new(&self.policy).exists() => {
                bail!(
                    "no folder {}, and no built-in policy: expected one of {}",
                    self.policy,
                    Policy::BUILTIN.join(", ")
                );
            }
            _ => Policy::open(Path::new(&self.policy))?,
        };
        writeln!(PrintableWriter(io::stdout().lock()), "{:#}", shown(&policy))?;
        Ok(())
    }
}

/// Returns a policy as JSON, with the defaults of its searches and of its sampling.
fn shown(policy: &Policy) -> Value {
    let retrieval = &policy.retrieval;
    json!({
        "name": policy.name,
        "protocol": policy.protocol.name(),
        "directory": policy.dir,
        "base": policy.base,
        "base_id": policy.base_id,
        "adapter": policy.adapter_dir,
        "index": policy.index,
        "guided": policy.guided,
        "variant": policy.variant,
        "retrieval": {
            "search": with_search_defaults(&retrieval.search),
            "format": retrieval.format,
            "least_searches": retrieval.least_searches,
            "backtrack": retrieval.backtrack,
        },
        "budget": policy.budget,
        "sampling": with_sampling_defaults(&policy.sampling),
    })
}

/// Returns the options of a query that names no mode.
fn with_search_defaults(search: &SearchOptions) -> SearchOptions {
    // The text of a query does not change its options.
    let query = search.query("");
    let GraphOptions { variant, linking_top_k, damping, passage_weight } = query.graph;
    let graph = GraphOverrides {
        variant: Some(variant),
        linking_top_k: Some(linking_top_k),
        damping: Some(damping),
        passage_weight: Some(passage_weight),
    };
    SearchOptions {
        mode: Some(query.mode),
        k: Some(query.k),
        ranking: Some(query.ranking),
        graph: Some(graph),
        triples: Some(query.triples),
        kag: Some(query.kag),
        rerank_depth: Some(query.rerank.depth),
        ..search.clone()
    }
}

/// Returns the parameters that an episode samples with if its request sets none.
fn with_sampling_defaults(sampling: &Sampling) -> Sampling {
    let params: SamplingParams = sampling.params(0, 0);
    Sampling {
        temperature: Some(params.temperature),
        top_p: Some(params.top_p),
        top_k: Some(params.top_k),
        min_p: Some(params.min_p),
        repetition_penalty: Some(params.repetition_penalty),
        frequency_penalty: Some(params.frequency_penalty),
        presence_penalty: Some(params.presence_penalty),
        logit_bias: params.logit_bias,
    }
}

impl CheckPolicy {
    async fn run(self) -> anyhow::Result<()> {
        let policy = Policy::inspect(&self.dir, None).await?;
        let hash = policy.content_hash.map(|hash| hash.to_hex().to_string()).unwrap_or_default();
        let mut out = PrintableWriter(io::stdout());
        writeln!(out, "{}", row(&policy.dir.as_deref().unwrap_or(&self.dir).display().to_string(), &policy))?;
        writeln!(out, "its files can be read, hash {hash}")?;
        if self.files_only {
            return Ok(());
        }
        let config = self.model.resolve(Some(&self.dir))?;
        let limit = config.device.step_limit;
        let (runtime, base) = assembly::runtime(&config, Arc::new(Team::new(config.threads)), None)?;
        let loaded = policy.engage(&runtime.engine, &base).await;
        let engine = runtime.engine.clone();
        let said = loaded.map(|policy| {
            let adapter = if policy.adapter().is_some() { " with its adapter" } else { "" };
            format!("it can be served over {}{adapter}", base.names.first().map_or("its base model", String::as_str))
        });
        // Ended before an error is returned, so the engine's thread does not outlive the check.
        engine.end(limit).await;
        writeln!(out, "{}", said?)?;
        Ok(())
    }
}

impl FingerprintPolicy {
    async fn run(self) -> anyhow::Result<()> {
        let policy = Policy::inspect(&self.dir, None).await?;
        let path = policy.dir.as_deref().unwrap_or(&self.dir).join("policy.toml");
        let config = self.model.resolve(Some(&self.dir))?;
        let limit = config.device.step_limit;
        let (runtime, base) = assembly::runtime(&config, Arc::new(Team::new(config.threads)), None)?;
        let measured = match policy.engage(&runtime.engine, &base).await {
            Ok(policy) => fingerprint::measure(&runtime, &policy).await,
            Err(error) => Err(error.into()),
        };
        // Ended before an error is returned, so the engine's thread does not outlive the command.
        runtime.engine.end(limit).await;
        let measured = measured?;
        let mut out = PrintableWriter(io::stdout());
        if self.print {
            let shown = json!({"ids": measured.ids, "logprobs": measured.logprobs, "tolerance": measured.tolerance});
            writeln!(out, "{shown}")?;
            return Ok(());
        }
        fingerprint::write(&path, &measured)?;
        writeln!(out, "wrote the fingerprint of {} tokens to {}", measured.ids.len(), path.display())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_policy_is_shown_with_its_defaults() {
        let policy = assembly::builtin("routerag", false).unwrap();
        let shown = shown(&policy);
        assert_eq!(shown["guided"], true);
        let search = &shown["retrieval"]["search"];
        for (field, value) in [
            ("mode", json!("passage")),
            ("k", json!(3)),
            ("ranking", json!("dense")),
            ("triples", json!(10)),
            ("rerank_depth", json!(20)),
            ("rerank", Value::Null),
            ("rerank_cutoff", Value::Null),
        ] {
            assert_eq!(search[field], value, "{field}");
        }
        assert_eq!((&search["graph"]["variant"], &search["graph"]["damping"]), (&json!("route_rag"), &json!(0.5)));
        assert_eq!(search["kag"]["chunks"], 10);
        let sampling = &shown["sampling"];
        for (field, value) in [("temperature", json!(0.0)), ("top_p", json!(1.0)), ("top_k", json!(0))] {
            assert_eq!(sampling[field], value, "{field}");
        }
    }

    #[test]
    fn policies_are_found_in_a_folder_and_in_its_families() {
        let root = tempfile::tempdir().unwrap();
        for dir in ["alone", "family/first", "family/second", "family/deeper/third"] {
            let dir = root.path().join(dir);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("policy.toml"), "name = \"a\"\nprotocol = \"plain\"\n").unwrap();
        }
        let found = policy_dirs(root.path()).unwrap();
        let expected = ["alone", "family/first", "family/second"].map(|dir| root.path().join(dir));
        assert_eq!(found, expected);
        assert_eq!(policy_dirs(&expected[0]).unwrap(), [expected[0].clone()]);
        assert_eq!(row("x", &Policy::open(&expected[0]).unwrap()), "x  a of protocol plain, over any base model");
        assert!(policy_dirs(Path::new("no/such/folder")).is_err());
    }
}
