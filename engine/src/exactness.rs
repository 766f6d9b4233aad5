//! Tests that proposed tokens and forks do not change the output, on a real decoder and on mocks.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use waymark_models::decoder::{Decoder, KvKind};
use waymark_models::kernel::Team;
use waymark_models::sampler::{Pick, SamplingParams, TokenMask};
use waymark_models::tokenizer::Tokenizer;
use waymark_models::weights::Weights;
use waymark_models::{AdapterSlot, ForwardBatch, Logits};

use super::backend::{Backend, BackendError, BackendSpec, PassOutput};
use super::command::{EngineCommand, Fork, Submission};
use super::config::EngineConfig;
use super::constraint::{Constraint, ConstraintState};
use super::core::Core;
use super::counters::Counters;
use super::cpu::{CpuBackend, KvBudget};
use super::error::EngineError;
use super::health::StopFlag;
use super::mailbox::{Inbox, Mail, mailbox};
use super::mock::{MockBackend, Random, draw_rows};
use super::request::{Generate, SessionOptions};
use super::stage::TurnStage;
use super::stop::StopSet;
use super::token::{TokenStep, TurnFinish};

/// Checkpoint of a small decoder with a vocabulary of 256 tokens.
const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/fixtures/decoder/qwen3");

/// Output of a session: its steps, and the end of each turn.
type Output = (Vec<TokenStep>, Vec<Result<TurnFinish, EngineError>>);

/// A session and its reader.
struct TestSession {
    id: u64,
    tokens: Vec<u32>,
    known: usize,
    /// Number of steps that the mailbox holds.
    capacity: usize,
    inbox: Option<Inbox>,
    output: Output,
}

impl TestSession {
    fn new(id: u64, prompt: Vec<u32>) -> Self {
        Self { id, tokens: prompt, known: 0, capacity: 8, inbox: None, output: (Vec::new(), Vec::new()) }
    }

    fn begin(&mut self, core: &mut Core, generate: Generate) {
        let (outbox, inbox) = mailbox(self.capacity);
        core.apply(EngineCommand::Generate(Box::new(Submission {
            session: self.id,
            options: SessionOptions::default(),
            keep: self.known,
            append: self.tokens[self.known..].to_vec(),
            generate,
            outbox,
            submitted: Instant::now(),
            stage: TurnStage::queue(),
            permit: None,
        })));
        self.known = self.tokens.len();
        self.inbox = Some(inbox);
    }

    /// Reads the available steps.
    fn read(&mut self, core: &mut Core) {
        let mut buffer = VecDeque::new();
        while let Some(inbox) = &self.inbox {
            match inbox.poll(&mut buffer, &mut Context::from_waker(Waker::noop())) {
                Poll::Pending => return,
                Poll::Ready(Mail::Steps { resume }) if resume => core.apply(EngineCommand::Resume(self.id)),
                Poll::Ready(Mail::Steps { .. }) => {}
                Poll::Ready(Mail::End(end)) => {
                    self.output.1.push(end);
                    self.inbox = None;
                }
            }
            self.tokens.extend(buffer.iter().map(|step| step.id));
            self.output.0.extend(buffer.drain(..));
            self.known = self.tokens.len();
        }
    }
}

fn core(backend: Box<dyn Backend>, lookup_tokens: usize, counters: &Arc<Counters>) -> Core {
    let config = EngineConfig { step_tokens: 96, max_batch_rows: 64, lookup_tokens, ..EngineConfig::default() };
    Core::new(backend, &config, Tokenizer::bytes().table(), counters.clone(), Arc::new(StopFlag::default()))
}

/// Runs every turn to its end. The costs of steps stay unknown, so all tokens that are found are proposed.
fn settle(core: &mut Core, sessions: &mut [TestSession]) {
    for _ in 0..10_000 {
        core.steps().scheduler.forget_costs();
        if core.steps().begin() {
            core.steps().prepare();
            core.steps().conclude();
        }
        core.scheduler().check().unwrap();
        sessions.iter_mut().for_each(|session| session.read(core));
        if sessions.iter().all(|session| session.inbox.is_none()) {
            return;
        }
    }
    unreachable!("a turn never ends");
}

