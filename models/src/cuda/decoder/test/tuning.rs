//! Groups of multiplications to choose algorithms for.

use super::pair::DecoderPair;
use crate::batch::LogitPositions;
use crate::cuda::algorithms::{MatMulShape, OperandFormat};
use crate::cuda::bucket::Buckets;
use crate::cuda::driver::MatMul;
use crate::cuda::kernel::emulator::Emulator;
use crate::cuda::plan::WeightFormat;
use crate::cuda::profile::{TimedDriver, WorkCost, WorkKind};
use crate::cuda::toy::{self, llama, qwen2};

#[test]
fn every_multiplication_of_a_decode_step_is_in_a_group() {
    for config in [llama(), qwen2()] {
        let weights = toy::open(&config);
        let Some(emulator) = Emulator::new(config.head_dim, 9) else { return };
        let mut pair = DecoderPair::on(TimedDriver::new(emulator), &weights, WeightFormat::Bf16);
        // One row more than are multiplied by a kernel.
        let rows = std::array::from_fn::<_, 17, _>(|salt| pair.begin(salt, None));
        let batch = pair.batch(&rows.map(|row| (row, 1, LogitPositions::Last)));
        pair.driver().start();
        assert_eq!(pair.step(&batch, &[]).step.tokens, 24);
        let launches = pair.driver().stop().unwrap().launches;
        let groups = pair.runner().products_by_shape(&Buckets::up_to(24));
        let of =
            |product: &MatMul| (WorkKind::MatMul { inn: product.inner, out: product.columns }, WorkCost::of(product));
        let known: Vec<_> = groups.iter().map(|group| of(&group[0])).collect();
        let multiplied = launches.iter().filter_map(|launch| Some((launch.work, launch.cost?)));
        assert_eq!(multiplied.clone().count(), 4 * config.layers + 1);
        for product in multiplied {
            assert!(known.contains(&product), "{product:?}");
        }
    }
}

#[test]
fn groups_have_one_shape_with_the_weights_of_several_layers_and_cover_all_sizes_of_steps() {
    let config = qwen2();
    let Some(pair) = DecoderPair::new(&toy::open(&config), 4) else { return };
    let groups = pair.runner().products_by_shape(&Buckets::up_to(48));
    let mut sizes: Vec<usize> = Vec::new();
    for group in &groups {
        assert!(group.iter().all(MatMul::fits));
        let shape = MatMulShape::of(&group[0]).unwrap();
        assert!(group.iter().all(|product| MatMulShape::of(product) == Some(shape)));
        assert!(group.len() == config.layers || shape.columns == config.vocab && group.len() == 1);
        sizes.push(shape.rows);
    }
    assert!(sizes.is_sorted());
    sizes.dedup();
    // Decode steps of 17 to 48 rows, then powers of two, up to the limit of 128 tokens.
    assert_eq!(sizes, [24, 32, 40, 48, 64, 128]);
    assert_eq!(groups.len(), 4 * 5 + 2 * 4, "only decode steps have logits of all rows");
}

#[test]
fn weights_in_fp8_have_groups_of_their_own_format() {
    let config = qwen2();
    let Some(pair) = DecoderPair::of(WeightFormat::Fp8, &toy::open(&config), 4) else { return };
    let groups = pair.runner().products_by_shape(&Buckets::up_to(48));
    assert_eq!(groups.len(), 4 * 5 + 2 * 4, "as many as in bf16");
    for product in groups.iter().flatten() {
        let format = MatMulShape::of(product).map(|shape| shape.operands);
        let head = product.columns == config.vocab;
        assert_eq!(format, Some(if head { OperandFormat::Half } else { OperandFormat::Fp8 }), "{product:?}");
        assert!(product.fits(), "{product:?}");
    }
}
