//! Lists of numbers, one per row: in memory during a build, memory-mapped afterwards.

use super::columns::{Column, ColumnFile, ColumnFileWriter};
use super::table::starts;
use crate::error::IndexError;

/// Sorted lists without repetitions, memory-mapped.
#[derive(Debug)]
pub(crate) struct Lists {
    offsets: Column<u64>,
    values: Column<u32>,
}

impl Lists {
    /// Reads `rows` lists of numbers below `below`.
    pub(crate) fn read(columns: &mut ColumnFile, rows: usize, below: usize) -> Result<Lists, IndexError> {
        let lists = Lists { offsets: columns.take()?, values: columns.take()? };
        if lists.offsets.len() != rows + 1 || !starts(&lists.offsets, lists.values.len()) {
            return Err(columns.corrupt(format!("it does not hold {rows} lists")));
        }
        // Searches look numbers up by bisection, which would silently miss some in an unsorted list.
        let rising =
            |list: &[u32]| list.is_sorted_by(|a, b| a < b) && list.last().is_none_or(|&last| (last as usize) < below);
        if !(0..rows).all(|row| rising(lists.row(row))) {
            return Err(columns.corrupt("a list is out of order"));
        }
        Ok(lists)
    }

    /// Returns the list of this row. Empty for an unknown row.
    pub(crate) fn get(&self, row: u32) -> &[u32] {
        self.row(row as usize)
    }

    fn row(&self, row: usize) -> &[u32] {
        let bounds = self.offsets.get(row..row + 2);
        bounds.and_then(|at| self.values.get(at[0] as usize..at[1] as usize)).unwrap_or_default()
    }
}

/// Lists in memory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ListRows {
    /// Start of each list, and the end of the last.
    pub(crate) offsets: Vec<u64>,
    pub(crate) values: Vec<u32>,
}

impl ListRows {
    pub(crate) fn new() -> ListRows {
        ListRows { offsets: vec![0], values: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Appends a row, after sorting it and removing repetitions.
    pub(crate) fn push(&mut self, row: &mut Vec<u32>) {
        row.sort_unstable();
        row.dedup();
        self.values.extend_from_slice(row);
        self.offsets.push(self.values.len() as u64);
    }

    pub(crate) fn get(&self, row: usize) -> &[u32] {
        &self.values[self.offsets[row] as usize..self.offsets[row + 1] as usize]
    }

    /// Returns for each of `count` values the rows that contain it, in order.
    pub(crate) fn inverse(&self, count: usize) -> ListRows {
        let mut offsets = vec![0_u64; count + 1];
        self.values.iter().for_each(|&value| offsets[value as usize + 1] += 1);
        // A counting sort: the rows of each value come out in order, in linear time.
        (0..count).for_each(|i| offsets[i + 1] += offsets[i]);
        let mut next = offsets.clone();
        let mut values = vec![0; self.values.len()];
        for (row, number) in (0..self.len()).zip(0..) {
            for &value in self.get(row) {
                let place = &mut next[value as usize];
                values[*place as usize] = number;
                *place += 1;
            }
        }
        ListRows { offsets, values }
    }

    pub(crate) fn write(&self, columns: &mut ColumnFileWriter) -> Result<(), IndexError> {
        columns.column(&self.offsets)?;
        columns.column(&self.values)
    }
}
