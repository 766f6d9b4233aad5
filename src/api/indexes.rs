//! Several indexes in one server: the default one, others by their names, and those of vector stores by their IDs.
//!
//! A request that names another index is handled by a view of the state with that index in place of the default one.
//! Searches, documents, views and metrics therefore need not know the other indexes. A key that is limited to some
//! indexes gets views of those alone: every route that reads or changes an index takes its state from here.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use waymark_agent::{Policy, Runtime, Search};
use waymark_index::{Changes, LiveIndex};
use waymark_runtime::fleet::TokenSource;

use super::auth::Caller;
use super::error::{ApiError, Code};
use super::library::{ChangeTicket, Library};
use super::metrics::IndexMetrics;
use super::state::AppState;
use super::vector_stores::{EmptySearch, IndexParts};

/// Name of the default index in requests; its own name is accepted as well.
pub(crate) const INDEX: &str = "default";

/// Index other than the default one.
#[derive(Debug)]
pub(crate) struct OtherIndex {
    name: String,
    runtime: Arc<Runtime<TokenSource>>,
    library: Arc<Library>,
    metrics: IndexMetrics,
}

impl OtherIndex {
    /// Returns the open index.
    pub(crate) fn live(&self) -> Arc<LiveIndex> {
        Arc::clone(&self.library.live)
    }

    /// Returns the documents of the index.
    pub(crate) fn library(&self) -> &Library {
        &self.library
    }

    /// Queues a change that the server itself makes.
    ///
    /// # Errors
    /// 400 for changes that contradict each other or if the index was removed, 403 if the index is read-only.
    pub(crate) fn change(&self, state: &AppState, changes: Changes) -> Result<ChangeTicket, ApiError> {
        self.library.apply(changes, &self.metrics, &state.drain)
    }
}

impl AppState {
    /// Adds an index other than the default one. Call it after all settings of the state.
    pub fn with_other_index(mut self, name: &str, searcher: Arc<dyn Search>, library: Library) -> Self {
        let metrics = self.metrics.other_index(name, &library.live);
        let other = self.other_index(name, IndexParts { searcher, library }, metrics);
        Arc::make_mut(&mut self.others).push(Arc::new(other));
        self
    }

    /// Creates the index of the vector store `id`.
    pub(crate) fn created_index(&self, id: &str, parts: IndexParts) -> Arc<OtherIndex> {
        Arc::new(self.other_index(id, parts, self.metrics.vector_stores.clone()))
    }

    fn other_index(&self, name: &str, parts: IndexParts, metrics: IndexMetrics) -> OtherIndex {
        let mut runtime = (*self.runtime).clone();
        runtime.searcher = Some(parts.searcher);
        OtherIndex { name: name.to_owned(), runtime: Arc::new(runtime), library: Arc::new(parts.library), metrics }
    }

    /// Returns the state with the index `named` in place of the default one. Without a name, returns the state with the
    /// default index, or with the first index that the key of `caller` names if `caller` may not use the default one.
    ///
    /// # Errors
    /// 400 if there is no such index, or no index at all; 403 if `caller` may not use it.
    pub(crate) fn of_index(&self, caller: &Caller, param: &str, named: Option<&str>) -> Result<AppState, ApiError> {
        let Some(named) = named else {
            return self.own_default(caller).ok_or_else(|| forbidden(caller).with_param(param));
        };
        if let Some(found) = self.named(caller, named) {
            return Ok(found);
        }
        if self.refuses(caller, named) {
            return Err(forbidden(caller).with_param(param));
        }
        if self.vector_stores.as_deref().is_some_and(|stores| stores.get(caller.owner, named).is_some()) {
            return Err(ApiError::invalid(param, format!("the vector store `{named}` has no documents yet")));
        }
        // A server without any index says so, instead of listing names that it does not have.
        self.searcher().map_err(|error| error.with_param(param))?;
        Err(ApiError::invalid(param, format!("unknown index `{named}`: expected {}", self.index_names(caller))))
    }

    /// Returns the state with the index that a request names, or else its policy.
    ///
    /// # Errors
    /// 400 if there is no such index; 403 if `caller` may not use it.
    pub(crate) fn of_request(
        &self,
        caller: &Caller,
        param: &str,
        named: Option<&str>,
        policy: &Policy,
    ) -> Result<AppState, ApiError> {
        match (named, policy.index.as_deref()) {
            (None, Some(own)) if self.refuses(caller, own) => Err(forbidden(caller).with_param("model")),
            (None, Some(own)) => self.named(caller, own).ok_or_else(|| {
                let message =
                    format!("the policy `{}` searches the index `{own}`, which this server does not have", policy.name);
                ApiError::new(Code::NotConfigured, message).with_param("model")
            }),
            // An episode that does not search needs no index.
            (None, None) if !policy.searches() => Ok(self.for_caller(caller)),
            (named, _) => self.of_index(caller, param, named),
        }
    }

    /// Returns the state with the index that `caller` uses if a request names none, or a state without an index if
    /// `caller` may use none.
    pub(crate) fn for_caller(&self, caller: &Caller) -> AppState {
        self.own_default(caller).unwrap_or_else(|| {
            let mut closed = self.clone();
            let mut runtime = (*self.runtime).clone();
            runtime.searcher = None;
            closed.runtime = Arc::new(runtime);
            closed.library = None;
            closed
        })
    }

    fn own_default(&self, caller: &Caller) -> Option<AppState> {
        // Without an index there is nothing that a key could be kept from.
        if self.permits(caller) || self.runtime.searcher.is_none() {
            return Some(self.clone());
        }
        caller.indexes.names()?.iter().find_map(|name| self.named(caller, name))
    }

