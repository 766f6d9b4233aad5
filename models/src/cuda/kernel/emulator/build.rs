//! Compiles the kernels for the CPU, once per change of their sources.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::{env, fs, process};

use sha2::{Digest, Sha256};

use crate::cuda::kernel::layout::HEAD_DIMS;
use crate::cuda::kernel::{CudaKernel, source};

/// Kernels compiled once per head width.
const BY_DIM: [CudaKernel; 7] = [
    CudaKernel::Rotary,
    CudaKernel::AttendDecode,
    CudaKernel::AttendPrefill,
    CudaKernel::RotaryBackward,
    CudaKernel::AttendDelta,
    CudaKernel::AttendBackwardQueries,
    CudaKernel::AttendBackwardKeys,
];

/// Returns the path of the shared library. `None`, with a message on standard error, when it cannot be built.
pub(super) fn library() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(build).clone()
}

fn build() -> Option<PathBuf> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        eprintln!("skipped: the kernel emulator needs x86-64 Linux");
        return None;
    }
    let text = text();
    let digest: String = Sha256::digest(&text)[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    // Next to the test program, in the target folder.
    let folder = env::current_exe().unwrap().parent().unwrap().join("emulator");
    let library = folder.join(format!("kernels-{digest}.so"));
    if library.exists() {
        return Some(library);
    }
    fs::create_dir_all(&folder).unwrap();
    let unit = folder.join(format!("kernels-{digest}-{}.cpp", process::id()));
    let fresh = unit.with_extension("so");
    fs::write(&unit, text).unwrap();
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let flags = ["-std=c++17", "-O2", "-fno-strict-aliasing", "-fno-exceptions", "-fPIC", "-shared", "-w"];
    let output = match Command::new(&compiler).args(flags).arg("-o").arg(&fresh).arg(&unit).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("skipped: cannot run the C++ compiler {compiler}: {error}");
            return None;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::remove_file(&unit).unwrap();
    // Other test processes may build the same file; a rename is atomic, so the last one to finish does no harm.
    fs::rename(&fresh, &library).unwrap();
    Some(library)
}

/// Generates one translation unit: the emulator, the kernels (those for heads once per width), and the table of entry
/// points.
fn text() -> String {
    let mut text = String::from(include_str!("device.h"));
    let mut entries = String::new();
    for (name, part) in source::PARTS.iter().filter(|(name, _)| !source::BY_DIM.contains(name)) {
        writeln!(text, "#line 1 \"{name}\"\n{part}").unwrap();
    }
    for kernel in CudaKernel::ALL.iter().filter(|kernel| !BY_DIM.contains(kernel)) {
        let name = kernel.name();
        writeln!(entries, "{{\"{name}\", 0, [](void** a) {{ call(&::{name}, a); }}}},").unwrap();
    }
    for dim in HEAD_DIMS {
        writeln!(text, "#define HEAD_DIM {dim}\nnamespace d{dim} {{").unwrap();
        for (name, part) in source::PARTS.iter().filter(|(name, _)| source::BY_DIM.contains(name)) {
            writeln!(text, "#line 1 \"{name}\"\n{part}").unwrap();
        }
        writeln!(text, "}}\n#undef HEAD_DIM").unwrap();
        for kernel in BY_DIM {
            let name = kernel.name();
            writeln!(entries, "{{\"{name}\", {dim}, [](void** a) {{ call(&::d{dim}::{name}, a); }}}},").unwrap();
        }
    }
    writeln!(text, "namespace emu {{\nstatic const Entry ENTRIES[] = {{\n{entries}}};\n}}").unwrap();
    text.push_str(include_str!("device.cpp"));
    text
}
