//! Lanes of NEON against the portable ones.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::dot_lanes::DotLanes;
use super::{Floats, Ints};
use crate::kernel::int_lanes::IntLanes;
use crate::kernel::lanes::{LANES, Lanes};

type Words = [u32; LANES];
type Values = [f32; LANES];

fn words<L: IntLanes>(lanes: L) -> Words {
    let mut words = [0; LANES];
    // SAFETY: sixteen words fit; the caller has the instructions.
    unsafe { lanes.store(words.as_mut_ptr()) };
    words
}

fn values<L: Lanes>(lanes: L) -> Values {
    let mut values = [0.0; LANES];
    // SAFETY: sixteen values fit; the caller has the instructions.
    unsafe { lanes.store(values.as_mut_ptr()) };
    values
}

/// Results of all operations on any words, on pairs of numbers whose products fit, and with a count of bits.
///
/// # Safety
/// The CPU must support the instruction set of `L`.
#[inline(always)]
unsafe fn integers<L: IntLanes>([any, other, small]: [Words; 3], count: u32) -> (Vec<Words>, Vec<Values>) {
    const TABLE: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    // SAFETY: guaranteed by the caller; the bytes read lie inside the words.
    unsafe {
        let a = L::load(any.as_ptr());
        let b = L::load(other.as_ptr());
        let numbers = L::load(small.as_ptr());
        let codes = a.and(L::splat(0x000f_000f));
        let bytes = any.as_ptr().cast::<i8>();
        let integers = [
            a.and(b),
            a.or(b),
            a.xor(b),
            a.right(count),
            a.left(count),
            a.sub_pairs(b),
            codes.mul_pairs(numbers),
            codes.add(numbers),
            codes.and(L::splat(15)).mul(numbers),
            codes.look_up(&TABLE),
            codes.dot(numbers, L::splat(7)),
            L::pair_bytes(bytes, bytes.add(20)),
            L::pair_bits(any[0] as u16, any[1] as u16),
            L::signed_bytes(bytes),
            L::unsigned_bytes(bytes.cast()),
            a.low_bytes(b),
            a.high_bytes(b),
            a.dot_bytes(b, L::splat(3)),
        ];
        let floats = [numbers.floats(), codes.first(), codes.second()];
        (integers.map(words).to_vec(), floats.map(values).to_vec())
    }
}

#[target_feature(enable = "dotprod")]
fn integers_by_bytes(words: [Words; 3], count: u32) -> (Vec<Words>, Vec<Values>) {
    // SAFETY: the function has the instructions.
    unsafe { integers::<DotLanes<false>>(words, count) }
}

#[target_feature(enable = "dotprod,i8mm")]
fn mixed_products([a, b, _]: [Words; 3]) -> Words {
    // SAFETY: the function has the instructions.
    unsafe { words(DotLanes::<true>::load(a.as_ptr()).dot_unsigned(DotLanes::load(b.as_ptr()), DotLanes::splat(9))) }
}

#[test]
fn integers_are_those_of_the_portable_lanes() {
    use std::arch::is_aarch64_feature_detected as has;
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for _ in 0..500 {
        let mut random = || -> Words { std::array::from_fn(|_| rng.random_range(0..=u32::MAX)) };
        // Numbers of eleven bits and a sign.
        let number = |word: u32| word & 0x07ff_07ff;
        let operands = [random(), random(), random().map(number).map(|word| word ^ (word & 0x0001_0001) * 0xf800)];
        let count = rng.random_range(0..32);
        // SAFETY: portable lanes and those of NEON need nothing that a CPU may lack; others are asked for.
        unsafe {
            let expected = integers::<[i32; LANES]>(operands, count);
            assert_eq!(integers::<Ints>(operands, count), expected);
            if has!("dotprod") {
                assert_eq!(integers_by_bytes(operands, count), expected);
            }
            if has!("dotprod") && has!("i8mm") {
                let [a, b, _] = operands.map(|words| <[i32; LANES]>::load(words.as_ptr()));
                assert_eq!(mixed_products(operands), words(a.dot_unsigned(b, [9; LANES])));
            }
        }
    }
}

/// Results of all operations that round once.
fn floats<L: Lanes>([a, b, c]: [Values; 3]) -> Vec<Values> {
    // SAFETY: portable lanes and those of NEON need nothing that a CPU may lack.
    unsafe {
        let [a, b, c] = [a, b, c].map(|values| L::load(values.as_ptr()));
        let halves = [half::f16::from_f32(-0.3); LANES];
        let bytes: [i8; LANES] = std::array::from_fn(|i| (17 * i as i16 - 128) as i8);
        let all = [
            a.add(b),
            a.mul(b),
            a.max(b),
            a.round(),
            a.scale(b.round()),
            a.keep_from(c, 0.5),
            L::splat(2.5),
            L::load_half(halves.as_ptr()),
            L::load_bytes(bytes.as_ptr()),
        ];
        all.map(values).to_vec()
    }
}

#[test]
fn floats_are_those_of_the_portable_lanes() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    for _ in 0..500 {
        let operands = std::array::from_fn(|_| std::array::from_fn(|_| rng.random_range(-100.0f32..100.0)));
        assert_eq!(floats::<Floats>(operands), floats::<[f32; LANES]>(operands));
    }
}
