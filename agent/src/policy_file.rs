//! The file of a policy, `policy.toml`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use waymark_index::WithSearch;

use super::AgentError;
use super::budget::Budget;
use super::logprob_fingerprint::LogprobFingerprint;
use super::loop_variant::LoopVariant;
use super::policy::{Policy, default_sampling};
use super::policy_family::{FILE, member_dir};
use super::protocol::Protocol;
use super::protocol_registry::protocol;
use super::retrieval::{Retrieval, RetrievalFields};
use super::sampling::Sampling;

/// Content of `policy.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    name: String,
    protocol: String,
    base: Option<String>,
    base_id: Option<String>,
    adapter: Option<PathBuf>,
    index: Option<String>,
    #[serde(default)]
    variant: LoopVariant,
    #[serde(default)]
    guided: bool,
    #[serde(default)]
    retrieval: WithSearch<RetrievalFields>,
    budget: Option<toml::Table>,
    sampling: Option<Sampling>,
    fingerprint: Option<LogprobFingerprint>,
    training: Option<toml::Table>,
}

impl Policy {
    /// Reads a policy directory, or that of the recommended policy of a family. Unless the file names another place, an
    /// `adapter_config.json` beside `policy.toml` belongs to the policy's adapter.
    ///
    /// # Errors
    /// [`AgentError::Policy`] with the path of the file and, where possible, the line.
    pub fn open(dir: &Path) -> Result<Policy, AgentError> {
        Ok(Policy::read(dir)?.0)
    }

    /// Reads a policy directory and returns the text of its file as well; see [`open`](Self::open).
    pub(super) fn read(dir: &Path) -> Result<(Policy, String), AgentError> {
        let dir = &member_dir(dir)?;
        let path = dir.join(FILE);
        let text = std::fs::read_to_string(&path)
            .map_err(|error| AgentError::Policy { path: path.clone(), reason: error.to_string() })?;
        let mut policy = Policy { dir: Some(dir.to_owned()), ..Policy::parse(&text, &path)? };
        policy.adapter_dir = match policy.adapter_dir {
            Some(named) => Some(dir.join(named)),
            None => dir.join("adapter_config.json").is_file().then(|| dir.to_owned()),
        };
        // The intended one of the two would be a guess, and a wrong guess would serve another model under this name.
        if let (Some(base), Some(_)) = (policy.base.as_ref().filter(|base| *base != Policy::MODEL), policy.model_dir())
        {
            let reason = format!("base = {base:?}, but weights of a model lie beside the file: remove one of them");
            return Err(AgentError::Policy { path, reason });
        }
        match &policy.adapter_dir {
            Some(adapter) if !adapter.is_dir() => {
                Err(AgentError::Policy { path, reason: format!("adapter: not a directory: {}", adapter.display()) })
            }
            _ => Ok((policy, text)),
        }
    }

    /// Parses the text of a policy file; `path` is used in error messages.
    ///
    /// # Errors
    /// [`AgentError::Policy`] for TOML errors, unknown fields, unknown protocols and invalid values.
    pub fn parse(text: &str, path: &Path) -> Result<Policy, AgentError> {
        let refuse = |reason: String| AgentError::Policy { path: path.to_owned(), reason };
        let file: PolicyFile = toml::from_str(text).map_err(|error| refuse(error.to_string().trim_end().to_owned()))?;
        let protocol = protocol(&file.protocol).ok_or_else(|| {
            refuse(format!("unknown protocol {:?}: use one of {}", file.protocol, Policy::BUILTIN.join(", ")))
        })?;
        let budget = match file.budget {
            Some(table) => overlay(protocol.budget(), &table).map_err(|error| refuse(format!("budget: {error}")))?,
            None => protocol.budget(),
        };
        let retrieval = searching(&*protocol, file.variant, file.retrieval);
        let sampling = file.sampling.unwrap_or_default().or(&default_sampling(&*protocol));
        let policy = Policy {
            name: file.name,
            base: file.base,
            base_id: file.base_id,
            dir: None,
            adapter_dir: file.adapter,
            content_hash: None,
            lease: None,
            index: file.index,
            budget,
            retrieval,
            sampling,
            guided: file.guided,
            variant: file.variant,
            fingerprint: file.fingerprint.map(Arc::new),
            training: file.training,
            protocol,
        };
        // Checked after merging: a file may combine with defaults to an invalid policy.
        policy.check().map_err(|error| refuse(error.to_string()))?;
        Ok(policy)
    }
}

