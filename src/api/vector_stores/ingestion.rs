//! Indexing of the files of vector stores.
//!
//! Files wait in the record of their store, so that a killed server continues after its next start. One task at a time
//! takes waiting files, up to a total size, and commits them together. If that fails, each file is tried alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use waymark_index::openie::Builtin;
use waymark_index::{BuildOptions, Changes, Corpus, Document, Embed, IndexError, build};

use super::file_documents::{DocumentReader, EXPANSION, ReadFile, fault};
use super::record::{AttachedFile, IndexingFault, IndexingStatus, chunk_id};
use super::registry::{IndexParts, VectorStores};
use super::store::VectorStore;
use crate::api::blocking::run_blocking;
use crate::api::commits;
use crate::api::drain::DrainPhase;
use crate::api::error::{ApiError, Code};
use crate::api::fair_slots::FairSlot;
use crate::api::files::registry::unwritable;
use crate::api::indexes::OtherIndex;
use crate::api::library::shortened;
use crate::api::state::AppState;

/// Size of texts from which on no more files are indexed together, in bytes.
const TOGETHER_BYTES: u64 = 16 << 20;

/// Maximum number of files that are indexed together.
const TOGETHER: usize = 64;

/// Number of attempts to index a file that may end with their process. Such a file may take more memory than there is,
/// and would end every further process.
const MAX_ATTEMPTS: u32 = 3;

/// Message for a file whose attempts all ended with their process.
const FATAL: &str = "the server ended three times while it indexed the file, which may take too much memory: split the \
                     file, or add it again if the server ended for another reason";

/// Pause before a retry of files whose records could not be written.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// Chunks of a file from number `from` on.
struct ChunkRange {
    file: String,
    from: u64,
    /// Number of chunks of the file by its record.
    recorded: u64,
}

/// Indexes the files of a store that wait, in a task of its own. `slot` is given back when they are indexed.
pub(super) fn start(state: &AppState, store: Arc<VectorStore>, slot: Option<FairSlot>) {
    let state = state.clone();
    let running = state.drain.enter();
    tokio::spawn(async move {
        while !store.waiting().is_empty() {
            let Err(error) = index_waiting(&state, &store).await else { continue };
            tracing::error!(store = store.id, error = error.message, "files of a vector store were not indexed");
            if !pause(&state, &store).await {
                break;
            }
        }
        drop(slot);
        drop(running);
    });
}

/// Waits before another try. Returns `false` if another task of the store tries again, or if the server stops.
async fn pause(state: &AppState, store: &VectorStore) -> bool {
    if store.is_pausing.swap(true, Ordering::SeqCst) {
        return false;
    }
    let goes_on = tokio::select! {
        () = tokio::time::sleep(RETRY_PAUSE) => true,
        () = state.drain.reached(DrainPhase::Draining) => false,
    };
    store.is_pausing.store(false, Ordering::SeqCst);
    goes_on
}

/// Indexes the first files that wait.
async fn index_waiting(state: &AppState, store: &Arc<VectorStore>) -> Result<(), ApiError> {
    let stores = state.vector_stores()?;
    // Taken before the turn of the store, because removals of files wait for the turn and must not wait for other
    // stores. The semaphore is never closed.
    let _place = stores.indexing.acquire().await;
    let _turn = store.turn.lock().await;
    let _indexing = scopeguard::guard(Arc::clone(store), |store| store.end_indexing());
    let mut read: Vec<ReadFile> = Vec::new();
    let mut total = 0;
    for (id, seen) in store.waiting().into_iter().take(TOGETHER) {
        if seen.attempts >= MAX_ATTEMPTS {
            finish(store, &id, &seen, failed(&seen, fault("server_error", FATAL))).await?;
            continue;
        }
        // An earlier attempt ended with its process. This file may be the reason, or one that was indexed with it.
        let is_suspect = seen.attempts > 0;
        if is_suspect && !read.is_empty() {
            break;
        }
        // One by one, so that each file can be canceled until it is read.
        let Some(attached) = claim(store, &id, &seen).await? else { continue };
        match read_file(stores, store, &id, &attached, total).await {
            Ok((documents, bytes)) => {
                total += bytes;
                read.push(ReadFile { id, attached, documents, bytes });
            }
            Err(fault) => finish(store, &id, &attached, failed(&attached, fault)).await?,
        }
        if is_suspect || total >= TOGETHER_BYTES {
            break;
        }
    }
    commit(state, store, read).await
}

/// Marks a file as being indexed; see [`VectorStore::claim`].
async fn claim(store: &Arc<VectorStore>, id: &str, seen: &AttachedFile) -> Result<Option<AttachedFile>, ApiError> {
    let store = Arc::clone(store);
    let id = id.to_owned();
    let seen = seen.clone();
    run_blocking(move || store.claim(&id, &seen).map_err(unwritable)).await
}

