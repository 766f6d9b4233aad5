//! Embeds many numbered texts into a flat file of vectors.

use std::collections::HashMap;
use std::path::Path;

use crate::dense::VectorWriter;
use crate::embed::{Embed, embed_unit_documents};
use crate::embedding_cache::EmbeddingCache;
use crate::embedding_journal::TextHash;
use crate::error::IndexError;
use crate::prompts::Prompts;

/// Number of texts held in memory at once.
const WINDOW: u32 = 1024;

/// Embedder with a batch size and a cache of earlier vectors.
#[derive(Clone, Copy)]
pub(crate) struct BatchEmbedder<'a> {
    pub(crate) embed: &'a dyn Embed,
    /// Prompts of the index. The document prompt is put before every text.
    pub(crate) prompts: &'a Prompts,
    /// Number of texts per call. An embedder with a larger [`Embed::least_batch`] gets that many.
    pub(crate) batch: usize,
    /// Vectors of texts that were embedded before.
    pub(crate) memory: &'a EmbeddingCache<'a>,
}

/// Texts addressed by their number, for [`BatchEmbedder::write`].
pub(crate) struct NumberedTexts<'a> {
    /// Plural noun for error messages, for example `passages`.
    pub(crate) what: &'static str,
    pub(crate) count: u32,
    pub(crate) text: &'a dyn Fn(u32) -> Result<String, IndexError>,
}

impl BatchEmbedder<'_> {
    /// Writes one vector of length 1 per text to `path`, in order. Calls `done` with the number of texts finished so
    /// far.
    pub(crate) fn write(&self, path: &Path, texts: &NumberedTexts<'_>, done: &dyn Fn(u64)) -> Result<(), IndexError> {
        let mut writer = VectorWriter::create(path)?;
        let mut first = 0;
        let mut ready = 0;
        done(0);
        while first < texts.count {
            let end = first.saturating_add(WINDOW).min(texts.count);
            let vectors = self.window(texts, first, end, &mut |more| {
                ready += more as u64;
                done(ready);
            })?;
            vectors.iter().try_for_each(|vector| writer.add(vector))?;
            first = end;
        }
        writer.finish()
    }

    /// Returns one vector of length 1 per text, in order.
    pub(crate) fn vectors(&self, what: &'static str, texts: &[String]) -> Result<Vec<Vec<f32>>, IndexError> {
        let count = u32::try_from(texts.len()).unwrap_or(u32::MAX);
        let text = |number: u32| Ok(texts[number as usize].clone());
        self.window(&NumberedTexts { what, count, text: &text }, 0, count, &mut |_| ())
    }

    /// Returns the vectors of the texts `first..end`, in order. Takes cached vectors first and embeds each other
    /// distinct text once.
    fn window(
        &self,
        texts: &NumberedTexts<'_>,
        first: u32,
        end: u32,
        done: &mut dyn FnMut(usize),
    ) -> Result<Vec<Vec<f32>>, IndexError> {
        let window = (first..end).map(texts.text).collect::<Result<Vec<_>, _>>()?;
        let keys: Vec<TextHash> = window.iter().map(|text| TextHash::of(text)).collect();
        let mut vectors = vec![Vec::new(); window.len()];
        // Repeated texts are embedded once, and their vector is copied to every place.
        let mut places: HashMap<TextHash, Vec<usize>> = HashMap::new();
        for (place, &key) in keys.iter().enumerate() {
            match self.memory.get(key)? {
                Some(vector) => vectors[place] = vector,
                None => places.entry(key).or_default().push(place),
            }
        }
        let mut order: Vec<usize> = places.values().map(|same| same[0]).collect();
        let missing: usize = places.values().map(Vec::len).sum();
        if missing < window.len() {
            done(window.len() - missing);
        }
        // Batches of similar length need little padding; ties keep the order of the texts.
        order.sort_unstable_by_key(|&place| (window[place].len(), place));
        for batch in order.chunks(self.batch.max(self.embed.least_batch()).max(1)) {
            let found =
                self.embed(texts.what, &batch.iter().map(|&place| window[place].as_str()).collect::<Vec<_>>())?;
            let kept: Vec<_> =
                batch.iter().zip(&found).map(|(&place, vector)| (keys[place], vector.as_slice())).collect();
            self.memory.keep(&kept)?;
            let mut given = 0;
            for (&place, vector) in batch.iter().zip(found) {
                let same = &places[&keys[place]];
                given += same.len();
                same.iter().for_each(|&place| vectors[place].clone_from(&vector));
            }
            done(given);
        }
        Ok(vectors)
    }

    fn embed(&self, what: &str, batch: &[&str]) -> Result<Vec<Vec<f32>>, IndexError> {
        embed_unit_documents(self.embed, &self.prompts.document, batch).map_err(|source| {
            let start: String = batch[0].chars().take(60).collect();
            let what = format!("{} {what}, the first of them beginning {start:?}", batch.len());
            IndexError::Embed { what, source }
        })
    }
}
