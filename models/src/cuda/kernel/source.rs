//! Source code of the kernels: built in, or read from a folder for development.

use std::collections::HashMap;
use std::path::Path;
use std::sync::OnceLock;
use std::{fs, io};

/// Source files of the module, in order.
pub const PARTS: [(&str, &str); 20] = [
    ("device.cu", include_str!("cu/device.cu")),
    ("rotary.cu", include_str!("cu/rotary.cu")),
    ("embed.cu", include_str!("cu/embed.cu")),
    ("norm.cu", include_str!("cu/norm.cu")),
    ("activation.cu", include_str!("cu/activation.cu")),
    ("attention.cu", include_str!("cu/attention.cu")),
    ("attention_prefill.cu", include_str!("cu/attention_prefill.cu")),
    ("fp8.cu", include_str!("cu/fp8.cu")),
    ("skinny.cu", include_str!("cu/skinny.cu")),
    ("lora.cu", include_str!("cu/lora.cu")),
    ("sample_row.cu", include_str!("cu/sample_row.cu")),
    ("sample_scan.cu", include_str!("cu/sample_scan.cu")),
    ("sample_bins.cu", include_str!("cu/sample_bins.cu")),
    ("sample_search.cu", include_str!("cu/sample_search.cu")),
    ("sample.cu", include_str!("cu/sample.cu")),
    ("score.cu", include_str!("cu/score.cu")),
    ("convert.cu", include_str!("cu/convert.cu")),
    ("gradient.cu", include_str!("cu/gradient.cu")),
    ("rotary_backward.cu", include_str!("cu/rotary_backward.cu")),
    ("attention_backward.cu", include_str!("cu/attention_backward.cu")),
];

/// Files that are compiled once per head width.
pub const BY_DIM: [&str; 5] =
    ["rotary.cu", "attention.cu", "attention_prefill.cu", "rotary_backward.cu", "attention_backward.cu"];

/// NVRTC options in addition to the architecture (`--gpu-architecture=sm_XX`, at least sm_80).
pub const OPTIONS: [&str; 1] = ["--std=c++17"];

/// Maximum size of a file read by [`replace_from`], in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Source files by name, read instead of those built in.
type Replaced = HashMap<&'static str, String>;

/// Files that replace those built in, for the whole process.
static REPLACED: OnceLock<Replaced> = OnceLock::new();

/// Replaces the source files in [`PARTS`] by those of the same name in `folder`, in every module compiled from now on.
/// Other files of the folder are ignored. Meant for the development of kernels on a machine without a Rust toolchain,
/// and possible once per process. Returns the names of the replaced files.
///
/// # Errors
/// If a file cannot be read or is larger than 1 MiB, if the folder has none of the files, or at a second call.
pub fn replace_from(folder: &Path) -> io::Result<Vec<&'static str>> {
    let replaced = read(folder)?;
    let names = PARTS.map(|(name, _)| name).into_iter().filter(|name| replaced.contains_key(name)).collect();
    let again = |_| io::Error::other(format!("{}: the kernels were replaced before", folder.display()));
    REPLACED.set(replaced).map_err(again)?;
    Ok(names)
}

/// Returns the source of the module for heads of width `dim`, one of [`HEAD_DIMS`](super::layout::HEAD_DIMS). It needs
/// no headers.
pub fn module(dim: usize) -> String {
    join(dim, REPLACED.get())
}

fn join(dim: usize, replaced: Option<&Replaced>) -> String {
    let mut text = format!("#define HEAD_DIM {dim}\n");
    for (name, built_in) in PARTS {
        let part = replaced.and_then(|replaced| replaced.get(name)).map_or(built_in, String::as_str);
        text.push_str(&format!("#line 1 \"{name}\"\n{part}\n"));
    }
    text
}

fn read(folder: &Path) -> io::Result<Replaced> {
    let mut replaced = Replaced::new();
    for (name, _) in PARTS {
        let path = folder.join(name);
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(error)),
            Ok(file) if file.len() > MAX_FILE => {
                return Err(failed(io::Error::other(format!("{} bytes, {MAX_FILE} at most", file.len()))));
            }
            Ok(_) => replaced.insert(name, fs::read_to_string(&path).map_err(failed)?),
        };
    }
    if replaced.is_empty() {
        let reason = format!("{}: none of the kernels' files, such as {}", folder.display(), PARTS[0].0);
        return Err(io::Error::new(io::ErrorKind::NotFound, reason));
    }
    Ok(replaced)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_of_a_folder_replace_those_built_in_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let error = read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("none of the kernels' files, such as device.cu"), "{error}");
        fs::write(folder.path().join("norm.cu"), "// mended").unwrap();
        fs::write(folder.path().join("other.cu"), "// ignored").unwrap();
        let replaced = read(folder.path()).unwrap();
        assert_eq!(replaced.keys().collect::<Vec<_>>(), [&"norm.cu"]);
        let text = join(64, Some(&replaced));
        assert!(text.contains("#line 1 \"norm.cu\"\n// mended\n") && !text.contains("ignored"));
        let built_in = |name: &str| PARTS.iter().find(|part| part.0 == name).unwrap().1;
        assert!(text.contains(built_in("embed.cu")) && !text.contains(built_in("norm.cu")));
        assert!(join(64, None).contains(built_in("norm.cu")));
        fs::write(folder.path().join("embed.cu"), vec![b' '; MAX_FILE as usize + 1]).unwrap();
        let error = read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("embed.cu: 1048577 bytes, 1048576 at most"), "{error}");
    }
}
