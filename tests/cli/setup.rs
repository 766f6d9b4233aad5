//! Commands that set a server up and look after it: configuration, keys, policies, status, and what is installed.

use std::fs;

use serde_json::Value;

use super::program::{Serving, root, waymark, with};

#[test]
fn a_server_is_configured_by_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("waymark.toml");
    fs::write(&path, "mock = true\nport = 1\ndrain-seconds = 2.5\n").unwrap();
    let path = path.to_str().unwrap();
    // `Serving` gives `--port 0`, which takes precedence: nobody may listen on port 1.
    let server = Serving::start(&["--config", path]);
    assert!(waymark(&["health", "--url", &server.url]).ok());
    assert!(server.stop());

    let shown = with(&[("WAYMARK_DRAIN_SECONDS", "4")], &["config", "show", "--config", path, "--host", "::1"]);
    assert!(shown.ok(), "{}", shown.stderr);
    for line in [
        "mock = true  # file",
        "port = 1  # file",
        "drain-seconds = 4  # environment, WAYMARK_DRAIN_SECONDS",
        "host = \"::1\"  # command line",
        "max-waiting = 256  # default",
        "# index is not set",
    ] {
        assert!(shown.stdout.lines().any(|shown| shown == line), "{line} is missing in\n{}", shown.stdout);
    }
}

#[test]
fn a_mistake_in_the_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("waymark.toml");
    for (text, words) in [
        ("prot = 1\n", "did you mean `port`?"),
        ("port = \"many\"\n", "invalid value 'many' for '--port"),
        ("tls-cert = \"cert.pem\"\n", "--tls-key"),
        ("max-batch = 0\nmock = true\n", "--max-batch must be at least 1"),
    ] {
        fs::write(&path, text).unwrap();
        let run = waymark(&["serve", "--config", path.to_str().unwrap()]);
        assert!(!run.ok() && run.stderr.contains(words), "{text}: {}", run.stderr);
    }
    let missing = waymark(&["serve", "--config", "no/such/file.toml"]);
    assert!(!missing.ok() && missing.stderr.contains("no/such/file.toml"), "{}", missing.stderr);
}

#[test]
fn an_invalid_configuration_ends_the_start_before_anything_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nonsense");
    fs::write(&path, "nonsense").unwrap();
    let nonsense = path.to_str().unwrap();
    let serve = ["serve", "--mock", "--embedder", "mock", "--port", "0", "--index", "no/such/index"];
    for (flags, words) in [
        (&["--max-batch", "0"][..], "--max-batch must be at least 1"),
        (&["--api-keys", "no/such/keys.toml"], "no/such/keys.toml"),
        (&["--api-keys", nonsense], nonsense),
        (&["--tls-cert", "no/such/cert.pem", "--tls-key", nonsense], "no/such/cert.pem"),
        (&["--otlp-endpoint", "collector"], "--otlp-endpoint collector"),
    ] {
        let run = waymark(&[&serve, flags].concat());
        assert!(run.code == Some(2) && run.stderr.contains(words), "{flags:?}: {:?} {}", run.code, run.stderr);
    }
    let run = waymark(&serve);
    assert!(run.code == Some(1) && run.stderr.contains("no/such/index"), "{:?} {}", run.code, run.stderr);
}

