//! GGUF files in several parts, as `llama-gguf-split` writes them.

use std::path::Path;

use crate::ModelError;

/// Returns the path of the first part if `path` is that of a part, such as `name-00002-of-00003.gguf`. `None` for files
/// in one part.
pub(crate) fn first_part(path: &str) -> Option<String> {
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let (part, count) = path.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (name, index) = part.rsplit_once('-')?;
    let is_part = is_number(index) && is_number(count) && count != "00001";
    is_part.then(|| format!("{name}-00001-of-{count}.gguf"))
}

/// Returns the command that joins the parts after `first`.
pub(crate) fn remedy(first: &str) -> String {
    format!("join them with `llama-gguf-split --merge {first} merged.gguf`")
}

/// Error for the file at `path`, one of `count` parts.
pub(crate) fn refusal(path: &Path, count: u64) -> ModelError {
    let name = path.to_string_lossy();
    let first = first_part(&name).unwrap_or_else(|| name.into_owned());
    ModelError::Layout {
        path: path.to_owned(),
        layout: format!("one of {count} parts of a GGUF"),
        remedy: remedy(&first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_recognized_by_their_names() {
        let first = Some("BF16/a-00001-of-00003.gguf".to_owned());
        for part in ["BF16/a-00001-of-00003.gguf", "BF16/a-00003-of-00003.gguf"] {
            assert_eq!(first_part(part), first, "{part}");
        }
        for whole in ["a.gguf", "a-00001-of-00001.gguf", "a-1-of-3.gguf", "a-of-b.gguf", "a-00001-of-00003.safetensors"]
        {
            assert_eq!(first_part(whole), None, "{whole}");
        }
    }
}
