//! The part of a protocol that only the training loop needs.

use super::retrieval::Format;

/// A protocol in which policies are trained. The training loop samples without stop strings and cuts turns afterwards,
/// and it keeps a limited part of the prompt and of the rest.
pub trait TrainingProtocol {
    /// Returns the part of a turn that is kept, which is a prefix of it. By default, all of it.
    fn cut<'t>(&self, turn: &'t str) -> &'t str {
        turn
    }

    /// Returns the default format of evidence. `None` keeps that of the other loops, as most recipes publish only one.
    fn format(&self) -> Option<Format> {
        None
    }

    /// Returns `true` if an observation in the training format that is too long loses its end, closing tag included. By
    /// default, its retrieved text is shortened instead.
    fn cuts_frame(&self) -> bool {
        false
    }

    /// Returns the number of prompt tokens that are kept, counted from the prompt's end. The default is RouteRAG's.
    fn prompt_tokens(&self) -> usize {
        2048
    }

    /// Returns the number of tokens after the prompt that are kept, counted from their beginning, in sequences of
    /// length `context`.
    fn response_tokens(&self, context: usize) -> usize {
        context
    }
}
