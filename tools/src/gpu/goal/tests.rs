#![allow(clippy::unwrap_used)]

use super::super::agentic::AgenticScript;
use super::super::report::Agreement;
use super::GoalVerdict::{Met, Missed, NotMeasured};
use super::*;

/// A rate measured on a GPU.
fn rate(shape: &str, sequences: usize, tokens_per_second: f64, of_floor: f64) -> Rate {
    let shape = shape.to_owned();
    let of_floor = Some(of_floor);
    let sampling = RateSampling::Greedy;
    Rate { shape, sequences, prompt: 128, tokens: 128, sampling, graphs: true, tokens_per_second, of_floor, gap: None }
}

/// Default parameters of the agentic load.
const SCRIPT: AgenticScript = AgenticScript { loops: 64, turns: 4, prompt: 128, written: 64, observed: 500 };

fn compared(over: &str, holds: bool) -> Agreement {
    Agreement {
        what: GREEDY.to_owned(),
        over: over.to_owned(),
        positions: 1600,
        diverged: 3,
        first: Some(9),
        mean: 0.004,
        row: 0.01,
        largest: 0.1,
        holds,
    }
}

fn load(way: TurnMode, recomputed: u64) -> AgenticLoad {
    AgenticLoad {
        shape: QWEN_7B.to_owned(),
        way: way.name().to_owned(),
        script: SCRIPT,
        searched: false,
        search_ms: 20.0,
        questions_per_second: 30.0,
        resume_p50: 5.0,
        resume_p95: 9.0,
        computed: 1000,
        cached: 0,
        recomputed,
    }
}

/// A report that meets every goal exactly.
fn enough() -> GpuReport {
    let mut report = GpuReport { device: "NVIDIA H200, 132 multiprocessors".to_owned(), ..GpuReport::default() };
    report.agreement.push(compared("SmolLM2-135M-Instruct", true));
    for shape in ALL {
        for sequences in SEQUENCES {
            let rate = rate(shape, sequences, if sequences == 1 { 100.0 } else { 1500.0 }, 0.7);
            // The smallest shape has no decode goal, and no goal counts plain launches or top-p.
            report.decode.push(Rate { of_floor: Some(0.1), graphs: false, ..rate.clone() });
            report.decode.push(Rate { of_floor: Some(0.1), sampling: RateSampling::TopP, ..rate.clone() });
            report.decode.push(if shape == ALL[0] { Rate { of_floor: Some(0.1), ..rate } } else { rate });
        }
        report.decode.push(rate(shape, 256, 5000.0, 0.3));
    }
    report.prefill.push(Rate { prompt: 2048, ..rate(QWEN_7B, 8, 40_000.0, 0.5) });
    report.agentic.extend([load(TurnMode::Parked, 0), load(TurnMode::Cold, 5000)]);
    report.peer = Some(Peer {
        device: "NVIDIA H200".to_owned(),
        version: "transformers 5.17".to_owned(),
        decode: vec![rate(QWEN_7B, 8, 500.0, 0.0), rate(QWEN_7B, 24, 1e9, 0.0)],
        prefill: vec![Rate { prompt: 2048, ..rate(QWEN_7B, 8, 40_000.0 / 3.0, 0.0) }],
        agentic: vec![PeerLoad {
            shape: QWEN_7B.to_owned(),
            script: SCRIPT,
            search_ms: 20.0,
            questions_per_second: 10.0,
        }],
    });
    report
}

/// Returns the verdict and the measurement of the only goal whose name contains `what`.
fn verdict(report: &GpuReport, what: &str) -> (GoalVerdict, String) {
    let mut found: Vec<SpeedGoal> = goals(report).into_iter().filter(|goal| goal.what.contains(what)).collect();
    assert_eq!(found.len(), 1, "{what}: {found:?}");
    let SpeedGoal { verdict, measured, .. } = found.remove(0);
    (verdict, measured)
}

#[test]
fn what_is_reached_exactly_is_met() {
    let goals = goals(&enough());
    assert_eq!(goals.len(), 11);
    assert!(goals.iter().all(|goal| goal.verdict == Met), "{goals:#?}");
}

