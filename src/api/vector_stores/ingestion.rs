//! Files into documents, and documents into the index of a vector store.
//!
//! Files wait in the record of their store, so that a killed server goes on where it was. One task at a time takes those
//! that wait, up to a total size, and commits them together. If that fails, each file is tried alone.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use waymark_index::openie::Builtin;
use waymark_index::{BuildOptions, Changes, Corpus, Document, Embed, IndexError, TokenCounter, build};
use waymark_runtime::embedding::TextEmbedder;

use super::chunking;
use super::record::{AttachedFile, IndexingFault, IndexingStatus, chunk_id};
use super::registry::VectorStores;
use super::store::VectorStore;
use crate::api::blocking::run_blocking;
use crate::api::error::{ApiError, Code};
use crate::api::fair_slots::FairSlot;
use crate::api::files::registry::unwritable;
use crate::api::library::shortened;
use crate::api::state::AppState;

/// Maximum total size of files that are indexed together, in bytes. A larger file goes alone.
const TOGETHER_BYTES: u64 = 16 << 20;

/// Maximum number of files that are indexed together.
const TOGETHER: usize = 64;

/// Documents of one file.
struct ReadFile {
    id: String,
    attached: AttachedFile,
    documents: Vec<Document>,
}

/// Indexes the files of a store that wait, in a task of its own. `slot` is given back when they are indexed.
pub(super) fn start(state: &AppState, store: Arc<VectorStore>, slot: Option<FairSlot>) {
    let state = state.clone();
    let running = state.drain.enter();
    tokio::spawn(async move {
        let _turn = store.turn.lock().await;
        if let Err(error) = index_waiting(&state, &store).await {
            tracing::error!(store = store.id, error = error.message, "files of a vector store were not indexed");
        }
        drop(slot);
        drop(running);
    });
}

/// Indexes the first files that wait.
async fn index_waiting(state: &AppState, store: &Arc<VectorStore>) -> Result<(), ApiError> {
    let mut read = Vec::new();
    let mut total = 0;
    for (id, attached) in store.waiting().into_iter().take(TOGETHER) {
        let Some(record) = state.vector_stores()?.files.get(store.owner, &id) else {
            let fault = fault("invalid_file", "the file was deleted");
            save(store, &id, AttachedFile { status: IndexingStatus::Failed, error: Some(fault), ..attached }).await?;
            continue;
        };
        total += record.bytes;
        if total > TOGETHER_BYTES && !read.is_empty() {
            break;
        }
        let path = state.vector_stores()?.files.content(&id, &record);
        let embedder = state.vector_stores()?.opener.embedder();
        let documents = {
            let (id, attached) = (id.clone(), attached.clone());
            run_blocking(move || Ok(documents(&path, &id, &record.filename, &attached, &embedder))).await?
        };
        match documents {
            Ok(documents) => read.push(ReadFile { id, attached, documents }),
            Err(error) => {
                let failed =
                    AttachedFile { status: IndexingStatus::Failed, error: Some(unreadable(&error)), ..attached };
                save(store, &id, failed).await?;
            }
        }
    }
    commit(state, store, read).await
}

/// Commits the documents of files together or, if that fails, each file alone.
async fn commit(state: &AppState, store: &Arc<VectorStore>, files: Vec<ReadFile>) -> Result<(), ApiError> {
    if files.is_empty() {
        return Ok(());
    }
    let committed = apply(state, store, changes(&files)).await;
    let together = files.len();
    for file in files {
        let made = match &committed {
            Ok(()) => Ok(()),
            Err(error) if together == 1 => Err(error.clone()),
            Err(_) => apply(state, store, changes(std::slice::from_ref(&file))).await,
        };
        let ReadFile { id, attached, documents } = file;
        let indexed = match made {
            Ok(()) => AttachedFile {
                status: IndexingStatus::Completed,
                error: None,
                chunks: documents.len() as u64,
                bytes: documents.iter().map(|document| document.content().len() as u64).sum(),
                ..attached
            },
            Err(error) => {
                let fault = fault("server_error", &error.message);
                AttachedFile { status: IndexingStatus::Failed, error: Some(fault), ..attached }
            }
        };
        save(store, &id, indexed).await?;
    }
    Ok(())
}

/// Returns the change that puts the documents of files into an index, in place of those that the files had before.
fn changes(files: &[ReadFile]) -> Changes {
    let documents = files.iter().flat_map(|file| file.documents.iter().cloned());
    let surplus = files.iter().flat_map(|file| file.attached.chunk_ids(&file.id).skip(file.documents.len()));
    Changes { delete: surplus.collect(), ..Changes::upsert(documents) }
}

