//! Measures how an index scales: `cargo bench -p waymark-index --bench growth -- [--sizes 10000,100000,1000000] [--dims
//! 64] [--csv FILE] [--dir FOLDER] [--commits [--seconds 60]]`.
//!
//! For each size, builds and searches a corpus of generated passages with five triples each, in a process of its own so
//! that peak memory is measured separately. Texts are embedded by hashing their words, which costs next to nothing, so
//! the index dominates. `--commits` measures commits instead of builds, for `--seconds` (60), and keeps the index that it
//! builds first in the folder `--dir`. `scripts/bench/growth.py` formats the table that `--csv` writes.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub)]

mod commits;
mod measure;
mod memory;
mod phases;
mod random;
mod synthetic;

#[path = "../../tests/corpora/hash.rs"]
mod hash;

use std::path::PathBuf;
use std::process::Command;

/// Command line options.
struct Options {
    sizes: Vec<usize>,
    dims: usize,
    csv: Option<PathBuf>,
    dir: PathBuf,
    /// If `true`, measures commits.
    commits: bool,
    /// Seconds for which documents are added.
    seconds: f64,
    /// If `true`, this process measures one size.
    alone: bool,
}

impl Options {
    fn read() -> Options {
        let mut options = Options {
            sizes: vec![10_000],
            dims: 64,
            csv: None,
            dir: std::env::temp_dir(),
            commits: false,
            seconds: 60.0,
            alone: false,
        };
        let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().unwrap_or_else(|| panic!("{name} needs a value"));
            match name.as_str() {
                "--sizes" => options.sizes = value().split(',').map(|size| size.parse().unwrap()).collect(),
                "--dims" => options.dims = value().parse().unwrap(),
                "--csv" => options.csv = Some(value().into()),
                "--dir" => options.dir = value().into(),
                "--alone" => options.alone = true,
                "--seconds" => options.seconds = value().parse().unwrap(),
                "--commits" => options.commits = true,
                _ => panic!("{name} is not known"),
            }
        }
        options
    }
}

fn main() {
    let options = Options::read();
    if options.alone {
        let Options { sizes, dims, dir, seconds, .. } = &options;
        let row = if options.commits {
            commits::run(sizes[0], *dims, dir, *seconds)
        } else {
            measure::run(sizes[0], *dims, dir)
        };
        print!("{row}");
        return;
    }
    let header = if options.commits { commits::HEADER } else { measure::HEADER };
    let mut table = format!("{header}\n");
    println!("{header}");
    for size in &options.sizes {
        let run = Command::new(std::env::current_exe().unwrap())
            .args(["--alone", "--sizes", &size.to_string(), "--dims", &options.dims.to_string(), "--dir"])
            .arg(&options.dir)
            .args(["--seconds", &options.seconds.to_string()])
            .args(options.commits.then_some("--commits"))
            .stderr(std::process::Stdio::inherit())
            .output()
            .unwrap();
        assert!(run.status.success(), "{size} passages: {}", run.status);
        let row = String::from_utf8(run.stdout).unwrap();
        print!("{row}");
        table += &row;
        if let Some(csv) = &options.csv {
            std::fs::write(csv, &table).unwrap();
        }
    }
}
