//! Sessions that continue the tokens of another one.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn forks_continue_from_the_same_tokens_and_share_their_blocks() {
    let engine = start(mock().with_blocks(64), EngineConfig::default());
    let mut trunk = session(&engine, &prompt(1, 40));
    run(&mut trunk, greedy(20)).await.unwrap();
    trunk.append(&prompt(2, 5), Origin::Environment, false);
    let mut forks: Vec<Session> = [65, 60, 41].into_iter().map(|length| trunk.fork(length)).collect();
    for (fork, length) in forks.iter().zip([65, 60, 41]) {
        assert_eq!(fork.tokens(), &trunk.tokens()[..length], "with their origins and log-probabilities");
    }
    // Forks outlive their trunk, whose appended tokens no engine has seen.
    drop(trunk);
    for fork in &mut forks {
        fork.append(&prompt(3, 10), Origin::Environment, false);
        let (steps, _) = run(fork, greedy(12)).await.unwrap();
        assert_eq!(steps.len(), 12);
        check_text(fork);
    }
    let counters = engine.counters();
    assert_eq!(counters.forks_total.get(), 3);
    // The prompt, six tokens without KV in the fork of 65, the last token of the forks of 60 and of 41, and the ten
    // that were appended to each fork.
    assert_eq!(counters.prefill_tokens_total.get(), 40 + 6 + 1 + 1 + 30);
    drop(forks);
    wait_free(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_of_a_session_without_a_turn_is_a_new_session() {
    let engine = start(mock(), EngineConfig::default());
    let fresh = session(&engine, &prompt(1, 20));
    let mut fork = fresh.fork(10);
    run(&mut fork, greedy(5)).await.unwrap();
    assert_eq!((fork.len(), engine.counters().forks_total.get()), (15, 0));
    check_text(&fork);
    assert!(fresh.fork(0).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_wait_in_the_queue_like_new_sessions() {
    let config = EngineConfig { max_waiting: 1, max_batch_rows: 1, ..EngineConfig::default() };
    let engine = start(mock().with_time(Duration::from_millis(20), Duration::ZERO), config);
    let mut trunk = session(&engine, &prompt(1, 20));
    run(&mut trunk, greedy(5)).await.unwrap();
    let [mut running, mut waiting] = [2, 3].map(|first| session(&engine, &prompt(first, 20)));
    let mut turn = running.generate(greedy(1000)).await.unwrap();
    turn.next().await.unwrap().unwrap();
    let queued = waiting.generate(greedy(5)).await.unwrap();
    let mut fork = trunk.fork(25);
    assert!(matches!(run(&mut fork, greedy(5)).await, Err(EngineError::QueueFull { limit: 1 })));
    drop((turn, queued));
    // The slot is free once the engine has heard of that.
    let admitted = async {
        loop {
            match run(&mut fork, greedy(5)).await {
                Err(EngineError::QueueFull { .. }) => sleep(Duration::from_millis(5)).await,
                found => break found,
            }
        }
    };
    let found = timeout(PATIENCE, admitted).await.expect("the slot stays taken");
    assert_eq!(found.unwrap().1, TurnFinish::Length);
    check_text(&fork);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_cannot_be_copied_fails_one_turn() {
    let backend = mock().with_blocks(64);
    let faults = backend.faults();
    let engine = start(backend, EngineConfig::default());
    let mut trunk = session(&engine, &prompt(1, 40));
    run(&mut trunk, greedy(5)).await.unwrap();
    let mut fork = trunk.fork(45);
    faults.fail_copies(true);
    let error = run(&mut fork, greedy(5)).await.unwrap_err();
    assert!(error.to_string().contains("injected error of a copy"), "{error}");
    faults.fail_copies(false);
    // The fork has lost its KV and computes it again; the trunk still has its own.
    for session in [&mut fork, &mut trunk] {
        run(session, greedy(5)).await.unwrap();
        check_text(session);
    }
    assert_eq!(engine.health(), Health::Ready);
    drop((trunk, fork));
    wait_free(&engine).await;
}

/// Forks of a trunk in a pool that cannot hold all of them: they lose their blocks to each other and write the same.
#[tokio::test(flavor = "multi_thread")]
async fn many_forks_share_a_small_pool() {
    let engine = start(mock().with_blocks(10), EngineConfig { max_batch_rows: 4, ..EngineConfig::default() });
    let mut trunk = session(&engine, &prompt(1, 50));
    run(&mut trunk, greedy(10)).await.unwrap();
    let forks = (0..12).map(|number| {
        let mut fork = trunk.fork(60 - number);
        fork.append(&prompt(number as u32, 20), Origin::Environment, false);
        tokio::spawn(async move {
            run(&mut fork, greedy(30)).await.unwrap();
            check_text(&fork);
        })
    });
    for fork in forks.collect::<Vec<_>>() {
        fork.await.unwrap();
    }
    drop(trunk);
    wait_free(&engine).await;
}
