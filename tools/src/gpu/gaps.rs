//! Gaps between passes: the time that the engine and the driver add to the passes of a device.

use std::ops::AddAssign;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use waymark_engine::Engine;

/// Number of gaps and their sum.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct GapSum {
    count: u64,
    seconds: f64,
}

impl GapSum {
    /// Returns the gaps of an engine since its start.
    pub(super) fn of(engine: &Engine) -> Self {
        let gaps = engine.counters().gap_seconds.snapshot();
        Self { count: gaps.count(), seconds: gaps.sum }
    }

    /// Returns the gaps after an earlier sum.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self { count: self.count - earlier.count, seconds: self.seconds - earlier.seconds }
    }

    /// Returns the mean in milliseconds. `None` without gaps.
    pub(super) fn mean(self) -> Option<f64> {
        (self.count > 0).then(|| self.seconds * 1e3 / self.count as f64)
    }
}

impl AddAssign for GapSum {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.seconds += other.seconds;
    }
}

/// Gaps of an engine while all sequences decode. Passes with prefills are left out: their kernels are enqueued one by
/// one, which takes milliseconds during which the device already computes.
pub(super) struct DecodeGaps {
    engine: Engine,
    /// Number of sequences without a token.
    waiting: AtomicUsize,
    /// Gaps up to the first token of the last sequence.
    from: OnceLock<GapSum>,
    /// Gaps up to the last token of the first sequence.
    until: OnceLock<GapSum>,
}

impl DecodeGaps {
    pub(super) fn new(engine: &Engine, sequences: usize) -> Self {
        let waiting = AtomicUsize::new(sequences);
        Self { engine: engine.clone(), waiting, from: OnceLock::new(), until: OnceLock::new() }
    }

    /// Records that a sequence has received its first token.
    pub(super) fn begin_sequence(&self) {
        if self.waiting.fetch_sub(1, Relaxed) == 1 {
            self.from.get_or_init(|| GapSum::of(&self.engine));
        }
    }

    /// Records that a sequence has received its last token.
    pub(super) fn end_sequence(&self) {
        self.until.get_or_init(|| GapSum::of(&self.engine));
    }

    /// Returns the gaps while all sequences decoded: none if a sequence ended before another one began.
    pub(super) fn total(&self) -> GapSum {
        match (self.from.get(), self.until.get()) {
            (Some(from), Some(until)) if until.count > from.count => until.since(*from),
            _ => GapSum::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use waymark_engine::{EngineConfig, Generate, MockBackend, Origin, SessionOptions};
    use waymark_models::tokenizer::Tokenizer;

    use super::*;

    #[tokio::test]
    async fn only_gaps_between_the_last_beginning_and_the_first_end_count() {
        let backend = MockBackend::random(1, 259).with_overlap().with_time(Duration::from_millis(20), Duration::ZERO);
        let engine = Engine::start(Box::new(backend), EngineConfig::default(), Tokenizer::bytes().table()).unwrap();
        let gaps = DecodeGaps::new(&engine, 2);
        let never = DecodeGaps::new(&engine, 2);
        let mut session = engine.session(SessionOptions::default());
        session.append(&[1, 2, 3], Origin::Prompt, false);
        let generate = Generate { max_tokens: 40, ignore_eos: true, ..Generate::default() };
        let mut turn = session.generate(generate).await.unwrap();
        for at in 0..40 {
            turn.next().await.unwrap().unwrap();
            match at {
                2 | 9 => gaps.begin_sequence(),
                29 | 35 => gaps.end_sequence(),
                _ => {}
            }
        }
        let total = gaps.total();
        // Nine gaps precede the tenth token. A late reader may see a token when further passes have begun.
        assert!((1..=30).contains(&total.count), "{total:?}");
        assert!(total.mean().unwrap() > 0.0 && total.seconds < GapSum::of(&engine).seconds);
        never.begin_sequence();
        never.end_sequence();
        never.begin_sequence();
        assert_eq!(never.total().mean(), None, "one ended before the other began");
        drop(turn);
        engine.shutdown().await;
    }
}
