//! A disk of limited size for the index: a tmpfs in a separate mount namespace.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Place of the disk. Only the run and its servers see what is mounted there, and it vanishes with them.
const PLACE: &str = "/mnt";

/// Size of the disk: room for a merge, during which the index exists twice.
const SIZE: &str = "96m";

/// Flag with which the program starts itself again within the namespace.
pub(crate) const INSIDE: &str = "--inside-namespace";

/// Returns the disk of a run that was started again by [`enter`]. `None` if there is no such disk.
pub(crate) fn mounted(inside: bool) -> Option<PathBuf> {
    inside.then(|| PathBuf::from(PLACE))
}

/// Starts this program again in a new namespace with the disk mounted. Returns only if this fails, with the reason.
pub(crate) fn enter() -> String {
    if !Path::new(PLACE).is_dir() {
        return format!("{PLACE} does not exist");
    }
    let mount = format!("mount -t tmpfs -o size={SIZE} tmpfs {PLACE}");
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
        command
    };
    let tried = unshare(&mount).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !tried.as_ref().is_ok_and(|status| status.success()) {
        return format!("`unshare --mount {mount}` is not permitted here: {tried:?}");
    }
    let Ok(program) = std::env::current_exe() else { return "the program has no path".to_owned() };
    let mut again: Vec<OsString> = vec![program.into()];
    again.extend(std::env::args_os().skip(1));
    again.push(INSIDE.into());
    // `exec` keeps the process ID, so a signal to this process ends the run.
    unshare(&format!("{mount} && exec \"$0\" \"$@\"")).args(again).exec().to_string()
}
