//! Choice among functions that are compiled for a number of rows.

/// Evaluates `$call` with the constant `$rows`, the number of rows `$count`: one of the numbers `$few`, or else `$most`.
macro_rules! with_rows {
    ($count:expr, [$($few:literal)*], $most:expr, $rows:ident => $call:expr) => {
        match $count {
            $($few => {
                const $rows: usize = $few;
                $call
            })*
            _ => {
                const $rows: usize = $most;
                $call
            }
        }
    };
}
pub(super) use with_rows;
