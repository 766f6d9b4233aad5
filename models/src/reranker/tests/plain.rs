//! Plain implementation of a BERT classifier in `f64`, one number at a time, without any of the crate's kernels.

use crate::encoder::fixture::{HIDDEN, LAYERS, NamedTensors};

const HEADS: usize = 2;
const HEAD: usize = HIDDEN / HEADS;

/// Tensor of a checkpoint, with or without the name of the encoder before its own.
fn tensor<'a>(tensors: &'a NamedTensors, name: &str) -> &'a [f32] {
    let found = tensors.get(name).or_else(|| tensors.get(&format!("bert.{name}")));
    &found.unwrap_or_else(|| panic!("no tensor {name}")).1
}

/// Linear map of a vector.
fn linear(tensors: &NamedTensors, name: &str, x: &[f64]) -> Vec<f64> {
    let weight = tensor(tensors, &format!("{name}.weight"));
    let bias = tensor(tensors, &format!("{name}.bias"));
    let row = |out: usize| (0..x.len()).map(|at| f64::from(weight[out * x.len() + at]) * x[at]).sum::<f64>();
    (0..bias.len()).map(|out| row(out) + f64::from(bias[out])).collect()
}

fn layer_norm(tensors: &NamedTensors, name: &str, x: &[f64]) -> Vec<f64> {
    let weight = tensor(tensors, &format!("{name}.weight"));
    let bias = tensor(tensors, &format!("{name}.bias"));
    let count = x.len() as f64;
    let mean = x.iter().sum::<f64>() / count;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    let unit = |at: usize| (x[at] - mean) / (variance + 1e-12).sqrt();
    (0..x.len()).map(|at| unit(at) * f64::from(weight[at]) + f64::from(bias[at])).collect()
}

/// Error function by its Maclaurin series, which converges fast enough for the numbers of small weights.
fn erf(x: f64) -> f64 {
    if x.abs() > 4.0 {
        return x.signum();
    }
    let mut term = x;
    let mut sum = x;
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

fn gelu(x: f64) -> f64 {
    x * 0.5 * (1.0 + erf(x / std::f64::consts::SQRT_2))
}

fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// Attention of every piece to every piece.
fn attention(tensors: &NamedTensors, layer: &str, rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let project = |part: &str| -> Vec<Vec<f64>> {
        rows.iter().map(|row| linear(tensors, &format!("{layer}.attention.self.{part}"), row)).collect()
    };
    let queries = project("query");
    let keys = project("key");
    let values = project("value");
    let mut out = vec![vec![0.0; HIDDEN]; rows.len()];
    for head in 0..HEADS {
        let columns = head * HEAD..(head + 1) * HEAD;
        for (query, out) in queries.iter().zip(&mut out) {
            let score = |key: &Vec<f64>| columns.clone().map(|at| query[at] * key[at]).sum::<f64>();
            let weights: Vec<f64> = keys.iter().map(|key| (score(key) / (HEAD as f64).sqrt()).exp()).collect();
            let total: f64 = weights.iter().sum();
            for (weight, value) in weights.iter().zip(&values) {
                columns.clone().for_each(|at| out[at] += weight / total * value[at]);
            }
        }
    }
    out
}

/// Vector of the first piece after all layers.
fn first_piece(tensors: &NamedTensors, pieces: &[(usize, usize)]) -> Vec<f64> {
    let row = |name: &str, row: usize| -> Vec<f64> {
        let table = tensor(tensors, &format!("embeddings.{name}.weight"));
        table[row * HIDDEN..(row + 1) * HIDDEN].iter().map(|&x| f64::from(x)).collect()
    };
    let embedded = pieces.iter().enumerate().map(|(position, &(id, segment))| {
        let words = sum(&row("word_embeddings", id), &row("token_type_embeddings", segment));
        layer_norm(tensors, "embeddings.LayerNorm", &sum(&words, &row("position_embeddings", position)))
    });
    let mut rows: Vec<Vec<f64>> = embedded.collect();
    for layer in 0..LAYERS {
        let layer = format!("encoder.layer.{layer}");
        let attended = attention(tensors, &layer, &rows);
        for (row, attended) in rows.iter_mut().zip(&attended) {
            let out = linear(tensors, &format!("{layer}.attention.output.dense"), attended);
            let middle = layer_norm(tensors, &format!("{layer}.attention.output.LayerNorm"), &sum(row, &out));
            let inner = linear(tensors, &format!("{layer}.intermediate.dense"), &middle);
            let inner: Vec<f64> = inner.into_iter().map(gelu).collect();
            let out = linear(tensors, &format!("{layer}.output.dense"), &inner);
            *row = layer_norm(tensors, &format!("{layer}.output.LayerNorm"), &sum(&middle, &out));
        }
    }
    rows.swap_remove(0)
}

/// Logit of a pair, given as pieces and their segments.
pub(super) fn logit(tensors: &NamedTensors, pieces: &[(usize, usize)]) -> f64 {
    let pooled = linear(tensors, "pooler.dense", &first_piece(tensors, pieces));
    let pooled: Vec<f64> = pooled.into_iter().map(f64::tanh).collect();
    linear(tensors, "classifier", &pooled)[0]
}

/// Logit with DistilBERT's activation.
pub(super) fn logit_relu(tensors: &NamedTensors, pieces: &[(usize, usize)]) -> f64 {
    let pooled = linear(tensors, "pooler.dense", &first_piece(tensors, pieces));
    let pooled: Vec<f64> = pooled.into_iter().map(|x| x.max(0.0)).collect();
    linear(tensors, "classifier", &pooled)[0]
}
