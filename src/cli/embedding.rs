//! The models' embedder as the index and the API know one.

use waymark_index::{Embed, EmbedError};
use waymark_models::embedder::Embedder;

use crate::api::TextEmbedder;

/// An embedder of `waymark-models`, as `waymark-index` asks for it.
#[derive(Debug)]
pub struct Embedding(pub Embedder);

impl Embed for Embedding {
    fn id(&self) -> &str {
        self.0.id()
    }

    fn dims(&self) -> usize {
        self.0.dims()
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        Ok(self.0.embed(texts)?)
    }
}

impl TextEmbedder for Embedding {
    fn count_tokens(&self, text: &str) -> usize {
        self.0.count_tokens(text)
    }

    fn max_tokens(&self) -> usize {
        // The two marks at the ends are read too.
        self.0.max_pieces().saturating_sub(2)
    }
}
