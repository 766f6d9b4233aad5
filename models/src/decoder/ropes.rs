//! Rotary tables of a decoder.

use super::DecoderConfig;
use crate::architecture::LayerRotary;
use crate::decoder::RopeScaling;
use crate::kernel::rope::Rope;

/// Table of the global rotation and, for families that have one, the table for layers with sliding windows.
#[derive(Debug)]
pub(crate) struct Ropes {
    global: Rope,
    local: Option<Rope>,
}

impl Ropes {
    /// Computes the frequencies of a decoder.
    pub(crate) fn new(config: &DecoderConfig) -> Self {
        let dim = config.rotary_dim();
        let local = |base| Rope::new(dim, base, &RopeScaling::None);
        Self {
            global: Rope::new(dim, config.rope_base, &config.rope_scaling),
            local: config.architecture.local_rope_base.map(local),
        }
    }

    /// Extends the tables so that positions below `positions` can be rotated.
    pub(crate) fn reserve(&mut self, positions: usize) {
        self.global.reserve(positions);
        self.local.iter_mut().for_each(|rope| rope.reserve(positions));
    }

    /// Table for a kind of layer. `None` if such layers are not rotated.
    pub(crate) fn of(&self, rotary: LayerRotary) -> Option<&Rope> {
        match rotary {
            LayerRotary::Global => Some(&self.global),
            LayerRotary::Local => self.local.as_ref(),
            LayerRotary::None => None,
        }
    }
}
