//! Tests of fairness in a world in which a step takes a fixed time and, per token, a time that grows with the context.

use std::time::Duration;

use proptest::prelude::*;

use super::StepCosts;
use super::property::{EMPTY_STEP, SchedulerMachine, harness, row_time};
use crate::config::EngineConfig;
use crate::harness::{Harness, Machine, Operation};
use crate::request::Priority;

/// Length of a long prompt.
const LONG: usize = 6000;
/// Number of blocks of a pool in which nothing is ever short.
const PLENTY: usize = 8192;

/// Clients of a scheduler whose steps take time.
struct World {
    harness: Harness<SchedulerMachine>,
    /// Times at which each client received its tokens.
    received: Vec<Vec<Duration>>,
    /// If `true`, all clients share one tenant, and the scheduler knows no cost and fills every step.
    unfair: bool,
}

impl World {
    fn new() -> Self {
        Self::with(PLENTY)
    }

    fn with(blocks: usize) -> Self {
        let mut harness = harness(blocks, &EngineConfig::default());
        harness.machine.clock = Some(Duration::ZERO);
        let mut world = Self { harness, received: Vec::new(), unfair: false };
        // The costs of a step are known, as in an engine that has run for a moment.
        let warm = world.submit(99, LONG, 20);
        world.run_until(|world| world.received[warm].len() == 20);
        world
    }

    /// Submits a prompt that shares no prefix with others. Returns the number of the client.
    fn submit(&mut self, tenant: u64, tokens: usize, max_tokens: usize) -> usize {
        self.submit_like(self.received.len(), tenant, tokens, max_tokens)
    }

    /// Submits a prompt that begins like the one of the client `other` of the same tenant. Returns the number of the
    /// client.
    fn submit_like(&mut self, other: usize, tenant: u64, tokens: usize, max_tokens: usize) -> usize {
        let family = other as u32;
        let salt = if self.unfair { 0 } else { tenant };
        self.harness.apply(Operation::Submit { salt, family, tokens, max_tokens });
        self.received.push(Vec::new());
        self.received.len() - 1
    }

    fn now(&self) -> Duration {
        self.harness.machine.clock.unwrap_or_default()
    }

    fn step(&mut self) {
        if self.unfair {
            self.harness.machine.scheduler.costs = StepCosts::default();
        }
        self.harness.machine.step();
        let now = self.now();
        for (index, times) in self.received.iter_mut().enumerate() {
            let before = self.harness.clients[index].tokens.len();
            self.harness.read(index);
            let new = self.harness.clients[index].tokens.len() - before;
            times.extend((0..new).map(|_| now));
        }
    }

    fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        for _ in 0..50_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        assert!(done(self), "it never comes");
    }

    fn finished(&self, client: usize) -> bool {
        self.harness.clients[client].finish.is_some()
    }

    /// Submits a short request in the middle of a step and runs it to its end. Returns the time to its first token.
    fn short_request(&mut self, tenant: u64) -> Duration {
        let begin = self.now();
        if self.harness.machine.scheduler.is_busy() {
            self.step();
        }
        let start = begin + (self.now() - begin) / 2;
        let client = self.submit(tenant, 64, 32);
        self.run_until(|world| world.finished(client));
        self.received[client][0] - start
    }

    /// Returns the 99th percentile of the gaps between the tokens that a client received between two times.
    fn gap(&self, client: usize, from: Duration, to: Duration) -> Duration {
        let times = &self.received[client];
        let mut gaps: Vec<_> =
            times.windows(2).filter(|pair| pair[0] >= from && pair[1] <= to).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.len() > 100, "{} tokens came", gaps.len());
        gaps.sort_unstable();
        gaps[gaps.len() * 99 / 100]
    }

    /// Returns the number of tokens of a client whose KV is computed.
    fn computed(&self, client: usize) -> usize {
        let (sessions, _) = self.harness.machine.scheduler.snapshot(std::time::Instant::now());
        sessions.iter().find(|session| session.id == client as u64 + 1).map_or(0, |session| session.computed)
    }
}

