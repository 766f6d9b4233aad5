//! Source code of the kernels.

/// Source files of the module, in order.
pub const PARTS: [(&str, &str); 13] = [
    ("device.cu", include_str!("cu/device.cu")),
    ("rotary.cu", include_str!("cu/rotary.cu")),
    ("embed.cu", include_str!("cu/embed.cu")),
    ("norm.cu", include_str!("cu/norm.cu")),
    ("activation.cu", include_str!("cu/activation.cu")),
    ("attention.cu", include_str!("cu/attention.cu")),
    ("lora.cu", include_str!("cu/lora.cu")),
    ("sample.cu", include_str!("cu/sample.cu")),
    ("score.cu", include_str!("cu/score.cu")),
    ("convert.cu", include_str!("cu/convert.cu")),
    ("gradient.cu", include_str!("cu/gradient.cu")),
    ("rotary_backward.cu", include_str!("cu/rotary_backward.cu")),
    ("attention_backward.cu", include_str!("cu/attention_backward.cu")),
];

/// Files that are compiled once per head width.
pub const BY_DIM: [&str; 4] = ["rotary.cu", "attention.cu", "rotary_backward.cu", "attention_backward.cu"];

/// NVRTC options in addition to the architecture (`--gpu-architecture=sm_XX`, at least sm_80).
pub const OPTIONS: [&str; 1] = ["--std=c++17"];

/// Returns the source of the module for heads of width `dim`, one of [`HEAD_DIMS`](super::layout::HEAD_DIMS). It needs
/// no headers.
pub fn module(dim: usize) -> String {
    let mut text = format!("#define HEAD_DIM {dim}\n");
    for (name, part) in PARTS {
        text.push_str(&format!("#line 1 \"{name}\"\n{part}\n"));
    }
    text
}
