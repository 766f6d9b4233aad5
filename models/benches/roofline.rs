//! Roofline of decoding: operations per second against operations per byte of weights, beneath the limits of this
//! machine (Williams, Waterman and Patterson 2009).
//!
//! `cargo bench -p waymark-models --bench roofline -- FILE.gguf… [--threads 2] [--svg OUT.svg]`
//!
//! Each file is decoded with 1 to 128 sequences of one token each, so attention costs next to nothing. A step
//! reads every weight once and computes two operations per weight and sequence.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod machine;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use waymark_models::decoder::{Decoder, KvKind};
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;
use waymark_models::{Arithmetic, ForwardBatch, LogitPositions, Logits};

use machine::{bandwidth, best, float_peak, integer_peak};

const SEQUENCES: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Limits of the machine, per second.
struct Limits {
    bytes: f64,
    floats: f64,
    integers: Option<f64>,
}

/// Measurement with one number of sequences.
struct Point {
    sequences: usize,
    /// Operations per byte of weights.
    intensity: f64,
    /// Operations per second.
    rate: f64,
}

fn main() {
    let mut files: Vec<PathBuf> = Vec::new();
    let mut threads = 2;
    let mut svg = None;
    // Cargo itself passes `--bench`.
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--threads" => threads = arguments.next().expect("a number").parse().expect("a number"),
            "--svg" => svg = Some(PathBuf::from(arguments.next().expect("a file"))),
            _ => files.push(argument.into()),
        }
    }
    if files.is_empty() {
        return println!("give the weights: cargo bench -p waymark-models --bench roofline -- FILE.gguf");
    }
    let team = Arc::new(Team::new(threads));
    let limits = Limits { bytes: bandwidth(&team), floats: float_peak(&team), integers: integer_peak(&team) };
    println!("{threads} threads: memory {:.1} GB/s, f32 {:.0} GFLOP/s", limits.bytes / 1e9, limits.floats / 1e9);
    if let Some(integers) = limits.integers {
        println!("16-bit integers {:.0} GOP/s", integers / 1e9);
    }
    let curves: Vec<(String, Vec<Point>)> = files.iter().map(|file| measured(file, &team, &limits)).collect();
    if let Some(svg) = svg {
        std::fs::write(&svg, plot(&limits, &curves)).expect("the plot is written");
    }
}

/// Measures a file with the arithmetic that the server chooses for it.
fn measured(file: &Path, team: &Arc<Team>, limits: &Limits) -> (String, Vec<Point>) {
    let weights = Weights::open(file).expect("the weights open");
    let arithmetic = if weights.has_super_blocks() { Arithmetic::Int16 } else { Arithmetic::F32 };
    let mut decoder = Decoder::load_with(&weights, Arc::clone(team), arithmetic).expect("the weights load");
    let config = weights.config();
    let mut parameters = config.parameters();
    let mut bytes = decoder.weight_bytes();
    if !config.tied_embeddings {
        // Only the rows of a step's tokens are read of it.
        parameters -= (config.vocab * config.hidden) as u64;
        bytes -= weights.tensor("model.embed_tokens.weight").expect("the embedding").bytes.len();
    }
    let name = format!("{}, {arithmetic}", file.file_stem().expect("a file").to_string_lossy());
    println!("{name}: {:.0} MB per step", bytes as f64 / 1e6);
    let limit = if arithmetic == Arithmetic::Int16 { limits.integers.unwrap_or(limits.floats) } else { limits.floats };
    let mut kv = decoder.kv_cache_of(KvKind::F32, SEQUENCES[SEQUENCES.len() - 1]);
    let mut batch = ForwardBatch::new();
    let mut logits = Logits::new();
    let points = SEQUENCES.map(|sequences| {
        batch.clear();
        for sequence in 0..sequences {
            let id = (sequence * 131 % config.vocab) as u32;
            batch.push(&[id], 0, &[sequence as u32], None, LogitPositions::Last);
        }
        let seconds = best(|| decoder.forward(&batch, &mut kv, &mut logits).expect("the step runs"));
        let operations = 2.0 * sequences as f64 * parameters as f64;
        let point = Point { sequences, intensity: operations / bytes as f64, rate: operations / seconds };
        let roof = limit.min(point.intensity * limits.bytes);
        let tokens = sequences as f64 / seconds;
        let rate = point.rate / 1e9;
        let share = 100.0 * point.rate / roof;
        println!(
            "  {sequences:3} sequences: {tokens:7.1} tokens/s, {rate:6.1} GOP/s, {:5.1} GB/s, {share:3.0} % of the limit",
            bytes as f64 / seconds / 1e9
        );
        point
    });
    (name, points.into())
}

