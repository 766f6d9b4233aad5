//! (see SEAMS)