/// Returns the time that a prompt takes alone, computed in one step.
fn alone(tokens: usize) -> Duration {
    EMPTY_STEP + row_time(tokens, 0)
}

/// Returns the median.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn a_short_request_among_long_prompts_of_others_takes_three_times_as_long_at_most() {
    let first = World::new().short_request(1);
    for blocks in [PLENTY, 1200] {
        let mut world = World::with(blocks);
        for tenant in 2..10 {
            world.submit(tenant, LONG, 32);
        }
        let waits = [3, 20, 50, 80, 100, 7, 31];
        let loaded = waits.map(|wait| {
            (0..wait).for_each(|_| world.step());
            world.short_request(1)
        });
        assert!((1..9).any(|client| !world.finished(client)), "the load ended before the measurement");
        let loaded = median(loaded.to_vec());
        assert!(loaded <= 3 * first, "first token after {loaded:?} instead of {first:?} with {blocks} blocks");
    }
}

#[test]
fn a_short_request_among_long_prompts_of_its_own_tenant_takes_three_times_as_long_at_most() {
    let first = World::new().short_request(1);
    let mut world = World::new();
    for _ in 0..80 {
        world.submit(1, LONG, 32);
    }
    (0..10).for_each(|_| world.step());
    let loaded = world.short_request(1);
    assert!(loaded <= 3 * first, "first token after {loaded:?} instead of {first:?}");
}

#[test]
fn a_short_request_does_not_wait_for_the_turn_of_a_long_prompt_that_begins_like_it() {
    let first = World::new().short_request(1);
    let mut world = World::new();
    let oldest = world.submit(2, LONG, 1);
    let long = world.submit(3, LONG, 1);
    let mut tenant = 100;
    // Beside short prompts, only the oldest long one is computed.
    let mut step = |world: &mut World| {
        tenant += 1;
        world.submit(tenant, 64, 1);
        world.step();
    };
    (0..5).for_each(|_| step(&mut world));
    let start = world.now();
    let short = world.submit_like(long, 3, 64, 1);
    (0..100).for_each(|_| step(&mut world));
    let time = world.received[short].first().map(|received| *received - start);
    assert!(time.is_some_and(|time| time <= 6 * first), "first token after {time:?} instead of {first:?}");
    assert!(!world.finished(oldest) && !world.finished(long), "it waited for long prompts");
    assert_eq!(world.harness.counters.prefix_cache_hit_tokens_total.get(), 48, "a block was computed twice");
    world.harness.check();
}

#[test]
fn a_short_request_beside_streams_takes_three_times_as_long_at_most_and_hardly_disturbs_them() {
    let first = World::new().short_request(1);
    let mut world = World::new();
    let streams: Vec<_> = (2..6).map(|tenant| world.submit(tenant, 32, 4000)).collect();
    (0..200).for_each(|_| world.step());
    let begin = world.now();
    let normal = world.gap(streams[0], Duration::ZERO, begin);
    for _ in 0..10 {
        let loaded = world.short_request(1);
        assert!(loaded <= 3 * first, "first token after {loaded:?} instead of {first:?}");
    }
    let gap = world.gap(streams[0], begin, world.now());
    assert!(gap <= 2 * normal, "a gap of {gap:?} instead of {normal:?}");
}

#[test]
fn a_long_prefill_does_not_stretch_the_gaps_of_running_streams() {
    for count in [1, 4] {
        let mut world = World::new();
        let streams: Vec<_> = (1..=count).map(|tenant| world.submit(tenant, 32, 4000)).collect();
        (0..50).for_each(|_| world.step());
        let begin = world.now();
        let long = world.submit(9, LONG, 1);
        world.run_until(|world| world.finished(long));
        let end = world.now();
        (0..200).for_each(|_| world.step());
        for stream in streams {
            let during = world.gap(stream, begin, end);
            let normal = world.gap(stream, end, world.now());
            assert!(during <= 2 * normal, "a gap of {during:?} instead of {normal:?} beside {count} streams");
        }
    }
}

