//! LoRA adapters in device memory.

use std::path::Path;
use std::slice;

use half::bf16;

use crate::ModelError;
use crate::adapter::{self, AdapterFactors, AdapterModules, AdapterSource};
use crate::batch::AdapterSlot;
use crate::cuda::CudaError;
use crate::cuda::driver::Driver;
use crate::cuda::kernel::{DeviceSlice, LoraFactors};
use crate::cuda::lora_grid::LoraCapacity;
use crate::cuda::plan::{MAX_ADAPTERS, MAX_RANK, Placement, PlacementAllocator, SITES};
use crate::decoder::DecoderConfig;
use crate::gradient::{Lora, Module};

/// Projections of each site, in the order of their outputs.
const PARTS: [&[Module]; SITES] = [
    &[Module::QProj, Module::KProj, Module::VProj],
    &[Module::OProj],
    &[Module::GateProj, Module::UpProj],
    &[Module::DownProj],
];

/// Loaded adapters by slot, and the table in which kernels find them.
pub(super) struct Adapters<D: Driver> {
    /// Memory of each adapter, which the addresses in the table point to.
    slots: Vec<Option<D::Region>>,
    /// Factors of all slots: shape (layers, sites, [`MAX_ADAPTERS`]).
    table: DeviceSlice<LoraFactors>,
    capacity: LoraCapacity,
}

/// Factors of one site, rounded and padded for the kernels, with their placements.
struct PackedFactors {
    a: Vec<bf16>,
    a_place: Placement<bf16>,
    b: [Option<(Vec<bf16>, Placement<bf16>)>; 3],
    rank: usize,
    stacked: usize,
}

impl<D: Driver> Adapters<D> {
    /// Starts without adapters and clears `table`.
    pub(super) fn new(driver: &D, table: DeviceSlice<LoraFactors>) -> Result<Self, CudaError> {
        driver.upload(&vec![LoraFactors::default(); table.len()], table)?;
        Ok(Self { slots: Vec::new(), table, capacity: LoraCapacity::default() })
    }

    /// Returns `true` if a slot holds an adapter.
    pub(super) fn holds(&self, slot: AdapterSlot) -> bool {
        self.slots.get(slot.0 as usize).is_some_and(Option::is_some)
    }

    /// Returns the capacity that captured graphs provide for.
    pub(super) fn lora_capacity(&self) -> LoraCapacity {
        self.capacity
    }

    /// Returns the factors of all slots at one site.
    pub(super) fn at(&self, layer: usize, site: adapter::Site) -> Option<DeviceSlice<LoraFactors>> {
        self.table.slice((layer * SITES + site as usize) * MAX_ADAPTERS, MAX_ADAPTERS)
    }

    /// Loads the adapter in `dir` into a free slot.
    pub(super) fn load(&mut self, driver: &D, dir: &Path, config: &DecoderConfig) -> Result<AdapterSlot, CudaError> {
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if free >= MAX_ADAPTERS {
            return Err(ModelError::Input(format!(
                "cannot load an adapter: {MAX_ADAPTERS} are loaded, the maximum; unload one first"
            ))
            .into());
        }
        let mut allocator = PlacementAllocator::default();
        let read = read(dir, config)?;
        let rank = read.iter().flatten().map(site_rank).max().unwrap_or(0);
        if rank > MAX_RANK {
            let reason = format!("{}: rank {rank} exceeds {MAX_RANK}, the maximum on a GPU", dir.display());
            return Err(ModelError::Input(reason).into());
        }
        let packed: Vec<_> = read.iter().map(|site| site.as_ref().map(|f| pack(f, &mut allocator))).collect();
        let region = driver.allocate(allocator.bytes())?;
        let mut rows = Vec::with_capacity(packed.len());
        for site in &packed {
            rows.push(match site {
                Some(site) => site.put(driver, &region)?,
                None => LoraFactors::default(),
            });
        }
        self.enter(driver, free, &rows)?;
        let stacked = packed.iter().flatten().map(|site| site.stacked).max().unwrap_or(0);
        if free == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[free] = Some(region);
        self.capacity.cover(self.slots.iter().flatten().count(), stacked);
        Ok(AdapterSlot(free as u32))
    }

