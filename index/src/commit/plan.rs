//! Plan of a commit: documents to keep, replace, remove and add, and their numbers afterwards.

use std::collections::{HashMap, HashSet};

use super::changes::Changes;
use crate::corpus::Document;
use crate::embed::Embed;
use crate::error::IndexError;
use crate::graph::distinct;
use crate::snapshot::Snapshot;

/// Maximum number of IDs of new documents in a report.
const MOST_ADDED_IDS: usize = 100;

/// Change of a document in the snapshot.
#[derive(Debug)]
enum DocumentFate {
    Gone,
    Replaced(Document),
}

/// Changes resolved against a snapshot.
#[derive(Debug, Default)]
pub(super) struct CommitPlan {
    fates: HashMap<u32, DocumentFate>,
    new: Vec<Document>,
    /// Number of documents that replace another.
    pub(super) replaced: u64,
    /// Number of documents in `upsert` that equal the stored ones.
    pub(super) unchanged: u64,
    /// Number of documents removed.
    pub(super) removed: u64,
    /// Distinct IDs to remove that are not in the snapshot, in the given order.
    pub(super) absent: Vec<String>,
}

impl CommitPlan {
    /// Resolves `changes` against `base`.
    pub(super) fn of(base: &Snapshot, changes: Changes) -> Result<CommitPlan, IndexError> {
        changes.check()?;
        let mut plan = CommitPlan::default();
        plan.sweep(base, &changes)?;
        let mut seen = HashSet::new();
        for id in changes.delete {
            match base.store.find(&id)? {
                Some(number) => plan.remove(number),
                None if seen.contains(&id) => {}
                None => {
                    seen.insert(id.clone());
                    plan.absent.push(id);
                }
            }
        }
        for mut document in changes.upsert {
            // Stored triples have no repetitions. A document sent again with its repetitions must count as unchanged.
            if let Some(triples) = &mut document.triples {
                *triples = distinct(triples).cloned().collect();
            }
            match base.store.find(&document.id)? {
                None => plan.new.push(document),
                Some(number) if base.document(number)? == document => plan.unchanged += 1,
                Some(number) => {
                    plan.fates.insert(number, DocumentFate::Replaced(document));
                    plan.replaced += 1;
                }
            }
        }
        Ok(plan)
    }

    /// Adds the changes of `other`, which must concern other documents.
    pub(super) fn join(&mut self, other: CommitPlan) {
        let CommitPlan { fates, new, replaced, unchanged, removed, absent } = other;
        self.fates.extend(fates);
        self.new.extend(new);
        self.replaced += replaced;
        self.unchanged += unchanged;
        self.removed += removed;
        self.absent.extend(absent);
    }

    /// Plans the removal of documents not in `upsert`: all of them if `mirror` is set, otherwise the surplus chunks of
    /// chunked texts.
    fn sweep(&mut self, base: &Snapshot, changes: &Changes) -> Result<(), IndexError> {
        if changes.chunked.is_empty() && !changes.mirror {
            return Ok(());
        }
        let kept: HashSet<&str> = changes.upsert.iter().map(|document| document.id.as_str()).collect();
        let chunked: HashMap<&str, u64> =
            changes.chunked.iter().map(|(name, chunks)| (name.as_str(), *chunks)).collect();
        // Searches for all chunks of a text rather than counting up, since removed chunks leave gaps in the numbering.
        let numbers = match changes.mirror {
            true => base.store.numbers().collect(),
            false => base.store.possible_chunks(chunked.keys().copied())?,
        };
        for number in numbers {
            let id = base.store.name(number)?.id;
            if !kept.contains(id.as_str()) && (changes.mirror || is_left(&id, &chunked)) {
                self.remove(number);
            }
        }
        Ok(())
    }

    fn remove(&mut self, number: u32) {
        self.removed += u64::from(self.fates.insert(number, DocumentFate::Gone).is_none());
    }

    /// Number of documents that are new to the index.
    pub(super) fn added(&self) -> u64 {
        self.new.len() as u64
    }

    /// IDs of the first documents that are new to the index.
    pub(super) fn added_ids(&self) -> Vec<String> {
        self.new.iter().take(MOST_ADDED_IDS).map(|document| document.id.clone()).collect()
    }

    /// Number of added or replacing documents that `embed` would truncate.
    pub(super) fn cut(&self, embed: &dyn Embed) -> u64 {
        let replaced = self.fates.values().filter_map(|fate| match fate {
            DocumentFate::Replaced(document) => Some(document),
            DocumentFate::Gone => None,
        });
        self.new.iter().chain(replaced).filter(|document| embed.cuts(&document.content())).count() as u64
    }