/// Reads the documents of a file and the size of their texts. `pending` bytes of other files are about to be indexed.
async fn read_file(
    stores: &Arc<VectorStores>,
    store: &VectorStore,
    id: &str,
    attached: &AttachedFile,
    pending: u64,
) -> Result<(Vec<Document>, u64), IndexingFault> {
    let Some(record) = stores.files.get(store.owner, id) else {
        return Err(fault("invalid_file", "the file was deleted"));
    };
    let reader = DocumentReader {
        path: stores.files.content(id, &record),
        id: id.to_owned(),
        filename: record.filename.clone(),
        attributes: attached.attributes.clone(),
        sizes: attached.sizes,
        embedder: stores.opener.embedder(),
        limit: stores.limits.file.saturating_mul(EXPANSION),
    };
    // A panic of a parser ends in the outer error, and must not keep the other files from being indexed.
    let read = run_blocking(move || Ok(reader.read())).await;
    let (documents, bytes) = read.unwrap_or_else(|_| Err(fault("server_error", "the file cannot be read")))?;
    let others = stores.usage_bytes().saturating_sub(attached.bytes);
    if others.saturating_add(pending).saturating_add(bytes) > stores.limits.storage {
        return Err(fault("server_error", "the server has no room for the texts of the file"));
    }
    Ok((documents, bytes))
}

/// Commits the documents of files together or, if that fails, each file alone.
async fn commit(state: &AppState, store: &Arc<VectorStore>, files: Vec<ReadFile>) -> Result<(), ApiError> {
    if files.is_empty() {
        return Ok(());
    }
    let committed = apply(state, store, &files).await;
    let together = files.len();
    for file in files {
        let made = match &committed {
            Ok(()) => Ok(()),
            Err(error) if together == 1 => Err(error.clone()),
            Err(_) => apply(state, store, std::slice::from_ref(&file)).await,
        };
        let ReadFile { id, attached, documents, bytes } = file;
        let done = match made {
            Ok(()) => AttachedFile {
                status: IndexingStatus::Completed,
                error: None,
                chunks: documents.len() as u64,
                bytes,
                attempts: 0,
                ..attached.clone()
            },
            Err(error) => failed(&attached, unindexable(&store.id, &error)),
        };
        finish(store, &id, &attached, done).await?;
    }
    Ok(())
}

/// Returns the record of a file that could not be indexed.
fn failed(attached: &AttachedFile, fault: IndexingFault) -> AttachedFile {
    AttachedFile { status: IndexingStatus::Failed, error: Some(fault), attempts: 0, ..attached.clone() }
}

/// Maps the error of a commit to what clients are told.
fn unindexable(store: &str, error: &ApiError) -> IndexingFault {
    if error.code == Code::InvalidValue {
        return fault("invalid_file", &error.message);
    }
    // The error may name paths of the server.
    tracing::error!(store, error = error.message, "a file of a vector store cannot be indexed");
    fault("server_error", "the file cannot be indexed")
}

/// Puts the documents of files into the index, in place of those that the files had before. Builds the index if there
/// is none yet.
async fn apply(state: &AppState, store: &Arc<VectorStore>, files: &[ReadFile]) -> Result<(), ApiError> {
    let documents = files.iter().flat_map(|file| file.documents.iter().cloned()).collect();
    let Some(index) = opened(state, store).await? else { return build_first(state, store, documents).await };
    let surplus = files.iter().map(|file| ChunkRange {
        file: file.id.clone(),
        from: file.documents.len() as u64 + 1,
        recorded: file.attached.chunks,
    });
    let delete = indexed_chunks(&index, surplus.collect()).await?;
    index.change(state, Changes { delete, ..Changes::upsert(documents) })?.finished().await.map(drop)
}

/// Returns the index of a store, and opens it if an earlier attempt failed. `None` if there is none yet.
async fn opened(state: &AppState, store: &Arc<VectorStore>) -> Result<Option<Arc<OtherIndex>>, ApiError> {
    if let Some(index) = store.index() {
        return Ok(Some(index));
    }
    let dir = store.index_dir();
    if !dir.join(waymark_index::MANIFEST).exists() {
        return Ok(None);
    }
    let stores = Arc::clone(state.vector_stores()?);
    let parts = run_blocking(move || stores.opener.open(&dir).map_err(unwritable)).await?;
    Ok(Some(show(state, store, parts)))
}

/// Makes an opened index that of its store, and goes on with the changes that an earlier process accepted for it over
/// `/v1/documents?index=`.
fn show(state: &AppState, store: &VectorStore, parts: IndexParts) -> Arc<OtherIndex> {
    let index = state.created_index(&store.id, parts);
    store.set_index(Arc::clone(&index));
    commits::resume(&state.view(&index));
    index
}