/// Text that repeats itself, with differences.
fn prompt(seed: u32) -> Vec<u32> {
    (0..60).map(|position| (seed * 13 + position % 7 * 29 + position / 23 * 5) % 256).collect()
}

/// Runs one session per request, with two turns each and an observation between them, all at the same time.
fn outputs(backend: Box<dyn Backend>, lookup_tokens: usize, requests: &[Generate]) -> (Vec<Output>, Arc<Counters>) {
    let counters = Arc::new(Counters::default());
    let mut core = core(backend, lookup_tokens, &counters);
    let mut sessions: Vec<_> = (0..requests.len()).map(|id| TestSession::new(id as u64, prompt(id as u32))).collect();
    for turn in 0..2 {
        for (session, generate) in sessions.iter_mut().zip(requests) {
            session.tokens.extend_from_slice(&prompt(3)[..10 * turn]);
            session.begin(&mut core, generate.clone());
        }
        settle(&mut core, &mut sessions);
    }
    assert_eq!(counters.invariant_violations_total.get(), 0);
    (sessions.into_iter().map(|session| session.output).collect(), counters)
}

/// Allows the even tokens.
#[derive(Debug)]
struct Even;

impl Constraint for Even {
    fn begin(&self) -> Box<dyn ConstraintState> {
        Box::new(Even)
    }
}

impl ConstraintState for Even {
    fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
        Ok(Some(TokenMask::from_words(vec![0x5555_5555; 8], 256)))
    }

    fn accept(&mut self, _: u32) -> Result<(), String> {
        Ok(())
    }
}

/// Requests that cover the options by which a turn ends or its tokens change.
fn requests() -> Vec<Generate> {
    let greedy = || Generate { sampling: SamplingParams::greedy(), max_tokens: 40, ..Generate::default() };
    let sampled = |sampling| Generate { sampling, max_tokens: 40, ..Generate::default() };
    let warm = || SamplingParams { temperature: 0.2, seed: 9, ..SamplingParams::default() };
    let repeated: Vec<u32> = (0..30).map(|position| 100 + position % 6).collect();
    vec![
        greedy(),
        Generate { sampling: SamplingParams { top_logprobs: 3, ..SamplingParams::greedy() }, ..greedy() },
        sampled(warm()),
        sampled(SamplingParams { top_p: 0.9, top_k: 20, ..warm() }),
        sampled(SamplingParams { repetition_penalty: 1.2, frequency_penalty: 0.3, ..warm() }),
        sampled(SamplingParams { logit_bias: vec![(7, 4.0), (9, 4.0)], ..warm() }),
        sampled(SamplingParams { top_logprobs: 2, ..SamplingParams::default() }),
        Generate { force: repeated.clone(), ..greedy() },
        Generate { force: repeated.clone(), max_tokens: 17, ..sampled(warm()) },
        Generate { force: repeated.clone(), eos: vec![104], ..greedy() },
        Generate { force: repeated.clone(), eos: vec![104], ignore_eos: true, ..sampled(warm()) },
        Generate { force: repeated, stops: Arc::new(StopSet::new(["hid"])), ..greedy() },
        Generate { allow: Some(vec![3, 4, 5]), ..sampled(warm()) },
        Generate { constraint: Some(Arc::new(Even)), ..sampled(warm()) },
    ]
}

fn cpu(blocks: usize) -> Box<dyn Backend> {
    cpu_with(blocks, KvKind::F32)
}

fn cpu_with(blocks: usize, kind: KvKind) -> Box<dyn Backend> {
    let weights = Weights::open(Path::new(FIXTURE)).unwrap();
    let decoder = Decoder::load(&weights, Arc::new(Team::new(2))).unwrap();
    Box::new(CpuBackend::with_kv(decoder, "test", 1, KvBudget::Blocks(blocks), kind).unwrap())
}

