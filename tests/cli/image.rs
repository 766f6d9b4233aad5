//! `Dockerfile`, `Dockerfile.cuda` and `docs/kubernetes.yaml` against the program and the repository, without a
//! container daemon or a cluster: variables, entry points, copied files, linked libraries, and the manifests of the
//! cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::program::{root, waymark};
use super::skipped::skipped;

const PLAIN: &str = "Dockerfile";
const CUDA: &str = "Dockerfile.cuda";

/// Libraries that `debian:bookworm-slim` and Ubuntu bring (libc6, libgcc-s1), and `libstdc++6`, which the images
/// install.
const LIBRARIES: &[&str] =
    &["libc.so", "libm.so", "libmvec.so", "ld-linux", "libgcc_s.so", "libstdc++.so", "linux-vdso.so"];

fn manifest() -> toml::Table {
    toml::from_str(&fs::read_to_string(root().join("Cargo.toml")).unwrap()).unwrap()
}

/// Parses the instructions of a Dockerfile: name and arguments, with continued lines joined.
fn instructions(file: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join(file)).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    let joined = lines.join("\n").replace("\\\n", " ");
    let split = |line: &str| line.split_once(' ').map(|(name, rest)| (name.to_owned(), rest.trim().to_owned()));
    joined.lines().filter_map(split).collect()
}

fn of(file: &str, name: &str) -> Vec<String> {
    instructions(file).into_iter().filter(|(other, _)| other == name).map(|(_, rest)| rest).collect()
}

/// Parses the arguments of an instruction in JSON form.
fn words(instruction: &str) -> Vec<String> {
    serde_json::from_str(instruction).unwrap()
}

/// Returns `true` if a path can be fetched without a key.
fn is_open(path: &str) -> bool {
    let document: Value = serde_json::from_str(&waymark(&["openapi", "--json"]).stdout).unwrap();
    let route = &document["paths"][path]["get"];
    route.is_object() && route["security"].is_null()
}

#[test]
fn what_they_start_is_a_command_that_reads_what_they_set() {
    for file in [PLAIN, CUDA] {
        let entry = words(&of(file, "ENTRYPOINT")[0]);
        let command = words(&of(file, "CMD")[0]);
        // Process 1 has no default actions for signals, so the program must not be it.
        assert_eq!(entry, ["tini", "--", "waymark"]);
        assert!(of(file, "RUN").iter().any(|run| run.split_whitespace().any(|word| word == "tini")), "{file}");
        let help = waymark(&[&*command[0], "--help"]);
        assert!(help.ok(), "{}", help.stderr);
        let set = of(file, "ENV").join(" ");
        let port = set.split(' ').find_map(|setting| setting.strip_prefix("WAYMARK_PORT=")).unwrap();
        assert_eq!(of(file, "EXPOSE"), [port]);
        for (name, _) in set.split_whitespace().filter_map(|setting| setting.split_once('=')) {
            // The system's loader reads this one, not the program.
            let read = name == "LD_LIBRARY_PATH" || help.stdout.contains(&format!("[env: {name}="));
            assert!(read, "`waymark {}` does not read {name}", command[0]);
        }
    }
}

#[test]
fn their_health_check_is_a_command_that_asks_a_route_without_a_key() {
    for file in [PLAIN, CUDA] {
        let check = of(file, "HEALTHCHECK").remove(0);
        let command = words(check.split_once("CMD ").unwrap().1);
        assert_eq!(command[0], "waymark");
        let help = waymark(&[&*command[1], "--help"]);
        assert!(help.ok() && help.stdout.contains("WAYMARK_PORT"), "{}{}", help.stdout, help.stderr);
        let path = help.stdout.split('`').find(|word| word.starts_with('/')).unwrap();
        assert!(is_open(path), "{path}");
    }
}

