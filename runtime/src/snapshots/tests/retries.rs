//! Requests to S3 that are answered with an error after they had their effect.

use std::sync::Mutex;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Method, StatusCode};
use object_store::aws::AmazonS3Builder;

use super::super::connector::UreqConnector;
use super::*;

/// Only object of a stub of S3. `None` before the first request.
type StoredObject = Arc<Mutex<Option<Bytes>>>;

/// Answers a request. The first one stores the object, and is answered with a server error.
async fn answer(State(object): State<StoredObject>, method: Method, body: Bytes) -> (StatusCode, Bytes) {
    let mut object = object.lock().unwrap();
    let Some(stored) = object.clone() else {
        *object = Some(body);
        return (StatusCode::SERVICE_UNAVAILABLE, Bytes::new());
    };
    if method == Method::GET { (StatusCode::OK, stored) } else { (StatusCode::PRECONDITION_FAILED, Bytes::new()) }
}

#[tokio::test]
async fn a_manifest_that_was_stored_before_a_server_error_is_published() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router: Router = Router::new().fallback(answer).with_state(StoredObject::default());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let builder = AmazonS3Builder::new().with_bucket_name("indexes").with_endpoint(url.clone()).with_allow_http(true);
    let builder = builder.with_access_key_id("id").with_secret_access_key("secret");
    let store = builder.with_http_connector(UreqConnector::default()).build().unwrap();
    let remote = RemoteIndex { store: Arc::new(store), address: url };
    assert!(remote.create(1, b"own".to_vec()).await.unwrap(), "the retry finds the manifest of the first request");
    assert!(!remote.create(1, b"another".to_vec()).await.unwrap());
}
