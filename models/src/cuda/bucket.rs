//! Batch sizes with a CUDA graph of their own; a decode step is padded to the next of them.

/// Batch sizes up to the largest batch: powers of two up to 8, multiples of 8 up to 64, of 32 up to 256, and of 64
/// beyond. Padding then costs little where a step is compute-bound, and nothing where it is bound by reading weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buckets(Vec<usize>);

impl Buckets {
    /// Creates the sizes for batches of at most `rows` rows.
    pub fn up_to(rows: usize) -> Self {
        let mut sizes = Vec::new();
        let mut size = 1;
        while size < rows {
            sizes.push(size);
            size += match size {
                ..8 => size,
                8..64 => 8,
                64..256 => 32,
                _ => 64,
            };
        }
        sizes.push(rows);
        Self(sizes)
    }

    /// Returns the size that a batch of `rows` rows is padded to. `None` when `rows` exceeds the largest size.
    pub fn fit(&self, rows: usize) -> Option<usize> {
        self.0.get(self.0.partition_point(|size| *size < rows)).copied()
    }

    /// Returns all sizes in ascending order.
    pub fn sizes(&self) -> &[usize] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_batch_fits_the_smallest_bucket_that_holds_it() {
        for most in [1, 2, 7, 8, 32, 100, 256, 300] {
            let buckets = Buckets::up_to(most);
            assert!(buckets.sizes().is_sorted_by(|a, b| a < b));
            assert_eq!(buckets.sizes().last(), Some(&most));
            for rows in 1..=most {
                let fit = buckets.fit(rows).unwrap_or(0);
                assert!(fit >= rows && buckets.sizes().iter().all(|size| *size < rows || *size >= fit), "{rows}");
                assert!(rows < 16 || fit * 2 <= rows * 3, "{rows} is padded to {fit}");
            }
            assert_eq!(buckets.fit(most + 1), None);
        }
    }

    #[test]
    fn small_batches_are_hardly_padded() {
        assert_eq!(Buckets::up_to(64).sizes(), [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]);
        assert_eq!(Buckets::up_to(20).fit(17), Some(20));
    }
}
