//! Layouts that must be converted before they are served.

use std::collections::BTreeSet;
use std::path::Path;

use super::gguf_parts;

/// Layout that must be converted before it is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignLayout {
    /// Name of the layout.
    pub name: String,
    /// Command that converts the layout, or another remedy.
    pub remedy: String,
    /// If `true`, these are the weights of an adapter.
    pub adapter: bool,
}

impl ForeignLayout {
    pub(super) fn model(name: &str, remedy: String) -> ForeignLayout {
        ForeignLayout { name: name.to_owned(), remedy, adapter: false }
    }
}

/// Recognizes the layout of a file that must be converted. `None` for other files.
pub(super) fn of_file(path: &Path) -> Option<ForeignLayout> {
    let ends = |end: &str| path.extension().is_some_and(|extension| extension == end);
    let dir = path.parent().unwrap_or(Path::new(""));
    (ends("bin") || ends("pt") || ends("pth"))
        .then(|| of_folder(dir, &super::names(dir)).unwrap_or_else(|| pickled(dir, "a pickled PyTorch file")))
}

/// Recognizes the layout of a directory that must be converted, by the names of its entries. `None` for other
/// directories.
pub(super) fn of_folder(dir: &Path, names: &BTreeSet<String>) -> Option<ForeignLayout> {
    let has = |name: &str| names.contains(name);
    let any = |fits: fn(&str) -> bool| names.iter().any(|name| fits(name));
    verl(dir, names)
        .or_else(|| (has("zero_to_fp32.py") || any(is_zero_shard)).then(|| deepspeed(dir)))
        .or_else(|| any(|name| name.ends_with(".distcp")).then(|| fsdp(dir)))
        .or_else(|| has("adapter_model.bin").then(|| pickled_adapter(dir)))
        .or_else(|| {
            let saved = has("pytorch_model.bin") || has("pytorch_model.bin.index.json");
            saved.then(|| pickled(dir, "a checkpoint in pytorch_model.bin"))
        })
        .or_else(|| any(|name| name.starts_with("consolidated.") && name.ends_with(".pth")).then(|| meta(dir)))
        .or_else(|| several_gguf(dir, names))
}

/// Shards of verl's actor, in the directory itself or in its `actor`.
fn verl(dir: &Path, names: &BTreeSet<String>) -> Option<ForeignLayout> {
    let shard = |name: &String| name.starts_with("model_world_size_") && name.ends_with(".pt");
    let place = match names.iter().any(shard) {
        true => dir.to_owned(),
        false => Some(dir.join("actor")).filter(|actor| super::names(actor).iter().any(shard))?,
    };
    let place = place.display();
    let remedy = format!(
        "merge it with `python -m verl.model_merger merge --backend fsdp --local_dir {place} --target_dir {place}/merged`"
    );
    Some(ForeignLayout::model("shards of verl's actor (FSDP)", remedy))
}

fn is_zero_shard(name: &str) -> bool {
    name.contains("zero_pp_rank_") || name.ends_with("_optim_states.pt") || name.ends_with("_model_states.pt")
}

fn deepspeed(dir: &Path) -> ForeignLayout {
    let dir = dir.display();
    let remedy = format!(
        "merge it with `python {dir}/zero_to_fp32.py {dir} {dir}/merged --safe_serialization` and copy config.json and the \
         tokenizer's files into {dir}/merged"
    );
    ForeignLayout::model("a DeepSpeed ZeRO checkpoint", remedy)
}

fn fsdp(dir: &Path) -> ForeignLayout {
    let dir = dir.display();
    let remedy = format!(
        "merge it with `accelerate merge-weights {dir} {dir}/merged` and copy config.json and the tokenizer's files into \
         {dir}/merged"
    );
    ForeignLayout::model("an FSDP checkpoint in shards (.distcp)", remedy)
}

fn pickled(dir: &Path, name: &str) -> ForeignLayout {
    let dir = dir.display();
    let remedy = format!(
        "save it as safetensors with `python -c \"from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; \
         M.from_pretrained('{dir}', torch_dtype='auto').save_pretrained('{dir}/converted', safe_serialization=True); \
         T.from_pretrained('{dir}').save_pretrained('{dir}/converted')\"`"
    );
    ForeignLayout::model(name, remedy)
}

fn pickled_adapter(dir: &Path) -> ForeignLayout {
    let dir = dir.display();
    let remedy = format!(
        "save it as safetensors with `python -c \"from peft import AutoPeftModelForCausalLM as PeftModel; \
         PeftModel.from_pretrained('{dir}').save_pretrained('{dir}/converted', safe_serialization=True)\"`, or merge it into its \
         base with `merge_and_unload()`"
    );
    ForeignLayout { name: "a PEFT adapter in adapter_model.bin".to_owned(), remedy, adapter: true }
}

fn meta(dir: &Path) -> ForeignLayout {
    let dir = dir.display();
    let remedy = format!(
        "convert it with `python -m transformers.models.llama.convert_llama_weights_to_hf --input_dir {dir} --output_dir \
         {dir}/converted`"
    );
    ForeignLayout::model("a checkpoint in Meta's own layout", remedy)
}

fn several_gguf(dir: &Path, names: &BTreeSet<String>) -> Option<ForeignLayout> {
    let files: Vec<&str> = names.iter().map(String::as_str).filter(|name| name.ends_with(".gguf")).collect();
    let first = files.first().filter(|_| files.len() > 1)?;
    if files.iter().all(|name| gguf_parts::first_part(name).is_some()) {
        let remedy = gguf_parts::remedy(&dir.join(first).to_string_lossy());
        return Some(ForeignLayout::model("a GGUF in several parts", remedy));
    }
    let remedy = format!("name one of them: `--model {}` (there are {})", dir.join(first).display(), files.join(", "));
    Some(ForeignLayout::model("a directory with several GGUF files", remedy))
}
