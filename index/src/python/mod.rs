//! Python's notation of values, written and read. The reference systems are Python programs whose files, prompts and
//! replies contain values in this notation, so reproducing these systems requires reproducing the notation exactly.

mod difflib;
mod format;
mod literal;

pub(crate) use difflib::closest;
pub use format::show;
pub(crate) use format::tuple;
pub(crate) use literal::literal;
