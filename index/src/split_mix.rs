//! SplitMix64 (Steele, Lea and Flood, 2014), whose steps mix hashes and seeds.

/// Increment of the generator's state: 2⁶⁴ divided by the golden ratio.
pub(crate) const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the number that the generator makes of a state.
pub(crate) fn finalize(state: u64) -> u64 {
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_of_seed_zero_are_those_of_the_reference() {
        assert_eq!(finalize(STEP), 0xe220_a839_7b1d_cdaf);
        assert_eq!(finalize(STEP.wrapping_mul(2)), 0x6e78_9e6a_a1b9_65f4);
    }
}