#[test]
fn a_decoder_writes_the_same_with_proposed_tokens_to_the_last_bit() {
    let (expected, without) = outputs(cpu(256), 0, &requests());
    assert!(expected.iter().all(|output| output.1.iter().all(Result::is_ok)), "{expected:?}");
    assert_eq!(without.lookup_proposed_tokens_total.get(), 0);
    for lookup_tokens in [1, 4, 9] {
        let (found, with) = outputs(cpu(256), lookup_tokens, &requests());
        for (request, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "request {request} with up to {lookup_tokens} proposed tokens");
        }
        let proposed = with.lookup_proposed_tokens_total.get();
        let accepted = with.lookup_accepted_tokens_total.get();
        assert!(accepted > 0 && accepted < proposed, "{accepted} of {proposed} accepted");
        assert_eq!(with.decode_tokens_total.get(), without.decode_tokens_total.get());
    }
}

#[test]
fn a_decoder_short_of_blocks_writes_the_same_with_proposed_tokens() {
    let requests = &requests()[..9];
    let (expected, _) = outputs(cpu(16), 0, requests);
    let (found, counters) = outputs(cpu(16), 4, requests);
    assert_eq!(found, expected);
    assert!(counters.preemptions_total.get() + counters.evictions_total.get() > 0, "16 blocks were enough");
}

/// Returns the outputs of sessions that continue the first tokens of another one, as forks or computed from scratch.
fn branches(kind: KvKind, lengths: &[usize], forked: bool) -> (Vec<Output>, Arc<Counters>) {
    let counters = Arc::new(Counters::default());
    let mut core = core(cpu_with(256, kind), 0, &counters);
    let greedy = Generate { sampling: SamplingParams::greedy(), max_tokens: 20, ..Generate::default() };
    let mut trunk = [TestSession::new(0, prompt(1))];
    trunk[0].begin(&mut core, greedy.clone());
    settle(&mut core, &mut trunk);
    let branch = |(&keep, session): (&usize, u64)| {
        let tokens = trunk[0].tokens[..keep].to_vec();
        if forked {
            let options = SessionOptions::default();
            core.apply(EngineCommand::Fork(Fork { parent: 0, session, options, keep, asked: Instant::now() }));
        }
        TestSession { known: if forked { keep } else { 0 }, ..TestSession::new(session, tokens) }
    };
    let mut sessions: Vec<_> = lengths.iter().zip(1..).map(branch).collect();
    if !forked {
        // Nothing is shared with the trunk, and each session computes all of its tokens.
        core = self::core(cpu_with(256, kind), 0, &counters);
    }
    for session in &mut sessions {
        session.begin(&mut core, greedy.clone());
        if !forked {
            settle(&mut core, std::slice::from_mut(session));
        }
    }
    settle(&mut core, &mut sessions);
    assert_eq!(counters.invariant_violations_total.get(), 0);
    (sessions.into_iter().map(|session| session.output).collect(), counters)
}

#[test]
fn forks_write_what_new_sessions_write_and_compute_one_token_of_theirs() {
    // The whole trunk, twice, and prefixes that end within a block, at its edge and just after the edge.
    let lengths = [80, 80, 65, 64, 63, 33];
    for kind in [KvKind::F32, KvKind::F16, KvKind::Int8] {
        let (expected, _) = branches(kind, &lengths, false);
        let (found, counters) = branches(kind, &lengths, true);
        assert_eq!(found, expected);
        assert_eq!(counters.forks_total.get(), 6);
        // Each fork computes its last token. For the two whole trunks, that token had no KV yet.
        assert_eq!(counters.prefill_tokens_total.get(), 60 + 6);
        assert_eq!(counters.prefill_tokens_recomputed_total.get(), 4);
        // Positions 79 (twice), 63 and 62 lie within a block shared with the trunk; 64 and 32 begin a block.
        assert_eq!(counters.block_copies_total.get(), 4);
    }
}

