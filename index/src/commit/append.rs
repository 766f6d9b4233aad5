//! Commits that append to the log of changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::plan::{CommitPlan, reads_the_same};
use super::{Committing, again};
use crate::batch_embedder::BatchEmbedder;
use crate::delta::{DeltaRecord, RecordDocument, log};
use crate::embedding_cache::EmbeddingCache;
use crate::error::IndexError;
use crate::extract::Extract;
use crate::folder::LockedFolder;
use crate::graph::{Deriving, Graph, GraphCounts, TripleOrigin, distinct};
use crate::layout::delta_name;
use crate::manifest::{DeltaInfo, FORMAT, GraphInfo, Manifest};
use crate::progress::BuildPhase;
use crate::snapshot::Snapshot;
use crate::store::{CurrentStore, DensePassages};
use crate::triple::Triple;

/// Divisor of the base snapshot's number of passages. A commit merges the log by itself when the log holds more changes
/// than the quotient, and more than 1024.
const MERGE_SHARE: u64 = 8;

/// Maximum length of a log in bytes before a commit merges it by itself.
pub(super) const MERGE_BYTES: u64 = 1 << 30;

/// Triples that an extractor found in one commit.
#[derive(Debug, Default)]
struct ExtractedTriples {
    /// Triples by passage number.
    found: BTreeMap<u32, Vec<Triple>>,
    /// If `true`, there was a passage to extract from.
    asked: bool,
}

impl Manifest {
    /// Returns `true` if the log of changes is so large that a merge saves more than it costs.
    pub(crate) fn needs_merge(&self) -> bool {
        self.delta
            .as_ref()
            .is_some_and(|delta| delta.changes > (delta.passages / MERGE_SHARE).max(1024) || delta.bytes > MERGE_BYTES)
    }
}