    /// Returns `true` if the plan changes nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.fates.is_empty() && self.new.is_empty()
    }

    /// Returns the first added or replacing document whose triples must be extracted: it brings none, and the stored
    /// ones cannot be kept. Extracted triples are kept if title and text are unchanged.
    pub(super) fn unasked(&self, base: &Snapshot) -> Result<Option<&Document>, IndexError> {
        let extracted = |number| base.graph.as_ref().is_some_and(|graph| graph.origin(number).is_extracted());
        let replaced = self.fates.iter().filter_map(|(&number, fate)| match fate {
            DocumentFate::Replaced(document) => Some((number, document)),
            DocumentFate::Gone => None,
        });
        let mut replaced: Vec<_> = replaced.filter(|(_, document)| document.triples.is_none()).collect();
        // The map has no order, and the same change must fail with the same document.
        replaced.sort_unstable_by_key(|(number, _)| *number);
        for (number, document) in replaced {
            if !(extracted(number) && reads_the_same(base, number, document)?) {
                return Ok(Some(document));
            }
        }
        Ok(self.new.iter().find(|document| document.triples.is_none()))
    }

    /// Returns the new number of each passage of `base`. `None` if no document has the same ID, title and text
    /// afterwards.
    pub(super) fn moved(&self, base: &Snapshot) -> Result<Vec<Option<u32>>, IndexError> {
        let mut next = 0;
        let alive = base.store.delta.alive();
        let live = |number| alive.is_none_or(|alive| alive.contains(number));
        let mut place = |number| {
            if !live(number) {
                return Ok(None);
            }
            let stays = match self.fates.get(&number) {
                Some(DocumentFate::Gone) => return Ok(None),
                Some(DocumentFate::Replaced(document)) => reads_the_same(base, number, document)?,
                None => true,
            };
            next += 1;
            Ok(stays.then_some(next - 1))
        };
        (0..base.store.bound()).map(&mut place).collect()
    }

    /// Iterates over the resulting documents: kept and replaced ones in their places, then the new ones.
    pub(super) fn documents<'a>(
        &'a self,
        base: &'a Snapshot,
    ) -> impl Iterator<Item = Result<Document, IndexError>> + 'a {
        let old = base.store.numbers().filter_map(|number| match self.fates.get(&number) {
            Some(DocumentFate::Gone) => None,
            Some(DocumentFate::Replaced(document)) => Some(Ok(document.clone())),
            None => Some(base.document(number)),
        });
        old.chain(self.new.iter().cloned().map(Ok))
    }

    /// Returns the numbers of removed documents, in order.
    pub(super) fn gone(&self) -> Vec<u32> {
        let gone = self.fates.iter().filter(|(_, fate)| matches!(fate, DocumentFate::Gone));
        let mut gone: Vec<u32> = gone.map(|(&number, _)| number).collect();
        gone.sort_unstable();
        gone
    }

    /// Returns the added and replacing documents, each with the number of the one that it replaces: first the replacing
    /// ones by number, then the new ones.
    pub(super) fn arriving(&self) -> Vec<(Option<u32>, &Document)> {
        let replaced = self.fates.iter().filter_map(|(&number, fate)| match fate {
            DocumentFate::Replaced(document) => Some((Some(number), document)),
            DocumentFate::Gone => None,
        });
        let mut replaced: Vec<_> = replaced.collect();
        replaced.sort_unstable_by_key(|(number, _)| *number);
        replaced.extend(self.new.iter().map(|document| (None, document)));
        replaced
    }

    /// Size of the added and replacing documents in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.arriving().iter().map(|(_, document)| size(document)).sum()
    }

    /// Returns `true` if a document brings triples, even an empty list.
    pub(super) fn brings_triples(&self) -> bool {
        self.arriving().iter().any(|(_, document)| document.triples.is_some())
    }

    /// Returns `true` if no document remains after this plan and `before`, a plan for other documents, are applied to
    /// `base`.
    pub(super) fn empties(&self, base: &Snapshot, before: &CommitPlan) -> bool {
        let none_new = self.new.is_empty() && before.new.is_empty();
        none_new && self.removed + before.removed == base.store.len() as u64
    }
}

/// Size of a document in bytes: its texts, its triples, and its metadata as JSON.
fn size(document: &Document) -> u64 {
    let triples = document.triples.iter().flatten();
    let triples = triples.map(|triple| triple.subject.len() + triple.relation.len() + triple.object.len());
    let metadata = document.metadata.as_ref().and_then(|metadata| serde_json::to_vec(metadata).ok());
    let metadata = metadata.map_or(0, |json| json.len());
    (document.id.len() + document.title.len() + document.text.len() + triples.sum::<usize>() + metadata) as u64
}

/// Returns `true` if a document is left over from an earlier chunking of its text. `chunked` maps the names of texts to
/// their current numbers of chunks.
fn is_left(id: &str, chunked: &HashMap<&str, u64>) -> bool {
    let whole = chunked.get(id).is_some_and(|&chunks| chunks > 0);
    whole
        || id.rsplit_once('#').is_some_and(|(name, number)| {
            // `01` and `+1` are no chunk numbers: such IDs are the user's own.
            let behind = |&chunks: &u64| number.parse::<u64>().is_ok_and(|n| n > chunks && n.to_string() == number);
            chunked.get(name).is_some_and(behind)
        })
}

/// Returns `true` if a document has the same title and text as the passage with this number.
pub(super) fn reads_the_same(base: &Snapshot, number: u32, document: &Document) -> Result<bool, IndexError> {
    let old = base.store.passage(number)?;
    Ok(old.title == document.title && old.text == document.text)
}
