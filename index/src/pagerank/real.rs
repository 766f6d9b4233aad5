//! The numbers that a walk is computed in.

use std::fmt::Debug;
use std::ops::{Add, Div, Mul, Sub};

/// `f32` or `f64`.
pub trait Real:
    Copy
    + Debug
    + Default
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Into<f64>
    + sealed::Sealed
{
    /// The number of this kind nearest to `x`.
    fn of(x: f64) -> Self;

    /// Its size without its sign.
    fn abs(self) -> Self;
}

impl Real for f32 {
    fn of(x: f64) -> f32 {
        x as f32
    }

    fn abs(self) -> f32 {
        f32::abs(self)
    }
}

impl Real for f64 {
    fn of(x: f64) -> f64 {
        x
    }

    fn abs(self) -> f64 {
        f64::abs(self)
    }
}

mod sealed {
    /// No other numbers are meant.
    #[allow(unnameable_types)]
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}