#[test]
fn keys_are_listed_and_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.toml");
    let file = file.to_str().unwrap();
    assert!(waymark(&["key", "new", "alice", "--file", file]).ok());
    assert!(waymark(&["key", "new", "ops", "--scope", "infer,admin", "--concurrent", "2", "--file", file]).ok());
    let listed = waymark(&["key", "list", "--file", file]);
    let lines: Vec<Vec<&str>> = listed.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines, [vec!["alice", "infer"], vec!["ops", "infer,admin", "2", "at", "once"]], "{}", listed.stdout);
    let unknown = waymark(&["key", "revoke", "bob", "--file", file]);
    assert!(!unknown.ok() && unknown.stderr.contains("alice, ops"), "{}", unknown.stderr);
    assert!(waymark(&["key", "new", "law", "--index", "law,default", "--file", file]).ok());
    assert!(waymark(&["key", "list", "--file", file]).stdout.contains("indexes law,default"));
    let admin = waymark(&["key", "new", "x", "--scope", "admin", "--index", "law", "--file", file]);
    assert!(!admin.ok() && admin.stderr.contains("cannot be limited to indexes"), "{}", admin.stderr);
    assert!(waymark(&["key", "revoke", "alice", "--file", file]).ok());
    assert!(waymark(&["key", "list", "--file", file]).stdout.starts_with("ops "));
}

#[test]
fn policies_are_listed_shown_and_checked() {
    let builtin = waymark(&["policy", "list"]);
    assert!(builtin.ok() && builtin.stdout.contains("search-r1 of protocol search-r1"), "{}", builtin.stdout);
    let folder = root().join("models/policies");
    let listed = waymark(&["policy", "list", folder.to_str().unwrap()]);
    for member in ["routed", "sft", "stage1", "stage2", "three_modes"] {
        assert!(listed.stdout.contains(&format!("routerag-smollm2-135m/{member}  ")), "{}", listed.stdout);
    }
    let family = folder.join("routerag-smollm2-135m");
    let family = family.to_str().unwrap();
    let shown: Value = serde_json::from_str(&waymark(&["policy", "show", family]).stdout).unwrap();
    assert_eq!(shown["name"], "routerag-smollm2");
    assert!(shown["directory"].as_str().unwrap().ends_with("/stage1"), "{shown}");
    assert_eq!(shown["retrieval"]["search"]["ranking"], "fused");
    let shown: Value = serde_json::from_str(&waymark(&["policy", "show", "routerag"]).stdout).unwrap();
    assert_eq!((&shown["guided"], &shown["sampling"]["top_p"]), (&true.into(), &1.0.into()), "{shown}");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("policy.toml"), "name = \"a\"\nprotocol = \"plain\"\nindex = \"law\"\n").unwrap();
    let shown = waymark(&["policy", "show", dir.path().to_str().unwrap()]);
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(shown["index"], "law");
    let checked = waymark(&["policy", "check", "--files-only", family]);
    assert!(checked.ok() && checked.stdout.contains("hash "), "{}{}", checked.stdout, checked.stderr);
    let inspected = waymark(&["inspect", family]);
    assert!(
        inspected.ok() && inspected.stdout.contains("routed, sft, stage1, stage2, three_modes"),
        "{}",
        inspected.stdout
    );
    let refused = waymark(&["policy", "check", "--files-only", root().to_str().unwrap()]);
    assert!(!refused.ok() && refused.stderr.contains("policy.toml"), "{}", refused.stderr);
}

#[test]
fn two_policies_of_one_name_are_refused_before_weights_are_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let places = ["sft", "stage1"].map(|name| dir.path().join(name));
    for place in &places {
        fs::create_dir(place).unwrap();
        fs::write(place.join("policy.toml"), "name = \"a\"\nprotocol = \"plain\"\n").unwrap();
    }
    let [first, second] = places.each_ref().map(|place| place.to_str().unwrap());
    let flags = ["--policy", first, "--policy", second, "--model", "no-such-model"];
    let serve = waymark(&[&["serve", "--port", "0"][..], &flags].concat());
    let doctor = waymark(&[&["doctor", "--port", "0"][..], &flags].concat());
    for (run, told) in [(&serve, &serve.stderr), (&doctor, &doctor.stdout)] {
        assert!(!run.ok() && told.contains("two policies share the name a"), "{}{}", run.stdout, run.stderr);
        assert!(told.contains(first) && told.contains(second), "{told}");
    }
}

