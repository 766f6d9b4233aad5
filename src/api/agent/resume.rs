//! `GET /v1/agent/{id}`: resumes an event stream that lost its connection. `DELETE` cancels its episode.

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use tokio::time::Instant;
use waymark_agent::Event;

use super::stream::write;
use crate::api::auth::Caller;
use crate::api::error::{ApiError, Code, ErrorBody};
use crate::api::follow::Events;
use crate::api::path_param::PathParam;
use crate::api::resume::{self, StreamReader};
use crate::api::sse::{self, Frame};
use crate::api::state::AppState;

/// Resumes a stream: returns the events after the last one received, and then new ones as they happen.
///
/// The header `Last-Event-ID` names the last event received; browsers' `EventSource` sends it by itself. Clients that
/// cannot set the header send the query parameter `after` instead; the header takes precedence. Without either the
/// stream starts from its first event. A stream has one reader at a time: a new reader replaces the previous one. While
/// nobody reads, the episode continues until its event buffer is full (`--resume-bytes`) and then pauses; after
/// `--resume-seconds` without a reader it is canceled.
#[utoipa::path(get, path = "/v1/agent/{id}", operation_id = "resumeAgent", tag = "inference",
    params(
        ("id" = String, Path, description = "ID of the episode"),
        ("Last-Event-ID" = Option<u64>, Header, description = "`id` of the last event received"),
        ("after" = Option<u64>, Query, description = "same as `Last-Event-ID`, used if the header is absent"),
    ),
    responses(
        (status = 200, description = "the remaining events", body = Event, content_type = "text/event-stream"),
        (status = 204, description = "the episode is over and all its events were received"),
        (status = 400, description = "the event was never sent", body = ErrorBody),
        (status = 404, description = "no such stream, or it has expired", body = ErrorBody),
        (status = 410, description = "some of the missed events are no longer buffered", body = ErrorBody),
    ))]
pub(in crate::api) async fn get(
    State(state): State<AppState>,
    caller: Caller,
    method: Method,
    PathParam(id): PathParam<String>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let (param, after) = after(&headers, query.as_deref().unwrap_or_default())?;
    let stream =
        state.streams.get(&id, &caller).ok_or_else(|| absent(format!("there is no stream `{id}` to take up")))?;
    if method == Method::HEAD {
        // A HEAD request only looks; it must not replace the current reader.
        return Ok(StatusCode::OK.into_response());
    }
    // The connection may stay open as long as the episode runs, and at least the send timeout so that buffered events
    // go out.
    let taken = Instant::now() + state.config.connection.send;
    caller.lifetime.end_by(stream.end.map_or(taken, |end| end.max(taken)));
    // An unusable event number is an error of the header or of the query parameter, whichever held it.
    let reading = resume::read(stream, after).map_err(|error| match error.param {
        Some(_) => error.with_param(param),
        None => error,
    });
    match reading? {
        Some(reading) => Ok(rest(&state, reading)),
        None => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

/// Cancels the episode of a resumable stream, and forgets the stream.
///
/// A closed connection does not cancel such an episode, because its client may come back.
#[utoipa::path(delete, path = "/v1/agent/{id}", operation_id = "cancelAgent", tag = "inference",
    params(("id" = String, Path, description = "ID of the episode")),
    responses(
        (status = 204, description = "the episode is canceled, or was over already"),
        (status = 404, description = "no such stream, or it has expired", body = ErrorBody),
    ))]
pub(in crate::api) async fn cancel(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
) -> Result<StatusCode, ApiError> {
    let stream = state.streams.get(&id, &caller).ok_or_else(|| absent(format!("there is no stream `{id}`")))?;
    stream.give_up();
    Ok(StatusCode::NO_CONTENT)
}

fn absent(message: String) -> ApiError {
    ApiError::new(Code::NotFound, message).with_param("id")
}

/// Streams the trace of an episode that outlives its connection.
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

/// Builds the response that sends a reader its remaining events. A drain waits until the response was sent.
fn rest(state: &AppState, reading: StreamReader) -> Response {
    let running = state.drain.enter();
    let frames = reading.frames().inspect(move |_| {
        let _ = &running;
    });
    sse::respond(frames, state.config.ping, state.drain.clone(), Frame::named_error)
}

/// Returns the number of the last event that the client has, and the name of the header or parameter that holds it.
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
