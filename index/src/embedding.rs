//! Embedding many numbered texts into a flat file of vectors.

use std::path::Path;

use crate::dense::VectorWriter;
use crate::embed::{Embed, embed_unit};
use crate::error::IndexError;

/// Texts that are in memory at once while they are embedded.
const WINDOW: u32 = 1024;

/// An embedder at work on an index.
#[derive(Clone, Copy)]
pub(crate) struct Embedding<'a> {
    pub(crate) embed: &'a dyn Embed,
    /// Texts that are given to the embedder at once.
    pub(crate) batch: usize,
}

/// Texts by their number, for [`Embedding::write`].
pub(crate) struct Texts<'a> {
    /// What they are, for messages: `passages`.
    pub(crate) what: &'static str,
    pub(crate) count: u32,
    pub(crate) text: &'a dyn Fn(u32) -> Result<String, IndexError>,
}

impl Embedding<'_> {
    /// Writes one vector of length 1 per text to `path`, in order. `done` gets how many texts are embedded.
    pub(crate) fn write(&self, path: &Path, texts: &Texts<'_>, done: &dyn Fn(u64)) -> Result<(), IndexError> {
        let mut writer = VectorWriter::create(path)?;
        let (mut first, mut embedded) = (0, 0);
        done(0);
        while first < texts.count {
            let end = first.saturating_add(WINDOW).min(texts.count);
            let vectors = self.window(texts, first, end, &mut |batch| {
                embedded += batch as u64;
                done(embedded);
            })?;
            vectors.iter().try_for_each(|vector| writer.add(vector))?;
            first = end;
        }
        writer.finish()
    }

    /// The vectors of some texts, in order. They are embedded from short to long, so that a batch pads little.
    fn window(
        &self,
        texts: &Texts<'_>,
        first: u32,
        end: u32,
        done: &mut dyn FnMut(usize),
    ) -> Result<Vec<Vec<f32>>, IndexError> {
        let window = (first..end).map(texts.text).collect::<Result<Vec<_>, _>>()?;
        let mut order: Vec<usize> = (0..window.len()).collect();
        order.sort_by_key(|&i| window[i].len());
        let mut vectors = vec![Vec::new(); window.len()];
        for places in order.chunks(self.batch.max(1)) {
            let batch: Vec<&str> = places.iter().map(|&i| window[i].as_str()).collect();
            let embedded = embed_unit(self.embed, &batch).map_err(|source| {
                let start: String = batch[0].chars().take(60).collect();
                let what = format!("{} {}, the first of them beginning {start:?}", places.len(), texts.what);
                IndexError::Embed { what, source }
            })?;
            places.iter().zip(embedded).for_each(|(&i, vector)| vectors[i] = vector);
            done(places.len());
        }
        Ok(vectors)
    }
}
