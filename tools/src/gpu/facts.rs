//! Properties of the GPU, and the CUDA libraries that this process loaded.

use std::collections::BTreeSet;
use std::fs;

use serde::Serialize;

/// Beginnings of the file names of CUDA libraries.
const LIBRARIES: [&str; 6] = ["libcuda.", "libcudart.", "libcublas.", "libcublasLt.", "libnvrtc", "libnvJitLink."];

/// Properties of the GPU beyond its name.
#[derive(Debug, Clone, Serialize)]
pub(super) struct GpuFacts {
    /// Compute capability, such as `9.0`.
    pub(super) capability: String,
    /// Total memory in bytes.
    pub(super) memory: usize,
    /// Free memory in bytes.
    pub(super) free: usize,
    /// Seconds to compile and load the kernels, by head width.
    pub(super) compile_seconds: Vec<(usize, f64)>,
}

/// Returns the paths of the CUDA libraries mapped into this process, in alphabetical order. Their names contain the
/// versions.
pub(super) fn loaded_libraries() -> Vec<String> {
    // Only Linux has this file.
    libraries(&fs::read_to_string("/proc/self/maps").unwrap_or_default())
}

/// Returns the paths of the CUDA libraries in the content of `/proc/self/maps`.
fn libraries(maps: &str) -> Vec<String> {
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| line[at..].trim_end()));
    let wanted = |path: &&str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        LIBRARIES.iter().any(|library| name.starts_with(library))
    };
    let found: BTreeSet<&str> = paths.filter(wanted).collect();
    found.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaded_libraries_are_found_by_their_file_names() {
        let maps = "\
7f01-7f02 r--p 00000000 08:01 12 /opt/my env/nvidia/cublas/lib/libcublas.so.12.8.4.1
7f02-7f03 r-xp 00001000 08:01 12 /opt/my env/nvidia/cublas/lib/libcublas.so.12.8.4.1
7f03-7f04 r-xp 00000000 08:01 13 /usr/lib/libcuda.so.580.65.06
7f04-7f05 r-xp 00000000 08:01 14 /usr/lib/libcurl.so.4
7f05-7f06 rw-p 00000000 00:00 0 [heap]
7f06-7f07 r-xp 00000000 08:01 15 /usr/lib/libnvrtc-builtins.so.13.0
";
        let wanted = [
            "/opt/my env/nvidia/cublas/lib/libcublas.so.12.8.4.1",
            "/usr/lib/libcuda.so.580.65.06",
            "/usr/lib/libnvrtc-builtins.so.13.0",
        ];
        assert_eq!(libraries(maps), wanted);
    }
}