/// Load, with eight clients per entry: number of tokens of the prompt and of the answer, and number of requests that
/// each client sends one after the other.
type Mix = &'static [(usize, usize, usize)];

/// Returns the time in which all requests of a mix are answered, each client sending one at a time.
fn makespan(mix: Mix, unfair: bool) -> f64 {
    let mut world = World::new();
    world.unfair = unfair;
    let begin = world.now();
    let mut open: Vec<(usize, usize)> = Vec::new();
    let clients: Vec<_> = mix.iter().flat_map(|request| [*request; 8]).collect();
    for (client, (tokens, max_tokens, count)) in clients.iter().enumerate() {
        open.push((world.submit(client as u64, *tokens, *max_tokens), count - 1));
    }
    while open.iter().any(|(request, left)| *left > 0 || !world.finished(*request)) {
        world.step();
        for (client, (request, left)) in open.iter_mut().enumerate() {
            if *left > 0 && world.finished(*request) {
                let (tokens, max_tokens, _) = clients[client];
                *request = world.submit(client as u64, tokens, max_tokens);
                *left -= 1;
            }
        }
    }
    (world.now() - begin).as_secs_f64()
}

#[test]
fn fairness_costs_less_than_a_twentieth_of_the_throughput() {
    let mixes: [Mix; 5] = [
        &[(LONG, 32, 1), (64, 32, 1)],
        &[(LONG, 32, 1), (64, 400, 1)],
        &[(LONG, 400, 1)],
        &[(LONG, 32, 2), (64, 32, 20)],
        &[(600, 80, 6)],
    ];
    let ratios = mixes.map(|mix| makespan(mix, false) / makespan(mix, true));
    assert!(ratios.iter().all(|ratio| *ratio < 1.05), "{ratios:?}");
}

#[test]
fn a_tenant_with_many_prompts_gives_up_places_to_another() {
    let mut world = World::new();
    for _ in 0..64 {
        world.submit(1, 32, 2000);
    }
    (0..30).for_each(|_| world.step());
    let start = world.now();
    let client = world.submit(2, 32, 4);
    world.run_until(|world| world.finished(client));
    assert!(world.now() - start < 6 * alone(200), "it waited for {:?}", world.now() - start);
    world.harness.check();
}

#[test]
fn places_are_not_exchanged_for_ever() {
    let mut world = World::new();
    for (tenant, priority) in [(1, Priority::Low), (2, Priority::Normal), (3, Priority::High)] {
        world.harness.priority = priority;
        for _ in 0..60 {
            world.submit(tenant, 32, 4000);
        }
    }
    (0..300).for_each(|_| world.step());
    let before = world.harness.counters.rotations_total.get();
    (0..200).for_each(|_| world.step());
    assert_eq!(world.harness.counters.rotations_total.get(), before);
    world.harness.check();
}

#[test]
fn a_request_of_a_higher_priority_gets_the_place_of_a_lower_one() {
    let mut world = World::new();
    world.harness.priority = Priority::Low;
    for tenant in 0..64 {
        world.submit(tenant, 32, 4000);
    }
    (0..100).for_each(|_| world.step());
    world.harness.priority = Priority::Normal;
    let client = world.submit(100, 32, 4);
    (0..20).for_each(|_| world.step());
    assert!(world.finished(client), "it waits for a stream of low priority");
    world.harness.check();
}

