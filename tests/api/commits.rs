//! Changes that arrive during a commit go into the next one together, and each gets its own result.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use reqwest::RequestBuilder;
use serde_json::{Value, json};
use waymark::api::Library;
use waymark::keys::{ApiKeys, KeyEntry, KeyLimits, Scope, Secret};
use waymark_index::{Changes, CommitOptions, Embed, EmbedError, LiveIndex, PendingChange, PendingChanges};

use crate::documents::{edition, plan_with};
use crate::harness::{ServerPlan, TestServer, answer, eventually, eventually_found, key_entry};
use crate::small_index::HashEmbed;

/// Embedder that blocks while its lock is held. It fails on one word, with a long message, and panics on another.
#[derive(Debug, Default)]
struct Held {
    embed: HashEmbed,
    held: AtomicBool,
    entered: AtomicBool,
}

impl Embed for Held {
    fn id(&self) -> &str {
        self.embed.id()
    }

    fn dims(&self) -> usize {
        self.embed.dims()
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        self.entered.store(true, SeqCst);
        while self.held.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!texts.iter().any(|text| text.contains("unspeakable")), "a text that nobody embeds");
        if texts.iter().any(|text| text.contains("poison")) {
            return Err(format!("{} cannot be embedded", texts.concat()).into());
        }
        self.embed.embed(texts)
    }
}

/// A server, its index, and the lock that commits wait for.
struct Scene {
    _dir: tempfile::TempDir,
    live: Arc<LiveIndex>,
    held: Arc<Held>,
    server: Arc<TestServer>,
}