#[test]
fn the_status_of_a_server_is_shown() {
    let server = Serving::start(&["--mock"]);
    let shown = waymark(&["status", "--url", &server.url]);
    assert!(shown.ok(), "{}", shown.stderr);
    for words in ["is ready", "plain (plain)", "0 running", "index     none"] {
        assert!(shown.stdout.contains(words), "{words} is missing in {}", shown.stdout);
    }
    let json: Value = serde_json::from_str(&waymark(&["status", "--url", &server.url, "--json"]).stdout).unwrap();
    assert_eq!((&json["ready"], &json["load"]["phase"]), (&Value::Bool(true), &Value::from("serving")));
    let url = server.url.clone();
    assert!(server.stop());
    let gone = waymark(&["status", "--url", &url]);
    assert!(!gone.ok() && gone.stderr.contains("no server listens there"), "{}", gone.stderr);
}

#[test]
fn a_doctor_tells_what_is_in_the_way() {
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path().to_str().unwrap();
    let healthy = waymark(&["doctor", "--mock", "--port", "0", "--kv-bytes", "1MiB", "--cache", cache]);
    assert!(healthy.ok(), "{}{}", healthy.stdout, healthy.stderr);
    for words in ["CPU", "GPU", "memory", "files", "address", "cache", "state", "index"] {
        assert!(healthy.stdout.contains(words), "{words} is missing in {}", healthy.stdout);
    }
    let ill = waymark(&["doctor", "--mock", "--port", "0", "--cache", cache, "--index", "no-such.index"]);
    assert!(!ill.ok() && ill.stdout.contains("no-such.index"), "{}{}", ill.stdout, ill.stderr);
    assert!(ill.stderr.contains("checks failed"), "{}", ill.stderr);
}

#[test]
fn a_doctor_tells_whether_the_state_can_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().to_str().unwrap();
    let state = dir.path().join("a/state");
    let state = state.to_str().unwrap();
    let doctor = |state: &str| {
        waymark(&["doctor", "--mock", "--port", "0", "--kv-bytes", "1MiB", "--cache", cache, "--state", state])
    };
    let free = doctor(state);
    assert!(free.ok() && free.stdout.contains("no process uses it"), "{}{}", free.stdout, free.stderr);
    // Folders that the check creates would belong to its user, who need not be the server's.
    assert!(!dir.path().join("a").exists());
    let server = Serving::start(&["--mock", "--state", state]);
    let used = doctor(state);
    assert!(!used.ok() && used.stdout.contains("in use by another process"), "{}", used.stdout);
    assert!(server.stop());
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let refused = doctor(file.to_str().unwrap());
    assert!(!refused.ok() && refused.stdout.contains("cannot write to"), "{}", refused.stdout);
}

#[test]
fn a_doctor_looks_at_models_folders_and_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let cache = place("cache");
    let doctor = |flags: &[&str]| {
        let own = ["doctor", "--port", "0", "--kv-bytes", "1MiB", "--cache", &cache, "--state", "none"];
        waymark(&[&own[..], flags].concat())
    };
    let missing = place("missing");
    let file = place("file");
    let sharded = place("sharded");
    fs::write(&file, "").unwrap();
    fs::create_dir(&sharded).unwrap();
    fs::write(dir.path().join("sharded/model_world_size_2_rank_1.pt"), "").unwrap();
    for (flags, words) in [
        (&["--mock", "--tls-cert", &missing, "--tls-key", &missing][..], "missing: "),
        (&["--mock", "--tls-cert", &file, "--tls-key", &file][..], "no certificate found"),
        (&["--mock", "--policy-root", &missing][..], "--policy-root"),
        (&["--mock", "--vector-stores", &file][..], "set --vector-stores"),
        (&["--model", &sharded][..], "verl"),
    ] {
        let ill = doctor(flags);
        assert!(!ill.ok() && ill.stdout.contains(words), "{flags:?}: {}{}", ill.stdout, ill.stderr);
        assert!(ill.stderr.contains("1 of "), "{flags:?}: {}{}", ill.stdout, ill.stderr);
    }
    let made = rcgen::generate_simple_self_signed(vec!["rag.example.org".to_owned()]).unwrap();
    let certificate = place("cert.pem");
    let key = place("key.pem");
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let root = dir.path().to_str().unwrap();
    let stores = place("stores");
    let flags = ["--mock", "--policy-root", root, "--vector-stores", &stores];
    let well = doctor(&[&flags[..], &["--tls-cert", &certificate, "--tls-key", &key]].concat());
    assert!(well.ok() && well.stdout.contains("can be used"), "{}{}", well.stdout, well.stderr);
    assert!(!dir.path().join("stores").exists());
}

