//! Binary search over numbered things that are not in a slice.

/// Returns the first number below `count` that is not `before`, or `count` if there is none. The numbers that are
/// `before` must come first.
pub(crate) fn partition_point(count: u32, before: impl Fn(u32) -> bool) -> u32 {
    let mut low = 0;
    let mut high = count;
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_is_found_wherever_it_lies() {
        for count in 0..9 {
            for first in 0..=count {
                assert_eq!(partition_point(count, |number| number < first), first, "{first} of {count}");
            }
        }
    }
}