/// Colors that color-blind readers distinguish (Okabe and Ito 2008).
const COLORS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// Axes: operations per byte, and GOP/s, both in logarithms.
const INTENSITY: (f64, f64) = (1.0, 1000.0);
const RATE: (f64, f64) = (10.0, 2000.0);

/// Draws curves beneath the limits, as an SVG document.
fn plot(limits: &Limits, curves: &[(String, Vec<Point>)]) -> String {
    let mut svg = String::from(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 720 460' font-family='sans-serif' font-size='12'>\n\
         <title>Roofline of decoding</title>\n<rect width='100%' height='100%' fill='#fff'/>\n",
    );
    let ridge = |peak: f64| peak / limits.bytes;
    let top = limits.integers.unwrap_or(limits.floats).max(limits.floats);
    svg += &line(INTENSITY.0, INTENSITY.0 * limits.bytes, ridge(top), top, "#444");
    svg += &text(1.1, limits.bytes * 3.0, &format!("memory, {:.0} GB/s", limits.bytes / 1e9), "#444");
    let floats = Some(("f32 multiply-adds", limits.floats));
    for (name, peak) in floats.into_iter().chain(limits.integers.map(|peak| ("16-bit integers", peak))) {
        svg += &line(ridge(peak), peak, INTENSITY.1, peak, "#444");
        svg += &text(INTENSITY.1 / 8.0, peak * 1.08, &format!("{name}, {:.0} GOP/s", peak / 1e9), "#444");
    }
    for exponent in 0..=3 {
        let intensity = 10f64.powi(exponent);
        svg += &line(intensity, RATE.0 * 1e9, intensity, RATE.1 * 1e9, "#ddd");
        // A bit to the left, so the last number ends with the axis.
        svg += &text(intensity * 0.88, RATE.0 * 0.82e9, &intensity.to_string(), "#000");
    }
    for rate in [10.0, 100.0, 1000.0] {
        svg += &line(INTENSITY.0, rate * 1e9, INTENSITY.1, rate * 1e9, "#ddd");
        svg += &text(INTENSITY.0 * 0.72, rate * 1e9, &rate.to_string(), "#000");
    }
    svg += "<text x='300' y='452'>operations per byte of weights</text>\n\
            <text transform='translate(14 280) rotate(-90)'>GOP/s</text>\n";
    for (number, (name, points)) in curves.iter().enumerate() {
        let color = COLORS[number % COLORS.len()];
        for pair in points.windows(2) {
            svg += &line(pair[0].intensity, pair[0].rate, pair[1].intensity, pair[1].rate, color);
        }
        for point in points {
            let (x, y) = place(point.intensity, point.rate);
            let title = format!("{name}, {} sequences", point.sequences);
            svg += &format!("<circle cx='{x:.1}' cy='{y:.1}' r='3' fill='{color}'><title>{title}</title></circle>\n");
        }
        let y = 36 + 16 * number;
        svg += &format!("<text x='80' y='{y}' fill='{color}'>{name}</text>\n");
    }
    svg + "</svg>\n"
}

fn place(intensity: f64, rate: f64) -> (f64, f64) {
    let along = |value: f64, (low, high): (f64, f64)| (value / low).ln() / (high / low).ln();
    (60.0 + 640.0 * along(intensity, INTENSITY), 420.0 - 400.0 * along(rate / 1e9, RATE))
}

fn line(x1: f64, y1: f64, x2: f64, y2: f64, color: &str) -> String {
    let (x1, y1) = place(x1, y1);
    let (x2, y2) = place(x2, y2);
    format!("<line x1='{x1:.1}' y1='{y1:.1}' x2='{x2:.1}' y2='{y2:.1}' stroke='{color}'/>\n")
}

fn text(intensity: f64, rate: f64, content: &str, color: &str) -> String {
    let (x, y) = place(intensity, rate);
    format!("<text x='{x:.1}' y='{y:.1}' fill='{color}'>{content}</text>\n")
}