    /// Removes an adapter and frees its memory.
    pub(super) fn unload(&mut self, driver: &D, slot: AdapterSlot) -> Result<(), CudaError> {
        let index = slot.0 as usize;
        if !self.holds(slot) {
            return Ok(());
        }
        driver.bind()?;
        // Clear the table before the memory is freed: no kernel may find an address of freed memory.
        self.enter(driver, index, &vec![LoraFactors::default(); self.table.len() / MAX_ADAPTERS])?;
        self.slots[index] = None;
        Ok(())
    }

    /// Writes one slot's column of the table.
    fn enter(&self, driver: &D, slot: usize, rows: &[LoraFactors]) -> Result<(), CudaError> {
        let place = |site: usize| self.table.slice(site * MAX_ADAPTERS + slot, 1);
        let entries = rows.iter().enumerate();
        let column: Vec<_> =
            entries.filter_map(|(site, factors)| Some((slice::from_ref(factors), place(site)?))).collect();
        driver.upload_all(&column)
    }
}

impl PackedFactors {
    /// Copies the factors to the GPU and returns their addresses.
    fn put<D: Driver>(&self, driver: &D, region: &D::Region) -> Result<LoraFactors, CudaError> {
        let a = driver.slice(region, self.a_place);
        let mut pieces = vec![(self.a.as_slice(), a)];
        let mut factors = LoraFactors {
            a: a.address(),
            rank: self.rank as u32,
            stacked: self.stacked as u32,
            ..LoraFactors::default()
        };
        let mut first = 0;
        for (projection, part) in self.b.iter().enumerate() {
            let Some((b, place)) = part else { continue };
            let slice = driver.slice(region, *place);
            pieces.push((b.as_slice(), slice));
            factors.b[projection] = slice.address();
            factors.first[projection] = first;
            first += self.rank as u32;
        }
        driver.upload_all(&pieces)?;
        Ok(factors)
    }
}

/// Reads the updates of all sites of all layers.
///
/// # Errors
/// [`ModelError::Unsupported`] for an adapter that modifies the embeddings or the output projection, uses DoRA, or has
/// biases, and the errors of reading an adapter.
fn read(dir: &Path, config: &DecoderConfig) -> Result<Vec<Option<AdapterFactors>>, ModelError> {
    let (source, bytes) = AdapterSource::open_served(dir)?;
    let tensors = source.tensors(&bytes)?;
    let modules = AdapterModules::new(&source, &tensors, config)?;
    let refused = |what: &str| ModelError::Unsupported {
        path: source.path.clone(),
        what: format!("{what} on a GPU; merge the adapter into its base with PEFT's `merge_and_unload()`"),
    };
    if modules.embedding()?.is_some() || modules.head()?.is_some() {
        return Err(refused("an adapter on embed_tokens or lm_head"));
    }
    let mut sites = Vec::with_capacity(config.layers * SITES);
    for (layer, site) in (0..config.layers).flat_map(|layer| adapter::Site::ALL.map(|site| (layer, site))) {
        let factors = modules.site(layer, site)?;
        for part in factors.iter().flat_map(|factors| &factors.parts) {
            if part.magnitude.is_some() {
                return Err(refused("use_dora"));
            }
            if part.output_bias.is_some() || part.bias.is_some() {
                return Err(refused("a bias"));
            }
        }
        sites.push(factors);
    }
    Ok(sites)
}

/// Largest rank of a site's updates.
fn site_rank(factors: &AdapterFactors) -> usize {
    factors.parts.iter().map(|part| part.rank).max().unwrap_or(0)
}

/// Returns the bytes of an adapter in device memory.
pub(in crate::cuda) fn adapter_bytes(config: &DecoderConfig, lora: &Lora) -> usize {
    let mut allocator = PlacementAllocator::default();
    for modules in (0..config.layers).flat_map(|_| PARTS) {
        let out = |module: &Module| lora.targets.contains(module).then(|| module.shape(config)[0]);
        let outs = [0, 1, 2].map(|at| modules.get(at).and_then(out));
        if outs.iter().any(Option::is_some) {
            places(&mut allocator, modules[0].shape(config)[1], lora.rank, outs);
        }
    }
    allocator.bytes()
}

