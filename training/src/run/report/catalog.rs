//! Figures of the metrics that the trainer knows by name.

use super::number::NumberUnit;

/// Style of a figure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) title: &'static str,
    /// Explanation below the title. May be empty.
    pub(super) note: &'static str,
    pub(super) unit: NumberUnit,
    /// If `true`, the value axis includes zero.
    pub(super) from_zero: bool,
    /// Disables smoothing, for values that have no noise.
    pub(super) exact: bool,
}

/// Figure of known metrics: their names in `metrics.jsonl` with their labels in the legend.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownFigure {
    pub(super) look: Look,
    pub(super) names: &'static [(&'static str, &'static str)],
}

impl Look {
    /// Creates a line chart of plain numbers that includes zero.
    pub(super) const fn new(title: &'static str) -> Look {
        Look { title, note: "", unit: NumberUnit::Plain, from_zero: true, exact: false }
    }

    const fn note(self, note: &'static str) -> Look {
        Look { note, ..self }
    }

    const fn unit(self, unit: NumberUnit) -> Look {
        Look { unit, ..self }
    }

    const fn exact(self) -> Look {
        Look { exact: true, ..self }
    }

    /// Fits the value axis to the values, without zero.
    pub(super) const fn close(self) -> Look {
        Look { from_zero: false, ..self }
    }

    const fn of(self, names: &'static [(&'static str, &'static str)]) -> KnownFigure {
        KnownFigure { look: self, names }
    }
}

pub(super) const ANSWERS: &[KnownFigure] = &[
    Look::new("Reward")
        .note("mean over the step's rollouts")
        .of(&[("reward", "reward"), ("reward_std", "deviation within groups")]),
    Look::new("Exact match").note("share of rollouts").unit(NumberUnit::Share).of(&[("em", "EM")]),
    Look::new("F1").note("mean over rollouts").unit(NumberUnit::Share).of(&[("f1", "F1")]),
    Look::new("Form")
        .note("share of rollouts")
        .unit(NumberUnit::Share)
        .close()
        .of(&[("format_valid", "valid form"), ("answered", "answered")]),
    Look::new("Flat groups")
        .note("share of groups with equal rewards")
        .unit(NumberUnit::Share)
        .of(&[("flat_groups", "flat")]),
    Look::new("Pairs").note("of a round").exact().of(&[("pairs", "pairs")]),
    Look::new("Reward of pairs")
        .note("mean over a round's pairs")
        .of(&[("chosen_reward", "chosen"), ("rejected_reward", "rejected")]),
    Look::new("Merit")
        .note("of validation questions; its highest value marks the best step of a stage")
        .close()
        .of(&[("validation_merit", "merit")]),
    Look::new("Failures").note("rollouts that failed and were retried").of(&[("failed", "failed")]),
];

pub(super) const SEARCHING: &[KnownFigure] = &[
    Look::new("Searches by mode").note("per trajectory").of(&[
        ("searches_passage", "passage"),
        ("searches_graph", "graph"),
        ("searches_hybrid", "hybrid"),
        ("searches_triples", "triples"),
        ("searches_kag", "KAG"),
        ("searches_hypergraph", "hypergraph"),
    ]),
    Look::new("Searches").note("per trajectory").of(&[("searches", "searches")]),
    Look::new("Turns").note("per trajectory").of(&[("turns", "turns")]),
    Look::new("Retrieval cost").note("per trajectory, as rewarded").of(&[("retrieval_cost", "cost")]),
];