#[test]
fn a_rounded_cache_writes_the_same_with_proposed_tokens() {
    for kind in [KvKind::F16, KvKind::Int8] {
        let (expected, _) = outputs(cpu_with(256, kind), 0, &requests());
        let (found, counters) = outputs(cpu_with(256, kind), 4, &requests());
        assert_eq!(found, expected);
        assert!(counters.lookup_accepted_tokens_total.get() > 0);
    }
}

#[test]
fn a_rounded_cache_stays_close_and_holds_more_tokens() {
    // Forced tokens, so all caches hold the same sequence.
    let scored = Generate { force: prompt(5)[..40].to_vec(), max_tokens: 40, ..Generate::default() };
    let logprobs = |kind| {
        let (outputs, _) = outputs(cpu_with(64, kind), 0, std::slice::from_ref(&scored));
        outputs[0].0.iter().map(|step| step.logprob).collect::<Vec<_>>()
    };
    let [single, half, bytes] = [KvKind::F32, KvKind::F16, KvKind::Int8].map(logprobs);
    let apart = |other: &[f32]| single.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let half = apart(&half);
    let bytes = apart(&bytes);
    assert!(half > 0.0 && half < 0.02 && bytes > half && bytes < 0.1, "{half}, {bytes}: the bounds are no promises");
    let weights = Weights::open(Path::new(FIXTURE)).unwrap();
    let head_dim = weights.config().head_dim;
    let blocks = |kind| {
        let decoder = Decoder::load(&weights, Arc::new(Team::new(1))).unwrap();
        CpuBackend::with_kv(decoder, "test", 1, KvBudget::Bytes(1 << 20), kind).unwrap().spec().blocks
    };
    let single = blocks(KvKind::F32);
    assert_eq!(blocks(KvKind::F16) / 2, single);
    // One byte per value, and a scale of two bytes for each head.
    let expected = single * 4 * head_dim / (head_dim + 2);
    assert!(blocks(KvKind::Int8).abs_diff(expected) <= 4, "{} blocks, not {expected}", blocks(KvKind::Int8));
}

#[test]
fn a_device_that_draws_writes_the_same_with_proposed_tokens() {
    // A vocabulary of two tokens, in which lookup often predicts the next one.
    let mock = || Box::new(MockBackend::random(5, 2).with_blocks(256).with_overlap());
    let greedy = Generate { sampling: SamplingParams::greedy(), max_tokens: 40, ..Generate::default() };
    let listed =
        Generate { sampling: SamplingParams { top_logprobs: 2, ..SamplingParams::greedy() }, ..greedy.clone() };
    let forced = Generate { force: vec![0, 1, 0, 1, 0, 1, 0, 1], ..greedy.clone() };
    let requests = [greedy, listed, forced];
    let (expected, _) = outputs(mock(), 0, &requests);
    let (found, counters) = outputs(mock(), 4, &requests);
    assert_eq!(found, expected);
    assert!(counters.lookup_accepted_tokens_total.get() > 0);
}

/// Runs a turn over a prompt of 20 tokens, in steps of up to `rows` rows of logits, for a reader that holds up to
/// `capacity` tokens. Returns its output and the number of steps.
fn scored(backend: Box<dyn Backend>, rows: usize, capacity: usize, generate: &Generate) -> (Output, u64) {
    let counters = Arc::new(Counters::default());
    let config = EngineConfig { step_tokens: 96, max_batch_rows: rows, ..EngineConfig::default() };
    let bytes = Tokenizer::bytes().table();
    let mut core = Core::new(backend, &config, bytes, counters.clone(), Arc::new(StopFlag::default()));
    let mut sessions = [TestSession { capacity, ..TestSession::new(0, prompt(1)[..20].to_vec()) }];
    sessions[0].begin(&mut core, generate.clone());
    settle(&mut core, &mut sessions);
    assert_eq!(counters.invariant_violations_total.get(), 0);
    assert_eq!(counters.lookup_proposed_tokens_total.get(), 0, "forced tokens are not looked up");
    let [session] = sessions;
    (session.output, counters.steps_total.get())
}

