//! Check of what a launch does before it waits for the launches before it.
//!
//! On a GPU the blocks of a launch may start while earlier launches still run. Until `after_previous` a kernel may
//! therefore read only what no unfinished launch writes, and may write nothing. The emulator runs launches one after the
//! other, which would hide a kernel that breaks this rule. So it hides what earlier launches wrote from the first block
//! of a launch until all of its threads have waited, and compares memory then.

use std::ops::Range;

/// Most bytes of device memory that are checked: each launch copies and compares all of it twice.
const MOST_BYTES: usize = 8 << 20;

/// Content of hidden memory: NaN in every format.
const HIDDEN: u128 = u128::MAX;

/// Record of what the launches since the last wait for the device wrote, and of the launch that runs.
#[derive(Debug, Default)]
pub(super) struct LaunchOrder {
    written: Vec<Words>,
    /// Memory before the launch that runs. `None` while none runs, or if there is too much memory.
    before: Option<Vec<Vec<u128>>>,
    /// If `true`, the launch that runs has not waited yet.
    hides: bool,
}

/// Words of one piece of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Words {
    piece: usize,
    range: Range<usize>,
}

impl LaunchOrder {
    /// Records that everything enqueued so far is complete.
    pub(super) fn settle(&mut self) {
        self.written.clear();
    }

    /// Records that a library's product, which starts after all launches before it, wrote to these addresses.
    pub(super) fn multiplied(&mut self, memory: &[Vec<u128>], addresses: Range<u64>) {
        self.settle();
        for (piece, words) in memory.iter().enumerate() {
            let start = words.as_ptr().addr() as u64;
            if !(start..start + size_of_val(words.as_slice()) as u64).contains(&addresses.start) {
                continue;
            }
            // Words that the product shares with another buffer stay visible.
            let word = size_of::<u128>();
            let first = ((addresses.start - start) as usize).div_ceil(word);
            let end = (addresses.end - start) as usize / word;
            self.written.push(Words { piece, range: first..end.max(first).min(words.len()) });
        }
    }

    /// Begins a launch: hides what earlier ones wrote.
    pub(super) fn begin(&mut self, memory: &mut [Vec<u128>]) {
        let bytes: usize = memory.iter().map(|piece| size_of_val(piece.as_slice())).sum();
        self.before = (bytes <= MOST_BYTES).then(|| memory.to_vec());
        self.hides = self.before.is_some();
        if self.hides {
            self.written.iter().for_each(|Words { piece, range }| memory[*piece][range.clone()].fill(HIDDEN));
        }
    }

    /// Shows the hidden memory again. Returns `false` if the launch wrote to memory before it waited.
    pub(super) fn waited(&mut self, memory: &mut [Vec<u128>]) -> bool {
        let Some(before) = self.before.as_ref().filter(|_| self.hides) else { return true };
        self.hides = false;
        let is_hidden =
            |Words { piece, range }: &Words| memory[*piece][range.clone()].iter().all(|word| *word == HIDDEN);
        // All of it first: several launches may have written the same words.
        let kept = self.written.iter().all(is_hidden);
        for Words { piece, range } in &self.written {
            memory[*piece][range.clone()].copy_from_slice(&before[*piece][range.clone()]);
        }
        kept && *before == memory
    }

    /// Ends a launch: records what it wrote.
    pub(super) fn end(&mut self, memory: &mut [Vec<u128>]) {
        // A launch that failed may not have come to its wait.
        self.waited(memory);
        let Some(before) = self.before.take() else { return };
        for (piece, (old, new)) in before.iter().zip(memory.iter()).enumerate() {
            let changed = old.iter().zip(new).enumerate().filter(|(_, (old, new))| old != new).map(|(at, _)| at);
            for at in changed {
                match self.written.last_mut() {
                    Some(last) if last.piece == piece && last.range.end == at => last.range.end += 1,
                    _ => self.written.push(Words { piece, range: at..at + 1 }),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a launch that does `early` before it waits and `late` after. Returns `true` if it kept the rule.
    fn launch(
        order: &mut LaunchOrder,
        memory: &mut [Vec<u128>],
        early: impl Fn(&mut [Vec<u128>]),
        late: impl Fn(&mut [Vec<u128>]),
    ) -> bool {
        order.begin(memory);
        early(memory);
        let kept = order.waited(memory);
        late(memory);
        order.end(memory);
        kept
    }

    #[test]
    fn what_earlier_launches_wrote_is_hidden_until_a_launch_waits() {
        let mut order = LaunchOrder::default();
        let mut memory = vec![vec![1, 2, 3], vec![4]];
        assert!(launch(&mut order, &mut memory, |_| (), |memory| memory[0][1] = 20));
        assert!(launch(&mut order, &mut memory, |_| (), |memory| memory[0][1] = 21));
        assert!(launch(
            &mut order,
            &mut memory,
            |_| (),
            |memory| {
                memory[0][1] = 20;
                memory[1][0] = 40;
            }
        ));
        let seen = |memory: &mut [Vec<u128>]| assert_eq!(memory, [vec![1, HIDDEN, 3], vec![HIDDEN]]);
        assert!(launch(&mut order, &mut memory, seen, |memory| assert_eq!(memory, [vec![1, 20, 3], vec![40]])));
        order.settle();
        assert!(launch(&mut order, &mut memory, |memory| assert_eq!(memory[0][1], 20), |_| ()));
    }

    #[test]
    fn a_launch_that_writes_before_it_waits_is_found() {
        let mut order = LaunchOrder::default();
        let mut memory = vec![vec![1, 2]];
        assert!(!launch(&mut order, &mut memory, |memory| memory[0][1] = 5, |_| ()), "what nobody wrote");
        assert!(!launch(&mut order, &mut memory, |memory| memory[0][1] = 6, |_| ()), "what an earlier launch wrote");
        assert_eq!(memory, [vec![1, 5]]);
    }

    #[test]
    fn a_product_starts_after_all_launches_and_is_waited_for_itself() {
        let mut order = LaunchOrder::default();
        let mut memory = vec![vec![1, 2, 3, 4]];
        assert!(launch(&mut order, &mut memory, |_| (), |memory| memory[0][0] = 10));
        let start = memory[0].as_ptr().addr() as u64;
        order.multiplied(&memory, start + 16..start + 48);
        let seen = |memory: &mut [Vec<u128>]| assert_eq!(memory[0], [10, HIDDEN, HIDDEN, 4]);
        assert!(launch(&mut order, &mut memory, seen, |_| ()));
    }
}