/// Commits a change, or builds the index if there is none yet.
async fn apply(state: &AppState, store: &Arc<VectorStore>, changes: Changes) -> Result<(), ApiError> {
    if let Some(index) = store.index() {
        return index.change(state, changes)?.finished().await.map(drop);
    }
    let stores = Arc::clone(state.vector_stores()?);
    let building = Arc::clone(store);
    let parts = run_blocking(move || {
        let corpus = Corpus::from_documents(&building.id, changes.upsert);
        // Triples as `waymark index build` makes them, so that policies can search the graph.
        let options = BuildOptions { extract: Some(Arc::new(Builtin)), journal: false, ..BuildOptions::default() };
        let embedder = stores.opener.embedder();
        let dir = building.index_dir();
        build(corpus, embedder.as_ref() as &dyn Embed, &dir, &options, &())
            .map_err(|error| ApiError::new(Code::CommitFailed, shortened(error.to_string())))?;
        stores.opener.open(&dir).map_err(unwritable)
    })
    .await?;
    store.show(state.created_index(&store.id, parts));
    Ok(())
}

/// Removes a file from the index of a store, and from its list. Returns `false` if the store does not have it.
pub(super) async fn remove(state: &AppState, store: &Arc<VectorStore>, id: &str) -> Result<bool, ApiError> {
    let _turn = store.turn.lock().await;
    let Some(file) = store.file(id) else { return Ok(false) };
    if let Some(index) = store.index() {
        let live = index.live();
        let current = live.current();
        let known = file.chunk_ids(id).filter(|id| current.passage(id).is_ok_and(|passage| passage.is_some()));
        let known: Vec<String> = known.collect();
        if known.len() as u64 == current.manifest().passages {
            // An index has at least one document.
            drop((current, live, index));
            let emptied = Arc::clone(store);
            run_blocking(move || emptied.remove_index().map_err(unwritable)).await?;
        } else if !known.is_empty() {
            index.change(state, Changes { delete: known, ..Changes::default() })?.finished().await?;
        }
    }
    let (store, id) = (Arc::clone(store), id.to_owned());
    run_blocking(move || store.remove_file(&id).map_err(unwritable)).await?;
    Ok(true)
}

/// Writes the record of a file off the async threads.
pub(super) async fn save(store: &Arc<VectorStore>, id: &str, file: AttachedFile) -> Result<(), ApiError> {
    let (store, id) = (Arc::clone(store), id.to_owned());
    run_blocking(move || store.save_file(&id, file).map_err(unwritable)).await
}

/// Opens the indexes of all stores, and goes on with the files that wait.
pub(super) fn resume(state: &AppState, stores: &VectorStores) {
    for store in stores.all() {
        let dir = store.index_dir();
        if dir.join(waymark_index::MANIFEST).exists() {
            match stores.opener.open(&dir) {
                Ok(parts) => store.show(state.created_index(&store.id, parts)),
                Err(error) => {
                    tracing::error!(store = store.id, %error, "cannot open the index of a vector store");
                    continue;
                }
            }
        }
        // One task takes several files at most, so there is one for each.
        for _ in store.waiting() {
            start(state, Arc::clone(&store), None);
        }
    }
}

/// Reads the documents of a file.
fn documents(
    path: &Path,
    id: &str,
    filename: &str,
    attached: &AttachedFile,
    embedder: &Arc<dyn TextEmbedder>,
) -> Result<Vec<Document>, IndexError> {
    let counting = Arc::clone(embedder);
    let tokens = TokenCounter::new(embedder.max_tokens(), move |text| counting.count_tokens(text));
    let corpus = Corpus::open(path, &chunking::options(attached.sizes))?.measured(tokens);
    let name = path.file_name().map(|name| format!("{}#", name.to_string_lossy())).unwrap_or_default();
    let documents = corpus.zip(1..).map(|(document, number)| {
        let Document { id: own, title, text, triples, metadata } = document?;
        let mut metadata = metadata.unwrap_or_default();
        // Records bring IDs of their own, which are unique within their file alone; chunks are named after the file.
        if !own.starts_with(&name) {
            metadata.entry("record_id").or_insert(Value::String(own));
        }
        metadata.insert("filename".to_owned(), filename.into());
        metadata.extend(attached.attributes.clone());
        Ok(Document { id: chunk_id(id, number), title, text, triples, metadata: Some(metadata) })
    });
    documents.collect()
}

/// Maps the error of a file to what clients are told.
fn unreadable(error: &IndexError) -> IndexingFault {
    match error {
        IndexError::UnsupportedFile { message, .. } => fault("unsupported_file", message),
        IndexError::BadRecord { location, message } | IndexError::BadCorpus { location, message } => {
            fault("invalid_file", &format!("line {}: {message}", location.line))
        }
        IndexError::EmptyCorpus { .. } => fault("invalid_file", "the file holds no text"),
        IndexError::DuplicateId { id, .. } => fault("invalid_file", &format!("the ID {id:?} occurs twice")),
        error => {
            tracing::error!(%error, "cannot read an uploaded file");
            fault("server_error", "the file cannot be read")
        }
    }
}

fn fault(code: &str, message: &str) -> IndexingFault {
    IndexingFault { code: code.to_owned(), message: shortened(message.to_owned()) }
}
