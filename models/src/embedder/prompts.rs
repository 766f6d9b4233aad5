//! Prompts of a sentence-transformers directory.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use crate::ModelError;
use crate::encoder::parse_present;

/// Name of the file with the prompts.
const FILE: &str = "config_sentence_transformers.json";

/// Texts that a model expects before queries and documents.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EncoderPrompts {
    /// Text before every query. Empty if the model expects none.
    pub query: String,
    /// Text before every document. Empty if the model expects none.
    pub document: String,
}

#[derive(Deserialize)]
struct PromptFile {
    #[serde(default)]
    prompts: HashMap<String, Option<String>>,
    default_prompt_name: Option<String>,
}

impl EncoderPrompts {
    /// Reads the prompts of the model in `dir`. Empty without a file of prompts.
    pub(super) fn read(dir: &Path) -> Result<EncoderPrompts, ModelError> {
        let Some(file) = parse_present::<PromptFile>(&dir.join(FILE))? else { return Ok(EncoderPrompts::default()) };
        // The names and their order are those of `encode_query` and `encode_document`.
        Ok(EncoderPrompts { query: file.prompt(&["query"]), document: file.prompt(&["document", "passage", "corpus"]) })
    }
}

impl PromptFile {
    /// Returns the prompt of the first of these names that has one, or else the default prompt.
    fn prompt(&self, names: &[&str]) -> String {
        let mut named = names.iter().copied().chain(self.default_prompt_name.as_deref());
        let found = named.find_map(|name| self.prompts.get(name));
        found.cloned().flatten().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn prompts_have_several_names() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(EncoderPrompts::read(dir.path()).unwrap(), EncoderPrompts::default());
        for (json, query, document) in [
            (
                r#"{"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": null}"#,
                "query: ",
                "passage: ",
            ),
            (r#"{"prompts": {"query": "q ", "document": "", "passage": "p "}}"#, "q ", ""),
            (r#"{"prompts": {"all": "x "}, "default_prompt_name": "all"}"#, "x ", "x "),
            (r#"{"prompts": {"query": null}, "similarity_fn_name": "cosine"}"#, "", ""),
            (r#"{"__version__": {}}"#, "", ""),
        ] {
            std::fs::write(dir.path().join(FILE), json).unwrap();
            let expected = EncoderPrompts { query: query.to_owned(), document: document.to_owned() };
            assert_eq!(EncoderPrompts::read(dir.path()).unwrap(), expected, "{json}");
        }
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(EncoderPrompts::read(dir.path()).unwrap_err().to_string().contains(FILE));
    }
}