/// Builds the index of a store from its first documents.
async fn build_first(state: &AppState, store: &Arc<VectorStore>, documents: Vec<Document>) -> Result<(), ApiError> {
    let stores = Arc::clone(state.vector_stores()?);
    let building = Arc::clone(store);
    let parts = run_blocking(move || {
        let corpus = Corpus::from_documents(&building.id, documents);
        // Triples as `waymark index build` makes them, so that policies can search the graph.
        let options = BuildOptions { extract: Some(Arc::new(Builtin)), journal: false, ..BuildOptions::default() };
        let embedder = stores.opener.embedder();
        let dir = building.index_dir();
        build(corpus, embedder.as_ref() as &dyn Embed, &dir, &options, &()).map_err(|error| unbuilt(&error))?;
        stores.opener.open(&dir).map_err(unwritable)
    })
    .await?;
    store.set_index(state.created_index(&store.id, parts));
    Ok(())
}

/// Maps the error of a build. Only errors about the documents are invalid values.
fn unbuilt(error: &IndexError) -> ApiError {
    match error {
        IndexError::BadRecord { message, .. } => ApiError::invalid("documents", shortened(message.clone())),
        IndexError::BadChange { .. } | IndexError::NoTriples { .. } | IndexError::TooLarge { .. } => {
            ApiError::invalid("documents", shortened(error.to_string()))
        }
        error => ApiError::new(Code::CommitFailed, shortened(error.to_string())),
    }
}

/// Returns the IDs of the chunks in these ranges that the index has.
async fn indexed_chunks(index: &Arc<OtherIndex>, ranges: Vec<ChunkRange>) -> Result<Vec<String>, ApiError> {
    let current = index.live().current();
    run_blocking(move || {
        let has = |id: &String| current.passage(id).is_ok_and(|passage| passage.is_some());
        let mut found = Vec::new();
        for ChunkRange { file, from, recorded } in ranges {
            // The index may have more chunks than the record, which is written after it, and fewer, because clients can
            // delete single documents.
            let numbered = (from..).map(|number| (number, chunk_id(&file, number)));
            let ids = numbered.take_while(|(number, id)| *number <= recorded || has(id)).map(|(_, id)| id);
            found.extend(ids.filter(has));
        }
        Ok(found)
    })
    .await
}

/// Removes a file from the index of a store, and from its list. Returns `false` if the store does not have it.
pub(super) async fn remove(state: &AppState, store: &Arc<VectorStore>, id: &str) -> Result<bool, ApiError> {
    let _turn = store.turn.lock().await;
    let Some(file) = store.file(id) else { return Ok(false) };
    if let Some(index) = opened(state, store).await? {
        let range = ChunkRange { file: id.to_owned(), from: 1, recorded: file.chunks };
        let known = indexed_chunks(&index, vec![range]).await?;
        if known.len() as u64 == index.live().current().manifest().passages {
            // An index has at least one document.
            drop(index);
            let emptied = Arc::clone(store);
            run_blocking(move || emptied.remove_index().map_err(unwritable)).await?;
        } else if !known.is_empty() {
            let changes = Changes { delete: known, ..Changes::default() };
            index.change(state, changes)?.finished().await.map_err(|error| unchangeable(&store.id, &error))?;
        }
    }
    let store = Arc::clone(store);
    let id = id.to_owned();
    run_blocking(move || store.remove_file(&id).map_err(unwritable)).await?;
    Ok(true)
}

/// Replaces the message of a failed commit, which may name paths of the server.
fn unchangeable(store: &str, error: &ApiError) -> ApiError {
    tracing::error!(store, error = error.message, "the index of a vector store cannot be changed");
    ApiError::new(error.code, "the index of the vector store cannot be changed")
}

/// Writes the records of files that are to be indexed.
pub(super) async fn attach(store: &Arc<VectorStore>, files: Vec<(String, AttachedFile)>) -> Result<(), ApiError> {
    let store = Arc::clone(store);
    let attach = move || files.into_iter().try_for_each(|(id, file)| store.attach_file(&id, file));
    run_blocking(move || attach().map_err(unwritable)).await
}

/// Writes the result of indexing a file whose record was `seen`.
async fn finish(store: &Arc<VectorStore>, id: &str, seen: &AttachedFile, done: AttachedFile) -> Result<(), ApiError> {
    let store = Arc::clone(store);
    let id = id.to_owned();
    let seen = seen.clone();
    run_blocking(move || store.finish_file(&id, &seen, done).map_err(unwritable)).await
}

/// Opens the indexes of all stores, and goes on with the files that wait.
pub(super) fn resume(state: &AppState, stores: &VectorStores) {
    for store in stores.all() {
        let dir = store.index_dir();
        if dir.join(waymark_index::MANIFEST).exists() {
            match stores.opener.open(&dir) {
                Ok(parts) => drop(show(state, &store, parts)),
                // The next change of a file tries again.
                Err(error) => tracing::error!(store = store.id, %error, "cannot open the index of a vector store"),
            }
        }
        start(state, store, None);
    }
}
