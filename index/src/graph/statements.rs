//! What the passages state, in normal form: phrases, relations and facts by number.

use std::collections::HashMap;
use std::path::Path;

use super::columns::ColumnFileWriter;
use super::lists::ListRows;
use super::phrase::normalise;
use super::table::StringTable;
use super::triples::TripleFile;
use crate::error::IndexError;
use crate::layout::graph_file;

/// A triple by the numbers of its subject, relation and object.
pub(super) type Numbers = [u32; 3];

/// The statements of a graph in the making.
#[derive(Debug)]
pub(super) struct StatementTables {
    /// Every triple of every passage; one that two passages state, or that two triples of one passage come to when
    /// normalised, stands here as often.
    pub(super) stated: Vec<Numbers>,
    /// Each triple once, in order: as HippoRAG 2's store of facts is in the golden vectors.
    pub(super) facts: Vec<Numbers>,
    /// The facts of each passage.
    pub(super) facts_of: ListRows,
    /// The phrases of each passage.
    pub(super) phrases_of: ListRows,
    /// Different phrases.
    pub(super) phrases: usize,
}

impl StatementTables {
    /// Normalises the triples of all passages and writes what they are made of to the folder `dir`.
    pub(super) fn write(dir: &Path, triples: &TripleFile) -> Result<StatementTables, IndexError> {
        let (mut phrases, mut relations) = (Names::default(), Names::default());
        let (mut stated, mut ends) = (Vec::new(), Vec::with_capacity(triples.passages()));
        for passage in (0..).take(triples.passages()) {
            triples.each(passage, |[subject, relation, object]| {
                stated.push([phrases.number(subject), relations.number(relation), phrases.number(object)]);
            })?;
            ends.push(stated.len());
        }
        let count = phrases.numbers.len();
        let phrases = phrases.write(&dir.join(graph_file::PHRASES))?;
        let relations = relations.write(&dir.join(graph_file::RELATIONS))?;
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
        facts.shrink_to_fit();
        let (mut facts_of, mut phrases_of, mut start) = (ListRows::new(), ListRows::new(), 0);
        for &end in ends {
            let own = &stated[start..end];
            // All are there, so whichever way the search ends it names the fact.
            let number = |triple| facts.binary_search(triple).unwrap_or_else(|place| place) as u32;
            facts_of.push(&mut own.iter().map(number).collect());
            phrases_of.push(&mut own.iter().flat_map(|&[subject, _, object]| [subject, object]).collect());
            start = end;
        }
        StatementTables { stated, facts, facts_of, phrases_of, phrases }
    }

    /// The columns of the facts.
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

    /// Which passages mention a phrase, which state a fact, and which facts a passage states.
    fn write_mentions(&self, path: &Path) -> Result<(), IndexError> {
        let mut columns = ColumnFileWriter::create(path)?;
        self.phrases_of.inverse(self.phrases).write(&mut columns)?;
        self.facts_of.inverse(self.facts.len()).write(&mut columns)?;
        self.facts_of.write(&mut columns)?;
        columns.finish()
    }
}

/// Texts in normal form, numbered as they come.
#[derive(Default)]
struct Names {
    numbers: HashMap<Box<str>, u32>,
}

impl Names {
    fn number(&mut self, text: &str) -> u32 {
        let (text, next) = (normalise(text), self.numbers.len() as u32);
        match self.numbers.get(text.as_str()) {
            Some(&number) => number,
            None => {
                self.numbers.insert(text.into(), next);
                next
            }
        }
    }

    /// Writes the texts in order, and gives the place of each number in it.
    fn write(self, path: &Path) -> Result<Vec<u32>, IndexError> {
        let mut names: Vec<(Box<str>, u32)> = self.numbers.into_iter().collect();
        names.sort_unstable();
        StringTable::write(path, names.iter().map(|(text, _)| &**text))?;
        let mut places = vec![0; names.len()];
        names.iter().zip(0..).for_each(|((_, number), place)| places[*number as usize] = place);
        Ok(places)
    }
}