#[test]
fn forced_tokens_are_scored_together_to_the_last_bit() {
    let force: Vec<u32> = (0..120).map(|position| (position * 37 + position / 9 * 5) % 256).collect();
    let scores = Generate {
        sampling: SamplingParams::greedy(),
        max_tokens: 100,
        force: force[..100].to_vec(),
        ..Generate::default()
    };
    let stop = [force[60] as u8, force[61] as u8];
    let warm = SamplingParams { repetition_penalty: 1.2, seed: 9, ..SamplingParams::default() };
    let requests = [
        scores.clone(),
        Generate { sampling: SamplingParams { top_logprobs: 3, ..SamplingParams::greedy() }, ..scores.clone() },
        Generate { sampling: warm, force: force[..70].to_vec(), ..scores.clone() },
        Generate { max_tokens: 33, ..scores.clone() },
        Generate { eos: vec![force[50]], ..scores.clone() },
        Generate { stops: Arc::new(StopSet::new([stop])), ..scores.clone() },
        // The context ends within the forced tokens.
        Generate { max_tokens: 200, force, ..scores.clone() },
    ];
    for (request, generate) in requests.iter().enumerate() {
        // With a single row of logits there is no room for a proposed token.
        let (expected, slow) = scored(cpu(64), 1, 256, generate);
        assert!(slow as usize >= expected.0.len(), "request {request}: {slow} steps");
        for (capacity, most) in [(8, 20), (256, 10)] {
            let (found, steps) = scored(cpu(64), 64, capacity, generate);
            assert_eq!(found, expected, "request {request} with room for {capacity} tokens");
            // The tokens after the forced ones are sampled one by one.
            let sampled = expected.0.len().saturating_sub(generate.force.len());
            assert!(steps as usize <= most + sampled, "request {request} with room for {capacity}: {steps} steps");
        }
    }
}

#[test]
fn a_device_scores_forced_tokens_together() {
    let force: Vec<u32> = (0..200).map(|position| (position * 37 + position / 9 * 5) % 256).collect();
    let scores = Generate { sampling: SamplingParams::greedy(), max_tokens: 200, force, ..Generate::default() };
    for top_logprobs in [0, 2] {
        let sampling = SamplingParams { top_logprobs, ..SamplingParams::greedy() };
        let scores = Generate { sampling, ..scores.clone() };
        let mock = || MockBackend::random(5, 256).with_blocks(64).with_confidence(2.0);
        let (expected, slow) = scored(Box::new(mock()), 1, 256, &scores);
        assert!(slow >= 200 && expected.1 == [Ok(TurnFinish::Length)], "{slow} steps: {:?}", expected.1);
        for backend in [mock(), mock().with_overlap()] {
            let (found, steps) = scored(Box::new(backend), 64, 256, &scores);
            assert_eq!(found, expected);
            assert!(steps < 20, "{steps} steps");
        }
    }
}

/// A decoder on the CPU that draws tokens itself where it gets instructions, as a GPU does.
struct Drawing {
    backend: Box<dyn Backend>,
    picks: Vec<Option<Pick>>,
    /// Number of tokens drawn, and of those with an adjustment.
    drawn: Arc<[AtomicUsize; 2]>,
}

impl Backend for Drawing {
    fn spec(&self) -> &BackendSpec {
        self.backend.spec()
    }

    fn forward(&mut self, batch: &ForwardBatch, logits: &mut Logits) -> Result<(), BackendError> {
        self.backend.forward(batch, logits)
    }

    fn load_adapter(&mut self, dir: &Path) -> Result<AdapterSlot, BackendError> {
        self.backend.load_adapter(dir)
    }

    fn unload_adapter(&mut self, slot: AdapterSlot) {
        self.backend.unload_adapter(slot);
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        self.backend.copy_block(from, to)
    }

    fn overlaps(&self) -> bool {
        true
    }

    fn submit(
        &mut self,
        batch: &ForwardBatch,
        picks: &[Option<Pick>],
        output: &mut PassOutput,
    ) -> Result<(), BackendError> {
        self.picks = picks.to_vec();
        self.backend.forward(batch, &mut output.logits)
    }

