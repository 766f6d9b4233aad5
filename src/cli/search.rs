//! `waymark search`: one search over an index.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use waymark_index::{Index, InvalidOption, SearchOptions};
use waymark_models::kernel::Team;
use waymark_runtime::PrintableWriter;
use waymark_runtime::config::{EmbedderArgs, FactFilterArgs, LogFormat, RerankerArgs, cores, local_index};
use waymark_runtime::{assembly, filter, logging};

use super::explain;

/// Searches an index once and prints the results and how they were found.
#[derive(Debug, clap::Args)]
#[command(mut_arg("mode", |mode| mode.default_value("passage")), mut_arg("k", |k| k.default_value("3")))]
#[command(after_help = "\
Examples:
  waymark search --index corpus.index --k 5 \"capital of France\"
  waymark search --index corpus.index --mode graph --explain \\
      \"Where was the director of Solaris born?\"")]
pub(crate) struct Args {
    /// Search query.
    query: String,

    /// Directory of the index.
    #[arg(long, env = "WAYMARK_INDEX", value_name = "DIR", value_parser = local_index())]
    index: PathBuf,

    #[command(flatten)]
    search: SearchOptions,

    /// Print JSON, with the explanation.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    fact_filter: FactFilterArgs,

    #[command(flatten)]
    reranker: RerankerArgs,

    #[command(flatten)]
    embedder: EmbedderArgs,

    /// Folder for downloaded weights. The default is the user's cache directory.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,
}

impl Args {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        logging::start(log, "warn", LogFormat::Text)?;
        tokio::task::block_in_place(|| self.search())
    }

    /// Refuses flags that have no effect in the chosen mode.
    fn check_used(&self) -> anyhow::Result<()> {
        match self.search.unused(self.search.mode()) {
            Some((option, reason)) => bail!("{} {reason}", flag(self.first_part(option.name))),
            None => Ok(()),
        }
    }

    /// Returns the name of the part of an option that was given: the options of the graph search have a flag each.
    fn first_part(&self, option: &'static str) -> &'static str {
        let graph = self.search.graph.filter(|_| option == "graph").unwrap_or_default();
        let parts = [
            ("graph.linking_top_k", graph.linking_top_k.is_some()),
            ("graph.damping", graph.damping.is_some()),
            ("graph.passage_weight", graph.passage_weight.is_some()),
        ];
        let part = parts.into_iter().find(|(_, given)| *given && graph.variant.is_none());
        part.map_or(option, |(name, _)| name)
    }

    fn search(mut self) -> anyhow::Result<()> {
        self.check_used()?;
        // Programs can skip what they do not need, so JSON always explains.
        self.search.explain = Some(self.search.explain == Some(true) || self.json);
        let query = self.search.query(self.query);
        // Checked here as well, before an embedder is loaded for nothing.
        query.check().map_err(|invalid| refusal(&invalid))?;
        let reranker = self.reranker.resolve()?;
        let embedder = assembly::embedder(
            &self.embedder.resolve_for(&self.index)?,
            self.cache.clone(),
            Arc::new(Team::new(cores())),
        )?;
        let mut index = Index::open(&self.index, Arc::new(embedder))?;
        if let Some(config) = self.fact_filter.resolve()? {
            index = index.with_fact_filter(filter::fact_filter(&config)?);
        }
        if let Some(config) = reranker {
            let reranker = assembly::reranker(&config, self.cache, Arc::new(Team::new(cores())))?;
            index = index.with_reranker(Arc::new(reranker));
        }
        let evidence = index.search(&query)?;
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &evidence).map_err(io::Error::from)?;
            writeln!(out)?;
            return Ok(());
        }
        // Passages come from outside, and may contain escape sequences for the terminal.
        let mut out = PrintableWriter(out);
        if query.explain {
            explain::print(&query, &evidence, &mut out)?;
            return Ok(());
        }
        for hit in &evidence.hits {
            writeln!(out, "{} {}  {}", hit.rank, hit.passage.title, super::trace::route(hit))?;
            writeln!(out, "  {}", hit.passage.text)?;
        }
        for triple in &evidence.triples {
            writeln!(out, "{} {}  {:.4}", triple.rank, explain::statement(triple), triple.score)?;
        }
        Ok(())
    }
}

/// Returns the flag of a search option.
fn flag(option: &str) -> String {
    match option {
        "entities" => "--entity".to_owned(),
        option => format!("--{}", option.rsplit('.').next().unwrap_or(option).replace('_', "-")),
    }
}

/// Names the flag of an option whose value is out of range.
fn refusal(invalid: &InvalidOption) -> anyhow::Error {
    anyhow!("{} {}", flag(invalid.name), invalid.reason())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;
    use waymark_index::Mode;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn args(flags: &[&str]) -> Args {
        let words = ["search", "--index", "x", "Where?"].iter().chain(flags);
        Cli::try_parse_from(words).unwrap().args
    }

    #[test]
    fn without_flags_three_passages_are_searched() {
        let SearchOptions { mode, k, graph, ref entities, .. } = args(&[]).search;
        assert_eq!((mode, k, graph, entities), (Some(Mode::Passage), Some(3), None, &None));
        args(&[]).check_used().unwrap();
        assert_eq!(args(&[]).search.rerank, None, "the mode kag reranks where it can");
        assert_eq!(args(&["--rerank"]).search.rerank, Some(true));
        assert_eq!(args(&["--rerank=false", "--reranker", "mock"]).search.rerank, Some(false));
    }

    #[test]
    fn flags_without_effect_are_named() {
        for (flags, named) in [
            (
                vec!["--mode", "kag", "--damping", "0.5"],
                "--damping is not used in the mode kag, only in: graph, hybrid",
            ),
            (vec!["--damping", "0.5", "--graph", "hippo_rag"], "--graph is not used in the mode passage"),
            (vec!["--linking-top-k", "9"], "--linking-top-k is not used in the mode passage"),
            (vec!["--entity", "a", "--entity", "b"], "--entity is not used in the mode passage, only in: kag"),
            (
                vec!["--mode", "triples", "--rerank"],
                "--rerank is not used in the mode triples, only in: passage, graph",
            ),
            (vec!["--mode", "graph", "--ranking", "bm25"], "--ranking is not used in the mode graph"),
        ] {
            let refused = args(&flags).check_used().unwrap_err().to_string();
            assert!(refused.starts_with(named), "{refused}");
        }
    }

    #[test]
    fn values_out_of_range_are_refused_by_their_flag() {
        for (flags, said) in [
            (vec!["-k", "0"], "--k must be at least 1, not 0"),
            (vec!["--mode", "graph", "--passage-weight", "1.5"], "--passage-weight must be from 0 to 1, not 1.5"),
        ] {
            let refused = args(&flags).search.query("x").check().unwrap_err();
            assert_eq!(refusal(&refused).to_string(), said);
        }
        let kag = ["search", "--index", "x", "Where?", "--mode", "kag", "--kag", r#"{"damping": 1}"#];
        let refused = Cli::try_parse_from(kag).unwrap_err().to_string();
        assert!(refused.contains("needs a `damping` from 0 to below 1, not 1"), "{refused}");
    }
}