#[test]
fn nothing_is_met_where_nothing_was_measured() {
    let goals = goals(&GpuReport::default());
    assert_eq!(goals.len(), 11);
    assert!(goals.iter().all(|goal| goal.verdict == NotMeasured && goal.measured.is_empty()), "{goals:#?}");
}

#[test]
fn the_worst_number_of_sequences_counts_up_to_64() {
    let mut report = enough();
    let third = |report: &mut GpuReport, share| {
        let mut rates = report.decode.iter_mut().filter(|rate| rate.shape == QWEN_7B && counts(rate));
        rates.find(|rate| rate.sequences == 32).unwrap().of_floor = share;
    };
    third(&mut report, Some(0.6999));
    assert_eq!(verdict(&report, "7b, 1 to 64"), (Missed, "69.9 % at 32".to_owned()));
    assert_eq!(verdict(&report, "3b, 1 to 64").0, Met);
    third(&mut report, Some(f64::NAN));
    assert_eq!(verdict(&report, "7b, 1 to 64").0, Missed);
    // A rate without a floor was not measured on a GPU.
    third(&mut report, None);
    assert_eq!(verdict(&report, "7b, 1 to 64"), (NotMeasured, "70.0 % at 1; none at 32".to_owned()));
    report.decode.retain(|rate| rate.sequences == 64);
    assert_eq!(verdict(&report, "3b, 1 to 64"), (NotMeasured, "70.0 % at 64; none at 1, 8, 32".to_owned()));
    report.decode.iter_mut().for_each(|rate| rate.of_floor = Some(0.5));
    assert_eq!(verdict(&report, "3b, 1 to 64").0, Missed, "whatever the others would be");
}

#[test]
fn many_sequences_are_held_to_one_in_every_shape() {
    let mut report = enough();
    let many = |report: &mut GpuReport, rate: f64| {
        let of = |own: &&mut Rate| own.shape == ALL[0] && own.sequences == MANY && own.graphs;
        report.decode.iter_mut().filter(of).for_each(|own| own.tokens_per_second = rate);
    };
    many(&mut report, 1499.0);
    assert_eq!(verdict(&report, "135m, 32 sequences"), (Missed, "14.99 ×".to_owned()));
    assert_eq!(verdict(&report, "7b, 32 sequences").0, Met);
    report.decode.retain(|rate| rate.sequences != 1);
    assert_eq!(verdict(&report, "135m, 32 sequences"), (NotMeasured, String::new()));
}

#[test]
fn prefill_is_of_many_tokens_at_the_largest_shape() {
    let mut report = enough();
    report.prefill[0].of_floor = Some(0.4999);
    assert_eq!(verdict(&report, "prefill, qwen"), (Missed, "49.9 % 8 × 2048 tokens".to_owned()));
    // Reading weights takes longer than the arithmetic of a few tokens.
    report.prefill[0].prompt = BOUND_BY_RATE / 8 - 1;
    assert_eq!(verdict(&report, "prefill, qwen").0, NotMeasured);
    report.prefill[0] = Rate { prompt: 2048, ..rate("qwen2.5-3b", 8, 1e5, 0.9) };
    assert_eq!(verdict(&report, "prefill, qwen").0, NotMeasured);
}

#[test]
fn one_token_computed_again_is_too_many() {
    let mut report = enough();
    report.agentic.push(load(TurnMode::Parked, 1));
    assert_eq!(verdict(&report, "computed again"), (Missed, "1 of 2000".to_owned()));
    report.agentic = vec![load(TurnMode::Resubmitted, 0)];
    assert_eq!(verdict(&report, "computed again").0, NotMeasured);
}

#[test]
fn only_the_text_of_the_real_model_counts() {
    let mut report = enough();
    report.agreement = vec![compared("a tiny decoder with random weights", true)];
    let only = "only a tiny decoder with random weights".to_owned();
    assert_eq!(verdict(&report, "text of SmolLM2"), (NotMeasured, only));
    report.agreement.extend([compared("smollm2-135m", true), compared("smollm2-135m", false)]);
    assert_eq!(verdict(&report, "text of SmolLM2").0, Missed);
}

