//! Quantiles of a sample.

/// Returns the smallest value that at least the share `q` (0 to 1) of the sample does not exceed (nearest rank); 0 for
/// an empty sample. Sorts the sample.
pub fn quantile(sample: &mut [f64], q: f64) -> f64 {
    sample.sort_by(f64::total_cmp);
    let rank = (q * sample.len() as f64).ceil() as usize;
    sample.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn nearest_rank() {
        let mut sample = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&mut sample, 0.5), 2.0);
        assert_eq!(quantile(&mut sample, 0.95), 4.0);
        assert_eq!(quantile(&mut sample, 0.0), 1.0);
        assert_eq!(quantile(&mut [], 0.5), 0.0);
    }
}