impl Committing<'_> {
    /// Appends `plan` to the log and publishes the result. `None` if the index has to be written anew instead.
    pub(super) fn append(
        &self,
        writing: &LockedFolder,
        base: &Snapshot,
        plan: &CommitPlan,
    ) -> Result<Option<Snapshot>, IndexError> {
        let extract = self.extractor(base, plan)?;
        let small = base.manifest.base_passages() < self.options.append_from;
        let large = plan.bytes() > self.options.append_up_to;
        let first_graph = base.graph.is_none() && (extract.is_some() || plan.brings_triples());
        if small || large || first_graph || (!self.merges_elsewhere && base.manifest.needs_merge()) {
            return Ok(None);
        }
        let extract = extract.as_deref();
        let mut record = self.record(base, plan)?;
        record.snapshot = writing.next_snapshot(Some(base.manifest.snapshot))?;
        let total = Some(record.upserted.len() as u64);
        self.progress.update(BuildPhase::Reading, 0, total);
        let extracted = self.extracted(base, &mut record, extract)?;
        self.progress.update(BuildPhase::Embedding, 0, total);
        let prompts = &base.manifest.embedder.prompts;
        let mut memory = EmbeddingCache::open(self.dir, self.embed, prompts, false)?;
        self.options.prepared.iter().for_each(|prepared| prepared.publish(&mut memory));
        let embedding = BatchEmbedder { embed: self.embed, prompts, batch: self.options.batch, memory: &memory };
        embed_contents(&embedding, &mut record)?;
        let embed = |what, texts: &[String]| {
            let phase = if what == "facts" { BuildPhase::Facts } else { BuildPhase::Phrases };
            self.progress.update(phase, 0, Some(texts.len() as u64));
            embedding.vectors(what, texts)
        };
        let deriving = Deriving::Fresh { embed: &embed, threads: self.options.threads };
        let (state, derived) = base.changed(&record, deriving)?;
        record.derived = derived;
        let counts = state.graph.as_ref().map(Graph::counts);
        if counts.is_some_and(|counts| counts.origins[1..] == [0; 3]) && extract.is_none() {
            return Ok(None);
        }
        let graph = counts.map(|counts| graph_info(base, &counts, &extracted, extract));
        let mut manifest = manifest_after(base, &record);
        manifest.passages = u64::from(state.documents.live());
        manifest.graph = graph;
        let snapshot = base.with(manifest, state)?;
        self.publish_record(writing, base, snapshot, &record).map(Some)
    }

    /// Appends a record to the log of `base`, and publishes `snapshot`, the state after the record.
    fn publish_record(
        &self,
        writing: &LockedFolder,
        base: &Snapshot,
        mut snapshot: Snapshot,
        record: &DeltaRecord,
    ) -> Result<Snapshot, IndexError> {
        self.progress.update(BuildPhase::Publishing, 0, Some(2));
        if let Some(delta) = &mut snapshot.manifest.delta {
            snapshot.log = log::append(&self.dir.join(&delta.log), snapshot.log, record, self.embed.dims())?;
            delta.bytes = snapshot.log.bytes;
        }
        snapshot.manifest = snapshot.manifest.seal();
        self.progress.update(BuildPhase::Publishing, 1, Some(2));
        // Embedding took a while: another program may have replaced the folder meanwhile.
        self.check_base(base)?;
        writing.publish(&snapshot.manifest, self.options.keep)?;
        // Published: what cannot be removed now is left to the next commit.
        if let Err(error) = writing.sweep(Some(&snapshot.manifest)) {
            tracing::warn!(%error, "cannot remove files of earlier snapshots");
        }
        self.progress.update(BuildPhase::Publishing, 2, Some(2));
        Ok(snapshot)
    }

    /// Builds the record of a plan, with triples that are known already and vectors of unchanged texts.
    fn record(&self, base: &Snapshot, plan: &CommitPlan) -> Result<DeltaRecord, IndexError> {
        let mut record = DeltaRecord::default();
        for number in plan.gone() {
            record.deleted.push(base.store.passage(number)?.id);
        }
        for (replaced, document) in plan.arriving() {
            let same = match replaced {
                Some(number) if reads_the_same(base, number, document)? => Some(number),
                _ => None,
            };
            let given = document.triples.as_deref();
            let (mut triples, mut origin) = match given {
                Some(triples) => (distinct(triples).cloned().collect(), TripleOrigin::Given),
                None => (Vec::new(), TripleOrigin::None),
            };
            if given.is_none()
                && let Some(number) = same
                && let Some(graph) = &base.graph
                && graph.origin(number).is_extracted()
            {
                triples = graph.triples(number)?;
                origin = graph.origin(number);
            }
            record.upserted.push(Arc::new(RecordDocument {
                id: document.id.clone(),
                title: document.title.clone(),
                text: document.text.clone(),
                metadata: document.metadata.clone(),
                triples,
                origin,
                vector: same.and_then(|number| base.dense.row(number)).unwrap_or_default().to_vec(),
            }));
        }
        Ok(record)
    }

    /// Extracts the triples of documents without any, and again those of an extractor that reads the whole corpus.
    /// Documents whose triples change are added to the record.
    fn extracted(
        &self,
        base: &Snapshot,
        record: &mut DeltaRecord,
        extract: Option<&dyn Extract>,
    ) -> Result<ExtractedTriples, IndexError> {
        let mut extracted = ExtractedTriples::default();
        let (Some(extract), Some(graph)) = (extract, &base.graph) else { return Ok(extracted) };
        let again = again(base, extract);
        let pending = |origin| origin == TripleOrigin::None || again == Some(origin);
        let only_upserted_may_lack_triples = again.is_none() && base.all_triples_known();
        if only_upserted_may_lack_triples && !record.upserted.iter().any(|document| pending(document.origin)) {
            return Ok(extracted);
        }
        let (delta, touched) = base.store.delta.applied(&base.store.base, &record.deleted, &record.upserted)?;
        let store = CurrentStore { base: Arc::clone(&base.store.base), delta: Arc::new(delta) };
        let passages = DensePassages::of(&store);
        let came: BTreeMap<u32, usize> = touched.came.iter().copied().zip(0..).collect();
        let origin = |number| match came.get(&number) {
            Some(&place) => record.upserted[place].origin,
            None => graph.origin(number),
        };
        let asked: Vec<u32> = if only_upserted_may_lack_triples {
            let numbers = came.keys().filter(|number| pending(origin(**number)));
            let places = numbers.filter_map(|number| passages.numbers.binary_search(number).ok());
            places.map(|place| place as u32).collect()
        } else {
            let asked = (0..).zip(&passages.numbers).filter(|(_, number)| pending(origin(**number)));
            asked.map(|(place, _)| place).collect()
        };
        extracted.asked = !asked.is_empty();
        // Not called without passages: an extractor may read the whole corpus even then.
        if asked.is_empty() {
            return Ok(extracted);
        }
        let found = &mut extracted.found;
        extract.extract(&passages, &asked, &mut |place, triples| {
            // Ignores passages that were not requested.
            if asked.binary_search(&place).is_ok() {
                found.insert(passages.numbers[place as usize], distinct(&triples).cloned().collect());
            }
            Ok(())
        })?;
        let own = TripleOrigin::of(&extract.id());
        for (&number, triples) in &extracted.found {
            if let Some(&place) = came.get(&number) {
                let document = Arc::make_mut(&mut record.upserted[place]);
                document.triples.clone_from(triples);
                document.origin = own;
            } else if graph.origin(number) != own || graph.triples(number)? != *triples {
                record.upserted.push(Arc::new(with_triples(base, number, triples, own)?));
            }
        }
        Ok(extracted)
    }
}

