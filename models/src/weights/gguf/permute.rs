//! Inverse of the row permutation that llama.cpp applies to query and key projections.
//!
//! For the architecture `llama` and those derived from it, `convert_hf_to_gguf.py` (`LlamaModel.permute`) interleaves
//! the two halves of each head, because ggml rotates adjacent values and Hugging Face rotates value i with value
//! i + d/2. Rows consist of whole blocks, so they can be reordered without unpacking.

use super::Gguf;
use crate::ModelError;
use crate::architecture::Family;

/// Number of heads whose rows are interleaved in a tensor. `None` if the rows are in order.
pub(super) fn heads(gguf: &Gguf, name: &str) -> Result<Option<usize>, ModelError> {
    let query = name.contains(".self_attn.q_proj.");
    let interleaved = Family::of_gguf(gguf.architecture()?).is_ok_and(|family| family.interleaved);
    if !interleaved || !(query || name.contains(".self_attn.k_proj.")) {
        return Ok(None);
    }
    let config = gguf.config()?;
    Ok(Some(if query { config.heads } else { config.kv_heads }))
}

/// Moves row `2j + i` of each head to row `i · d/2 + j`, for the two halves i and d rows per head.
pub(super) fn undo(bytes: &[u8], rows: usize, heads: usize, name: &str) -> Result<Vec<u8>, ModelError> {
    if heads == 0 || !rows.is_multiple_of(2 * heads) || !bytes.len().is_multiple_of(rows) {
        let reason = format!("{rows} rows cannot be divided among {heads} heads");
        return Err(ModelError::Tensor { name: name.to_owned(), reason });
    }
    let width = bytes.len() / rows;
    let size = rows / heads;
    let mut ordered = Vec::with_capacity(bytes.len());
    for head in bytes.chunks_exact(size * width) {
        for half in 0..2 {
            for pair in 0..size / 2 {
                let row = 2 * pair + half;
                ordered.extend_from_slice(&head[row * width..(row + 1) * width]);
            }
        }
    }
    Ok(ordered)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// `LlamaModel.permute` of llama.cpp: reshape to (heads, 2, d/2), swap the last two axes.
    fn permute(rows: &[u8], heads: usize) -> Vec<u8> {
        let size = rows.len() / heads;
        let mut permuted = Vec::new();
        for head in rows.chunks_exact(size) {
            for pair in 0..size / 2 {
                permuted.extend([head[pair], head[size / 2 + pair]]);
            }
        }
        permuted
    }

    #[test]
    fn undoing_is_the_inverse() {
        let rows: Vec<u8> = (0..24).collect();
        assert_eq!(undo(&permute(&rows, 3), 24, 3, "q").unwrap(), rows);
        assert_eq!(undo(&permute(&rows, 2), 24, 2, "q").unwrap(), rows);
        assert!(undo(&rows, 24, 5, "q").is_err());
        assert!(undo(&rows, 24, 0, "q").is_err());
    }
}
