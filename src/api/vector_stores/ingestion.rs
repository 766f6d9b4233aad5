//! Indexing of the files of vector stores.
//!
//! Files wait in the record of their store, so a killed server continues after its next start. Each request that
//! adds files starts a task. One task at a time takes waiting files, up to a total size, and commits them together; keys
//! take turns. If that fails, each file is tried alone. A long file is committed in slices, in several turns if others
//! wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use waymark_index::openie::Builtin;
use waymark_index::{BuildOptions, Changes, Corpus, Document, Embed, IndexError, ReadLimits, build};

use super::file_documents::{DocumentReader, EXPANSION, ReadFile, fault};
use super::record::{AttachedFile, IndexingFault, IndexingStatus, chunk_id};
use super::registry::{IndexParts, VectorStores};
use super::slices;
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
use crate::store::Owner;

/// Size of texts from which on no more files are indexed together, in bytes.
const TOGETHER_BYTES: u64 = 16 << 20;

/// Maximum number of files that are indexed together.
const TOGETHER: usize = 64;

/// Time from which on no more files are read to be indexed together. Other keys wait for their turn.
const TOGETHER_TIME: Duration = Duration::from_secs(60);

/// Maximum time for reading a file and splitting its texts.
const LONGEST_READING: Duration = Duration::from_secs(600);

/// Time after the end of [`LONGEST_READING`] in which a reading notices it.
const GRACE: Duration = Duration::from_secs(10);

/// Number of attempts to index a file that may end with their process. Such a file may take more memory than there is,
/// and would end every further process.
const MAX_ATTEMPTS: u32 = 3;

/// Message for a file whose attempts all ended with their process.
const FATAL: &str = "the server ended three times while it indexed the file, which may take too much memory: split the \
                     file, or add it again if the server ended for another reason";

/// Message for a file whose texts and metadata are more than its key may take of the room for texts.
const OVER_SHARE: &str = "the texts of the file exceed this key's share of the server's room for texts: delete others";

/// Message for a file that takes longer to read than [`LONGEST_READING`].
const TOO_SLOW: &str = "the file takes more than 10 minutes to read: split it";

/// Pause before a retry of files whose records could not be written.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// Chunks of a file from number `from` on.
pub(super) struct ChunkRange {
    pub(super) file: String,
    pub(super) from: u64,
    /// Number of chunks of the file by its record.
    pub(super) recorded: u64,
}

/// Reason why a file was not read.
enum ReadFault {
    /// The file cannot be indexed.
    Failed(IndexingFault),
    /// The file or its store is being removed, or the server ends. The file is not marked as failed.
    Interrupted,
}

impl From<IndexingFault> for ReadFault {
    fn from(fault: IndexingFault) -> ReadFault {
        ReadFault::Failed(fault)
    }
}

/// Files that one request has added to a store.
#[derive(Debug)]
pub(super) struct AddedFiles {
    pub(super) ids: Vec<String>,
    /// Places of the files, given back when none of them waits any more.
    pub(super) _slot: FairSlot,
}

/// Indexes files of a store in a task of its own: those that a request has added or, without a request, all that wait.
pub(super) fn start(state: &AppState, store: Arc<VectorStore>, added: Option<AddedFiles>) {
    let state = state.clone();
    let running = state.drain.enter();
    tokio::spawn(async move {
        index_all(&state, &store, added).await;
        drop(running);
    });
}

/// Indexes the files in `added` or, without it, all files of a store that wait. When the server drains, the files that
/// still wait are left to its next start.
async fn index_all(state: &AppState, store: &Arc<VectorStore>, mut added: Option<AddedFiles>) {
    while has_work(state, store, added.as_ref()) {
        let Err(error) = index_waiting(state, store, added.as_ref()).await else { continue };
        tracing::error!(store = store.id, error = error.message, "files of a vector store were not indexed");
        if !pause(state, store).await {
            break;
        }
        // The tasks of other requests may have ended meanwhile, so this one continues with their files as well.
        added = None;
    }
}

/// Returns `true` if a file in `added` or, without it, any file of the store waits, and the server does not drain.
fn has_work(state: &AppState, store: &VectorStore, added: Option<&AddedFiles>) -> bool {
    let is_own = |id: &String| added.is_none_or(|added| added.ids.contains(id));
    !is_draining(state) && store.waiting().iter().any(|(id, _)| is_own(id))
}

