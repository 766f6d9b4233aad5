//! Flags for vector stores and files that clients create.

use std::path::PathBuf;

use waymark_runtime::config::Size;

/// Flags for vector stores and files that clients create.
#[derive(Debug, Clone, clap::Args)]
pub struct FileArgs {
    /// Folder of the vector stores and files that clients create over HTTP (`/v1/vector_stores`, `/v1/files`). Without
    /// it, clients cannot create any. Only one server at a time may use the folder.
    #[arg(long, env = "WAYMARK_VECTOR_STORES", value_name = "DIR")]
    pub vector_stores: Option<PathBuf>,

    /// Maximum size of an uploaded file, such as `64MiB`.
    #[arg(long, env = "WAYMARK_FILE_LIMIT", value_name = "SIZE", default_value = "64MiB")]
    pub file_limit: Size,

    /// Maximum total size of the uploaded files of all API keys together, such as `4GiB`.
    #[arg(long, env = "WAYMARK_FILE_STORAGE", value_name = "SIZE", default_value = "4GiB")]
    pub file_storage: Size,
}

/// Limits of uploaded files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLimits {
    /// Maximum size of a file, in bytes.
    pub file: u64,
    /// Maximum total size of all files, in bytes.
    pub storage: u64,
}

impl Default for FileLimits {
    fn default() -> Self {
        Self { file: 64 << 20, storage: 4 << 30 }
    }
}

/// Configuration of vector stores and files that clients create.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileConfig {
    /// Folder of vector stores and files. `None` lets clients create none.
    pub folder: Option<PathBuf>,
    /// Limits of uploaded files.
    pub limits: FileLimits,
}

impl FileArgs {
    /// Resolves the flags.
    pub fn resolve(self) -> FileConfig {
        let limits = FileLimits { file: self.file_limit.0 as u64, storage: self.file_storage.0 as u64 };
        FileConfig { folder: self.vector_stores, limits }
    }
}
