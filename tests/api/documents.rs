//! Documents are added and removed while the index is searched.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use waymark::api::Library;
use waymark_agent::{SearchLimits, Searcher};
use waymark_index::{
    BuildOptions, Changes, CommitOptions, Corpus, Document, Embed, EmbedError, LiveIndex, OpenOptions, build, commit,
};

use crate::harness::{PATIENCE, ServerPlan, TestServer, answer, says, with_fields};
use crate::small_index::HashEmbed;

/// Builds a document whose text names its edition.
fn body(id: &str, edition: usize) -> Value {
    let text = format!("Passage {id} of edition{edition} tells of a river.");
    json!({
        "id": id,
        "title": format!("Title {id}"),
        "text": text,
        "triples": [[id, "belongs to", format!("edition{edition}")], [id, "tells of", "river"]],
    })
}

/// Builds the request body with these documents of an edition.
pub fn edition(ids: &[&str], edition: usize) -> Value {
    json!({"documents": ids.iter().map(|id| body(id, edition)).collect::<Vec<_>>()})
}

const IDS: [&str; 6] = ["a", "b", "c/d", "e", "f", "g"];

/// Returns the plan of a server over an index of the first edition, its directory, and the index.
pub fn plan(writable: bool) -> (tempfile::TempDir, Arc<LiveIndex>, ServerPlan) {
    plan_with(writable, Arc::new(HashEmbed::default()))
}

/// Same as [`plan`], with another embedder for later changes.
pub fn plan_with(writable: bool, embed: Arc<dyn Embed>) -> (tempfile::TempDir, Arc<LiveIndex>, ServerPlan) {
    let dir = tempfile::tempdir().unwrap();
    let documents = IDS.iter().map(|id| serde_json::from_value::<Document>(body(id, 1)).unwrap()).collect();
    let corpus = Corpus::from_documents("test", documents);
    let options = BuildOptions::default();
    build(corpus, &HashEmbed::default(), dir.path(), &options, &()).unwrap();
    let live = LiveIndex::open(dir.path(), embed, OpenOptions::default()).unwrap();
    let live = Arc::new(live);
    let limits = SearchLimits { threads: 2, waiting: 64, timeout: 2 * PATIENCE };
    let searcher = Searcher::new(Arc::clone(&live), limits).unwrap();
    let library = if writable {
        Library::new(Arc::clone(&live), CommitOptions::default())
    } else {
        Library::read_only(Arc::clone(&live))
    };
    let plan = ServerPlan { searcher: Some(Arc::new(searcher)), library: Some(library), ..ServerPlan::new(says("hi")) };
    (dir, live, plan)
}

async fn test_server(writable: bool) -> (tempfile::TempDir, Arc<LiveIndex>, TestServer) {
    let (dir, live, plan) = plan(writable);
    (dir, live, plan.build().await)
}