#[test]
fn shells_and_manuals_know_every_command() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = waymark(&["completions", shell]);
        assert!(script.ok() && script.stdout.contains("--kv-bytes"), "{shell}: {}", script.stderr);
    }
    let page = waymark(&["man"]);
    assert!(page.ok() && page.stdout.contains(".TH waymark 1"), "{}", page.stderr);
    let dir = tempfile::tempdir().unwrap();
    assert!(waymark(&["man", "--out", dir.path().to_str().unwrap()]).ok());
    for page in ["waymark.1", "waymark-serve.1", "waymark-index-build.1"] {
        assert!(dir.path().join(page).is_file(), "{page}");
    }
}

#[test]
fn the_unit_of_systemd_starts_what_the_program_understands() {
    let unit = fs::read_to_string(root().join("deploy/waymark.service")).unwrap();
    let setting = |name: &str| unit.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
    let start: Vec<&str> = setting("ExecStart").unwrap().split(' ').collect();
    assert_eq!(start[1..], ["serve", "--config", "/etc/waymark/waymark.toml"]);
    assert!(setting("ExecReload").unwrap().ends_with("-HUP $MAINPID"));
    let example = root().join("deploy/waymark.toml");
    let shown = waymark(&["config", "show", "--config", example.to_str().unwrap()]);
    assert!(shown.ok() && shown.stdout.contains("# file"), "{}{}", shown.stdout, shown.stderr);
}

/// Returns the words of a file that begin with `prefix`, each once.
fn words_with(file: &str, prefix: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(file)).unwrap();
    let code = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n");
    let words = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with(prefix));
    let mut words: Vec<String> = words.map(str::to_owned).collect();
    words.sort_unstable();
    words.dedup();
    words
}

#[test]
fn the_monitoring_setup_names_what_there_is() {
    let help = waymark(&["demo", "--help"]).stdout;
    let variables = words_with("deploy/monitoring/compose.yaml", "WAYMARK_");
    assert!(variables.len() >= 3, "{variables:?}");
    for variable in variables {
        assert!(help.contains(&format!("[env: {variable}=")), "`waymark demo` does not read {variable}");
    }
    let documented = fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let metrics = words_with("deploy/monitoring/alerts.yaml", "waymark_");
    assert!(metrics.len() >= 5, "{metrics:?}");
    for metric in metrics {
        assert!(documented.contains(&format!("| `{metric}` |")), "docs/metrics.md has no {metric}");
    }
    let alerts = |file: &str| {
        let mut names = words_with(file, "Waymark");
        names.retain(|name| name != "Waymark");
        names
    };
    assert_eq!(alerts("deploy/monitoring/alerts.yaml"), alerts("docs/metrics.md"));
    // The server answers to the name that Prometheus asks for.
    let compose = fs::read_to_string(root().join("deploy/monitoring/compose.yaml")).unwrap();
    let prometheus = fs::read_to_string(root().join("deploy/monitoring/prometheus.yaml")).unwrap();
    assert!(compose.contains("WAYMARK_ALLOWED_HOST: waymark\n") && prometheus.contains("[\"waymark:8080\"]"));
    assert!(root().join("docs/grafana.json").is_file() && compose.contains("../../docs/grafana.json:"));
}
