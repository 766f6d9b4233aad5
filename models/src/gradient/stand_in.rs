//! Temporary.
#![allow(clippy::too_many_arguments, dead_code)]
pub(super) mod outer {
    use crate::kernel::Team;
    pub(in super::super) fn add(_team: &Team, dy: &[f32], x: &[f32], rows: usize, scale: f32, grad: &mut [f32]) {
        let (out, inn) = (dy.len() / rows, x.len() / rows);
        assert_eq!(grad.len(), out * inn);
        for row in 0..rows {
            for o in 0..out {
                crate::kernel::axpy(&mut grad[o * inn..][..inn], scale * dy[row * out + o], &x[row * inn..][..inn]);
            }
        }
    }
}
pub(super) mod attention {
    use crate::gradient::Pack;
    use crate::kernel::attention::Heads;
    use crate::kernel::{Team, axpy, dot};
    pub(in super::super) struct Plan {
        heads: Heads,
        seen: Vec<Vec<usize>>,
    }
    impl Plan {
        pub(in super::super) fn new(pack: &Pack, heads: Heads, _threads: usize) -> Self {
            let mut seen = Vec::new();
            for segment in pack.segments() {
                let mut before = Vec::new();
                let mut at = segment.parent;
                while let Some(parent) = at {
                    before.splice(0..0, pack.segments()[parent].tokens.clone());
                    at = pack.segments()[parent].parent;
                }
                for token in segment.tokens.clone() {
                    before.push(token);
                    seen.push(before.clone());
                }
            }
            Self { heads, seen }
        }
        fn probabilities(&self, t: usize, h: usize, q: &[f32], k: &[f32]) -> (Vec<f32>, f32) {
            let Heads { query, kv, dim } = self.heads;
            let q = &q[(t * query + h) * dim..][..dim];
            let scale = 1.0 / (dim as f32).sqrt();
            let kh = h / self.heads.group();
            let s: Vec<f32> = self.seen[t].iter().map(|&j| dot(q, &k[(j * kv + kh) * dim..][..dim]) * scale).collect();
            let max = s.iter().copied().fold(f32::MIN, f32::max);
            let sum: f32 = s.iter().map(|s| (s - max).exp()).sum();
            let lse = max + sum.ln();
            (s.iter().map(|s| (s - lse).exp()).collect(), lse)
        }
        pub(in super::super) fn forward(
            &self,
            _team: &Team,
            q: &[f32],
            k: &[f32],
            v: &[f32],
            out: &mut [f32],
            lse: &mut [f32],
        ) {
            let Heads { query, kv, dim } = self.heads;
            for t in 0..self.seen.len() {
                for h in 0..query {
                    let (p, l) = self.probabilities(t, h, q, k);
                    lse[t * query + h] = l;
                    let out = &mut out[(t * query + h) * dim..][..dim];
                    out.fill(0.0);
                    for (&j, p) in self.seen[t].iter().zip(p) {
                        axpy(out, p, &v[(j * kv + h / self.heads.group()) * dim..][..dim]);
                    }
                }
            }
        }
        pub(in super::super) fn backward(
            &self,
            _team: &Team,
            q: &[f32],
            k: &[f32],
            v: &[f32],
            out: &[f32],
            _lse: &[f32],
            dout: &[f32],
            dq: &mut [f32],
            dk: &mut [f32],
            dv: &mut [f32],
        ) {
            let Heads { query, kv, dim } = self.heads;
            let scale = 1.0 / (dim as f32).sqrt();
            dq.fill(0.0);
            dk.fill(0.0);
            dv.fill(0.0);
            for t in 0..self.seen.len() {
                for h in 0..query {
                    let (p, _) = self.probabilities(t, h, q, k);
                    let own = (t * query + h) * dim;
                    let d = dot(&out[own..][..dim], &dout[own..][..dim]);
                    for (&j, p) in self.seen[t].iter().zip(p) {
                        let other = (j * kv + h / self.heads.group()) * dim;
                        let ds = p * (dot(&dout[own..][..dim], &v[other..][..dim]) - d) * scale;
                        axpy(&mut dv[other..][..dim], p, &dout[own..][..dim]);
                        axpy(&mut dq[own..][..dim], ds, &k[other..][..dim]);
                        axpy(&mut dk[other..][..dim], ds, &q[own..][..dim]);
                    }
                }
            }
        }
    }
}
pub(super) mod vocabulary {
    use crate::gradient::{Objective, Score};
    use crate::kernel::{Packed, Team, matmul};
    fn rows(team: &Team, hidden: &[f32], head: &Packed) -> Vec<f32> {
        let rows = hidden.len() / head.inn();
        let mut logits = vec![0.0; rows * head.out()];
        matmul(team, hidden, rows, head, &mut logits);
        for row in logits.chunks_exact_mut(head.out()) {
            let max = row.iter().copied().fold(f32::MIN, f32::max);
            let lse = row.iter().map(|&l| f64::from(l - max).exp()).sum::<f64>().ln() as f32 + max;
            row.iter_mut().for_each(|l| *l -= lse);
        }
        logits
    }
    fn scores(logprobs: &[f32], tokens: &[u32]) -> Vec<Score> {
        let width = logprobs.len() / tokens.len().max(1);
        let rows = tokens.iter().zip(logprobs.chunks_exact(width.max(1)));
        rows.map(|(&token, row)| Score {
            logprob: row[token as usize],
            entropy: -row.iter().map(|l| l.exp() * l).sum::<f32>(),
        })
        .collect()
    }
    pub(in super::super) fn score(team: &Team, hidden: &[f32], head: &Packed, tokens: &[u32]) -> Vec<Score> {
        scores(&rows(team, hidden, head), tokens)
    }
    pub(in super::super) fn learn(
        team: &Team,
        hidden: &[f32],
        head: &Packed,
        back: &Packed,
        tokens: &[u32],
        objective: &mut dyn Objective,
        dhidden: &mut [f32],
        dhead: Option<&mut [f32]>,
    ) {
        let mut logprobs = rows(team, hidden, head);
        for (i, score) in scores(&logprobs, tokens).into_iter().enumerate() {
            let slope = objective.slope(i, score);
            for (id, l) in logprobs[i * head.out()..][..head.out()].iter_mut().enumerate() {
                let p = l.exp();
                let own = f32::from(id == tokens[i] as usize);
                *l = slope.logprob * (own - p) - slope.entropy * p * (*l + score.entropy);
            }
        }
        matmul(team, &logprobs, tokens.len(), back, dhidden);
        if let Some(dhead) = dhead {
            super::outer::add(team, &logprobs, hidden, tokens.len(), 1.0, dhead);
        }
    }
}