#[test]
fn they_differ_in_their_base_and_in_what_a_card_needs_alone() {
    let own = ["debian:", "nvidia/cuda:", "DEBIAN_FRONTEND=", "LD_LIBRARY_PATH="];
    let shared = |file| {
        let all = instructions(file).into_iter().filter(|(_, rest)| !own.iter().any(|own| rest.starts_with(own)));
        all.map(|(name, rest)| (name, rest.replace(" --features cuda", ""))).collect::<Vec<_>>()
    };
    assert_eq!(shared(PLAIN), shared(CUDA));
    assert!(of(CUDA, "RUN")[0].contains("--features cuda") && !of(PLAIN, "RUN")[0].contains("cuda"));
    assert_eq!(of(CUDA, "USER"), ["10001"]);
}

#[test]
fn they_are_built_by_the_toolchain_that_is_named_and_run_over_libraries_of_its_age() {
    let manifest = manifest();
    let version = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    for file in [PLAIN, CUDA] {
        let base = of(file, "FROM").remove(0);
        assert!(base.starts_with(&format!("rust:{version}-")), "{base} is not of {version}");
    }
    // A program built in one release of Debian runs in the same release.
    let build = of(PLAIN, "FROM").remove(0);
    let run = of(PLAIN, "FROM").pop().unwrap();
    let release = build.split(['-', ' ']).nth(1).unwrap();
    assert!(run.starts_with(&format!("debian:{release}")), "{run}");
    // The libraries of CUDA are of a version that the program can use: `cuda-12040` is 12.4, the oldest one.
    let features = manifest["workspace"]["dependencies"]["cudarc"]["features"].as_array().unwrap();
    let oldest = features.iter().find_map(|feature| feature.as_str()?.strip_prefix("cuda-")).unwrap();
    let oldest: u32 = oldest.parse().unwrap();
    let run = of(CUDA, "FROM").pop().unwrap();
    let version = run.strip_prefix("nvidia/cuda:").unwrap();
    let mut numbers = version.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    let version = numbers.next().unwrap() * 1000 + numbers.next().unwrap() * 10;
    assert!((oldest..14_000).contains(&version) && run.contains("-runtime-"), "{run} is not of {oldest} or newer");
}

#[test]
fn what_they_copy_is_there() {
    let ignored = fs::read_to_string(root().join(".dockerignore")).unwrap();
    for file in [PLAIN, CUDA] {
        // The program is compiled unless somebody asks for another stage.
        assert_eq!(of(file, "ARG")[0], "PROGRAM=build");
        for copied in of(file, "COPY") {
            let paths: Vec<&str> = copied.split(' ').filter(|word| !word.starts_with("--")).collect();
            let (_, sources) = paths.split_last().unwrap();
            for source in sources {
                let install = format!("install -D target/release/waymark {source}");
                let made = of(file, "RUN").iter().any(|run| run.contains(&install));
                let built = copied.contains("--from=program") && made;
                // The program of the stage `prebuilt` is an exception from the folder that is left out.
                let given = ignored.lines().any(|line| line.strip_prefix('!') == Some(source));
                assert!(built || given || root().join(source).exists(), "COPY {copied}");
            }
        }
    }
}

/// Checks that `.dockerignore` excludes no source of the program.
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
    let manifest = manifest();
    let members = manifest["workspace"]["members"].as_array().unwrap().iter().map(|member| member.as_str().unwrap());
    // The sources of the root package are in `src`; other files of its folder are left out on purpose.
    let members = members.filter(|member| *member != ".");
    let others = ["Cargo.toml", "Cargo.lock", "src", "demo", "page/src", "page/built"];
    let mut waiting: Vec<PathBuf> = others.into_iter().chain(members).map(|name| root().join(name)).collect();
    let mut files = 0;
    while let Some(path) = waiting.pop() {
        // Outputs of builds are left out on purpose.
        if path.ends_with("target") {
            continue;
        }
        assert_eq!(left_out(&path), None, "{} is not copied into the image", path.display());
        match fs::read_dir(&path) {
            Ok(entries) => waiting.extend(entries.map(|entry| entry.unwrap().path())),
            Err(_) => files += 1,
        }
    }
    // Otherwise the walk has missed the sources.
    assert!(files > 500, "{files} files");
}