/// Lays out a site's factors: B of each projection that has one, given by its number of outputs, then the stacked A
/// matrices. The rank is padded to a multiple of 16.
fn places(
    allocator: &mut PlacementAllocator,
    inn: usize,
    rank: usize,
    outs: [Option<usize>; 3],
) -> ([Option<Placement<bf16>>; 3], Placement<bf16>) {
    let padded = rank.next_multiple_of(16);
    let b = outs.map(|out| out.map(|out| allocator.place(out * padded)));
    (b, allocator.place(outs.iter().flatten().count() * padded * inn))
}

/// Rounds a site's factors to `bf16`, multiplies B by the scale, pads all ranks to the site's largest one and to a
/// multiple of 16 with zeros, and orders the stack by projection.
fn pack(factors: &AdapterFactors, allocator: &mut PlacementAllocator) -> PackedFactors {
    let inn = factors.inn;
    let rank = site_rank(factors);
    let padded = rank.next_multiple_of(16);
    let mut parts: Vec<_> = factors.parts.iter().collect();
    parts.sort_by_key(|part| part.projection);
    let mut outs = [None; 3];
    for part in &parts {
        outs[part.projection] = Some(part.b.len() / part.rank);
    }
    let (b_places, a_place) = places(allocator, inn, rank, outs);
    let mut a = vec![bf16::ZERO; parts.len() * padded * inn];
    let mut b = [const { None }; 3];
    for (place, part) in parts.iter().enumerate() {
        for (to, from) in a[place * padded * inn..].iter_mut().zip(&part.a) {
            *to = bf16::from_f32(*from);
        }
        let mut values = vec![bf16::ZERO; part.b.len() / part.rank * padded];
        for (to, from) in values.chunks_exact_mut(padded).zip(part.b.chunks_exact(part.rank)) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = bf16::from_f32(from * part.scale));
        }
        b[part.projection] = b_places[part.projection].map(|place| (values, place));
    }
    PackedFactors { a_place, stacked: parts.len() * padded, a, b, rank: padded }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::FactorPart;

    #[test]
    fn factors_are_padded_scaled_and_ordered_by_projection() {
        // Ranks 1 and 2, two inputs; in the file the value projection comes before the key projection.
        let part = |projection, rank, a: &[f32], b: &[f32]| FactorPart {
            projection,
            rank,
            scale: 0.5,
            a: a.to_vec(),
            b: b.to_vec(),
            magnitude: None,
            output_bias: None,
            bias: None,
        };
        let parts = vec![part(2, 1, &[1.0, 2.0], &[2.0]), part(1, 2, &[5.0, 6.0, 7.0, 8.0], &[8.0, 16.0, 32.0, 64.0])];
        let factors = AdapterFactors { inn: 2, parts };
        let packed = pack(&factors, &mut PlacementAllocator::default());
        let values = |values: &[bf16]| values.iter().map(|value| value.to_f32()).collect::<Vec<_>>();
        assert_eq!((packed.rank, packed.stacked, packed.a.len()), (16, 32, 64));
        assert_eq!(values(&packed.a[..5]), [5.0, 6.0, 7.0, 8.0, 0.0], "keys first");
        assert_eq!(values(&packed.a[32..35]), [1.0, 2.0, 0.0], "the smaller rank is padded");
        assert!(packed.b[0].is_none());
        let keys = packed.b[1].as_ref().map(|(b, _)| values(b)).unwrap_or_default();
        assert_eq!((keys.len(), &keys[..3], &keys[16..18]), (32, &[4.0, 8.0, 0.0][..], &[16.0, 32.0][..]));
    }

    #[test]
    fn what_no_kernel_computes_is_refused_by_name() {
        let fixture = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        for (base, adapter, reason) in [
            ("families/mistral", "mistral/dora", "lm_head on a GPU"),
            ("families/mistral", "mistral/saved", "embed_tokens or lm_head on a GPU"),
            ("decoder/llama", "llama/dora", "use_dora on a GPU"),
            ("decoder/qwen2", "qwen2/all-biases", "a bias on a GPU"),
        ] {
            let weights = crate::weights::Weights::open(&fixture(base));
            let read = weights.and_then(|weights| read(&fixture("adapters").join(adapter), weights.config()));
            let error = read.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(reason) && error.contains("merge_and_unload"), "{adapter}: {error}");
        }
    }
}