#[test]
fn short_prompts_overtake_one_that_waits_for_blocks_and_do_not_delay_it() {
    let delay = |shorts: bool| {
        let mut world = World::with(600);
        world.submit(1, LONG, 1000);
        (0..5).for_each(|_| world.step());
        let blocked = world.submit(2, LONG, 1);
        (0..5).for_each(|_| world.step());
        for _ in 0..20 {
            if shorts {
                let short = world.submit(3, 64, 32);
                world.run_until(|world| world.finished(short));
            }
        }
        assert!(world.received[blocked].is_empty(), "it did not wait for blocks");
        while !world.finished(blocked) {
            (0..10).for_each(|_| world.step());
            if shorts {
                world.submit(3, 64, 32);
            }
        }
        world.harness.check();
        world.now()
    };
    let alone = delay(false).as_secs_f64();
    let overtaken = delay(true).as_secs_f64();
    assert!(overtaken < 2.0 * alone, "{overtaken} instead of {alone}");
}

#[test]
fn a_short_prompt_is_found_behind_long_ones_of_many_tenants() {
    let mut world = World::with(1200);
    // Two of them fit the pool.
    let longs: Vec<_> = (2..82).map(|tenant| world.submit(tenant, LONG, 1)).collect();
    (0..5).for_each(|_| world.step());
    let short = world.submit(1, 64, 4);
    world.run_until(|world| world.finished(short));
    assert!(longs.iter().all(|long| !world.finished(*long)), "it waited for long prompts");
    world.harness.check();
}

#[test]
fn a_prompt_that_cannot_be_admitted_takes_no_blocks_from_idle_sessions() {
    let mut world = World::with(600);
    let running = world.submit(1, LONG, 1000);
    let parked = world.submit(2, 64, 4);
    world.run_until(|world| world.finished(parked));
    let evictions = world.harness.counters.evictions_total.get();
    let blocked = world.submit(3, LONG, 1);
    (0..20).for_each(|_| world.step());
    assert!(!world.finished(running) && world.received[blocked].is_empty(), "it did not wait for blocks");
    assert_eq!(world.computed(parked), 67, "all but the last token");
    assert_eq!(world.harness.counters.evictions_total.get(), evictions);
    world.harness.check();
}

#[test]
fn a_session_that_returns_from_a_search_goes_before_newcomers() {
    let mut world = World::new();
    // Ends after the prompts of the streams are computed.
    let agent = world.submit(0, 32, 60);
    for tenant in 1..64 {
        world.submit(tenant, 32, 4000);
    }
    // As without keys, every request is a tenant. More of them come than the agent's place can take.
    for tenant in 100..110 {
        world.submit(tenant, 32, 4);
    }
    world.run_until(|world| world.finished(agent));
    // A newcomer takes the place.
    world.step();
    let written = world.received[agent].len();
    world.harness.apply(Operation::Extend { session: agent, tokens: 8, max_tokens: 1 });
    for tenant in 110..130 {
        world.submit(tenant, 32, 4);
        world.step();
    }
    assert_eq!(world.received[agent].len(), written + 1, "newcomers took the places that became free");
    world.harness.check();
}

#[test]
fn a_newcomer_is_not_starved_by_sessions_that_return_for_ever() {
    // Sessions of one key, and requests to a server without keys.
    for tenants in [1, 100] {
        let mut world = World::new();
        // More than the batch has places, so some of them wait for every place that becomes free.
        let agents: Vec<_> = (0..70).map(|agent| world.submit(agent % tenants, 32, 1)).collect();
        world.run_until(|world| agents.iter().all(|agent| world.finished(*agent)));
        // No longer than what the others compute: of a tenant's prompts, the shortest go first.
        let newcomer = world.submit(70 % tenants, 1, 4);
        for _ in 0..100 {
            for agent in &agents {
                world.harness.apply(Operation::Extend { session: *agent, tokens: 1, max_tokens: 1 });
            }
            world.step();
        }
        assert!(world.finished(newcomer), "it starved with tenants: {tenants}");
        world.harness.check();
    }
}