pub(super) fn is_draining(state: &AppState) -> bool {
    state.drain.phase() >= DrainPhase::Draining
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

/// Indexes the first files that wait, unless others have indexed the files in `added` before.
async fn index_waiting(state: &AppState, store: &Arc<VectorStore>, added: Option<&AddedFiles>) -> Result<(), ApiError> {
    let stores = state.vector_stores()?;
    // Taken before the turn of the store, because removals of files wait for the turn and must not wait for other
    // stores.
    let _place = stores.indexing_turn(store.owner).await?;
    let _turn = store.turn.lock().await;
    if !has_work(state, store, added) {
        return Ok(());
    }
    let _indexing = scopeguard::guard(Arc::clone(store), |store| store.end_indexing());
    let started = Instant::now();
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
        // One by one, so each file can be canceled until it is read.
        let Some(attached) = claim(store, &id, &seen).await? else { continue };
        match read_file(state, stores, store, &id, &attached, total).await {
            Ok(file) => {
                total += file.content.bytes;
                read.push(file);
            }
            Err(ReadFault::Failed(fault)) => finish(store, &id, &attached, failed(&attached, fault)).await?,
            // The removal of the file waits for the turn.
            Err(ReadFault::Interrupted) => break,
        }
        let is_enough = total >= TOGETHER_BYTES || started.elapsed() >= TOGETHER_TIME || !slices::fit_one(&read);
        if is_suspect || is_enough || is_draining(state) {
            break;
        }
    }
    // The files before the last one fit a slice, or more would not have been read.
    let long = if slices::fit_one(&read) { None } else { read.pop() };
    commit(state, store, read).await?;
    match long {
        Some(file) => slices::commit(state, store, file).await,
        None => Ok(()),
    }
}

/// Marks a file as being indexed; see [`VectorStore::claim`].
async fn claim(store: &Arc<VectorStore>, id: &str, seen: &AttachedFile) -> Result<Option<AttachedFile>, ApiError> {
    let store = Arc::clone(store);
    let id = id.to_owned();
    let seen = seen.clone();
    run_blocking(move || store.claim(&id, &seen).map_err(unwritable)).await
}

/// Reads a file. `pending` bytes of other files are about to be indexed.
async fn read_file(
    state: &AppState,
    stores: &Arc<VectorStores>,
    store: &Arc<VectorStore>,
    id: &str,
    attached: &AttachedFile,
    pending: u64,
) -> Result<ReadFile, ReadFault> {
    let Some(record) = stores.files.get(store.owner, id) else {
        return Err(fault("invalid_file", "the file was deleted").into());
    };
    let started = Instant::now();
    let until = started + LONGEST_READING;
    let is_wanted = {
        let store = Arc::clone(store);
        let id = id.to_owned();
        let drain = state.drain.clone();
        move || store.keeps_file(&id) && drain.phase() < DrainPhase::Expired
    };
    let goes_on = {
        let is_wanted = is_wanted.clone();
        move || is_wanted() && Instant::now() < until
    };
    let limit = stores.limits.file.saturating_mul(EXPANSION);
    let reader = DocumentReader {
        path: stores.files.content(id, &record),
        id: id.to_owned(),
        filename: record.filename.clone(),
        attributes: attached.attributes.clone(),
        sizes: attached.sizes,
        embedder: stores.opener.embedder(),
        indexed: attached.indexed,
        limit,
        limits: ReadLimits { bytes: Some(limit), go_on: Some(Arc::new(goes_on)) },
    };
    let read = stores.readings.run(store.owner, LONGEST_READING + GRACE, move || reader.read()).await;
    if !is_wanted() {
        return Err(ReadFault::Interrupted);
    }
    // The error of a reading that was ended says nothing about the file.
    let content = read.map_err(|own| if Instant::now() < until { own } else { fault("invalid_file", TOO_SLOW) })?;
    let reading = started.elapsed();
    check_room(state, stores, store.owner, attached, pending, content.bytes).await?;
    Ok(ReadFile { id: id.to_owned(), attached: attached.clone(), content, reading })
}

/// Checks that a file with texts and metadata of `bytes` may be indexed after `pending` bytes of other files.
async fn check_room(
    state: &AppState,
    stores: &Arc<VectorStores>,
    owner: Owner,
    attached: &AttachedFile,
    pending: u64,
    bytes: u64,
) -> Result<(), IndexingFault> {
    let measured = Arc::clone(stores);
    let usage = run_blocking(move || Ok((measured.usage_bytes(), measured.usage_bytes_of(owner)))).await;
    let (used, own) = usage.map_err(|_| fault("server_error", "the file cannot be indexed"))?;
    let with_file = |held: u64| held.saturating_sub(attached.bytes).saturating_add(pending).saturating_add(bytes);
    let used = with_file(used);
    if used > stores.limits.storage {
        return Err(fault("server_error", "the server has no room for the texts of the file"));
    }
    // The request was checked without the files that waited then. A file that does not grow takes nothing from others.
    if state.keys.several() && bytes > attached.bytes && with_file(own) > stores.limits.storage - used {
        return Err(fault("server_error", OVER_SHARE));
    }
    Ok(())
}