impl Snapshot {
    /// Returns `true` if the triples of every passage are known.
    fn all_triples_known(&self) -> bool {
        let unknown = |graph: &Graph| graph.counts().of(TripleOrigin::None) - graph.gaps(self.store.len());
        self.graph.as_ref().is_none_or(|graph| unknown(graph) == 0)
    }
}

/// Builds the record of an unchanged document with other triples.
fn with_triples(
    base: &Snapshot,
    number: u32,
    triples: &[Triple],
    origin: TripleOrigin,
) -> Result<RecordDocument, IndexError> {
    let document = base.store.document(number)?;
    Ok(RecordDocument {
        id: document.id,
        title: document.title,
        text: document.text,
        metadata: document.metadata,
        triples: triples.to_vec(),
        origin,
        vector: base.dense.row(number).unwrap_or_default().to_vec(),
    })
}

/// Embeds the documents of a record that have no vector yet.
fn embed_contents(embedding: &BatchEmbedder<'_>, record: &mut DeltaRecord) -> Result<(), IndexError> {
    let missing = record.upserted.iter_mut().filter(|document| document.vector.is_empty());
    let mut missing: Vec<&mut Arc<RecordDocument>> = missing.collect();
    let texts: Vec<String> = missing.iter().map(|document| document.content()).collect();
    let vectors = embedding.vectors("passages", &texts)?;
    for (document, vector) in missing.iter_mut().zip(vectors) {
        Arc::make_mut(document).vector = vector;
    }
    Ok(())
}

/// Builds the manifest of the snapshot after `base`. The caller sets the numbers that depend on the result.
fn manifest_after(base: &Snapshot, record: &DeltaRecord) -> Manifest {
    let snapshot = record.snapshot;
    let earlier = base.manifest.delta.clone();
    let delta = earlier.unwrap_or_else(|| DeltaInfo {
        base: base.manifest.snapshot,
        passages: base.manifest.passages,
        graph: base.manifest.graph.clone(),
        log: delta_name(snapshot),
        bytes: 0,
        commits: 0,
        changes: 0,
    });
    let changes = delta.changes + (record.deleted.len() + record.upserted.len()) as u64;
    let delta = DeltaInfo { commits: delta.commits + 1, changes, ..delta };
    Manifest { format: FORMAT, snapshot, delta: Some(delta), ..base.manifest.clone() }
}

/// Builds the statistics of a graph, as a build does.
fn graph_info(
    base: &Snapshot,
    counts: &GraphCounts,
    extracted: &ExtractedTriples,
    extract: Option<&dyn Extract>,
) -> GraphInfo {
    let of_extractors = counts.of(TripleOrigin::Extracted) + counts.of(TripleOrigin::Builtin);
    let kept = of_extractors.saturating_sub(extracted.found.len() as u64);
    let earlier = base.manifest.graph.as_ref().and_then(GraphInfo::extractor).filter(|_| kept > 0);
    // An extractor that had nothing to extract is named for later documents only if there is no other.
    let extract = extract.filter(|_| extracted.asked || earlier.is_none());
    let given = counts.of(TripleOrigin::Given) > 0;
    GraphInfo {
        source: GraphInfo::source(given, extract.map(Extract::id).as_deref(), earlier),
        triples: counts.triples,
        phrases: counts.phrases,
        facts: counts.facts,
        edges: counts.entries / 2,
    }
}
