//! Lists of files and of vector stores, page by page.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use waymark::keys::ApiKeys;

use crate::vector_store_files::{Client, server_in};

/// Waits until the next second, in which files get another time.
async fn next_second() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let rest = Duration::from_secs(1).saturating_sub(Duration::from_nanos(now.subsec_nanos().into()));
    tokio::time::sleep(rest + Duration::from_millis(5)).await;
}

/// Returns the IDs of a page.
async fn ids(client: &Client<'_>, path: &str) -> Vec<String> {
    let (status, page) = client.get(path).await;
    assert_eq!(status, 200, "{path}: {page}");
    let objects = page["data"].as_array().unwrap().iter();
    objects.map(|object| object["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn files_of_a_store_are_listed_in_the_order_in_which_they_were_added() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_in(folder.path(), ApiKeys::default()).await;
    let client = Client { server: &server, key: None };
    let [a, b, c] = ["a.txt", "b.txt", "c.txt"].map(|name| client.upload(name, "The Ubangi."));
    let (a, b, c) = (a.await, b.await, c.await);
    let store = client.store(json!({"file_ids": [c]})).await;
    next_second().await;
    let files = format!("/v1/vector_stores/{store}/files");
    // The two share their second, so their IDs decide.
    for file in [&b, &a] {
        assert_eq!(client.post(&files, json!({"file_id": file})).await.0, 200);
    }
    let listed = async |query: &str| ids(&client, &format!("{files}?{query}")).await;
    let added = listed("order=asc").await;
    assert_eq!(added[0], c);
    let [second, third] = [added[1].as_str(), added[2].as_str()];
    assert_eq!(listed("order=desc").await, [third, second, c.as_str()]);
    assert_eq!(listed(&format!("order=asc&after={c}&limit=1")).await, [second]);
    assert_eq!(listed(&format!("order=asc&before={third}&limit=1")).await, [second]);
    assert_eq!(listed(&format!("before={c}")).await, [third, second]);
    client.indexed(&store).await;
    assert_eq!(listed(&format!("order=asc&filter=completed&after={c}")).await, [second, third]);
    // The place of a file that is gone is still known.
    assert_eq!(client.delete(&format!("{files}/{c}")).await.0, 200);
    assert_eq!(listed(&format!("order=asc&after={c}")).await, [second, third]);
    assert_eq!(listed(&format!("after={c}")).await, Vec::<String>::new());
}

#[tokio::test]
async fn parameters_of_lists_are_those_of_openais_interface() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_in(folder.path(), ApiKeys::default()).await;
    let client = Client { server: &server, key: None };
    let file = client.upload("a.txt", "The Ubangi.").await;
    let store = client.store(json!({})).await;
    assert_eq!(ids(&client, "/v1/files?purpose=assistants&limit=10000").await, [file.as_str()]);
    assert_eq!(ids(&client, "/v1/files?purpose=user_data").await, Vec::<String>::new());
    assert_eq!(ids(&client, &format!("/v1/vector_stores?order=asc&before={store}")).await, ["default"]);
    let (_, response) = client.post("/v1/responses", crate::responses::ask(json!({}))).await;
    let items = format!("/v1/responses/{}/input_items", response["id"].as_str().unwrap());
    assert_eq!(ids(&client, &format!("{items}?include[]=file_search_call.results&limit=5")).await.len(), 1);
    let files = format!("/v1/vector_stores/{store}/files");
    for (path, param) in [
        ("/v1/files?limit=10001", "limit"),
        ("/v1/files?before=x", "before"),
        ("/v1/vector_stores?limit=101", "limit"),
        ("/v1/vector_stores?purpose=assistants", "purpose"),
        (&format!("{files}?limit=101"), "limit"),
        (&format!("{files}?include[]=x"), "include[]"),
        (&format!("{items}?include[]=file_search_call.results&include[]=x"), "include[1]"),
        (&format!("{items}?before=x"), "before"),
    ] {
        let (status, refused) = client.get(path).await;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(param)), "{path}: {refused}");
    }
    assert_eq!(client.get("/v1/files?purpose=x").await.1["data"], Value::Array(Vec::new()));
}