impl Drop for Scene {
    /// Ends a held commit, for which the runtime would wait forever after a failed test.
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Scene {
    /// Starts a server with a commit in progress, which adds `first` and makes snapshot 2 once it is released.
    async fn new() -> Scene {
        let scene = Scene::idle(ApiKeys::default()).await;
        scene.held.held.store(true, SeqCst);
        scene.begin(edition(&["first"], 2)).await;
        let held = scene.held.clone();
        eventually("the first commit runs", || held.entered.load(SeqCst)).await;
        scene
    }

    async fn idle(keys: ApiKeys) -> Scene {
        let held = Arc::new(Held::default());
        let (dir, live, plan) = plan_with(true, held.clone());
        let server = Arc::new(ServerPlan { keys, ..plan }.build().await);
        Scene { _dir: dir, live, held, server }
    }

    fn let_go(&self) {
        self.held.held.store(false, SeqCst);
    }

    fn request(&self, change: &Value) -> RequestBuilder {
        self.server.client.post(self.server.url("/v1/documents")).json(change)
    }

    /// Sends a change that waits for its commit, and disconnects before it is committed.
    async fn leave(&self, request: RequestBuilder) {
        let drain = &self.server.state.drain;
        let before = drain.running();
        let left = tokio::spawn(async move { request.send().await });
        eventually("the request and its change are in", || drain.running() == before + 2).await;
        left.abort();
        assert!(left.await.unwrap_err().is_cancelled());
        eventually("the change alone is left", || drain.running() == before + 1).await;
    }

    /// Sends a change without waiting for it, and returns its ID.
    async fn begin(&self, mut change: Value) -> String {
        change["wait"] = json!(false);
        let (status, begun) = answer(self.server.post("/v1/documents", &change).await).await;
        assert_eq!((status, &begun["object"]), (202, &json!("documents.commit.status")), "{begun}");
        begun["id"].as_str().unwrap().to_owned()
    }

    async fn status(&self, id: &str) -> Value {
        let (status, told) = answer(self.server.get(&format!("/v1/commits/{id}")).await).await;
        assert_eq!((status, &told["id"]), (200, &json!(id)), "{told}");
        told
    }

    /// Returns the status of a change.
    async fn end(&self, id: &str) -> Value {
        // A panic takes seconds on a busy machine, because its backtrace reads the whole program.
        eventually_found(&format!("{id} ends"), async || {
            let told = self.status(id).await;
            ["done", "failed"].contains(&told["status"].as_str().unwrap()).then_some(told)
        })
        .await
    }

    /// Returns the result of a committed change.
    async fn made(&self, id: &str) -> Value {
        let told = self.end(id).await;
        assert_eq!(told["status"], "done", "{told}");
        told["commit"].clone()
    }

    async fn text(&self, id: &str) -> Value {
        answer(self.server.get(&format!("/v1/documents/{id}")).await).await.1["document"]["text"].clone()
    }
}

/// Builds one document whose text contains `word`.
fn saying(id: &str, word: &str) -> Value {
    let mut change = edition(&[id], 2);
    change["documents"][0]["text"] = json!(format!("This {word} is in {id}."));
    change
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_posts_share_a_snapshot_and_each_is_told_its_own() {
    let scene = Scene::new().await;
    let posts: Vec<_> = (0..40)
        .map(|number| {
            let server = scene.server.clone();
            tokio::spawn(async move {
                // Each adds one document, three of them replace an old one, and the last removes one.
                let new = format!("new{number}");
                let old = ["a", "b", "e"].get(number / 4).filter(|_| number % 4 == 0);
                let ids: Vec<&str> = [new.as_str()].into_iter().chain(old.copied()).collect();
                let mut change = edition(&ids, 3);
                if number == 39 {
                    change["delete"] = json!(["g", "nobody"]);
                }
                let (status, done) = answer(server.post("/v1/documents", &change).await).await;
                assert_eq!(status, 200, "{done}");
                let counts = ["added", "replaced", "removed", "absent"].map(|name| done[name].as_u64().unwrap());
                let gone = u64::from(number == 39);
                assert_eq!(counts, [1, u64::from(old.is_some()), gone, gone], "{done}");
                done["snapshot"].as_u64().unwrap()
            })
        })
        .collect();
    eventually("all requests and their changes are in", || scene.server.state.drain.running() == 1 + 2 * 40).await;
    scene.let_go();
    let mut snapshots = BTreeSet::new();
    for post in posts {
        snapshots.insert(post.await.unwrap());
    }
    assert!(snapshots.len() <= 8, "40 posts took {} snapshots", snapshots.len());
    assert_eq!(scene.live.current().manifest().snapshot, 2 + snapshots.len() as u64);
    assert_eq!(scene.live.current().manifest().passages, 6 + 1 + 40 - 1);
    let metrics = scene.server.metrics().await;
    let counted = format!("waymark_index_commits_total {}", 1 + snapshots.len());
    assert!(metrics.lines().any(|line| line == counted), "{counted}: {metrics}");
}

#[tokio::test]
async fn a_change_that_cannot_be_made_fails_alone() {
    for (word, message) in [("poison", "cannot be embedded"), ("unspeakable", "ran into a bug")] {
        let scene = Scene::new().await;
        let mut ids = Vec::new();
        for change in [saying("x", "word"), saying("y", word), saying("z", "word")] {
            ids.push(scene.begin(change).await);
        }
        scene.let_go();
        let bad = scene.end(&ids[1]).await;
        assert_eq!((&bad["status"], &bad["error"]["code"]), (&json!("failed"), &json!("commit_failed")), "{bad}");
        assert!(bad["error"]["message"].as_str().unwrap().contains(message), "{bad}");
        for id in [&ids[0], &ids[2]] {
            assert_eq!(scene.made(id).await["added"], 1);
        }
        assert_eq!(scene.live.current().manifest().passages, 6 + 3);
        let metrics = scene.server.metrics().await;
        assert!(metrics.contains("waymark_index_commit_failures_total 1\n"), "{metrics}");
    }
}

#[tokio::test]
async fn changes_of_one_document_are_made_in_order() {
    let scene = Scene::new().await;
    let mut ids = Vec::new();
    // `b` is unchanged when the fourth change arrives, but the third one, still waiting for the first, will change it.
    for change in [edition(&["a"], 3), edition(&["c/d"], 3), edition(&["a", "b"], 4), edition(&["b"], 5)] {
        ids.push(scene.begin(change).await);
    }
    let gone = scene.begin(json!({"documents": [], "delete": ["b"]})).await;
    assert_eq!(scene.status(&ids[0]).await["status"], "queued");
    scene.let_go();
    let mut snapshots = Vec::new();
    for id in &ids {
        snapshots.push(scene.made(id).await["snapshot"].clone());
    }
    assert_eq!(snapshots, [3, 3, 4, 5]);
    let gone = scene.made(&gone).await;
    assert_eq!((&gone["snapshot"], &gone["removed"], &gone["documents"]), (&json!(6), &json!(1), &json!(6)));
    assert_eq!(scene.text("a").await, edition(&["a"], 4)["documents"][0]["text"]);
    assert_eq!(scene.server.get("/v1/documents/b").await.status(), 404);
}

#[tokio::test]
async fn a_client_that_goes_away_takes_nothing_along() {
    let scene = Scene::new().await;
    // This change is the oldest waiting one when the other arrives.
    scene.leave(scene.request(&edition(&["left"], 3))).await;
    let stays = scene.begin(edition(&["stays"], 3)).await;
    scene.let_go();
    assert_eq!(scene.made(&stays).await["added"], 1);
    assert_eq!(scene.live.current().manifest().passages, 6 + 3, "what came in is made");
}

#[tokio::test]
async fn a_full_queue_answers_at_once() {
    let scene = Scene::new().await;
    let mut ids = Vec::new();
    for number in 0..64 {
        ids.push(scene.begin(edition(&[format!("n{number}").as_str()], 3)).await);
    }
    for wait in [true, false] {
        let mut change = edition(&["late"], 3);
        change["wait"] = json!(wait);
        let (status, refused) = answer(scene.server.post("/v1/documents", &change).await).await;
        assert_eq!((status, &refused["error"]["code"]), (503, &json!("queue_full")), "{refused}");
    }
    scene.let_go();
    for id in &ids {
        assert_eq!(scene.made(id).await["snapshot"], 3);
    }
    assert_eq!(scene.live.current().manifest().passages, 6 + 1 + 64);
}

#[tokio::test]
async fn documents_come_and_go_in_one_change() {
    let scene = Scene::idle(ApiKeys::default()).await;
    let mut change = edition(&["a", "new"], 2);
    change["delete"] = json!(["b", "c/d", "b", "nobody"]);
    let (status, done) = answer(scene.server.post("/v1/documents", &change).await).await;
    let counts = ["snapshot", "added", "replaced", "removed", "absent", "documents"].map(|name| done[name].clone());
    assert_eq!((status, counts), (200, [2, 1, 1, 2, 1, 5].map(|count| json!(count))), "{done}");

    let mut both = edition(&["x", "a"], 3);
    both["delete"] = json!(["e", "x"]);
    for wait in [true, false] {
        both["wait"] = json!(wait);
        let (status, refused) = answer(scene.server.post("/v1/documents", &both).await).await;
        assert_eq!((status, &refused["error"]["code"]), (400, &json!("invalid_value")), "{refused}");
        assert!(refused["error"]["message"].as_str().unwrap().contains("\"x\""), "{refused}");
    }
    assert_eq!(scene.live.current().manifest().snapshot, 2);
}

/// Keys that allow one change in progress each.
fn keys(secrets: &[Secret]) -> ApiKeys {
    let entries = secrets.iter().zip(["one", "two"]).map(|(secret, name)| KeyEntry {
        limits: KeyLimits { concurrent: Some(1), ..KeyLimits::default() },
        ..key_entry(name, secret, &[Scope::Index])
    });
    ApiKeys::open(None, entries.collect()).unwrap()
}

#[tokio::test]
async fn changes_that_a_key_has_left_behind_count_until_they_are_made() {
    let secret = Secret::generate();
    let scene = Scene::idle(keys(std::slice::from_ref(&secret))).await;
    let request = |id: &str| scene.request(&edition(&[id], 2)).bearer_auth(secret.reveal());
    scene.held.held.store(true, SeqCst);
    scene.leave(request("left")).await;
    for wait in [true, false] {
        let mut change = edition(&["next"], 2);
        change["wait"] = json!(wait);
        let (status, refused) = answer(request("next").json(&change).send().await.unwrap()).await;
        assert_eq!((status, &refused["error"]["code"]), (429, &json!("concurrency_limit_exceeded")), "{refused}");
        assert!(refused["error"]["message"].as_str().unwrap().contains("changes of documents"), "{refused}");
    }
    scene.let_go();
    eventually("it is made", || scene.server.state.drain.running() == 0).await;
    // A client with its result may send the next change.
    for id in ["a", "b", "new"] {
        let (status, done) = answer(request(id).send().await.unwrap()).await;
        assert_eq!(status, 200, "{done}");
    }
    assert_eq!(scene.live.current().manifest().passages, 6 + 2);
}

#[tokio::test]
async fn what_is_kept_of_a_failure_is_short() {
    let scene = Scene::idle(ApiKeys::default()).await;
    let id = scene.begin(saying("x", &"poison ".repeat(1 << 17))).await;
    let failed = scene.end(&id).await;
    let message = failed["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("the commit failed: cannot embed"), "{message}");
    assert!(message.ends_with("cannot be embedded") && message.len() < 2000, "{} bytes", message.len());
}

#[tokio::test]
async fn what_becomes_of_a_change_is_told_to_its_own_key() {
    let secrets = [Secret::generate(), Secret::generate()];
    let scene = Scene::idle(keys(&secrets)).await;
    scene.held.held.store(true, SeqCst);
    let post = async |number: usize, id: &str| {
        let mut change = edition(&[id], 2);
        change["wait"] = json!(false);
        answer(scene.request(&change).bearer_auth(secrets[number].reveal()).send().await.unwrap()).await
    };
    let get = async |number: usize, path: &str| {
        let request = scene.server.client.get(scene.server.url(path)).bearer_auth(secrets[number].reveal());
        answer(request.send().await.unwrap()).await
    };
    let (status, begun) = post(0, "x").await;
    assert_eq!(status, 202, "{begun}");
    let path = format!("/v1/commits/{}", begun["id"].as_str().unwrap());
    // The limit is the key's own and does not depend on the other key.
    let (status, refused) = post(0, "y").await;
    assert_eq!((status, &refused["error"]["code"]), (429, &json!("concurrency_limit_exceeded")), "{refused}");
    assert_eq!(post(1, "z").await.0, 202);
    let (status, refused) = get(1, &path).await;
    assert_eq!((status, &refused["error"]["code"]), (404, &json!("commit_not_found")), "{refused}");
    scene.held.held.store(false, SeqCst);
    let told = eventually_found("the commit ends", async || {
        let (status, told) = get(0, &path).await;
        assert_eq!(status, 200, "{told}");
        let state = told["status"].as_str().unwrap();
        assert!(["queued", "running", "done"].contains(&state), "{told}");
        (state == "done").then_some(told)
    })
    .await;
    assert_eq!((&told["commit"]["snapshot"], &told["commit"]["added"]), (&json!(2), &json!(1)));
    assert!(told["created"].as_u64().unwrap() > 1_600_000_000 && told.get("error").is_none());
}

#[tokio::test]
async fn a_server_that_goes_down_makes_what_it_took_in() {
    let mut scene = Scene::new().await;
    scene.begin(edition(&["late"], 3)).await;
    scene.leave(scene.request(&edition(&["left"], 3))).await;
    let server = Arc::get_mut(&mut scene.server).unwrap();
    server.terminate();
    let drain = server.state.drain.clone();
    eventually("it drains", || drain.phase() != waymark::api::drain::DrainPhase::Serving).await;
    assert_eq!(drain.running(), 3);
    scene.let_go();
    eventually("all is made", || drain.running() == 0).await;
    assert_eq!(scene.live.current().manifest().passages, 6 + 3);
}

#[tokio::test]
async fn a_running_change_tells_its_step() {
    let scene = Scene::idle(ApiKeys::default()).await;
    scene.held.held.store(true, SeqCst);
    let running = scene.begin(edition(&["first"], 2)).await;
    eventually("the commit embeds", || scene.held.entered.load(SeqCst)).await;
    let waiting = scene.begin(edition(&["second"], 2)).await;
    let during = scene.status(&running).await;
    let queued = scene.status(&waiting).await;
    // Released before anything is checked, because a failed check would leave the commit waiting forever.
    scene.let_go();
    assert_eq!((&during["status"], &during["progress"]["phase"]), (&json!("running"), &json!("embedding")), "{during}");
    assert_eq!(during["progress"]["total"], 7);
    assert!(during["progress"]["done"].as_u64().unwrap() < 7, "{during}");
    assert_eq!((&queued["status"], queued.get("progress")), (&json!("queued"), None));
    let told = scene.end(&running).await;
    assert_eq!((&told["status"], told.get("progress")), (&json!("done"), None));
    scene.made(&waiting).await;
}

/// Builds a change of so many documents that it is prepared before its turn.
fn large(name: &str) -> Value {
    let ids: Vec<String> = (0..300).map(|number| format!("{name}{number}")).collect();
    edition(&ids.iter().map(String::as_str).collect::<Vec<_>>(), 3)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_change_does_not_hold_up_a_small_one_and_goes_with_its_client() {
    let scene = Scene::idle(ApiKeys::default()).await;
    let (status, done) = answer(scene.server.post("/v1/documents", &large("kept")).await).await;
    assert_eq!((status, &done["added"]), (200, &json!(300)), "{done}");

    scene.held.held.store(true, SeqCst);
    scene.held.entered.store(false, SeqCst);
    // It may also remove chunks of its text, which it does not name.
    let mut leaving = large("left");
    leaving["chunked"] = json!({"left": 300});
    let request = scene.request(&leaving);
    let left = tokio::spawn(async move { request.send().await });
    let held = scene.held.clone();
    // A client that leaves earlier takes its change along before anything of it is prepared.
    eventually("the large change is being prepared", || held.entered.load(SeqCst)).await;
    left.abort();
    assert!(left.await.unwrap_err().is_cancelled());
    // A removal embeds nothing, so it is committed while the large change is still being embedded.
    let deleted = scene.server.client.delete(scene.server.url("/v1/documents/g")).send().await.unwrap();
    assert_eq!(deleted.status(), 200);
    scene.let_go();
    eventually("the change is given up", || scene.server.state.drain.running() == 0).await;
    assert_eq!(scene.live.current().manifest().passages, 6 + 300 - 1);
    assert!(scene.live.current().passage("left0").unwrap().is_none());
    // The next change of the same documents is free to go.
    let (status, done) = answer(scene.server.post("/v1/documents", &large("left")).await).await;
    assert_eq!((status, &done["added"]), (200, &json!(300)), "{done}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_is_committed_by_the_next_process() {
    let (dir, live, plan) = plan_with(true, Arc::new(HashEmbed::default()));
    let (pending, left) = PendingChanges::open(dir.path()).unwrap();
    assert!(left.is_empty());
    // The state that a process leaves if it is killed between the answer and the commit.
    let document = |id: &str| serde_json::from_value(edition(&[id], 2)["documents"][0].clone()).unwrap();
    for (id, changes) in [
        ("commit-1", Changes::upsert([document("x")])),
        ("commit-2", Changes::delete(["x".to_owned(), "a".to_owned()])),
    ] {
        pending.add(&PendingChange { id: id.to_owned(), owner: None, changes }).unwrap();
    }
    let library = Library::new(Arc::clone(&live), CommitOptions::default());
    let server = Arc::new(ServerPlan { library: Some(library), ..plan }.build().await);
    server.state.resume_changes();
    let scene = Scene { _dir: dir, live, held: Arc::default(), server };
    assert_eq!(scene.made("commit-1").await["added"], 1);
    assert_eq!(scene.made("commit-2").await["removed"], 2);
    let id = scene.begin(edition(&["y"], 2)).await;
    scene.made(&id).await;
    assert_eq!(scene.live.current().manifest().passages, 6);
    let left = PendingChanges::open(scene.live.dir()).unwrap().1;
    assert!(left.is_empty(), "what is committed is not made again: {left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_waits_for_another_process_that_writes() {
    let scene = Scene::idle(ApiKeys::default()).await;
    let lock = std::fs::File::options().write(true).open(scene.live.dir().join(".waymark.lock")).unwrap();
    lock.lock().unwrap();
    let id = scene.begin(edition(&["x"], 2)).await;
    // A client that waits for its change is told, and sends it again.
    let (status, refused) = answer(scene.request(&edition(&["y"], 2)).send().await.unwrap()).await;
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("index_locked")), "{refused}");
    assert_eq!(scene.status(&id).await["status"], "queued");
    assert_eq!(PendingChanges::open(scene.live.dir()).unwrap().1.len(), 1);
    lock.unlock().unwrap();
    assert_eq!(scene.made(&id).await["added"], 1);
    assert!(PendingChanges::open(scene.live.dir()).unwrap().1.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_was_acknowledged_is_left_to_the_next_process() {
    let mut scene = Scene::idle(ApiKeys::default()).await;
    let lock = std::fs::File::options().write(true).open(scene.live.dir().join(".waymark.lock")).unwrap();
    lock.lock().unwrap();
    scene.begin(edition(&["x"], 2)).await;
    scene.held.held.store(true, SeqCst);
    let request = scene.request(&large("waiting"));
    let sent = tokio::spawn(async move { request.send().await });
    eventually("the large change is being prepared", || scene.held.entered.load(SeqCst)).await;
    Arc::get_mut(&mut scene.server).unwrap().terminate();
    let sent = sent.await;
    // Released before anything is checked, because a failed check would leave the embedder waiting forever.
    scene.let_go();
    let (status, refused) = answer(sent.unwrap().unwrap()).await;
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("index_locked")), "{refused}");
    assert_eq!(PendingChanges::open(scene.live.dir()).unwrap().1.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_waits_for_the_running_commit() {
    let held = Arc::new(Held::default());
    let (dir, live, plan) = plan_with(true, held.clone());
    let library = Library::new(Arc::clone(&live), CommitOptions { keep: 2, ..CommitOptions::default() });
    let server = Arc::new(ServerPlan { library: Some(library), ..plan }.build().await);
    let scene = Scene { _dir: dir, live, held, server };
    scene.held.held.store(true, SeqCst);
    scene.begin(edition(&["first"], 2)).await;
    let held = Arc::clone(&scene.held);
    eventually("the commit runs", || held.entered.load(SeqCst)).await;
    let server = Arc::clone(&scene.server);
    let restoring = tokio::spawn(async move { answer(server.post("/v1/snapshots/1/restore", &json!({})).await).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!restoring.is_finished());
    scene.let_go();
    let (status, restored) = restoring.await.unwrap();
    assert_eq!((status, &restored["snapshot"]), (200, &json!(3)), "{restored}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_committed_already_is_not_made_again_over_a_newer_change() {
    let (dir, live, plan) = plan_with(true, Arc::new(HashEmbed::default()));
    let (pending, _) = PendingChanges::open(dir.path()).unwrap();
    let of =
        |number| Changes::upsert([serde_json::from_value(edition(&["x"], number)["documents"][0].clone()).unwrap()]);
    // The state that a process leaves if it is killed between a commit and the removal of its change.
    let change = PendingChange { id: "commit-1".to_owned(), owner: None, changes: of(2) };
    let file = pending.add(&change).unwrap();
    live.commit_accepted(vec![(change.changes, Some(file))], &CommitOptions::default(), &()).unwrap();
    live.commit(of(3), &CommitOptions::default(), &()).unwrap();
    let library = Library::new(Arc::clone(&live), CommitOptions::default());
    let server = Arc::new(ServerPlan { library: Some(library), ..plan }.build().await);
    server.state.resume_changes();
    let scene = Scene { _dir: dir, live, held: Arc::default(), server };
    assert_eq!(scene.made("commit-1").await["published"], false);
    assert!(scene.text("x").await.as_str().unwrap().contains("edition3"));
    assert!(PendingChanges::open(scene.live.dir()).unwrap().1.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_client_leaves_while_it_is_written_is_queued_or_forgotten() {
    let scene = Scene::idle(ApiKeys::default()).await;
    for number in 0..40 {
        let mut change = edition(&[format!("left{number}").as_str()], 2);
        change["wait"] = json!(false);
        let request = scene.request(&change);
        let sent = tokio::spawn(async move { request.send().await.map(drop) });
        tokio::time::sleep(Duration::from_micros(100 * number)).await;
        sent.abort();
    }
    // A file that is left would be applied at the next start, after newer changes.
    let folder = scene.live.dir().join("pending");
    let files = || {
        std::fs::read_dir(&folder)
            .map_or(0, |all| all.flatten().filter(|file| file.file_name().to_string_lossy().starts_with('0')).count())
    };
    let is_idle = || scene.server.state.drain.running() == 0;
    // A slow disk syncs the files of all changes within the first wait, and those of the last commit within the second.
    eventually("no change is on its way", is_idle).await;
    eventually("no change is left", || is_idle() && files() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_snapshots_are_listed_and_restored() {
    let (dir, live, plan) = plan_with(true, Arc::new(HashEmbed::default()));
    let library = Library::new(Arc::clone(&live), CommitOptions { keep: 2, ..CommitOptions::default() });
    let server = Arc::new(ServerPlan { library: Some(library), ..plan }.build().await);
    let scene = Scene { _dir: dir, live, held: Arc::default(), server };
    for id in ["x", "y", "z"] {
        let id = scene.begin(edition(&[id], 2)).await;
        scene.made(&id).await;
    }
    let (status, list) = answer(scene.server.get("/v1/snapshots").await).await;
    let numbers: Vec<_> = list["data"].as_array().unwrap().iter().map(|one| one["snapshot"].clone()).collect();
    assert_eq!((status, numbers), (200, vec![json!(4), json!(3), json!(2)]), "{list}");
    let (status, refused) = answer(scene.server.post("/v1/snapshots/1/restore", &json!({})).await).await;
    assert_eq!((status, &refused["error"]["code"]), (404, &json!("snapshot_not_found")), "{refused}");
    let (status, restored) = answer(scene.server.post("/v1/snapshots/2/restore", &json!({})).await).await;
    assert_eq!((status, &restored["snapshot"], &restored["documents"]), (200, &json!(5), &json!(7)), "{restored}");
    assert!(scene.live.current().passage("x").unwrap().is_some());
    assert!(scene.live.current().passage("y").unwrap().is_none());
}
