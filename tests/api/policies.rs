//! Policies are loaded, replaced and unloaded while requests run.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use serde_json::{Value, json};
use waymark::api::{PolicyRegistry, PolicyStore};
use waymark_agent::Policy;
use waymark_engine::mock::Lines;

use crate::harness::{ServerPlan, TestServer, answer, says, script};

/// Writes a policy `name` to the directory `dir`, with an adapter that the mock accepts.
fn write(dir: &Path, name: &str) {
    fs::create_dir_all(dir.join("adapter")).unwrap();
    let text = format!("name = \"{name}\"\nprotocol = \"routerag\"\nadapter = \"adapter\"\n");
    fs::write(dir.join("policy.toml"), text).unwrap();
}

/// Gives the policy in the directory `dir` its own adapter; the mock computes the same with all of them.
fn teach(dir: &Path, values: &str) {
    fs::write(dir.join("adapter/adapter_model.safetensors"), values).unwrap();
}

/// Builds a server that searches once and answers, and the root directory of its policies.
async fn test_server() -> (tempfile::TempDir, TestServer) {
    let root = tempfile::tempdir().unwrap();
    let lines = Lines::new([
        "<think>look</think>\n<search> [passage] rivers </search>",
        "<think>enough</think>\n<answer> Danube </answer>",
    ]);
    let lines = lines.terminator("</information>\n\n").terminator("Let me try again.\n");
    let store = PolicyStore::new(root.path().canonicalize().unwrap());
    (root, ServerPlan { store: Some(store), ..ServerPlan::new(script(&lines)) }.build().await)
}

async fn load(server: &TestServer, directory: &str) -> (u16, Value) {
    let response = server.post("/v1/policies", &json!({"directory": directory})).await;
    answer(response).await
}

async fn unload(server: &TestServer, name: &str) -> (u16, Value) {
    let response = server.client.delete(server.url(&format!("/v1/policies/{name}"))).send().await.unwrap();
    answer(response).await
}

