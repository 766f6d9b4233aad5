//! PathRouter's routes (§3.1 and §3.3 of the paper; there is no program). Its own rewards are not stated well enough to be
//! computed; what is stated is how advantages are scaled, and how the teacher's part grows.

/// An answer is right from this F1 on, or with an exact match (θ_C).
const RIGHT: f64 = 0.5;
/// Evidence is enough from this SF-F1 on (θ_P).
const ENOUGH: f64 = 0.1;

/// Where a trajectory went: was its answer right, and was its evidence enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// C_i.
    pub right: bool,
    /// Whether P_i reaches its bound.
    pub enough: bool,
}

impl Route {
    /// The route of a trajectory whose answer has this EM and F1 and whose evidence this SF-F1.
    pub fn of(em: f64, f1: f64, support: f64) -> Route {
        Route { right: em > 0.0 || f1 >= RIGHT, enough: support >= ENOUGH }
    }

    /// What its advantage is multiplied by: luck without evidence counts half, bad luck with evidence less than that.
    pub fn weight(self) -> f64 {
        match (self.right, self.enough) {
            (true, true) | (false, false) => 1.0,
            (true, false) => 0.5,
            (false, true) => 0.3,
        }
    }
}

/// Weight of the divergence from the teacher at a step: rises to `most` over `warmup` steps, and stays (§3.3).
pub fn teacher_weight(step: usize, most: f64, warmup: usize) -> f64 {
    most * (step as f64 / warmup.max(1) as f64).min(1.0)
}
