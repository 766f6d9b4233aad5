//! Choice of the rows that an encoder computes in its last layer.

use super::pieces::PieceSequence;

/// Rows of the output that the caller of an encoder reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputRows {
    /// Rows of all pieces.
    All,
    /// Row of the first piece of each sequence.
    First,
}

impl OutputRows {
    /// Number of rows of a sequence of `pieces` pieces.
    pub(super) fn count(self, pieces: usize) -> usize {
        match self {
            OutputRows::All => pieces,
            OutputRows::First => pieces.min(1),
        }
    }

    /// Number of rows of all sequences.
    pub(super) fn total(self, sequences: &[PieceSequence]) -> usize {
        sequences.iter().map(|sequence| self.count(sequence.len())).sum()
    }

    /// Moves the rows of the sequences to the front of `hidden`, which has a row of `width` numbers for each piece.
    pub(super) fn keep(self, sequences: &[PieceSequence], hidden: &mut [f32], width: usize) {
        if self == OutputRows::All {
            return;
        }
        let mut from = 0;
        let mut to = 0;
        for sequence in sequences {
            let count = self.count(sequence.len());
            hidden.copy_within(from * width..(from + count) * width, to * width);
            from += sequence.len();
            to += count;
        }
    }
}
