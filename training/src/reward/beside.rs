//! What a reward may look at besides the trajectory.

/// What is known of a trajectory beside what is kept of it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Beside<'a> {
    /// What its searches cost, by the price of the stage.
    pub cost: f64,
    /// Texts of the passages that its question takes, title first; empty where they are not known.
    pub support: &'a [String],
}
