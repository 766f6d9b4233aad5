//! `Dockerfile` against the program and the repository, without a container daemon: what the image sets, starts, copies and
//! has to link.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::program::waymark;

/// Libraries that `debian:bookworm-slim` brings (libc6, libgcc-s1), and `libstdc++6`, which the image installs.
const LIBRARIES: &[&str] =
    &["libc.so", "libm.so", "libmvec.so", "ld-linux", "libgcc_s.so", "libstdc++.so", "linux-vdso.so"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The instructions, each on one line: its name and the rest.
fn instructions() -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    let joined = lines.join("\n").replace("\\\n", " ");
    let split = |line: &str| line.split_once(' ').map(|(name, rest)| (name.to_owned(), rest.trim().to_owned()));
    joined.lines().filter_map(split).collect()
}

fn of(name: &str) -> Vec<String> {
    instructions().into_iter().filter(|(other, _)| other == name).map(|(_, rest)| rest).collect()
}

/// The words of an instruction in its JSON form.
fn words(instruction: &str) -> Vec<String> {
    serde_json::from_str(instruction).unwrap()
}

#[test]
fn what_it_starts_is_a_command_that_reads_what_it_sets() {
    let (entry, command) = (words(&of("ENTRYPOINT")[0]), words(&of("CMD")[0]));
    assert_eq!(entry, ["waymark"]);
    let help = waymark(&[&*command[0], "--help"]);
    assert!(help.ok(), "{}", help.stderr);
    let set = of("ENV").join(" ");
    let port = set.split(' ').find_map(|setting| setting.strip_prefix("WAYMARK_PORT=")).unwrap();
    assert_eq!(of("EXPOSE"), [port]);
    for setting in set.split_whitespace() {
        let (name, _) = setting.split_once('=').unwrap();
        assert!(help.stdout.contains(&format!("[env: {name}=")), "`waymark {}` does not read {name}", command[0]);
    }
}

#[test]
fn its_health_check_asks_a_route_that_needs_no_key() {
    let check = of("HEALTHCHECK").remove(0);
    let path = check.split("+ '").nth(1).unwrap().split('\'').next().unwrap();
    let openapi = waymark(&["openapi", "--json"]);
    let document: Value = serde_json::from_str(&openapi.stdout).unwrap();
    let route = &document["paths"][path]["get"];
    assert!(route.is_object() && route["security"].is_null(), "{path}: {route}");
}

#[test]
fn it_is_built_by_the_toolchain_that_is_named() {
    let manifest: toml::Table = toml::from_str(&fs::read_to_string(root().join("Cargo.toml")).unwrap()).unwrap();
    let version = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    let base = of("FROM").remove(0);
    assert!(base.starts_with(&format!("rust:{version}-")), "{base} is not of {version}");
    // What is built in one release of Debian runs in the same one.
    let release = base.split(['-', ' ']).nth(1).unwrap();
    assert!(of("FROM")[1].starts_with(&format!("debian:{release}")), "{}", of("FROM")[1]);
}

#[test]
fn what_it_copies_is_there() {
    for copied in of("COPY") {
        let paths: Vec<&str> = copied.split(' ').filter(|word| !word.starts_with("--")).collect();
        let (_, sources) = paths.split_last().unwrap();
        for source in sources {
            let made = of("RUN").iter().any(|run| run.contains(&format!("install -D target/release/waymark {source}")));
            let built = copied.contains("--from=build") && made;
            assert!(built || root().join(source).exists(), "COPY {copied}");
        }
    }
}

/// What `.dockerignore` leaves out is never part of the program's sources.
#[test]
fn nothing_that_is_compiled_is_left_out() {
    let ignored = fs::read_to_string(root().join(".dockerignore")).unwrap();
    let ignored: Vec<&str> = ignored.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let left_out = |path: &Path| {
        let path = path.strip_prefix(root()).unwrap().to_str().unwrap();
        let name = path.rsplit('/').next().unwrap();
        ignored.iter().copied().find(|pattern| match pattern.strip_prefix("**/") {
            Some(pattern) => pattern.strip_prefix('*').map_or(name == pattern, |end| name.ends_with(end)),
            None => path == *pattern,
        })
    };
    let mut waiting: Vec<PathBuf> =
        ["Cargo.toml", "Cargo.lock", "src", "models", "index", "training", "demo"].map(|name| root().join(name)).into();
    let mut files = 0;
    while let Some(path) = waiting.pop() {
        if path.ends_with("target") {
            continue;
        }
        assert_eq!(left_out(&path), None, "{} is not copied into the image", path.display());
        match fs::read_dir(&path) {
            Ok(entries) => waiting.extend(entries.map(|entry| entry.unwrap().path())),
            Err(_) => files += 1,
        }
    }
    assert!(files > 500, "{files} files");
}

#[test]
fn its_base_has_every_library_that_is_linked() {
    let Ok(ldd) = Command::new("ldd").arg(env!("CARGO_BIN_EXE_waymark")).output() else {
        return eprintln!("skipped: there is no ldd here");
    };
    let linked = String::from_utf8(ldd.stdout).unwrap();
    assert!(linked.contains("libc.so"), "{linked}");
    for line in linked.lines() {
        let name = line.split_whitespace().next().unwrap().rsplit('/').next().unwrap();
        assert!(LIBRARIES.iter().any(|library| name.starts_with(library)), "{name} is not in the image");
    }
    assert!(of("RUN").iter().any(|run| run.contains("libstdc++6")));
}