#[tokio::test]
async fn parts_of_an_earlier_longer_text_are_removed() {
    let (_dir, live, server) = test_server(true).await;
    let parts = |count: usize, edition_number: usize| {
        let ids: Vec<String> = (1..=count).map(|part| format!("notes#{part}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        with_fields(edition(&ids, edition_number), json!({"chunked": {"notes": count}}))
    };
    let put = async |body: &Value| answer(server.post("/v1/documents", body).await).await;
    let (status, first) = put(&parts(3, 1)).await;
    assert_eq!((status, &first["added"], &first["removed"]), (200, &json!(3), &json!(0)), "{first}");
    let (_, second) = put(&parts(2, 2)).await;
    assert_eq!((&second["replaced"], &second["removed"]), (&json!(2), &json!(1)), "{second}");
    assert!(live.current().passage("notes#3").unwrap().is_none());
    // The text is short enough to be one document now.
    let whole = with_fields(edition(&["notes"], 3), json!({"chunked": {"notes": 0}}));
    let (_, third) = put(&whole).await;
    assert_eq!((&third["added"], &third["removed"]), (&json!(1), &json!(2)), "{third}");
    // Many changes at once, each of which has to be committed alone.
    let all = (0..4).map(|number| parts(1 + number % 2, number));
    let made = futures::future::join_all(all.map(|body| async { put(&{ body }).await.0 })).await;
    assert_eq!(made, [200; 4]);
    assert!(live.current().passage("notes").unwrap().is_none());
}

async fn delete(server: &TestServer, path: &str) -> (u16, Value) {
    answer(server.client.delete(server.url(path)).send().await.unwrap()).await
}

#[tokio::test]
async fn documents_are_put_in_shown_and_taken_out() {
    let (_dir, _, server) = test_server(true).await;
    let mut second = edition(&["a", "new"], 2);
    second["documents"].as_array_mut().unwrap().push(body("b", 1));
    let (status, done) = answer(server.post("/v1/documents", &second).await).await;
    assert_eq!(status, 200, "{done}");
    let counts = ["snapshot", "published", "added", "replaced", "unchanged", "removed", "documents"];
    assert_eq!(
        counts.map(|name| done[name].clone()),
        [json!(2), json!(true), json!(1), json!(1), json!(1), json!(0), json!(7)]
    );
    assert!(done["object"] == "documents.commit" && done["milliseconds"].as_f64().unwrap() > 0.0);

    let (_, shown) = answer(server.get("/v1/documents/a").await).await;
    assert_eq!(shown, json!({"object": "document", "snapshot": 2, "document": body("a", 2)}));
    let (_, shown) = answer(server.get("/v1/documents/c%2Fd").await).await;
    assert_eq!(shown["document"], body("c/d", 1));

    let (_, gone) = delete(&server, "/v1/documents/c/d").await;
    assert_eq!((&gone["snapshot"], &gone["removed"], &gone["documents"]), (&json!(3), &json!(1), &json!(6)));
    for (status, refused) in
        [delete(&server, "/v1/documents/c/d").await, answer(server.get("/v1/documents/c/d").await).await]
    {
        assert_eq!((status, &refused["error"]["code"]), (404, &json!("document_not_found")));
    }

    let mut ids = Vec::new();
    let mut path = "/v1/documents?limit=4".to_owned();
    loop {
        let (_, page) = answer(server.get(&path).await).await;
        assert_eq!((&page["object"], &page["snapshot"]), (&json!("list"), &json!(3)));
        ids.extend(page["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()));
        path = format!("/v1/documents?limit=4&after={}", ids.last().unwrap());
        if page["has_more"] == false {
            break;
        }
    }
    assert_eq!(ids, ["a", "b", "e", "f", "g", "new"]);
    let (_, found) = answer(server.post("/v1/search", &json!({"query": "edition2", "ranking": "bm25"})).await).await;
    assert_eq!((found["snapshot"].clone(), found["hits"].as_array().unwrap().len()), (json!(3), 2));
}

/// Embedder that reads ten words of a text.
#[derive(Debug, Default)]
struct Short(HashEmbed);

impl Embed for Short {
    fn id(&self) -> &str {
        self.0.id()
    }

    fn dims(&self) -> usize {
        self.0.dims()
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        self.0.embed(texts)
    }

    fn cuts(&self, text: &str) -> bool {
        text.split_whitespace().count() > 10
    }
}

#[tokio::test]
async fn documents_that_are_not_read_to_their_end_are_counted() {
    let (_dir, _, plan) = plan_with(true, Arc::new(Short::default()));
    let server = plan.build().await;
    // Ten words including the title, and eleven.
    let mut sent = edition(&["a", "new"], 2);
    sent["documents"][1]["text"] = "Passage new of edition2 tells of a wide river.".into();
    let (status, done) = answer(server.post("/v1/documents", &sent).await).await;
    assert_eq!((status, &done["replaced"], &done["added"]), (200, &json!(1), &json!(1)), "{done}");
    assert_eq!(done["cut"], 1);
    let (_, gone) = delete(&server, "/v1/documents/a").await;
    assert_eq!((&gone["removed"], &gone["cut"]), (&json!(1), &json!(0)));
}

/// A page is built in memory, so its size is limited no matter how many documents are requested.
#[tokio::test]
async fn a_page_of_large_documents_ends_early() {
    let (_dir, _, mut plan) = plan(true);
    plan.http.body_limit = 64 << 20;
    let server = plan.build().await;
    let large = |number: usize| {
        let mut large = body(&format!("x{number:02}"), 1);
        large["metadata"] = json!({"scan": "x".repeat(250_000)});
        large
    };
    let sent = json!({"documents": (0..40).map(large).collect::<Vec<_>>()});
    let (status, done) = answer(server.post("/v1/documents", &sent).await).await;
    assert_eq!((status, &done["documents"]), (200, &json!(46)), "{done}");
    // The document that exceeds 8 MiB is the 33rd of them, and the last of the page.
    for (after, first, last, more) in [("e", "f", "x32", true), ("x32", "x33", "x39", false)] {
        let (_, page) = answer(server.get(&format!("/v1/documents?limit=100&after={after}")).await).await;
        let found: Vec<&str> = page["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
        assert_eq!((found[0], found[found.len() - 1]), (first, last), "after {after}");
        assert_eq!(page["has_more"], json!(more), "after {after}");
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_name() {
    let (dir, _, server) = test_server(true).await;
    for (sent, code, param) in [
        (json!({}), "missing_required_parameter", "documents"),
        (json!({"documents": [{"id": "x"}]}), "missing_required_parameter", "documents[0].text"),
        (json!({"documents": [{"id": "x", "text": "a", "colour": 1}]}), "unknown_parameter", "documents[0].colour"),
        (
            json!({"documents": [{"id": "x", "text": "a", "triples": [["one", "two"]]}]}),
            "invalid_value",
            "documents[0].triples[0]",
        ),
        (json!({"documents": [], "replace": true}), "unknown_parameter", "replace"),
        (json!({"documents": [body("x", 1), body("x", 2)]}), "invalid_value", "documents"),
        (json!({"documents": [{"id": "", "text": "a"}]}), "invalid_value", "documents"),
        (json!({"documents": [{"id": "x", "text": " "}]}), "invalid_value", "documents"),
    ] {
        let (status, refused) = answer(server.post("/v1/documents", &sent).await).await;
        assert_eq!(
            (status, &refused["error"]["code"], &refused["error"]["param"]),
            (400, &json!(code), &json!(param)),
            "{sent}: {refused}"
        );
    }
    for (query, param) in [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("after=nobody", "after"),
        ("page=2", "page"),
    ] {
        let (status, refused) = answer(server.get(&format!("/v1/documents?{query}")).await).await;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(param)), "{refused}");
    }
    let (status, _) = answer(server.post("/v1/documents", &edition(&["x"], 1)).await).await;
    assert_eq!(status, 200);

    // While another process holds the write lock.
    let lock = std::fs::File::options().write(true).open(dir.path().join(".waymark.lock")).unwrap();
    lock.lock().unwrap();
    let (status, refused) = answer(server.post("/v1/documents", &edition(&["y"], 1)).await).await;
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("index_locked")), "{refused}");
}

#[tokio::test]
async fn a_server_that_only_reads_or_has_no_index_says_so() {
    let (_dir, _, reader) = test_server(false).await;
    let post = async |server: &TestServer| answer(server.post("/v1/documents", &edition(&["x"], 1)).await).await;
    let (status, refused) = post(&reader).await;
    assert_eq!((status, &refused["error"]["code"]), (403, &json!("read_only_index")));
    assert_eq!(delete(&reader, "/v1/documents/a").await.0, 403);
    assert_eq!(answer(reader.get("/v1/documents/a").await).await.0, 200);
    let bare = TestServer::new(says("hi")).await;
    for (status, refused) in [post(&bare).await, answer(bare.get("/v1/documents").await).await] {
        assert_eq!((status, &refused["error"]["code"]), (400, &json!("not_configured")));
    }
}

/// Response to a search, and its duration.
type Answered = (Value, Duration);

/// Searches in all modes until `stop` is set.
async fn searching(server: Arc<TestServer>, modes: Vec<String>, stop: Arc<AtomicBool>) -> Vec<Answered> {
    let mut answers = Vec::new();
    for mode in modes.iter().cycle() {
        if stop.load(SeqCst) {
            break;
        }
        let begun = Instant::now();
        let mut sent = json!({"query": "passage of an edition that tells of a river", "k": 20, "mode": mode});
        if ["passage", "hybrid"].contains(&mode.as_str()) {
            sent["ranking"] = "dense".into();
        }
        let (status, found) = answer(server.post("/v1/search", &sent).await).await;
        assert_eq!(status, 200, "{found}");
        answers.push((found, begun.elapsed()));
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_search_is_of_the_one_snapshot_it_names() {
    let (dir, live, server) = test_server(true).await;
    live.watch(Duration::from_millis(10)).unwrap();
    let server = Arc::new(server);
    let modes: Vec<String> = live.current().modes().iter().map(ToString::to_string).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let searchers: Vec<_> =
        (0..4).map(|_| tokio::spawn(searching(server.clone(), modes.clone(), stop.clone()))).collect();

    // Content of each snapshot: the documents by their IDs.
    let mut now: BTreeMap<String, Value> = IDS.iter().map(|id| ((*id).to_owned(), body(id, 1))).collect();
    let mut held = BTreeMap::from([(1, now.clone())]);
    let mut commits = 0;
    let begun = Instant::now();
    for number in 2..10 {
        // One request replaces everything.
        let (status, done) = answer(server.post("/v1/documents", &edition(&IDS, number)).await).await;
        assert_eq!(status, 200, "{done}");
        now.extend(IDS.iter().map(|id| ((*id).to_owned(), body(id, number))));
        held.insert(done["snapshot"].as_u64().unwrap(), now.clone());
        // Another process adds a document and removes it again.
        let new = body("extra", number);
        let document = serde_json::from_value::<Document>(new.clone()).unwrap();
        let changes = Changes::upsert([document]);
        let embed = HashEmbed::default();
        let report = commit(dir.path(), &embed, changes, &CommitOptions::default(), &()).unwrap();
        now.insert("extra".to_owned(), new);
        held.insert(report.manifest.snapshot, now.clone());
        let (status, done) = delete(&server, "/v1/documents/extra").await;
        assert_eq!(status, 200, "{done}");
        now.remove("extra");
        held.insert(done["snapshot"].as_u64().unwrap(), now.clone());
        commits += 3;
    }
    let each = begun.elapsed() / commits;
    stop.store(true, SeqCst);

    let mut times = Vec::new();
    let mut seen = BTreeMap::new();
    for searcher in searchers {
        for (found, time) in searcher.await.unwrap() {
            let snapshot = found["snapshot"].as_u64().unwrap();
            let documents = &held[&snapshot];
            let hits = found["hits"].as_array().unwrap();
            for hit in hits {
                let id = hit["passage"]["id"].as_str().unwrap();
                let stored = documents.get(id).unwrap_or_else(|| panic!("{id} is not in snapshot {snapshot}"));
                assert_eq!(hit["passage"]["text"], stored["text"], "snapshot {snapshot}");
            }
            assert_eq!(hits.len(), documents.len(), "all are found: {found}");
            *seen.entry(snapshot).or_insert(0) += 1;
            times.push(time);
        }
    }
    times.sort();
    let p = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "{} searches over {} snapshots during {commits} commits of {each:.1?}: p50 {:.1?}, p95 {:.1?}",
        times.len(),
        seen.len(),
        p(0.5),
        p(0.95)
    );
    assert!(seen.len() >= 8, "{seen:?}");
}

/// Fills the disk once, in the middle of a commit, so the file that publishes the commit cannot be written.
#[cfg(target_os = "linux")]
#[derive(Debug, Default)]
struct Filling(HashEmbed, std::sync::Mutex<Option<std::path::PathBuf>>);

#[cfg(target_os = "linux")]
impl Embed for Filling {
    fn id(&self) -> &str {
        self.0.id()
    }

    fn dims(&self) -> usize {
        self.0.dims()
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        if let Some(dir) = self.1.lock().unwrap().take() {
            std::os::unix::fs::symlink("/dev/full", dir.join("manifest.json.part")).unwrap();
        }
        self.0.embed(texts)
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_fails_the_commit_and_nothing_else() {
    let filling = Arc::new(Filling::default());
    let (dir, _, plan) = plan_with(true, filling.clone());
    let server = plan.build().await;
    *filling.1.lock().unwrap() = Some(dir.path().to_owned());
    let refused = server.post("/v1/documents", &edition(&["a"], 2)).await;
    assert!(refused.headers()["x-request-id"].to_str().unwrap().starts_with("req_"));
    let (status, told) = answer(refused).await;
    assert_eq!((status, &told["error"]["code"]), (500, &json!("commit_failed")), "{told}");
    let (_, shown) = answer(server.get("/v1/documents/a").await).await;
    assert_eq!((&shown["snapshot"], &shown["document"]), (&json!(1), &body("a", 1)));
    let (status, found) = answer(server.post("/v1/search", &json!({"query": "edition1"})).await).await;
    assert_eq!(status, 200, "{found}");
    // The same change succeeds once the next commit frees room.
    let (status, done) = answer(server.post("/v1/documents", &edition(&["a"], 2)).await).await;
    assert_eq!((status, &done["replaced"]), (200, &json!(1)), "{done}");
}