/// Commits the documents of files together or, if that fails, each file alone.
async fn commit(state: &AppState, store: &Arc<VectorStore>, files: Vec<ReadFile>) -> Result<(), ApiError> {
    if files.is_empty() {
        return Ok(());
    }
    let committed = apply_files(state, store, &files).await;
    let together = files.len();
    for file in files {
        let made = match &committed {
            Ok(()) => Ok(()),
            Err(error) if together == 1 => Err(error.clone()),
            Err(_) => apply_files(state, store, std::slice::from_ref(&file)).await,
        };
        let ReadFile { id, attached, content, .. } = file;
        finish_commit(store, &id, &attached, made, content.chunks, content.bytes).await?;
    }
    Ok(())
}

/// Writes the result of committing a file that has this number of `chunks` and this size.
pub(super) async fn finish_commit(
    store: &Arc<VectorStore>,
    id: &str,
    attached: &AttachedFile,
    made: Result<(), ApiError>,
    chunks: u64,
    bytes: u64,
) -> Result<(), ApiError> {
    // Its records are gone, and the error only says so.
    if store.is_deleted() {
        return Ok(());
    }
    let status = IndexingStatus::Completed;
    let done = match made {
        Ok(()) => AttachedFile {
            status,
            earlier_status: None,
            error: None,
            chunks,
            bytes,
            indexed: 0,
            attempts: 0,
            ..attached.clone()
        },
        Err(error) => failed(attached, unindexable(&store.id, &error)),
    };
    finish(store, id, attached, done).await
}

