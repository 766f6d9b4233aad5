//! Sliding windows of a decoder from GGUF metadata.

use super::config::MetadataKeys;
use crate::ModelError;
use crate::architecture::{Family, LayerAttention, WindowPattern, simplest};

/// Key of the layers with a window, where a file states them: a flag per layer, or the interval of those without one.
const PATTERN: &str = "attention.sliding_window_pattern";

impl MetadataKeys<'_> {
    /// Attention of `count` layers over a context. Empty if all layers have the default. A window that covers the
    /// context counts as none.
    pub(super) fn layers(
        &self,
        family: &Family,
        count: usize,
        context: usize,
    ) -> Result<Vec<LayerAttention>, ModelError> {
        let stated = self.window(family, count);
        let window = stated.filter(|&size| size < context as u64).map(|size| size as usize);
        if let (Some(window), WindowPattern::None) = (window, family.windows) {
            return Err(self.gguf.unsupported(format!("a sliding window of {window} tokens")));
        }
        // llama.cpp's converter leaves the window of a Gemma 3 out if all layers are global (Rnj-1).
        let all_global = family.local_rope && stated.is_none();
        // A damaged number of layers is refused later, by name.
        if all_global || count >= 1 << 16 {
            return Ok(Vec::new());
        }
        let layer = |local: bool| family.layer(window.filter(|_| local), local, false);
        Ok(match self.local_layers(family, count)? {
            Some(local) => simplest(local.into_iter().map(layer).collect()),
            None => family.layers(count, window),
        })
    }

    /// Window that the file states, or that of the checkpoint where early files leave it out.
    fn window(&self, family: &Family, layers: usize) -> Option<u64> {
        // Files of Phi-3's other context lengths and of Phi-4 have none.
        let phi3_4k =
            family.model_type == "phi3" && matches!(layers, 32 | 40) && self.number("context_length") == Some(4096);
        self.number("attention.sliding_window")
            .or((family.model_type == "gemma2").then_some(4096))
            .or(phi3_4k.then_some(2047))
            .filter(|&size| size > 0)
    }

    /// Returns `true` for each layer of the kind that has windows. `None` if the file leaves them to the family.
    fn local_layers(&self, family: &Family, count: usize) -> Result<Option<Vec<bool>>, ModelError> {
        if !matches!(family.windows, WindowPattern::GlobalEvery(_)) {
            return Ok(None);
        }
        let key = self.key(PATTERN);
        let Some(flags) = self.gguf.flags(&key) else {
            let every = self.number(PATTERN);
            return Ok(every.map(|every| (1..=count as u64).map(|layer| !layer.is_multiple_of(every)).collect()));
        };
        let flags: Option<Vec<bool>> = if flags.len() == count { flags.collect() } else { None };
        flags.map(Some).ok_or_else(|| self.gguf.corrupt(format!("{key} is not a flag for each of {count} layers")))
    }
}
