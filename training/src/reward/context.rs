//! Inputs of a reward besides the trajectory.

/// Facts about a trajectory that its sample does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RewardContext<'a> {
    /// Cost of its searches, by the cost model of the stage.
    pub cost: f64,
    /// Texts of the question's supporting passages, title first. Empty if they are not known.
    pub support: &'a [String],
}