#[test]
fn the_peer_is_compared_at_the_same_and_on_the_same_card() {
    let mut report = enough();
    assert_eq!(verdict(&report, "decode, of the peer").1, "3.00 × qwen2.5-7b, 8 sequences, the worst of 1");
    report.peer.as_mut().unwrap().decode[0].tokens_per_second = 501.0;
    assert_eq!(verdict(&report, "decode, of the peer").0, Missed);
    report.peer.as_mut().unwrap().decode[0].tokens_per_second = 0.0;
    assert_eq!(verdict(&report, "decode, of the peer"), (NotMeasured, String::new()), "no rate");
    // The peer's searches were waits, not real searches.
    report.agentic[0].searched = true;
    assert_eq!(verdict(&report, "parked, of the peer").0, NotMeasured);
    for device in ["NVIDIA A100", "NVIDIA H20"] {
        report.peer.as_mut().unwrap().device = device.to_owned();
        assert_eq!(verdict(&report, "prefill, of the peer"), (NotMeasured, format!("the peer ran on {device}")));
    }
}

#[test]
fn the_peer_is_compared_at_the_same_load_alone() {
    let other = |change: &dyn Fn(&mut Peer)| {
        let mut report = enough();
        change(report.peer.as_mut().unwrap());
        report
    };
    let agentic: [&dyn Fn(&mut Peer); 6] = [
        &|peer| peer.agentic[0].script.loops = 32,
        &|peer| peer.agentic[0].script.turns = 2,
        &|peer| peer.agentic[0].script.prompt = 64,
        &|peer| peer.agentic[0].script.written = 32,
        &|peer| peer.agentic[0].script.observed = 250,
        &|peer| peer.agentic[0].search_ms = 5.0,
    ];
    for change in agentic {
        assert_eq!(verdict(&other(change), "parked, of the peer"), (NotMeasured, String::new()));
    }
    assert_eq!(verdict(&other(&|peer| peer.decode[0].tokens = 64), "decode, of the peer").0, NotMeasured);
    assert_eq!(verdict(&other(&|peer| peer.prefill[0].tokens = 2), "prefill, of the peer").0, NotMeasured);
    // Own rates must use CUDA graphs, whatever the peer uses.
    let launched = other(&|peer| peer.decode[0].graphs = false);
    assert_eq!(verdict(&launched, "decode, of the peer").1, "3.00 × qwen2.5-7b, 8 sequences, the worst of 1");
    let mut launched = enough();
    launched.decode.iter_mut().for_each(|rate| rate.graphs = false);
    assert_eq!(verdict(&launched, "decode, of the peer").0, NotMeasured);
}

#[test]
fn reports_of_several_runs_are_judged_together() {
    let mut whole = enough();
    let check = GpuReport {
        agreement: std::mem::take(&mut whole.agreement),
        device: whole.device.clone(),
        ..GpuReport::default()
    };
    let mut read = GpuReport::default();
    for report in [check, whole] {
        let text = serde_json::to_string(&report).unwrap();
        read.merge(serde_json::from_str(&text).unwrap()).unwrap();
    }
    assert_eq!(goals(&read), goals(&enough()));
    let elsewhere = GpuReport { device: "NVIDIA A100".to_owned(), ..GpuReport::default() };
    assert!(read.merge(elsewhere).unwrap_err().to_string().contains("two devices"));
}

#[test]
fn a_report_with_what_is_no_number_is_read() {
    let mut report = enough();
    report.agreement[0] = Agreement { mean: f64::NAN, holds: false, ..compared("smollm2", false) };
    let read: GpuReport = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert!(read.agreement[0].mean.is_nan());
    assert_eq!(verdict(&read, "text of SmolLM2").0, Missed);
}

#[test]
fn goals_are_the_last_that_is_printed_and_missing_one_is_no_mistake() {
    let mut report = enough();
    report.agentic[0].recomputed = 7;
    report.notes.push("a note".to_owned());
    report.goals = goals(&report);
    let mut out = Vec::new();
    report.print(&mut out).unwrap();
    let said = String::from_utf8(out).unwrap();
    let (_, table) = said.split_once("note: a note\n").unwrap();
    assert_eq!(table.lines().count(), 12);
    let line = table.lines().find(|line| line.contains("computed again")).unwrap();
    assert!(line.contains("MISSED") && line.ends_with("7 of 1000"), "{line}");
    assert!(report.holds());
}
