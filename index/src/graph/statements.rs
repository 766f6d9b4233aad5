//! Assigns numbers to the normalized phrases, relations and facts of all passages.

use std::collections::HashMap;
use std::path::Path;

use super::columns::ColumnFileWriter;
use super::lists::ListRows;
use super::phrase::normalize;
use super::table::StringTable;
use super::triples::TripleFile;
use crate::error::IndexError;
use crate::layout::graph_file;

/// Triple by the numbers of its subject, relation and object.
pub(super) type Numbers = [u32; 3];

/// Statements of a graph under construction.
#[derive(Debug)]
pub(super) struct StatementTables {
    /// Every triple of every passage, with repetitions between passages and between triples that become equal by
    /// normalization.
    pub(super) stated: Vec<Numbers>,
    /// Distinct triples, in order. The golden vectors show that HippoRAG 2's fact store has the same content.
    pub(super) facts: Vec<Numbers>,
    /// Facts of each passage.
    pub(super) facts_of: ListRows,
    /// Phrases of each passage.
    pub(super) phrases_of: ListRows,
    /// Number of distinct phrases.
    pub(super) phrases: usize,
}

impl StatementTables {
    /// Normalizes the triples of all passages, and writes phrases, relations, facts and mentions to the folder `dir`.
    pub(super) fn write(dir: &Path, triples: &TripleFile) -> Result<StatementTables, IndexError> {
        let mut phrases = Names::default();
        let mut relations = Names::default();
        let mut stated = Vec::new();
        let mut ends = Vec::with_capacity(triples.passages());
        for passage in (0..).take(triples.passages()) {
            triples.each(passage, |[subject, relation, object]| {
                stated.push([phrases.number(subject), relations.number(relation), phrases.number(object)]);
            })?;
            ends.push(stated.len());
        }
        let count = phrases.numbers.len();
        let phrases = phrases.write(&dir.join(graph_file::PHRASES))?;
        let relations = relations.write(&dir.join(graph_file::RELATIONS))?;
        // Numbers of first use become places in code point order, which do not depend on the order of the passages.
        for [subject, relation, object] in &mut stated {
            *subject = phrases[*subject as usize];
            *relation = relations[*relation as usize];
            *object = phrases[*object as usize];
        }
        let statements = StatementTables::of(stated, &ends, count);
        statements.write_facts(&dir.join(graph_file::FACTS))?;
        statements.write_mentions(&dir.join(graph_file::MENTIONS))?;
        Ok(statements)
    }

    fn of(stated: Vec<Numbers>, ends: &[usize], phrases: usize) -> StatementTables {
        let mut facts = stated.clone();
        facts.sort_unstable();
        facts.dedup();
        // There are fewer facts than statements, and they stay in memory until the graph is built.
        facts.shrink_to_fit();
        let mut facts_of = ListRows::new();
        let mut phrases_of = ListRows::new();
        let mut start = 0;
        for &end in ends {
            let own = &stated[start..end];
            // Every statement is among the facts, so `Ok` and `Err` of the search both give the right place.
            let number = |triple| facts.binary_search(triple).unwrap_or_else(|place| place) as u32;
            facts_of.push(&mut own.iter().map(number).collect());
            phrases_of.push(&mut own.iter().flat_map(|&[subject, _, object]| [subject, object]).collect());
            start = end;
        }
        StatementTables { stated, facts, facts_of, phrases_of, phrases }
    }

    /// Writes the columns of the facts.
    fn write_facts(&self, path: &Path) -> Result<(), IndexError> {
        let mut columns = ColumnFileWriter::create(path)?;
        for part in 0..3 {
            columns.begin::<u32>()?;
            for fact in &self.facts {
                columns.push(&fact[part..=part])?;
            }
        }
        columns.finish()
    }

    /// Writes the passages of each phrase, the passages of each fact, and the facts of each passage.
    fn write_mentions(&self, path: &Path) -> Result<(), IndexError> {
        let mut columns = ColumnFileWriter::create(path)?;
        self.phrases_of.inverse(self.phrases).write(&mut columns)?;
        self.facts_of.inverse(self.facts.len()).write(&mut columns)?;
        self.facts_of.write(&mut columns)?;
        columns.finish()
    }
}

/// Distinct normalized texts, numbered in order of first use.
#[derive(Default)]
struct Names {
    numbers: HashMap<Box<str>, u32>,
}

impl Names {
    fn number(&mut self, text: &str) -> u32 {
        let text = normalize(text);
        let next = self.numbers.len() as u32;
        match self.numbers.get(text.as_str()) {
            Some(&number) => number,
            None => {
                self.numbers.insert(text.into(), next);
                next
            }
        }
    }

    /// Writes the texts in sorted order. Returns the sorted place of each number.
    fn write(self, path: &Path) -> Result<Vec<u32>, IndexError> {
        let mut names: Vec<(Box<str>, u32)> = self.numbers.into_iter().collect();
        names.sort_unstable();
        StringTable::write(path, names.iter().map(|(text, _)| &**text))?;
        let mut places = vec![0; names.len()];
        names.iter().zip(0..).for_each(|((_, number), place)| places[*number as usize] = place);
        Ok(places)
    }
}
