//! `waymark eval`: evaluation of policies.

use std::fs;

use serde_json::Value;

use super::program::waymark;
use super::{CORPUS, index};

const QUESTIONS: &str = r#"{"id": "1", "question": "Which river flows through Paris?", "answers": ["Seine"], "supporting": ["seine"]}
{"id": "2", "question": "What is it?", "answers": ["The mock."], "supporting": ["absent"]}
{"id": "3", "question": "And this?", "answers": ["No model behind this mock"]}
"#;

#[test]
fn policies_are_evaluated_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(dir.path(), CORPUS);
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let questions = place("questions.jsonl");
    let report = place("report.json");
    let rows = place("rows.jsonl");
    fs::write(&questions, QUESTIONS).unwrap();
    fs::create_dir(place("mine")).unwrap();
    let policy = "name = \"mine\"\nprotocol = \"search-r1\"\n[budget]\ncontext_tokens = 16384\n";
    fs::write(place("mine/policy.toml"), policy).unwrap();
    let wide = policy.replace("mine", "wide").replace("search-r1", "routerag");
    fs::create_dir(place("wide")).unwrap();
    fs::write(place("wide/policy.toml"), wide).unwrap();

    let mine = place("mine");
    let wide = place("wide");
    let basic = ["eval", "--mock", "--index", &index, "--questions", &questions];
    let files = ["--limit", "2", "--json", &report, "--rows", &rows];
    let run = waymark(&[&basic[..], &files, &["--policy", &wide, "--policy", &mine]].concat());
    assert!(run.ok(), "{}", run.stderr);
    for part in ["3 passages, snapshot 1, 2 questions", "SF-F1", "\nwide ", "\nmine ", "mine vs. wide: EM +0.0 ± 0.0"]
    {
        assert!(run.stdout.contains(part), "{part:?} is missing in {}", run.stdout);
    }
    let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!((report["sets"].as_array().unwrap().len(), &report["across"]), (1, &Value::Null));
    let set = &report["sets"][0];
    let policies = set["policies"].as_array().unwrap();
    assert_eq!((policies.len(), &policies[0]["questions"], &policies[0]["failed"]), (2, &2.into(), &0.into()));
    assert_eq!((&policies[0]["valid"], &policies[0]["support_f1"]["count"]), (&1.0.into(), &1.into()));
    assert_eq!(policies[0]["mean"]["turns"], 2.0);
    let graph: Value = serde_json::from_str(&waymark(&["index", "info", &index, "--json"]).stdout).unwrap();
    let nodes = graph["graph"]["phrases"].as_u64().unwrap() + 3;
    assert_eq!(set["cost"]["model"]["nodes"], nodes, "the price of a graph search counts the nodes of this index");
    let mut rows: Vec<Value> =
        fs::read_to_string(rows).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Rows are in the order of the questions.
    rows.sort_by_key(|row| (row["policy"] != "wide", row["id"].as_str().unwrap().to_owned()));
    let who: Vec<_> = rows.iter().map(|row| (row["policy"].as_str().unwrap(), row["id"].as_str().unwrap())).collect();
    assert_eq!(who, [("wide", "1"), ("wide", "2"), ("mine", "1"), ("mine", "2")]);
    assert!(rows[0]["answer"].as_str().unwrap().starts_with("This is the mock"), "{}", rows[0]);
    assert!(rows[0]["f1"].as_f64().unwrap() < rows[1]["f1"].as_f64().unwrap());

    let refused = waymark(&[&basic[..], &["--policy", "nobody"]].concat());
    assert!(
        !refused.ok()
            && refused.stderr.contains("routerag, search-r1, path-router, graphrag-r1, tearag, evo-rag, plain"),
        "{}",
        refused.stderr
    );
    let mock = waymark(&[&basic[..], &["--policy", "routerag", "--arithmetic", "bf16"]].concat());
    assert!(!mock.ok() && mock.stderr.contains("--arithmetic") && mock.stderr.contains("--mock"), "{}", mock.stderr);
    let mode = waymark(&[&basic[..], &["--policy", "routerag", "--mode", "psychic"]].concat());
    assert!(
        !mode.ok() && mode.stderr.contains("passage, graph, hybrid, triples, kag, hypergraph, free"),
        "{}",
        mode.stderr
    );
    let k = waymark(&[&basic[..], &["--policy", "routerag", "--k", "0"]].concat());
    assert!(!k.ok() && k.stderr.contains("--k must be from 1 to 200"), "{}", k.stderr);
    let missing = waymark(&["eval", "--mock", "--policy", "routerag"]);
    assert!(!missing.ok() && missing.stderr.contains("--index"), "{}", missing.stderr);
}

