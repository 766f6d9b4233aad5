//! Number types of the PageRank solver.

use std::fmt::Debug;
use std::ops::{Add, Div, Mul, Sub};

/// Number type: `f32` or `f64`.
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
    /// Converts from `f64`, rounding to nearest.
    fn of(x: f64) -> Self;

    /// Absolute value.
    fn abs(self) -> Self;
}

impl Real for f32 {
    #[inline(always)]
    fn of(x: f64) -> f32 {
        x as f32
    }

    // Otherwise each row of a sweep may call a function in another codegen unit.
    #[inline(always)]
    fn abs(self) -> f32 {
        f32::abs(self)
    }
}

impl Real for f64 {
    #[inline(always)]
    fn of(x: f64) -> f64 {
        x
    }

    #[inline(always)]
    fn abs(self) -> f64 {
        f64::abs(self)
    }
}

mod sealed {
    /// Prevents implementations for other types.
    #[allow(unnameable_types)]
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}
