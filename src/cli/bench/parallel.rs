//! Concurrent clients of a benchmark.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `work` once for each of `numbers`, in `clients` tasks that each take the next number when they are free. `work`
/// gets the number of its task and one of `numbers`. Returns the results, in any order.
///
/// # Errors
/// The first error of any task, once the tasks before it have ended.
pub(super) async fn in_parallel<T, W>(
    clients: usize,
    numbers: Range<usize>,
    work: impl Fn(usize, usize) -> W + Clone + Send + 'static,
) -> anyhow::Result<Vec<T>>
where
    T: Send + 'static,
    W: Future<Output = anyhow::Result<T>> + Send + 'static,
{
    let end = numbers.end;
    let next = Arc::new(AtomicUsize::new(numbers.start));
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            let work = work.clone();
            let next = Arc::clone(&next);
            tokio::spawn(async move {
                let mut results = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= end {
                        return anyhow::Ok(results);
                    }
                    results.push(work(client, number).await?);
                }
            })
        })
        .collect();
    let mut results = Vec::new();
    for task in tasks {
        results.extend(task.await??);
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn each_number_is_worked_on_once_and_errors_are_returned() {
        let mut numbers = in_parallel(3, 5..25, |client, number| async move {
            anyhow::ensure!(client < 3);
            tokio::task::yield_now().await;
            Ok(number)
        })
        .await
        .unwrap();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(5..25));
        let failed = in_parallel(2, 0..4, |_, number| async move {
            anyhow::ensure!(number != 2, "two");
            Ok(())
        });
        assert_eq!(failed.await.unwrap_err().to_string(), "two");
    }
}