fn question(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "Which river?"}]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_is_replaced_without_losing_a_request() {
    let (root, server) = test_server().await;
    for dir in ["old", "new"] {
        write(&root.path().join(dir), "swap");
        teach(&root.path().join(dir), dir);
    }
    assert_eq!(load(&server, "old").await.1["replaced"], false);
    let over = AtomicBool::new(false);
    let clients = (0..4).map(|_| async {
        let mut prints = BTreeSet::new();
        while !over.load(SeqCst) {
            let (status, answer) = server.chat(&question("swap")).await;
            assert_eq!(status, 200, "{answer}");
            assert_eq!(answer["choices"][0]["message"]["content"], "Danube");
            prints.insert(answer["system_fingerprint"].as_str().unwrap().to_owned());
        }
        prints
    });
    let swaps = async {
        let mut generations = BTreeSet::new();
        for directory in ["new", "old"].iter().cycle().take(20) {
            let (status, change) = load(&server, directory).await;
            assert_eq!((status, &change["replaced"]), (200, &json!(true)), "{change}");
            assert_eq!(change["policy"]["directory"], **directory);
            generations.insert(change["policy"]["generation"].as_u64().unwrap());
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        over.store(true, SeqCst);
        assert_eq!(generations.len(), 20, "a generation was used twice");
    };
    let (prints, ()) = tokio::join!(futures::future::join_all(clients), swaps);
    let prints: BTreeSet<String> = prints.into_iter().flatten().collect();
    assert_eq!(prints.len(), 2, "one for each adapter, however often it is loaded");
    assert_eq!(unload(&server, "swap").await.0, 200);
    assert_eq!(server.chat(&question("swap")).await.0, 404);
    server.quiet().await;
}

#[tokio::test]
async fn a_request_keeps_the_policy_it_began_with() {
    let (root, server) = test_server().await;
    write(&root.path().join("p"), "p");
    assert_eq!(load(&server, "p").await.0, 200);
    let lease = server.state.policies.get("p").unwrap().policy.clone();
    assert_eq!(unload(&server, "p").await.0, 200);
    // Whoever holds the policy can still generate with its adapter, as an episode between two turns does.
    let (conversation, options) = (
        waymark_agent::Conversation::from_messages(vec![waymark_agent::ConversationMessage::new(
            waymark_agent::Role::User,
            "Which river?",
        )])
        .unwrap(),
        waymark_agent::EpisodeOptions::default(),
    );
    let episode = waymark_agent::Episode::new(&server.state.runtime, &lease, conversation, options).unwrap();
    // Room for all events, because nobody reads them.
    let (events, mut heard) = tokio::sync::mpsc::channel(1024);
    let trajectory = episode.run(events).await.unwrap();
    heard.close();
    assert_eq!(trajectory.answer.as_deref(), Some("Danube"));
    drop(lease);
    server.quiet().await;
}

#[tokio::test]
async fn what_is_served_is_listed() {
    let (root, server) = test_server().await;
    write(&root.path().join("deep/er"), "a/b");
    let (status, change) = load(&server, "deep/er").await;
    assert_eq!((status, &change["replaced"]), (200, &json!(true)), "the server has a policy of this name");
    let list: Value = server.get("/v1/policies").await.json().await.unwrap();
    let names: Vec<_> = list["data"].as_array().unwrap().iter().map(|policy| &policy["name"]).collect();
    assert_eq!(names, ["plain", "routerag", "a/b"]);
    assert_eq!(list["data"][2]["directory"], "deep/er");
    assert!(list["data"][2]["generation"].is_u64() && list["data"][0]["generation"].is_null());
    let models: Value = server.get("/v1/models/a/b").await.json().await.unwrap();
    assert_eq!(models["protocol"], "routerag");
    assert_eq!(unload(&server, "a%2Fb").await.0, 200);
    assert_eq!(unload(&server, "a/b").await.1["error"]["code"], "model_not_found");
}

#[tokio::test]
async fn nothing_outside_the_root_and_nothing_broken_is_loaded() {
    let (root, server) = test_server().await;
    let outside = tempfile::tempdir().unwrap();
    write(outside.path(), "out");
    std::os::unix::fs::symlink(outside.path(), root.path().join("link")).unwrap();
    write(&root.path().join("other-base"), "x");
    let path = root.path().join("other-base/policy.toml");
    fs::write(&path, fs::read_to_string(&path).unwrap() + "base = \"another\"\n").unwrap();
    write(&root.path().join("broken"), "x");
    fs::write(root.path().join("broken/policy.toml"), "name = ").unwrap();
    let up = format!("../{}", outside.path().file_name().unwrap().to_str().unwrap());
    for (directory, words) in [
        ("", "--policy-root"),
        ("..", "--policy-root"),
        (up.as_str(), "--policy-root"),
        (outside.path().to_str().unwrap(), "--policy-root"),
        ("link", "not a directory below"),
        ("missing", "missing"),
        ("other-base", "another"),
        ("broken", "line 1"),
    ] {
        let (status, body) = load(&server, directory).await;
        assert_eq!((status, &body["error"]["param"]), (400, &json!("directory")), "{directory}: {body}");
        assert!(body["error"]["message"].as_str().unwrap().contains(words), "{directory}: {body}");
    }
    assert_eq!(server.state.policies.all().len(), 3, "nothing was loaded");
}

#[tokio::test]
async fn policies_are_fixed_without_a_root() {
    let server = TestServer::new(says("hi")).await;
    assert_eq!(
        load(&server, "p").await,
        (
            403,
            json!({"error": {
                "message": "the policies of this server are fixed: start it with `--policy-root`",
                "type": "invalid_request_error", "param": null, "code": "fixed_policies",
            }})
        )
    );
    assert_eq!(unload(&server, "plain").await.0, 403);
    assert_eq!(server.get("/v1/policies").await.status(), 200);
}

#[tokio::test]
async fn what_came_from_a_directory_is_read_again() {
    let (root, server) = test_server().await;
    let all = [("one", "first"), ("two", "second"), ("three", "third"), ("four", "fourth"), ("five", "fifth")];
    for (directory, name) in all {
        write(&root.path().join(directory), name);
        assert_eq!(load(&server, directory).await.0, 200);
    }
    let served = async || {
        let list: Value = server.get("/v1/policies").await.json().await.unwrap();
        let loaded = list["data"].as_array().unwrap().iter().filter(|policy| policy["directory"].is_string());
        let told = |policy: &Value| {
            let told = ["directory", "name"].map(|field| policy[field].as_str().unwrap().to_owned());
            (told, policy["generation"].as_u64().unwrap())
        };
        loaded.map(told).collect::<Vec<_>>()
    };
    let before = served().await;
    // One has a new name, one a name that is taken, one is broken, one changed only its adapter, and one is unchanged.
    write(&root.path().join("one"), "renamed");
    write(&root.path().join("two"), "third");
    fs::write(root.path().join("three/policy.toml"), "nonsense").unwrap();
    teach(&root.path().join("four"), "more");
    // An open request keeps the old adapter loaded meanwhile.
    let running = server.raw("/v1/chat/completions", &question("fourth")).await;
    server.state.reload_policies().await;
    let after = served().await;
    let names: Vec<&str> = after.iter().map(|([_, name], _)| name.as_str()).collect();
    assert_eq!(names, ["renamed", "second", "third", "fourth", "fifth"]);
    let changed: Vec<bool> = before.iter().zip(&after).map(|((_, old), (_, new))| old != new).collect();
    assert_eq!(changed, [true, false, false, true, false]);
    drop(running);
    for name in ["renamed", "second", "third", "fourth", "fifth"] {
        assert_eq!(server.chat(&question(name)).await.0, 200, "{name}");
    }
    assert_eq!(server.chat(&question("first")).await.0, 404);
    // An unloaded policy is not reloaded.
    assert_eq!(unload(&server, "fourth").await.0, 200);
    server.state.reload_policies().await;
    assert_eq!(served().await.len(), 4);
    server.quiet().await;
}

#[tokio::test]
async fn a_reload_follows_what_a_family_recommends() {
    let (root, mut server) = test_server().await;
    let family = root.path().join("family");
    for member in ["first", "second"] {
        write(&family.join(member), "member");
        teach(&family.join(member), member);
    }
    let recommend = |member: &str| {
        fs::write(family.join("family.toml"), format!("recommended = \"{member}\"\n")).unwrap();
    };
    let hash = |server: &TestServer| server.state.policies.get("member").unwrap().policy.content_hash;
    recommend("first");
    assert_eq!(load(&server, "family").await.0, 200);
    let first = hash(&server);
    recommend("second");
    server.state.reload_policies().await;
    let second = hash(&server);
    assert_ne!(first, second);
    // A family that was given at startup is followed as well.
    let given = vec![Policy::inspect(&family, None).await.unwrap()];
    server.state.policies = Arc::new(PolicyRegistry::given_in(given, std::slice::from_ref(&family)));
    assert_eq!(hash(&server), second);
    recommend("first");
    server.state.reload_policies().await;
    assert_eq!(hash(&server), first);
    // A member that was given by itself stays.
    let given = vec![Policy::inspect(&family.join("first"), None).await.unwrap()];
    server.state.policies = Arc::new(PolicyRegistry::given_in(given, &[family.join("first")]));
    recommend("second");
    server.state.reload_policies().await;
    assert_eq!(hash(&server), first);
}

#[tokio::test]
async fn a_policy_that_has_not_changed_stays_with_its_traces() {
    let (root, server) = test_server().await;
    let dir = root.path().join("one");
    write(&dir, "one");
    let generation = load(&server, "one").await.1["policy"]["generation"].as_u64().unwrap();
    let served = async || {
        let list: Value = server.get("/v1/policies").await.json().await.unwrap();
        list["data"].as_array().unwrap().iter().find(|policy| policy["name"] == "one").unwrap()["generation"].clone()
    };
    let answer: Value = server.post("/v1/agent", &json!({"question": "x", "model": "one"})).await.json().await.unwrap();
    let replay = format!("/v1/traces/{}/replay", answer["id"].as_str().unwrap());
    let replay = async || server.post(&replay, &json!({"mode": "forced"})).await.status();
    // Rewritten with the same content, as copying the file does.
    write(&dir, "one");
    server.state.reload_policies().await;
    assert_eq!((served().await, replay().await.as_u16()), (json!(generation), 200));
    teach(&dir, "more");
    server.state.reload_policies().await;
    assert!(served().await.as_u64().unwrap() > generation);
    assert_eq!(replay().await, 409);
    server.quiet().await;
}

#[tokio::test]
async fn a_fingerprint_tells_adapters_apart_on_every_server() {
    let prints = async |order: [&str; 2], values: &str| {
        let (root, server) = test_server().await;
        for name in order {
            let dir = root.path().join(name);
            write(&dir, name);
            teach(&dir, values);
            assert_eq!(load(&server, name).await.0, 200);
        }
        let mut prints = Vec::new();
        for name in ["one", "two", "routerag"] {
            let answer = server.chat(&question(name)).await.1;
            prints.push(answer["system_fingerprint"].as_str().unwrap().to_owned());
        }
        prints
    };
    let first = prints(["one", "two"], "first").await;
    assert_eq!(prints(["two", "one"], "first").await, first, "equal policies, in whatever order");
    let second = prints(["one", "two"], "second").await;
    assert!(second[0] != first[0] && second[1] != first[1], "another adapter by the same name");
    assert_eq!(second[2], first[2], "of the base alone");
    let all: BTreeSet<_> = first.iter().chain(&second).collect();
    // Two policies with two adapters each, and the base alone.
    assert_eq!(all.len(), 5);
}

#[cfg(unix)]
#[tokio::test]
async fn files_that_link_out_of_the_root_are_refused_unread() {
    use std::os::unix::fs::symlink;
    let (root, server) = test_server().await;
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "password = \"hunter2\"\n").unwrap();
    write(outside.path(), "stranger");
    teach(&outside.path().join(""), "weights");
    let refused = async |directory: &str| {
        let (status, answer) = load(&server, directory).await;
        let text = answer.to_string();
        assert_eq!((status, &answer["error"]["param"]), (400, &json!("directory")), "{text}");
        assert!(text.contains("not below") && !text.contains("hunter2") && !text.contains("password"), "{text}");
    };
    fs::create_dir(root.path().join("linked")).unwrap();
    symlink(outside.path().join("secret"), root.path().join("linked/policy.toml")).unwrap();
    refused("linked").await;
    let adapter = outside.path().join("adapter");
    let text = |adapter: &str| format!("name = \"a\"\nprotocol = \"routerag\"\nadapter = {adapter:?}\n");
    for (name, place) in [("absolute", adapter.to_str().unwrap()), ("link", "adapter")] {
        fs::create_dir(root.path().join(name)).unwrap();
        fs::write(root.path().join(name).join("policy.toml"), text(place)).unwrap();
    }
    symlink(&adapter, root.path().join("link/adapter")).unwrap();
    write(&root.path().join("file"), "file");
    symlink(adapter.join("adapter_model.safetensors"), root.path().join("file/adapter/adapter_model.safetensors"))
        .unwrap();
    for name in ["absolute", "link", "file"] {
        refused(name).await;
    }
    // An absolute path below the root is as good as a relative one.
    write(&root.path().join("whole"), "whole");
    let own = root.path().canonicalize().unwrap().join("whole/adapter");
    fs::write(root.path().join("whole/policy.toml"), text(own.to_str().unwrap())).unwrap();
    assert_eq!(load(&server, "whole").await.0, 200);
}