#[test]
fn what_cannot_be_measured_is_an_error_and_no_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(dir.path(), CORPUS);
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let questions = place("questions.jsonl");
    let report = place("report.json");
    let rows = place("rows.jsonl");
    // Longer than the context of `wide`, so one of its episodes fails.
    let long = format!(r#"{{"id": "4", "question": "{}?", "answers": ["x"]}}"#, "Who is it ".repeat(3000));
    fs::write(&questions, format!("{QUESTIONS}{long}\n")).unwrap();
    for (name, context) in [("wide", 16384), ("narrow", 64)] {
        fs::create_dir(place(name)).unwrap();
        let policy = format!("name = \"{name}\"\nprotocol = \"routerag\"\n[budget]\ncontext_tokens = {context}\n");
        fs::write(place(name).to_owned() + "/policy.toml", policy).unwrap();
    }
    let wide = place("wide");
    let narrow = place("narrow");
    let run = |more: &[&str]| {
        let basic = ["eval", "--mock", "--index", &index, "--questions", &questions];
        waymark(&[&basic[..], more].concat())
    };
    fs::write(&rows, "earlier\n").unwrap();
    let refused = run(&["--policy", &wide, "--temperature", "-1", "--rows", &rows]);
    assert!(!refused.ok() && refused.stderr.contains("temperature must be at least 0, not -1"), "{}", refused.stderr);
    assert_eq!(fs::read_to_string(&rows).unwrap(), "earlier\n", "nothing was measured");
    let refused = run(&["--policy", &wide, "--json", &place("none/report.json")]);
    assert!(!refused.ok() && refused.stderr.contains("report.json"), "{}", refused.stderr);

    let failed = run(&["--policy", &narrow, "--rows", &rows, "--json", &report]);
    assert!(!failed.ok() && failed.stderr.contains("all episodes of narrow failed"), "{}", failed.stderr);
    assert!(failed.stderr.contains("leaves no room for an answer"), "{}", failed.stderr);
    assert!(!failed.stdout.contains("0.0"), "{}", failed.stdout);
    assert_eq!(fs::read_to_string(&rows).unwrap().lines().count(), 4, "each question says why");

    let partly = run(&["--policy", &narrow, "--policy", &wide, "--json", &report]);
    assert!(!partly.ok() && partly.stderr.contains("narrow failed") && !partly.stderr.contains("wide failed"));
    assert!(partly.stdout.contains("\nwide ") && !partly.stdout.contains("\nnarrow "), "{}", partly.stdout);
    assert!(partly.stdout.contains("1 of 4 episodes failed"), "{}", partly.stdout);
    let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    let set = &report["sets"][0];
    assert_eq!((&set["failed"][0]["policy"], &set["policies"][0]["failed"]), (&"narrow".into(), &1.into()));
    assert!(run(&["--policy", &wide]).ok(), "some failures are told, and are no error");
}

