//! Splitting of files into chunks, as requests choose it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_index::{CorpusOptions, FieldMap};

use crate::api::error::ApiError;

/// Default size of a chunk in tokens, unless the embedder reads fewer.
const DEFAULT_TOKENS: usize = 256;

/// Smallest and largest chunk, as in OpenAI's interface.
const CHUNK_TOKENS: std::ops::RangeInclusive<usize> = 100..=4096;

/// Splitting of a file into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields, try_from = "ChunkingFields")]
pub enum ChunkingStrategy {
    /// Chunks of texts have at most 256 tokens or what the embedder reads, whichever is less. Records stay whole.
    Auto,
    /// Chunks of a given size.
    Static {
        /// Size of the chunks.
        #[serde(rename = "static")]
        sizes: ChunkSizes,
    },
}

/// Fields of a splitting. serde would read those of a tagged enum from a buffer, and its errors would not name the field
/// at fault.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChunkingFields {
    #[serde(rename = "type")]
    kind: ChunkingKind,
    #[serde(rename = "static")]
    sizes: Option<ChunkSizes>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ChunkingKind {
    Auto,
    Static,
}

impl TryFrom<ChunkingFields> for ChunkingStrategy {
    /// Message in the form of serde's own, from which the field is known.
    type Error = &'static str;

    fn try_from(ChunkingFields { kind, sizes }: ChunkingFields) -> Result<ChunkingStrategy, &'static str> {
        match (kind, sizes) {
            (ChunkingKind::Auto, None) => Ok(ChunkingStrategy::Auto),
            (ChunkingKind::Auto, Some(_)) => Err("unknown field `static`"),
            (ChunkingKind::Static, Some(sizes)) => Ok(ChunkingStrategy::Static { sizes }),
            (ChunkingKind::Static, None) => Err("missing field `static`"),
        }
    }
}

/// Sizes of chunks, in tokens of the embedder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChunkSizes {
    /// Maximum size of a chunk. At most what the embedder reads.
    #[schema(minimum = 100, maximum = 4096)]
    pub max_chunk_size_tokens: usize,
    /// Size of the end of a chunk that the next one repeats; at most half a chunk.
    pub chunk_overlap_tokens: usize,
}

/// Splitting of a file into chunks, as it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = UsedChunkingStrategy)]
pub struct UsedChunking {
    /// Always `static`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Sizes of the chunks.
    #[serde(rename = "static")]
    pub sizes: ChunkSizes,
}

impl ChunkingStrategy {
    /// Returns the chosen sizes. `None` leaves them to the index.
    ///
    /// # Errors
    /// 400 if a size is out of range, or larger than the `most` tokens that the embedder reads.
    pub(super) fn checked(self, most: usize) -> Result<Option<ChunkSizes>, ApiError> {
        let ChunkingStrategy::Static { sizes } = self else { return Ok(None) };
        let ChunkSizes { max_chunk_size_tokens: size, chunk_overlap_tokens: overlap } = sizes;
        let at = |field: &str| format!("chunking_strategy.static.{field}");
        let low = *CHUNK_TOKENS.start();
        let high = *CHUNK_TOKENS.end().min(&most);
        if !(low..=high).contains(&size) {
            let param = at("max_chunk_size_tokens");
            return Err(ApiError::invalid(&param, format!("`{param}` must be from {low} to {high}, not {size}")));
        }
        if overlap > size / 2 {
            let param = at("chunk_overlap_tokens");
            return Err(ApiError::invalid(
                &param,
                format!("`{param}` must be at most half of the chunk, not {overlap}"),
            ));
        }
        Ok(Some(sizes))
    }
}

/// Returns the options for reading a file with these sizes. Chunks get IDs of their own, so records need none.
pub(super) fn options(sizes: Option<ChunkSizes>) -> CorpusOptions {
    CorpusOptions {
        chunk: sizes.map(|sizes| sizes.max_chunk_size_tokens),
        overlap: sizes.map_or(0, |sizes| sizes.chunk_overlap_tokens),
        fields: FieldMap::default().with_derived_ids(),
        ..CorpusOptions::default()
    }
}

/// Describes how a file was split by an embedder that reads `most` tokens.
pub(super) fn used(sizes: Option<ChunkSizes>, most: usize) -> UsedChunking {
    let default = ChunkSizes { max_chunk_size_tokens: most.min(DEFAULT_TOKENS), chunk_overlap_tokens: 0 };
    UsedChunking { kind: "static", sizes: sizes.unwrap_or(default) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn sizes_are_read_and_bounded() {
        let read = |value| serde_json::from_value::<ChunkingStrategy>(value);
        let sizes = |size: usize, overlap: usize| {
            read(json!({"type": "static", "static": {"max_chunk_size_tokens": size, "chunk_overlap_tokens": overlap}}))
                .unwrap()
        };
        assert_eq!(read(json!({"type": "auto"})).unwrap().checked(512).unwrap(), None);
        assert_eq!(sizes(200, 100).checked(512).unwrap().map(|sizes| sizes.max_chunk_size_tokens), Some(200));
        assert!(sizes(99, 0).checked(512).is_err() && sizes(513, 0).checked(512).is_err());
        assert!(sizes(200, 101).checked(512).is_err());
        assert!(read(json!({"type": "semantic"})).is_err());
        assert_eq!(used(None, 128).sizes.max_chunk_size_tokens, 128);
    }
}
