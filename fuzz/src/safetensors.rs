//! Hugging Face folders: a checkpoint's and a LoRA adapter's, each of a configuration and tensors.
//!
//! Input: the configuration, a zero byte, and the safetensors file.

use std::cell::RefCell;
use std::sync::Arc;

use serde_json::json;
use waymark_models::decoder::Decoder;
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;

use super::file::{Folder, parts, with_folder};

pub fn run(data: &[u8]) {
    let [config, tensors] = parts(data);
    with_folder(|folder| {
        folder.write("config.json", config);
        let file = folder.write("model.safetensors", tensors);
        if let Ok(weights) = Weights::open(&file) {
            let _ = (weights.id(), weights.tensor("model.norm.weight"));
            let _ = Decoder::load(&weights, Arc::new(Team::new(1)));
        }
        folder.write("adapter_config.json", config);
        folder.write("adapter_model.safetensors", tensors);
        BASE.with_borrow_mut(|base| {
            if let Ok(slot) = base.load_adapter(folder.path()) {
                base.unload_adapter(slot);
            }
        });
    });
}

thread_local! {
    /// Base model onto which adapters are loaded.
    static BASE: RefCell<Decoder> = RefCell::new(tiny());
}

/// The smallest decoder there is: one layer, one head, widths of 16.
fn tiny() -> Decoder {
    let config = json!({
        "model_type": "llama", "vocab_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16, "tie_word_embeddings": true,
    });
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let mut shapes: Vec<(String, Vec<usize>)> = vec![("model.embed_tokens.weight".to_owned(), vec![8, 16])];
    for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
        shapes.push((layer(&format!("self_attn.{name}")), vec![16, 16]));
    }
    for name in ["gate_proj", "up_proj", "down_proj"] {
        shapes.push((layer(&format!("mlp.{name}")), vec![16, 16]));
    }
    for name in ["input_layernorm", "post_attention_layernorm"] {
        shapes.push((layer(name), vec![16]));
    }
    shapes.push(("model.norm.weight".to_owned(), vec![16]));
    let folder = Folder::new();
    folder.write("config.json", config.to_string().as_bytes());
    let file = folder.write("model.safetensors", &safetensors(&shapes));
    let weights = Weights::open(&file).expect("a good checkpoint");
    Decoder::load(&weights, Arc::new(Team::new(1))).expect("a good decoder")
}

/// A file of tensors of zeros.
fn safetensors(shapes: &[(String, Vec<usize>)]) -> Vec<u8> {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in shapes {
        let begin = end;
        end += 4 * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}));
    }
    let header = serde_json::Value::Object(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &vec![0; end]].concat()
}