#[test]
fn arms_are_policies_and_baselines_in_forced_modes_over_several_sets() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(dir.path(), CORPUS);
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let sets = [place("one.jsonl"), place("two.jsonl")];
    let typed = QUESTIONS.replace("\"id\": \"1\"", "\"id\": \"1\", \"type\": \"bridge\"");
    fs::write(&sets[0], &typed).unwrap();
    fs::write(&sets[1], typed.lines().take(2).collect::<Vec<_>>().join("\n")).unwrap();
    fs::create_dir(place("mine")).unwrap();
    fs::write(
        place("mine/policy.toml"),
        "name = \"mine\"\nprotocol = \"routerag\"\n[budget]\ncontext_tokens = 16384\n",
    )
    .unwrap();
    let mine = place("mine");
    let [json, csv, plots, rows] = ["r.json", "r.csv", "plots", "rows.jsonl"].map(place);
    let mut args = vec!["eval", "--mock", "--index", &index, "--questions", &sets[0], "--questions", &sets[1]];
    args.extend(["--mode", "free,graph", "--k", "1", "--json", &json, "--csv", &csv, "--plots", &plots]);
    args.extend(["--rows", &rows, "--policy", &mine]);
    for baseline in ["no-retrieval", "passage-rag", "hippo-rag", "hybrid-rag", "ircot", "search-o1"] {
        args.extend(["--policy", baseline]);
    }
    let run = waymark(&args);
    assert!(run.ok(), "{}", run.stderr);
    // Baselines that choose no mode run once, whatever `--mode` says.
    let names = [
        "mine",
        "mine@graph",
        "no-retrieval",
        "passage-rag",
        "hippo-rag",
        "hybrid-rag",
        "ircot",
        "ircot@graph",
        "search-o1",
        "search-o1@graph",
    ];
    assert!(run.stdout.contains("all 2 sets") && run.stdout.contains("ACC_L was left out: no --judge-url"));
    let report: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    for set in report["sets"].as_array().unwrap() {
        let listed: Vec<&str> =
            set["policies"].as_array().unwrap().iter().map(|arm| arm["policy"].as_str().unwrap()).collect();
        assert_eq!(listed, names, "{}", run.stderr);
    }
    assert_eq!(report["across"]["compared"].as_array().unwrap().len(), names.len() - 1);
    let arm = |name: &str| {
        let policies = report["sets"][0]["policies"].as_array().unwrap();
        policies.iter().find(|arm| arm["policy"] == name).unwrap().clone()
    };
    let searches = |name: &str| ["passage", "graph", "hybrid"].map(|mode| arm(name)["mean"][mode].as_f64().unwrap());
    assert_eq!(searches("mine"), [1.0, 0.0, 0.0]);
    assert_eq!(searches("mine@graph"), [0.0, 1.0, 0.0], "the policy writes [passage]");
    assert_eq!(searches("no-retrieval"), [0.0; 3]);
    assert_eq!(searches("hippo-rag"), [0.0, 1.0, 0.0]);
    assert_eq!(searches("hybrid-rag"), [0.0, 0.0, 1.0]);
    let [passage, graph, _] = searches("ircot@graph");
    assert!(passage == 0.0 && graph > 1.0, "{}", arm("ircot@graph"));
    assert_eq!(arm("mine")["kinds"][0]["kind"], "bridge");
    assert_eq!(arm("mine")["steps"], serde_json::json!([0, 0, 3]));
    let rows = fs::read_to_string(rows).unwrap();
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), (3 + 2) * names.len());
    for row in rows.iter().filter(|row| row["policy"] == "passage-rag" || row["policy"] == "mine") {
        assert_eq!(row["evidence"][0]["passages"].as_array().unwrap().len(), 1, "--k 1: {row}");
    }
    assert_eq!(rows[0]["set"], "one");
    assert_eq!(fs::read_to_string(csv).unwrap().lines().count(), 1 + 3 * names.len());
    for plot in ["modes.svg", "searches.svg", "tokens.svg"] {
        assert!(fs::read_to_string(format!("{plots}/{plot}")).unwrap().contains("one · mine@graph"), "{plot}");
    }

    let uneven =
        waymark(&["eval", "--mock", "--policy", &mine, "--questions", &sets[0], "--index", &index, "--index", &index]);
    assert!(!uneven.ok() && uneven.stderr.contains("one index per file, or one for all"), "{}", uneven.stderr);
    fs::write(place("rows2.jsonl"), "earlier\n").unwrap();
    let args = ["eval", "--mock", "--policy", &mine, "--questions", &sets[0], "--index", &place("none")];
    let absent = waymark(&[&args[..], &["--rows", &place("rows2.jsonl")]].concat());
    assert!(!absent.ok(), "{}", absent.stdout);
    assert_eq!(fs::read_to_string(place("rows2.jsonl")).unwrap(), "earlier\n", "nothing was measured");
}
