//! Integer lanes that differ from others only in their products.

/// Implements the required methods of [`IntLanes`](super::int_lanes::IntLanes), except `dot`, for a structure around
/// other lanes by calling those lanes. The methods are inlined `always`, or `never` for lanes that only tests use:
/// inlining them into every kernel would take a quarter of the tests' compile time.
macro_rules! delegate_lanes {
    ($inline:ident, $lanes:ty) => {
        type Floats = <$lanes as $crate::kernel::int_lanes::IntLanes>::Floats;

        $crate::kernel::same_lanes::delegate_constructors! {
            $inline, $lanes:
            splat(word: u32);
            load(from: *const u32);
            pair_bytes(first: *const i8, second: *const i8);
            pair_bits(first: u16, second: u16);
            signed_bytes(from: *const i8);
            unsigned_bytes(from: *const u8);
        }

        $crate::kernel::same_lanes::delegate_operations! {
            $inline:
            and(b: Self => b.0);
            or(b: Self => b.0);
            sub_pairs(b: Self => b.0);
            mul_pairs(b: Self => b.0);
            add(b: Self => b.0);
            mul(b: Self => b.0);
            right(count: u32 => count);
            left(count: u32 => count);
            look_up(table: &[i8; 16] => table);
        }

        #[inline($inline)]
        unsafe fn store(self, to: *mut u32) {
            // SAFETY: guaranteed by the caller.
            unsafe { self.0.store(to) }
        }
        #[inline($inline)]
        unsafe fn floats(self) -> Self::Floats {
            // SAFETY: guaranteed by the caller.
            unsafe { self.0.floats() }
        }
    };
}
pub(super) use delegate_lanes;

/// Defines functions that create lanes.
macro_rules! delegate_constructors {
    ($inline:ident, $lanes:ty: $($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        #[inline($inline)]
        unsafe fn $name($($argument: $kind),*) -> Self {
            // SAFETY: guaranteed by the caller.
            unsafe { Self(<$lanes as $crate::kernel::int_lanes::IntLanes>::$name($($argument),*)) }
        }
    )*};
}
pub(super) use delegate_constructors;

/// Defines operations on lanes, with the argument of the inner lanes.
macro_rules! delegate_operations {
    ($inline:ident: $($name:ident($argument:ident: $kind:ty => $inner:expr);)*) => {$(
        #[inline($inline)]
        unsafe fn $name(self, $argument: $kind) -> Self {
            // SAFETY: guaranteed by the caller.
            unsafe { Self(self.0.$name($inner)) }
        }
    )*};
}
pub(super) use delegate_operations;