    /// Returns `true` if `caller` may use the index of this state.
    fn permits(&self, caller: &Caller) -> bool {
        let id = self.index_id();
        // The default index has two names.
        let own = self.index.as_deref().filter(|_| !self.is_other);
        let created = || self.vector_stores.as_deref().is_some_and(|stores| stores.get(caller.owner, id).is_some());
        caller.indexes.allows(id) || own.is_some_and(|own| caller.indexes.allows(own)) || (self.is_other && created())
    }

    /// Returns `true` if there is an index `name` that `caller` may not use.
    pub(crate) fn refuses(&self, caller: &Caller, name: &str) -> bool {
        self.resolved(caller, name).is_some_and(|found| !found.permits(caller))
    }

    /// Returns the state with the index `name` in place of the default one, if there is such an index that `caller` may
    /// use. The indexes of vector stores belong to the keys that made them.
    pub(crate) fn named(&self, caller: &Caller, name: &str) -> Option<AppState> {
        self.resolved(caller, name).filter(|found| found.permits(caller))
    }

    /// Returns the state with an index that finds nothing in place of the default one, if `name` is the ID of a vector
    /// store of `caller` without documents.
    pub(crate) fn empty_store(&self, caller: &Caller, name: &str) -> Option<AppState> {
        let store = self.vector_stores.as_deref()?.get(caller.owner, name)?;
        let mut runtime = (*self.runtime).clone();
        runtime.searcher = Some(Arc::new(EmptySearch));
        let mut view = self.clone();
        view.runtime = Arc::new(runtime);
        view.library = None;
        view.index = Some(store.id.clone());
        view.metrics.index = self.metrics.vector_stores.clone();
        view.is_other = true;
        Some(view)
    }

    fn resolved(&self, caller: &Caller, name: &str) -> Option<AppState> {
        if name == INDEX || self.index.as_deref() == Some(name) {
            // Without a default index, its name means none.
            return self.runtime.searcher.is_some().then(|| self.clone());
        }
        let other = self.others.iter().find(|other| other.name == name).cloned();
        let created = || self.vector_stores.as_deref()?.get(caller.owner, name)?.index();
        other.or_else(created).map(|other| self.view(&other))
    }

    /// Returns a state per index.
    pub(crate) fn views(&self) -> Vec<AppState> {
        std::iter::once(self.clone()).chain(self.others.iter().map(|other| self.view(other))).collect()
    }

    /// Returns the names of the indexes that the server was started with.
    pub(crate) fn fixed_indexes(&self) -> Vec<String> {
        let own = self.runtime.searcher.as_ref().map(|_| INDEX.to_owned());
        own.into_iter().chain(self.others.iter().map(|other| other.name.clone())).collect()
    }

    /// Returns the state with another index in place of the default one.
    pub(crate) fn view(&self, other: &OtherIndex) -> AppState {
        let mut view = self.clone();
        view.runtime = Arc::clone(&other.runtime);
        view.library = Some(Arc::clone(&other.library));
        view.index = Some(other.name.clone());
        view.metrics.index = other.metrics.clone();
        view.is_other = true;
        view
    }

    /// Returns the name by which another request can refer to the index.
    pub(crate) fn index_id(&self) -> &str {
        self.index.as_deref().filter(|_| self.is_other).unwrap_or(INDEX)
    }

    /// Lists the names of all indexes that `caller` may use, for error messages.
    pub(crate) fn index_names(&self, caller: &Caller) -> String {
        let own = self.index.as_deref().filter(|own| *own != INDEX);
        let default = std::iter::once(INDEX).chain(own).filter(|_| self.permits(caller));
        let others = self.others.iter().map(|other| other.name.as_str()).filter(|name| caller.indexes.allows(name));
        let names: Vec<String> = default.chain(others).map(|name| format!("`{name}`")).collect();
        match names.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            Some((only, _)) => only.clone(),
            None => "the name of an index that this key may use".to_owned(),
        }
    }
}

/// Returns the error for an index that the caller's key may not use.
pub(super) fn forbidden(caller: &Caller) -> ApiError {
    let names: Vec<String> =
        caller.indexes.names().unwrap_or_default().iter().map(|name| format!("`{name}`")).collect();
    let message = format!("this key may use only these indexes: {}", names.join(", "));
    ApiError::new(Code::InsufficientScope, message)
}

/// State with the index that the caller uses if a request names none.
#[derive(Debug)]
pub(crate) struct CallerState(pub(crate) AppState);

impl FromRequestParts<AppState> for CallerState {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let Ok(caller) = Caller::from_request_parts(parts, state).await;
        state.of_index(&caller, "index", None).map(CallerState)
    }
}

/// State with the index that the query parameter `index` names. The handler reads the other query parameters.
#[derive(Debug)]
pub(crate) struct IndexedState(pub(crate) AppState);

impl FromRequestParts<AppState> for IndexedState {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let Ok(caller) = Caller::from_request_parts(parts, state).await;
        let query = parts.uri.query().unwrap_or_default();
        let named = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "index").last();
        state.of_index(&caller, "index", named.as_ref().map(|(_, value)| value.as_ref())).map(IndexedState)
    }
}

/// Same as [`IndexedState`], for routes without other query parameters. Refuses other parameters by name.
#[derive(Debug)]
pub(crate) struct IndexOnly(pub(crate) AppState);

impl FromRequestParts<AppState> for IndexOnly {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default();
        // A misspelled `index` would otherwise change the default index.
        if let Some((name, _)) = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name != "index") {
            return Err(ApiError::unknown(&name));
        }
        let IndexedState(state) = IndexedState::from_request_parts(parts, state).await?;
        Ok(IndexOnly(state))
    }
}