    fn collect(&mut self, output: &mut PassOutput) -> Result<(), BackendError> {
        let all = std::mem::take(&mut output.logits);
        draw_rows(&all, &self.picks, output);
        let drawn = || self.picks.iter().flatten();
        self.drawn[0].fetch_add(drawn().count(), Ordering::Relaxed);
        self.drawn[1].fetch_add(drawn().filter(|pick| pick.adjustment.is_some()).count(), Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn a_device_draws_constrained_and_penalized_tokens_as_the_engine_does() {
    let mut requests = requests();
    requests.push(Generate { min_tokens: 30, eos: (0..200).collect(), ..requests[3].clone() });
    requests.push(Generate { min_tokens: 9, eos: vec![2, 4], ..requests[13].clone() });
    let (expected, _) = outputs(cpu(256), 0, &requests);
    for lookup_tokens in [0, 4] {
        let drawn = Arc::default();
        let backend = Drawing { backend: cpu(256), picks: Vec::new(), drawn: Arc::clone(&drawn) };
        let (found, counters) = outputs(Box::new(backend), lookup_tokens, &requests);
        for (request, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "request {request} with up to {lookup_tokens} proposed tokens");
        }
        let [drawn, adjusted] = drawn.each_ref().map(|count| count.load(Ordering::Relaxed));
        // Only rows with alternatives, and those whose mask was late, are left to the engine.
        let sampled = counters.decode_tokens_total.get() as usize;
        assert!(adjusted > sampled / 3 && drawn > adjusted, "{drawn} of {sampled} drawn, {adjusted} adjusted");
    }
}

#[test]
fn a_proposed_token_that_breaks_a_pass_fails_no_session() {
    let backend = MockBackend::random(0, 1).with_blocks(64);
    let faults = backend.faults();
    let counters = Arc::new(Counters::default());
    let mut core = core(Box::new(backend), 4, &counters);
    let mut sessions = [TestSession::new(1, vec![50, 0, 0, 51])];
    let generate = Generate { sampling: SamplingParams::greedy(), max_tokens: 20, ..Generate::default() };
    sessions[0].begin(&mut core, generate);
    core.steps().begin();
    core.steps().conclude();
    // From here on, token 51 is only proposed: after two zeros, as in the prompt.
    faults.panic_on(51);
    settle(&mut core, &mut sessions);
    let expected = Random { seed: 0, vocab: 1 }.next(None, &[]);
    assert_eq!(sessions[0].output.1, [Ok(TurnFinish::Length)]);
    assert!(sessions[0].output.0.len() == 20 && sessions[0].output.0.iter().all(|step| step.id == expected));
    assert_eq!(counters.step_failures_total.get(), 1);
    assert!(counters.lookup_accepted_tokens_total.get() > 0);
}

#[test]
fn a_forced_token_that_breaks_passes_is_proposed_a_few_times_only() {
    let mut force = vec![7; 150];
    force[100] = 51;
    let generate = Generate { sampling: SamplingParams::greedy(), max_tokens: 150, force, ..Generate::default() };
    for overlaps in [false, true] {
        let backend = MockBackend::random(0, 256).with_blocks(64);
        let backend = if overlaps { backend.with_overlap() } else { backend };
        backend.faults().panic_on(51);
        let counters = Arc::new(Counters::default());
        let mut core = core(Box::new(backend), 0, &counters);
        let mut sessions = [TestSession { capacity: 256, ..TestSession::new(1, vec![50]) }];
        sessions[0].begin(&mut core, generate.clone());
        settle(&mut core, &mut sessions);
        // The tokens before it are written one by one in the end, and the turn fails where it has to be computed.
        let [TestSession { output: (steps, ends), .. }] = &sessions;
        assert_eq!(steps.iter().map(|step| step.id).collect::<Vec<_>>(), generate.force[..101]);
        assert!(matches!(ends[..], [Err(EngineError::Backend(_))]), "{ends:?}");
        assert_eq!(counters.step_failures_total.get(), 3 + 1);
    }
}