#[test]
fn their_bases_have_every_library_that_is_linked() {
    let Ok(ldd) = Command::new("ldd").arg(env!("CARGO_BIN_EXE_waymark")).output() else {
        return skipped("there is no ldd here");
    };
    let linked = String::from_utf8(ldd.stdout).unwrap();
    assert!(linked.contains("libc.so"), "{linked}");
    for line in linked.lines() {
        let name = line.split_whitespace().next().unwrap().rsplit('/').next().unwrap();
        assert!(LIBRARIES.iter().any(|library| name.starts_with(library)), "{name} is not in the image");
    }
    for file in [PLAIN, CUDA] {
        assert!(of(file, "RUN").iter().any(|run| run.contains("libstdc++6")), "{file}");
    }
}

/// The Kubernetes manifests.
fn cluster() -> String {
    fs::read_to_string(root().join("docs/kubernetes.yaml")).unwrap()
}

/// Returns the number after the first occurrence of `words`.
fn number(text: &str, words: &str) -> u64 {
    let (_, rest) = text.split_once(words).unwrap_or_else(|| panic!("{words} is missing"));
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

#[test]
fn a_cluster_is_told_of_flags_and_variables_that_there_are() {
    let yaml = cluster();
    let mut flags = 0;
    for (begin, command) in [
        ("args: [serve,", &["serve"][..]),
        ("waymark index build", &["index", "build"][..]),
        ("waymark index export", &["index", "export"][..]),
        ("waymark key new", &["key", "new"][..]),
    ] {
        let help = waymark(&[command, &["--help"]].concat()).stdout;
        let lines: Vec<&str> = yaml.lines().filter_map(|line| Some(line.split_once(begin)?.1)).collect();
        assert!(!lines.is_empty(), "{begin}");
        for flag in lines.iter().flat_map(|line| line.split([' ', ',', ']'])).filter(|word| word.starts_with("--")) {
            assert!(help.contains(&format!("{flag} ")), "`waymark {}` has no {flag}", command.join(" "));
            flags += 1;
        }
    }
    // Otherwise the manifests have another form, and nothing was compared.
    assert!(flags >= 6, "{flags}");
    let help = waymark(&["serve", "--help"]).stdout;
    let set: Vec<&str> =
        yaml.split("{name: WAYMARK_").skip(1).filter_map(|rest| Some(rest.split_once(',')?.0)).collect();
    assert!(!set.is_empty());
    for name in set {
        assert!(help.contains(&format!("[env: WAYMARK_{name}=")), "WAYMARK_{name}");
    }
}

#[test]
fn a_cluster_treats_the_server_as_the_image_and_the_drain_want_it() {
    let yaml = cluster();
    let pause = number(&yaml, "command: [sleep, \"");
    let drain = number(&yaml, "{name: WAYMARK_DRAIN_SECONDS, value: \"");
    // After the drain, streams need time to send their last event, and the process to end.
    assert!(number(&yaml, "terminationGracePeriodSeconds: ") >= pause + drain + 5);
    assert_eq!(of(PLAIN, "EXPOSE"), [number(&yaml, "containerPort: ").to_string()]);
    assert_eq!(of(PLAIN, "USER"), [number(&yaml, "runAsUser: ").to_string()]);
    assert!(yaml.contains(&format!("mountPath: {}}}", of(PLAIN, "VOLUME")[0])));
    let paths: Vec<&str> =
        yaml.split("httpGet: {path: ").skip(1).filter_map(|rest| Some(rest.split_once(',')?.0)).collect();
    assert_eq!(paths, ["/ready", "/ready", "/health"]);
    assert!(paths.iter().all(|path| is_open(path)));
}
