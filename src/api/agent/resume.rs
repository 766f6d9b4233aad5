//! `GET /v1/agent/{id}`: a stream that lost its connection, taken up again.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use tokio::time::Instant;

use super::stream::write;
use crate::agent::Event;
use crate::api::auth::Caller;
use crate::api::error::{ApiError, Code, ErrorBody};
use crate::api::follow::Events;
use crate::api::resume::{self, Reading};
use crate::api::sse::{self, Frame};
use crate::api::state::AppState;

/// Takes up a resumable stream: the events after the last one that was received, and the rest as they come.
///
/// `Last-Event-ID` says which one that was, as browsers' `EventSource` sends it by itself; `after` is for clients that
/// cannot set the header, and counts where the header is missing; without either all events come. A stream has one
/// reader: whoever comes takes it from the one before. While nobody reads, the episode goes on until the room for its
/// events is full (`--resume-bytes`), and then waits; after `--resume-seconds` it is cancelled.
#[utoipa::path(get, path = "/v1/agent/{id}", operation_id = "resumeAgent", tag = "inference",
    params(
        ("id" = String, Path, description = "the episode's id"),
        ("Last-Event-ID" = Option<u64>, Header, description = "the `id` of the last event that was received"),
        ("after" = Option<u64>, Query, description = "the same, where the header is not sent"),
    ),
    responses(
        (status = 200, description = "the rest of the events", body = Event, content_type = "text/event-stream"),
        (status = 204, description = "the episode is over and all of its events were received"),
        (status = 400, description = "the event was never sent", body = ErrorBody),
        (status = 404, description = "no such stream, or it was given up", body = ErrorBody),
        (status = 410, description = "some of the missed events are not held any more", body = ErrorBody),
    ))]
pub(in crate::api) async fn get(
    State(state): State<AppState>,
    caller: Caller,
    method: Method,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let absent = |message: String| ApiError::new(Code::NotFound, message).with_param("id");
    let Path(id) = id.map_err(|error| absent(error.body_text()))?;
    let (param, after) = after(&headers, query.as_deref().unwrap_or_default())?;
    let stream =
        state.streams.get(&id, &caller).ok_or_else(|| absent(format!("there is no stream `{id}` to take up")))?;
    if method == Method::HEAD {
        // To look takes it from nobody.
        return Ok(StatusCode::OK.into_response());
    }
    // Its episode's time, and some to take what is left.
    let taken = Instant::now() + state.config.connection.send;
    caller.lifetime.end_by(stream.end.map_or(taken, |end| end.max(taken)));
    // A number that nothing can be read from is the fault of where it stood.
    let reading = resume::read(stream, after).map_err(|error| match error.param {
        Some(_) => error.with_param(param),
        None => error,
    });
    match reading? {
        Some(reading) => Ok(rest(&state, reading)),
        None => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

/// The trace as it happens, by an episode that outlives the connection.
pub(super) fn respond(state: &AppState, caller: &Caller, id: &str, events: Events) -> Result<Response, ApiError> {
    let stream = resume::drive(&state.streams, caller, id, events, state.drain.clone(), write)?;
    let reading = resume::read(stream, 0)?;
    let ended = || ApiError::new(Code::Internal, "the episode ended without an event");
    let mut response = rest(state, reading.ok_or_else(ended)?);
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/agent/{id}")) {
        response.headers_mut().insert(header::CONTENT_LOCATION, location);
    }
    Ok(response)
}

/// What a reader of a resumable stream gets. A drain waits until it was sent.
fn rest(state: &AppState, reading: Reading) -> Response {
    let running = state.drain.enter();
    let frames = reading.frames().inspect(move |_| {
        let _ = &running;
    });
    sse::respond(frames, state.config.ping, state.drain.clone(), Frame::named_error)
}

/// The last event that a client has, and by which name it says so.
fn after(headers: &HeaderMap, query: &str) -> Result<(&'static str, u64), ApiError> {
    const HEADER: &str = "last-event-id";
    const QUERY: &str = "after";
    let number = |name: &'static str, text: &str| match text.trim().parse() {
        Ok(number) => Ok((name, number)),
        Err(_) => Err(ApiError::invalid(name, format!("`{name}` must be the `id` of an event"))),
    };
    let mut after = (QUERY, 0);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if name != QUERY {
            return Err(ApiError::unknown(&name));
        }
        after = number(QUERY, &value)?;
    }
    match headers.get(HEADER) {
        Some(sent) => number(HEADER, sent.to_str().unwrap_or_default()),
        None => Ok(after),
    }
}
