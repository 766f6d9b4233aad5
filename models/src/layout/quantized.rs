//! Quantized Hugging Face checkpoints, which no kernel supports.

use std::path::Path;

use serde_json::Value;

use super::foreign::ForeignLayout;

/// Recognizes a quantized checkpoint by `quantization_config` in its `config.json`.
pub(super) fn of(dir: &Path) -> Option<ForeignLayout> {
    let config: Value = serde_json::from_slice(&std::fs::read(dir.join("config.json")).ok()?).ok()?;
    let settings = config.get("quantization_config").filter(|settings| settings.is_object())?;
    let method = settings["quant_method"].as_str().unwrap_or("unknown");
    let name = match method {
        "gptq" => "GPTQ",
        "awq" => "AWQ",
        "fp8" | "fbgemm_fp8" => "FP8",
        "bitsandbytes" => "bitsandbytes",
        "compressed-tensors" => "compressed-tensors",
        "mxfp4" => "MXFP4",
        other => other,
    };
    let remedy = "serve the checkpoint that it was quantized from, or a GGUF of that: `python convert_hf_to_gguf.py ORIGINAL \
                  --outtype q8_0` (llama.cpp)";
    Some(ForeignLayout::model(&format!("a checkpoint quantized with {name}"), remedy.to_owned()))
}
