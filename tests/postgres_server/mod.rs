//! PostgreSQL server of a test, from the programs that are installed.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// PostgreSQL server over a temporary directory, stopped on drop.
pub(crate) struct Postgres {
    pub(crate) url: String,
    dir: tempfile::TempDir,
    programs: PathBuf,
}

impl Postgres {
    pub(crate) fn start() -> Postgres {
        let programs = programs().expect("no `initdb` and `pg_ctl`: install the package `postgresql`");
        let dir = tempfile::tempdir().unwrap();
        if is_root() {
            // The server refuses to run as root.
            assert!(Command::new("chown").arg("postgres").arg(dir.path()).status().unwrap().success());
        }
        let url = format!("postgres://postgres@localhost/postgres?host={}", dir.path().display());
        let server = Postgres { url, dir, programs };
        server.run("initdb", "-A trust -U postgres --no-sync");
        let socket = server.dir.path().display();
        let flags = format!("-c listen_addresses='' -c fsync=off -k {socket}");
        server.run("pg_ctl", &format!("-w -t 300 -l {socket}/log -o \"{flags}\" start"));
        server
    }

    fn run(&self, program: &str, arguments: &str) {
        let data = self.dir.path().join("data");
        let line = format!("{} -D {} {arguments}", self.programs.join(program).display(), data.display());
        let shell: &[&str] = if is_root() { &["su", "postgres", "-s", "/bin/sh", "-c"] } else { &["/bin/sh", "-c"] };
        let status = Command::new(shell[0]).args(&shell[1..]).arg(&line).current_dir("/").status().unwrap();
        assert!(status.success(), "{line}");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.run("pg_ctl", "-m immediate stop");
    }
}

/// Returns the directory of the server's programs: in the search path, or where Debian puts them.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let places = std::env::split_paths(&path).chain(versions.map(|version| version.path().join("bin")));
    places.into_iter().find(|place: &PathBuf| has(place, "initdb") && has(place, "pg_ctl"))
}

fn has(place: &Path, program: &str) -> bool {
    place.join(program).is_file()
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n")
}
