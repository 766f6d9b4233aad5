//! Raw bytes of every token.

/// Raw bytes of each token, with a flag for control tokens. Cheap to read from any thread.
#[derive(Debug, Clone, Default)]
pub struct TokenBytes {
    /// Bytes of all tokens, one after another.
    bytes: Vec<u8>,
    /// End of each token's bytes.
    ends: Vec<u32>,
    control: Vec<bool>,
    /// Length of the longest token in bytes.
    longest: usize,
}

impl TokenBytes {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the token with the next ID. A control token has no bytes, whatever is passed.
    pub fn push(&mut self, bytes: &[u8], control: bool) {
        if !control {
            self.bytes.extend_from_slice(bytes);
            self.longest = self.longest.max(bytes.len());
        }
        self.ends.push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
        self.control.push(control);
    }

    /// Returns the table with these tokens as control tokens.
    pub(super) fn with_control(&self, ids: &[u32]) -> Self {
        let mut table = Self::new();
        for id in 0..self.len() as u32 {
            table.push(self.get(id), self.is_control(id) || ids.contains(&id));
        }
        table
    }

    /// Bytes of a token; empty for control tokens and for IDs outside the vocabulary.
    pub fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// Returns `true` for control tokens, and `false` for IDs outside the vocabulary.
    pub fn is_control(&self, id: u32) -> bool {
        self.control.get(id as usize).copied().unwrap_or(false)
    }

    /// Length of the longest token in bytes; control tokens have none.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Number of IDs.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns `true` if there is no token.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_keep_their_bytes_and_control_tokens_have_none() {
        let mut table = TokenBytes::new();
        table.push(b"ab", false);
        table.push(b"<|im_end|>", true);
        table.push(b"c", false);
        assert_eq!(table.get(0), b"ab");
        assert_eq!(table.get(1), b"");
        assert_eq!(table.get(2), b"c");
        assert_eq!(table.get(3), b"");
        assert!(table.is_control(1) && !table.is_control(2) && !table.is_control(99));
        assert_eq!((table.len(), table.longest()), (3, 2));
    }
}