/// Merges the `[retrieval]` table of a policy's file over the settings of its protocol in this loop.
fn searching(protocol: &dyn Protocol, variant: LoopVariant, written: WithSearch<RetrievalFields>) -> Retrieval {
    let WithSearch { search, rest: RetrievalFields { format, least_searches, backtrack } } = written;
    let own = protocol.retrieval();
    let trained = protocol.training().filter(|_| variant.is_training());
    let own_format = trained.and_then(|training| training.format()).unwrap_or(own.format);
    Retrieval {
        search: search.or(&own.search),
        format: format.unwrap_or(own_format),
        least_searches: least_searches.unwrap_or(own.least_searches),
        backtrack: backtrack.unwrap_or(own.backtrack),
    }
}

/// Merges the fields that a file states over the protocol's budget.
fn overlay(budget: Budget, stated: &toml::Table) -> Result<Budget, toml::de::Error> {
    // Fields that the file leaves out have RouteRAG's values here, and are not used.
    let written: Budget = stated.clone().try_into()?;
    let has = |field: &str| stated.contains_key(field);
    let pick = |field: &str, stated: usize, own: usize| if has(field) { stated } else { own };
    Ok(Budget {
        turns: pick("turns", written.turns, budget.turns),
        searches: written.searches.or(budget.searches),
        turn_tokens: pick("turn_tokens", written.turn_tokens, budget.turn_tokens),
        answer_tokens: pick("answer_tokens", written.answer_tokens, budget.answer_tokens),
        observation_tokens: pick("observation_tokens", written.observation_tokens, budget.observation_tokens),
        environment_tokens: written.environment_tokens.or(budget.environment_tokens),
        sampled_tokens: pick("sampled_tokens", written.sampled_tokens, budget.sampled_tokens),
        seconds: if has("seconds") { written.seconds } else { budget.seconds },
        context_tokens: pick("context_tokens", written.context_tokens, budget.context_tokens),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_index::{GraphVariant, KagOptions, Mode, Ranking, SearchOptions, SearchScope};

    use super::super::graphrag_r1::GraphragR1;
    use super::super::plain::Plain;
    use super::super::retrieval::{Backtrack, Format};
    use super::super::routerag::RouteRag;
    use super::*;

    fn parse(text: &str) -> Result<Policy, AgentError> {
        Policy::parse(text, Path::new("p/policy.toml"))
    }

    #[test]
    fn the_docs_have_every_field() {
        let text = include_str!("../../docs/policy.md");
        let file = text.split("```toml").nth(1).unwrap().split("```").next().unwrap();
        let written = file.parse::<toml::Table>().unwrap();
        let policy = parse(file).unwrap();
        let fields = |part: &str| written[part].as_table().unwrap().keys().cloned().collect::<Vec<_>>();
        let all = |whole: toml::Table| whole.keys().cloned().collect::<Vec<_>>();
        let mut options: Vec<_> = SearchScope::Policy.fields().map(|field| field.name).collect();
        options.extend(["format", "least_searches", "backtrack"]);
        options.sort_unstable();
        let mut shown = fields("retrieval");
        shown.sort_unstable();
        assert_eq!(shown, options);
        assert_eq!(fields("budget"), all(toml::Table::try_from(policy.budget).unwrap()));
        assert_eq!(fields("sampling"), all(toml::Table::try_from(policy.sampling).unwrap()));
        for (part, fields) in ["retrieval", "budget", "sampling"].map(|part| (part, fields(part))) {
            let told = text.split(&format!("## `[{part}]`")).nth(1).unwrap().split("\n## ").next().unwrap();
            fields.iter().for_each(|field| assert!(told.contains(&format!("| `{field}` |")), "{part}.{field}"));
        }
    }

    #[test]
    fn the_docs_have_the_defaults_of_every_protocol() {
        let text = include_str!("../../docs/policy.md");
        let row = |field: &str| text.lines().find(|line| line.starts_with(&format!("| `{field}` |"))).unwrap();
        let default = |field: &str| row(field).trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let common = Retrieval::default().search;
        for name in Policy::BUILTIN {
            let protocol = protocol(name).unwrap();
            let own = protocol.retrieval();
            let search = &own.search;
            for (field, differs) in [
                ("mode", search.mode != common.mode),
                ("k", search.k != common.k),
                ("triples", search.triples != common.triples),
                ("graph", search.graph != common.graph),
            ] {
                assert_eq!(default(field).contains(name), differs, "{name}: {field}");
            }
            let budget = protocol.budget();
            let Budget { turns, turn_tokens, observation_tokens, sampled_tokens, context_tokens, .. } = budget;
            let sizes = [turns, turn_tokens, observation_tokens, sampled_tokens, context_tokens];
            let written = text.lines().find_map(|line| line.strip_prefix(&format!("| {name} | ")));
            let written = written.map(|sizes| sizes.trim_end_matches(" |").replace(',', ""));
            let has_row = budget != Budget::default() && *name != "plain";
            let sizes = sizes.map(|size| size.to_string()).join(" | ");
            assert_eq!(written, has_row.then_some(sizes), "{name}");
            let trained = protocol.training().unwrap().format().unwrap_or(own.format);
            assert_eq!(row("format").contains(name), trained != own.format, "{name}");
            assert_eq!(row("ranking").contains(name), own.search.ranking.is_some(), "{name}");
        }
    }

    #[test]
    fn a_whole_file_is_read() {
        let policy = parse(
            r#"
            name = "routerag-3b"
            protocol = "routerag"
            base = "qwen2.5-3b-instruct"
            guided = true
            variant = "evaluation"
            [retrieval]
            mode = "hybrid"
            ranking = "dense"
            k = 5
            triples = 8
            graph = "hippo_rag"
            format = "training"
            least_searches = 0
            backtrack = "remove"
            kag = { damping = 0.8, iterations = 30 }
            [budget]
            turns = 2
            seconds = 1.5
            [sampling]
            temperature = 0.7
            [fingerprint]
            ids = [1, 2, 3]
            logprobs = [-0.5, -11]
            [training]
            steps = 40
            "#,
        )
        .unwrap();
        assert_eq!((policy.name.as_str(), policy.protocol.name(), policy.guided), ("routerag-3b", "routerag", true));
        assert_eq!(policy.variant, LoopVariant::Evaluation);
        let kag = KagOptions { damping: 0.8, iterations: 30, ..KagOptions::default() };
        let search = SearchOptions {
            mode: Some(Mode::Hybrid),
            ranking: Some(Ranking::Dense),
            k: Some(5),
            triples: Some(8),
            graph: Some(GraphVariant::HippoRag.into()),
            kag: Some(kag),
            ..SearchOptions::default()
        };
        let backtrack = Backtrack::Remove;
        let retrieval = Retrieval { search, format: Format::Training, least_searches: 0, backtrack };
        assert_eq!(policy.retrieval, retrieval);
        let query = retrieval.query("x", &[], Mode::Graph);
        assert_eq!((query.mode, query.ranking, query.k, query.triples), (Mode::Graph, Ranking::Dense, 5, 8));
        assert_eq!((query.graph, query.kag), (GraphVariant::HippoRag.into(), kag));
        assert_eq!(policy.budget, Budget { turns: 2, seconds: 1.5, ..Budget::default() });
        assert_eq!(policy.sampling.temperature, Some(0.7));
        let tolerance = LogprobFingerprint::TOLERANCE;
        let fingerprint = LogprobFingerprint { ids: vec![1, 2, 3], logprobs: vec![-0.5, -11.0], tolerance };
        assert_eq!(policy.fingerprint.as_deref(), Some(&fingerprint));
        assert_eq!(policy.training.unwrap()["steps"].as_integer(), Some(40));
    }

    #[test]
    fn what_is_not_stated_is_the_protocols() {
        let policy = parse("name = \"a\"\nprotocol = \"plain\"\n[budget]\nseconds = 9.0").unwrap();
        assert_eq!(policy.budget, Budget { seconds: 9.0, ..Plain.budget() });
        assert!(!policy.searches());
        let policy = parse("name = \"a\"\nprotocol = \"routerag\"\n[budget]\nsearches = 2\nenvironment_tokens = 900");
        let searches = Some(2);
        let environment_tokens = Some(900);
        assert_eq!(policy.unwrap().budget, Budget { searches, environment_tokens, ..RouteRag.budget() });
        let policy = parse("name = \"a\"\nprotocol = \"graphrag-r1\"\n[retrieval]\nk = 2").unwrap();
        let own = GraphragR1.retrieval();
        let query = own.query("x", &[], own.search.mode());
        assert_eq!((query.mode, query.triples, query.graph), (Mode::Triples, 5, GraphVariant::GraphRagR1.into()));
        let search = SearchOptions { k: Some(2), ..own.search.clone() };
        assert_eq!(policy.retrieval, Retrieval { search, ..own });
        let plain = parse("name = \"a\"\nprotocol = \"graphrag-r1\"\n[retrieval]\nmode = \"passage\"").unwrap();
        assert_eq!(plain.retrieval.search.mode(), Mode::Passage);
    }

    #[test]
    fn passages_are_ranked_as_the_reference_ranks_them() {
        for (protocol, own) in [
            ("routerag", Ranking::Dense),
            ("search-r1", Ranking::Dense),
            ("path-router", Ranking::Dense),
            ("evo-rag", Ranking::Fused),
        ] {
            let file = format!("name = \"a\"\nprotocol = \"{protocol}\"\n[retrieval]\nk = 2");
            for (text, ranking) in [(file.clone(), own), (format!("{file}\nranking = \"bm25\""), Ranking::Bm25)] {
                let query = parse(&text).unwrap().retrieval.query("x", &[], Mode::Passage);
                assert_eq!((query.ranking, query.k), (ranking, 2), "{text}");
            }
        }
        let graph = RouteRag.retrieval().query("x", &[], Mode::Hybrid);
        assert_eq!(graph.ranking, Mode::Hybrid.ranking(), "where a graph is searched nothing changes");
    }

    #[test]
    fn evidence_is_written_as_the_loop_has_it() {
        for (protocol, trained) in [
            ("routerag", Format::Training),
            ("search-r1", Format::Training),
            ("path-router", Format::Evaluation),
            ("graphrag-r1", Format::Evaluation),
        ] {
            let file = |variant: &str| format!("name = \"a\"\nprotocol = \"{protocol}\"\nvariant = \"{variant}\"\n");
            let format = |text: &str| parse(text).unwrap().retrieval.format;
            for (variant, expected) in
                [("training", trained), ("evaluation", Format::Evaluation), ("serving", Format::Evaluation)]
            {
                assert_eq!(format(&file(variant)), expected, "{protocol} {variant}");
            }
            let stated = format!("{}[retrieval]\nk = 2\nformat = \"evaluation\"", file("training"));
            assert_eq!(format(&stated), Format::Evaluation, "{protocol}");
        }
    }

    #[test]
    fn errors_name_file_and_place() {
        for (text, words) in [
            ("name = \"a\"", vec!["protocol"]),
            (
                "name = \"a\"\nprotocol = \"rag\"",
                vec!["\"rag\"", "routerag, search-r1, path-router, graphrag-r1, tearag, evo-rag, plain"],
            ),
            ("name = \"a\"\nprotocol = \"plain\"\ncolor = 1", vec!["line 3", "color"]),
            ("name = \"a\"\nprotocol = \"plain\"\n[budget]\nturn = 1", vec!["budget", "turn"]),
            (
                "name = \"a\"\nprotocol = \"plain\"\n[fingerprint]\nids = [1, 2]\nlogprobs = []",
                vec!["fingerprint", "one number less"],
            ),
            ("name = \"a\"\nprotocol = \"routerag\"\n[retrieval]\nk = 0", vec!["retrieval.k"]),
            ("name = \"a\"\nprotocol = \"routerag\"\n[retrieval]\nk = 201", vec!["retrieval.k", "200"]),
            ("name = \"a\"\nprotocol = \"routerag\"\n[retrieval]\ngraph = \"lightrag\"", vec!["lightrag", "hippo_rag"]),
            (
                "name = \"a\"\nprotocol = \"routerag\"\n[retrieval]\nmode = \"kag\"",
                vec!["mode kag", "passage, graph, hybrid"],
            ),
            ("name = \"a\"\nprotocol = \"search-r1\"\n[retrieval]\nmode = \"triples\"", vec!["mode triples"]),
            (
                "name = \"a\"\nprotocol = \"tearag\"\n[retrieval]\nkag = { damping = 1.0 }",
                vec!["retrieval.kag", "`damping` from 0 to below 1"],
            ),
            ("name = \"a\"\nprotocol = \"tearag\"\n[retrieval]\nkag = { alpha = 0.5 }", vec!["unknown field", "alpha"]),
            ("name = \"a\"\nprotocol = \"plain\"\n[sampling]\ntop_p = 7.0", vec!["top_p"]),
            ("name = \"a\"\nprotocol = \"plain\"\n[budget]\nseconds = -1.0", vec!["budget.seconds"]),
            ("name = ", vec!["line 1"]),
        ] {
            let message = parse(text).unwrap_err().to_string();
            assert!(message.starts_with("p/policy.toml: "), "{message}");
            for word in words {
                assert!(message.contains(word), "{message:?} lacks {word:?}");
            }
        }
    }

    #[test]
    fn a_directory_brings_its_adapter() {
        let dir = tempfile::tempdir().unwrap();
        let text = "name = \"a\"\nprotocol = \"routerag\"\n";
        std::fs::write(dir.path().join(FILE), text).unwrap();
        assert_eq!(Policy::open(dir.path()).unwrap().adapter_dir, None);
        std::fs::write(dir.path().join("adapter_config.json"), "{}").unwrap();
        assert_eq!(Policy::open(dir.path()).unwrap().adapter_dir.unwrap(), dir.path());
        std::fs::write(dir.path().join(FILE), format!("{text}adapter = \"elsewhere\"")).unwrap();
        assert!(Policy::open(dir.path()).unwrap_err().to_string().contains("not a directory"));
    }

    #[test]
    fn weights_beside_the_file_are_its_model() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write(FILE, "name = \"a\"\nprotocol = \"search-r1\"\n");
        assert_eq!(Policy::open(dir.path()).unwrap().model_dir(), None);
        // Weights that must be converted first are no reason to take others.
        for file in ["pytorch_model.bin", "model.safetensors"] {
            write("config.json", "{}");
            write(file, "");
            assert_eq!(Policy::open(dir.path()).unwrap().model_dir().unwrap(), dir.path(), "{file}");
        }
        write(FILE, "name = \"a\"\nprotocol = \"search-r1\"\nbase = \"other\"\n");
        let refused = Policy::open(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("base = \"other\"") && refused.contains("beside"), "{refused}");
    }

    #[test]
    fn every_builtin_name_is_known() {
        for name in Policy::BUILTIN {
            assert_eq!(Policy::builtin(name).unwrap().protocol.name(), *name);
        }
        assert!(Policy::builtin("routeraq").is_none());
    }
}