#[test]
fn newcomers_do_not_crowd_out_sessions_in_progress() {
    /// Number of turns of a session: that of the longest protocol.
    const TURNS: usize = 20;
    let mut world = World::new();
    let mut agents: Vec<usize> = Vec::new();
    let mut most = 0;
    for _ in 0..200 {
        let open = |agent: &&usize| (1..TURNS).contains(&world.received[**agent].len());
        let returning: Vec<usize> = agents.iter().filter(open).copied().collect();
        most = most.max(returning.len());
        for session in returning {
            world.harness.apply(Operation::Extend { session, tokens: 1, max_tokens: 1 });
        }
        let waiting = agents.iter().filter(|agent| world.received[**agent].is_empty()).count();
        for _ in waiting..16 {
            let tenant = 100 + agents.len() as u64;
            agents.push(world.submit(tenant, 32, 1));
        }
        world.step();
    }
    assert!(most > 64, "{most} sessions are no overload");
    assert!(most < 2 * 64, "{most} sessions in progress share 64 places");
    world.harness.check();
}

#[test]
fn a_long_prompt_is_not_starved_by_short_ones() {
    let mut world = World::new();
    let long = world.submit(1, LONG, 1);
    for round in 0..2000 {
        if world.finished(long) {
            return;
        }
        for client in 0..4 {
            world.submit(10 + round * 4 + client, 200, 1);
        }
        world.step();
    }
    assert!(world.finished(long), "it starved");
}

#[test]
fn two_tenants_share_evenly_whatever_they_ask_for() {
    let mut world = World::new();
    let many: Vec<_> = (0..6).map(|_| world.submit(1, LONG, 1)).collect();
    let one = world.submit(2, LONG, 1);
    world.run_until(|world| world.finished(one));
    let computed: usize = many.iter().map(|client| world.computed(*client)).sum();
    assert!((LONG / 2..LONG * 2).contains(&computed), "{computed} tokens of the other tenant were computed meanwhile");
}

#[test]
fn a_higher_priority_is_served_more() {
    let mut world = World::new();
    world.harness.priority = Priority::Low;
    let low = world.submit(1, LONG, 1);
    world.harness.priority = Priority::High;
    let high = world.submit(2, LONG, 1);
    world.run_until(|world| world.finished(high));
    assert!(!world.finished(low), "the low one came first");
    let computed = world.computed(low);
    assert!(computed < LONG / 2, "{computed} tokens of the low one were computed meanwhile");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Three quarters, because the oldest prompt gets one step in four.
    #[test]
    fn every_tenant_gets_three_quarters_of_its_share_whatever_the_others_send(
        tenants in prop::collection::vec((0usize..3, prop::collection::vec(300usize..3000, 1..6)), 2..6),
    ) {
        let mut world = World::new();
        let mut clients = Vec::new();
        for (tenant, (priority, prompts)) in tenants.iter().enumerate() {
            world.harness.priority = [Priority::Low, Priority::Normal, Priority::High][*priority];
            let weight = 1.0 / world.harness.priority.charge() as f64;
            let submitted = prompts.iter().map(|tokens| world.submit(tenant as u64, *tokens, 1));
            clients.push((weight, submitted.collect::<Vec<_>>()));
        }
        let weights: f64 = clients.iter().map(|(weight, _)| weight).sum();
        // Runs until one tenant has nothing left to compute.
        while clients.iter().all(|(_, own)| own.iter().any(|client| !world.finished(*client))) {
            let computed = |own: &[usize]| own.iter().map(|client| world.computed(*client)).sum::<usize>() as f64;
            let all: f64 = clients.iter().map(|(_, own)| computed(own)).sum();
            for (weight, own) in &clients {
                let due = 0.75 * weight / weights * all - 600.0;
                prop_assert!(computed(own) >= due, "{} of {all} tokens instead of {due}", computed(own));
            }
            world.step();
        }
        world.harness.check();
    }
}