pub(super) const LEARNING: &[KnownFigure] = &[
    Look::new("Loss").close().of(&[("loss", "training"), ("validation_loss", "validation")]),
    Look::new("Preference loss")
        .note("without the likelihood of chosen trajectories")
        .of(&[("preference_loss", "loss")]),
    Look::new("Margin").note("of chosen trajectories over rejected ones").of(&[("margin", "margin")]),
    Look::new("Order of pairs")
        .note("share of pairs whose chosen trajectory is ahead")
        .unit(NumberUnit::Share)
        .close()
        .of(&[("pair_accuracy", "ahead")]),
    Look::new("Loss of the ranker")
        .note("of pairs of branches; held-out loss after the round's epoch")
        .close()
        .of(&[("ranker_training_loss", "training"), ("ranker_loss", "held out")]),
    Look::new("Accuracy of the ranker")
        .note("share of held-out pairs whose better branch is ahead")
        .unit(NumberUnit::Share)
        .close()
        .of(&[("ranker_accuracy", "all heads")]),
    Look::new("Accuracy of single heads").note("of each head by its own label").unit(NumberUnit::Share).close().of(&[
        ("ranker_accuracy/retrieval_bonus", "retrieval bonus"),
        ("ranker_accuracy/retrieval_action", "retrieval action"),
        ("ranker_accuracy/overlap", "overlap"),
        ("ranker_accuracy/backtrack", "backtrack"),
        ("ranker_accuracy/refusal", "refusal"),
        ("ranker_accuracy/step", "step"),
        ("ranker_accuracy/answer", "answer"),
    ]),
    Look::new("Pairs of the ranker")
        .note("of branches of a round")
        .exact()
        .of(&[("ranker_pairs", "trained on"), ("ranker_held_out", "held out")]),
    Look::new("Likelihood of chosen trajectories").note("negative, nats per token").close().of(&[("nll", "NLL")]),
    Look::new("Policy loss").note("clipped surrogate alone").close().of(&[("policy_loss", "policy loss")]),
    Look::new("KL to the reference").note("k3, mean per token").of(&[("kl", "KL")]),
    Look::new("Distance from the teacher")
        .note("KL on its most probable tokens, mean over its trajectories")
        .of(&[("teacher_kl", "KL")]),
    Look::new("Weight of the teacher").exact().of(&[("teacher_weight", "weight")]),
    Look::new("Too little evidence")
        .note("share of rollouts that found too little")
        .unit(NumberUnit::Share)
        .of(&[("poor", "poor")]),
    Look::new("Left out by the teacher")
        .note("too long with the supporting passages")
        .of(&[("teacher_left_out", "left out")]),
    Look::new("Entropy").note("nats, mean per token").of(&[("entropy", "entropy")]),
    Look::new("Clip fraction")
        .note("share of tokens whose ratio is clipped")
        .unit(NumberUnit::Share)
        .of(&[("clip_fraction", "clipped")]),
    Look::new("Log-probability drift").note("nats, sampling against update").of(&[
        ("logprob_drift", "mean"),
        ("logprob_drift_max", "largest"),
        ("policy_drift", "by the update"),
    ]),
    Look::new("Learning rate").exact().of(&[("learning_rate", "learning rate")]),
    Look::new("Gradient norm").note("before clipping").of(&[("gradient_norm", "norm")]),
];

pub(super) const SPEED: &[KnownFigure] = &[
    Look::new("Lengths").note("tokens per trajectory").of(&[
        ("response_tokens", "response"),
        ("policy_tokens", "policy"),
        ("observation_tokens", "observations"),
        ("prompt_tokens", "prompt"),
    ]),
    Look::new("Batch").note("tokens per step").of(&[("tokens", "computed"), ("targets", "targets")]),
    Look::new("Throughput")
        .note("tokens per second")
        .of(&[("tokens_per_second", "update"), ("rollout_tokens_per_second", "rollout")]),
    Look::new("Time of a step").unit(NumberUnit::Seconds).of(&[
        ("step_seconds", "step"),
        ("rollout_seconds", "rollout"),
        ("update_seconds", "update"),
    ]),
];

/// Figures of evaluation metrics, one line per question set. The table shows all metrics.
pub(super) const EVALUATION: &[(&str, Look)] = &[
    ("em", Look::new("Exact match").note("by question set").unit(NumberUnit::Share)),
    ("f1", Look::new("F1").note("by question set").unit(NumberUnit::Share)),
    ("format_valid", Look::new("Valid form").note("by question set").unit(NumberUnit::Share).close()),
    ("retrieval_cost", Look::new("Retrieval cost").note("by question set")),
];