/// Returns the record of a file that could not be indexed.
fn failed(attached: &AttachedFile, fault: IndexingFault) -> AttachedFile {
    let status = IndexingStatus::Failed;
    AttachedFile { status, earlier_status: None, error: Some(fault), attempts: 0, ..attached.clone() }
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

/// Puts the documents of files into the index, in place of those that the files had before.
async fn apply_files(state: &AppState, store: &Arc<VectorStore>, files: &[ReadFile]) -> Result<(), ApiError> {
    let documents = files.iter().flat_map(|file| file.content.documents.iter().cloned()).collect();
    let surplus = files.iter().map(|file| ChunkRange {
        file: file.id.clone(),
        from: file.content.chunks + 1,
        recorded: file.attached.chunks,
    });
    apply(state, store, documents, surplus.collect()).await
}

/// Puts documents into the index, and removes the `surplus` chunks. Builds the index if there is none yet.
pub(super) async fn apply(
    state: &AppState,
    store: &Arc<VectorStore>,
    documents: Vec<Document>,
    surplus: Vec<ChunkRange>,
) -> Result<(), ApiError> {
    let Some(index) = opened(state, store).await? else { return build_first(state, store, documents).await };
    let delete = indexed_chunks(&index, surplus).await?;
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

/// Makes an opened index that of its store, and continues the changes that an earlier process accepted for it over
/// `/v1/documents?index=`.
fn show(state: &AppState, store: &VectorStore, parts: IndexParts) -> Arc<OtherIndex> {
    let index = state.created_index(&store.id, parts);
    store.set_index(Arc::clone(&index));
    commits::resume(&state.view(&index));
    index
}

/// Builds the index of a store from its first documents. Nothing stays of the index of a store that is deleted meanwhile.
async fn build_first(state: &AppState, store: &Arc<VectorStore>, documents: Vec<Document>) -> Result<(), ApiError> {
    let stores = Arc::clone(state.vector_stores()?);
    let building = Arc::clone(store);
    let parts = run_blocking(move || {
        // The build creates its folder, even where a deletion has just removed it.
        let building = scopeguard::guard(building, |store| store.end_build());
        if building.is_deleted() {
            return Err(ApiError::new(Code::VectorStoreNotFound, "the vector store was deleted"));
        }
        let corpus = Corpus::from_documents(&building.id, documents);
        // Triples as `waymark index build` makes them, so policies can search the graph.
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

/// Removes a file from the index of a store, and from its list. Returns `false` if the store does not have it. Callers
/// run it to its end, because a file whose removal is dropped halfway may stay in the list without its chunks.
pub(super) async fn remove(state: &AppState, store: &Arc<VectorStore>, id: &str) -> Result<bool, ApiError> {
    // Before the turn, because this ends a reading of the file, which holds the turn. Before the commit, so the next
    // start finishes a removal that the end of the process interrupts.
    if mark_removal(store, id, true).await?.is_none() {
        return Ok(false);
    }
    let _turn = store.turn.lock().await;
    // Again, because another removal may have failed meanwhile.
    let Some(file) = mark_removal(store, id, true).await? else { return Ok(false) };
    if let Err(error) = remove_chunks(state, store, id, file.chunks).await {
        // If this cannot be written, the next start removes the file.
        let _ = mark_removal(store, id, false).await;
        // The file did not wait for its turn while it was marked.
        start(state, Arc::clone(store), None);
        return Err(error);
    }
    let store = Arc::clone(store);
    let id = id.to_owned();
    run_blocking(move || store.remove_file(&id).map_err(unwritable)).await?;
    Ok(true)
}

/// Marks a file as being removed, or takes the mark back; see [`VectorStore::mark_removal`].
async fn mark_removal(store: &Arc<VectorStore>, id: &str, removing: bool) -> Result<Option<AttachedFile>, ApiError> {
    let store = Arc::clone(store);
    let id = id.to_owned();
    run_blocking(move || store.mark_removal(&id, removing).map_err(unwritable)).await
}

/// Removes the chunks of a file from the index of a store. With the last documents, the index goes as well.
async fn remove_chunks(state: &AppState, store: &Arc<VectorStore>, id: &str, recorded: u64) -> Result<(), ApiError> {
    let Some(index) = opened(state, store).await? else { return Ok(()) };
    let chunks = || ChunkRange { file: id.to_owned(), from: 1, recorded };
    let Some(delete) = discard_last(store, &index, chunks()).await? else { return Ok(()) };
    if delete.is_empty() {
        return Ok(());
    }
    let removed = index.change(state, Changes { delete, ..Changes::default() })?.finished().await;
    let Err(error) = removed else { return Ok(()) };
    // The chunks are the last documents after all: others were removed meanwhile, or a change that adds some failed.
    if error.code == Code::InvalidValue && discard_last(store, &index, chunks()).await?.is_none() {
        return Ok(());
    }
    Err(unchangeable(&store.id, &error))
}

/// Removes the index of a store if it has no documents but `chunks`, and no change of it waits. Otherwise returns the
/// IDs of those chunks that the index has.
async fn discard_last(
    store: &Arc<VectorStore>,
    index: &Arc<OtherIndex>,
    chunks: ChunkRange,
) -> Result<Option<Vec<String>>, ApiError> {
    // A commit between the count and the removal would be lost.
    let _commits = index.library().hold_commits().await;
    let known = indexed_chunks(index, vec![chunks]).await?;
    // An index has at least one document.
    if known.len() as u64 != index.live().current().manifest().passages {
        return Ok(Some(known));
    }
    let store = Arc::clone(store);
    let index = Arc::clone(index);
    run_blocking(move || {
        if !index.library().close() {
            return Ok(Some(known));
        }
        store.remove_index().map_err(unwritable)?;
        Ok(None)
    })
    .await
}

/// Replaces the message of a failed commit, which may name paths of the server.
fn unchangeable(store: &str, error: &ApiError) -> ApiError {
    tracing::error!(store, error = error.message, "the index of a vector store cannot be changed");
    match error.code {
        // The commit would leave no document, and the index cannot go because of a change that waits.
        Code::InvalidValue => {
            let message = "the last documents cannot be removed while others are being added: try again";
            ApiError::new(Code::CommitFailed, message)
        }
        code => ApiError::new(code, "the index of the vector store cannot be changed"),
    }
}

/// Writes the records of files that are to be indexed.
pub(super) async fn attach(store: &Arc<VectorStore>, files: Vec<(String, AttachedFile)>) -> Result<(), ApiError> {
    let store = Arc::clone(store);
    let attach = move || files.into_iter().try_for_each(|(id, file)| store.attach_file(&id, file));
    run_blocking(move || attach().map_err(unwritable)).await
}

/// Replaces the attributes of a file in its record.
pub(super) async fn update_attributes(
    store: &Arc<VectorStore>,
    id: String,
    attributes: Map<String, Value>,
) -> Result<(), ApiError> {
    let store = Arc::clone(store);
    run_blocking(move || store.update_attributes(&id, attributes).map_err(unwritable)).await
}

/// Writes the result of indexing a file whose record was `seen`.
async fn finish(store: &Arc<VectorStore>, id: &str, seen: &AttachedFile, done: AttachedFile) -> Result<(), ApiError> {
    let store = Arc::clone(store);
    let id = id.to_owned();
    let seen = seen.clone();
    run_blocking(move || store.finish_file(&id, &seen, done).map_err(unwritable)).await
}

/// Opens the indexes of all stores, and continues with interrupted removals and waiting files.
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
        let state = state.clone();
        let running = state.drain.enter();
        tokio::spawn(async move {
            finish_removals(&state, &store).await;
            start(&state, store, None);
            drop(running);
        });
    }
}

/// Removes the files of a store whose removal an earlier process began.
async fn finish_removals(state: &AppState, store: &Arc<VectorStore>) {
    for (id, _) in store.files().into_iter().filter(|(_, file)| file.removing) {
        if let Err(error) = remove(state, store, &id).await {
            tracing::error!(store = store.id, file = id, error = error.message, "a file was not removed");
        }
    }
}
