//! `GET /v1/responses/{id}`.

use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use super::event::ResponseEvent;
use super::object::ResponseObject;
use super::show::Show;
use super::store::FoundResponse;
use super::stream;
use crate::api::auth::Caller;
use crate::api::error::{ApiError, Code, ErrorBody};
use crate::api::pagination::is_include;
use crate::api::path_param::PathParam;
use crate::api::state::AppState;

/// Query parameters of the route.
#[derive(Debug, Default, PartialEq, Eq)]
struct RetrieveQuery {
    include: Vec<String>,
    stream: bool,
    starting_after: Option<u64>,
}

/// Returns a response that is stored or being generated in the background.
///
/// With `stream=true`, the stream of a background response is sent again, from its beginning or after the event number
/// `starting_after`, and continues while the response is generated.
#[utoipa::path(get, path = "/v1/responses/{id}", operation_id = "getResponse", tag = "inference",
    params(
        ("id" = String, Path, description = "ID of the response"),
        ("include" = Option<Vec<String>>, Query, description = "optional parts to return; log-probabilities and sealed reasoning only if requested at creation"),
        ("stream" = Option<bool>, Query, description = "if `true`, the response is a stream of server-sent events"),
        ("starting_after" = Option<u64>, Query, description = "number of the last event received"),
    ),
    responses(
        (status = 200, description = "the response", content(
            (ResponseObject = "application/json"),
            (ResponseEvent = "text/event-stream"),
        )),
        (status = 400, description = "the query is invalid", body = ErrorBody),
        (status = 404, description = "no such response", body = ErrorBody),
        (status = 503, description = "the server's state cannot be read", body = ErrorBody),
    ))]
pub(crate) async fn retrieve(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let asked = RetrieveQuery::read(query.as_deref().unwrap_or_default())?;
    let show = Show::read(&asked.include)?;
    let found = state.responses.get(&id, &caller).await?;
    // Tokens are recorded on request only, so they cannot be added later.
    if show.logprobs && !found.show().logprobs {
        let message =
            "`include`: this response was created without log-probabilities: request them when creating a response";
        return Err(ApiError::new(Code::UnsupportedParameter, message).with_param("include"));
    }
    // Reasoning is sealed while it is generated.
    if show.sealed && !found.show().sealed {
        let message =
            "`include`: this response was created without sealed reasoning: request it when creating a response";
        return Err(ApiError::new(Code::UnsupportedParameter, message).with_param("include"));
    }
    if !asked.stream {
        return Ok(match found {
            FoundResponse::Running(entry) => axum::Json(entry.shown(show)).into_response(),
            FoundResponse::Stored(stored) => axum::Json(stored.shown(show)).into_response(),
        });
    }
    // A client may send any number, also one beyond the last event.
    let from = asked.starting_after.map_or(0, |number| usize::try_from(number).unwrap_or(usize::MAX).saturating_add(1));
    let no_stream = |message: &str| ApiError::new(Code::UnsupportedParameter, message).with_param("stream");
    let unfit = || no_stream("`stream`: only background responses can be streamed again");
    match found {
        FoundResponse::Running(entry) => {
            let log = entry.log.clone().ok_or_else(unfit)?;
            // A follower may stay as long as the response takes, plus the time to send the last events.
            let until = entry.until.map_or_else(Instant::now, |until| until.max(Instant::now()));
            caller.lifetime.end_by(until + state.config.connection.send);
            Ok(stream::send(&state, entry.builder.clone(), log.follow(from)))
        }
        FoundResponse::Stored(mut stored) => {
            // All events are at hand, so only the time to send them counts.
            caller.lifetime.end_by(Instant::now() + state.config.connection.send);
            match stored.take_events() {
                Some(events) => Ok(stream::repeat(&state, &events, from)),
                None if stored.is_running_elsewhere() => {
                    Err(no_stream("`stream`: the events of this response are with the process that generates it"))
                }
                // A background response that has ended has events, unless its process stopped before.
                None if stored.is_background() => Err(no_stream(
                    "`stream`: the server stopped before this response was finished, and its events are lost: retrieve \
                     the response without `stream`",
                )),
                None => Err(unfit()),
            }
        }
    }
}

impl RetrieveQuery {
    /// Parses the query. `include` may be repeated, also in the notations `include[]` and `include[0]`.
    fn read(query: &str) -> Result<RetrieveQuery, ApiError> {
        let mut asked = RetrieveQuery::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let wrong = |what: &str| Err(ApiError::invalid(&name, format!("`{name}` must be {what}, not `{value}`")));
            let list = is_include(&name);
            match (name.as_ref(), value.as_ref()) {
                _ if list => asked.include.push(value.into_owned()),
                ("stream", "true") => asked.stream = true,
                ("stream" | "include_obfuscation", "false") => {}
                ("stream", _) => return wrong("true or false"),
                ("starting_after", number) => match number.parse() {
                    Ok(number) => asked.starting_after = Some(number),
                    Err(_) => return wrong("a whole number"),
                },
                ("include_obfuscation", _) => return Err(ApiError::unimplemented(&name)),
                (unknown, _) => return Err(ApiError::unknown(unknown)),
            }
        }
        if asked.starting_after.is_some() && !asked.stream {
            return Err(ApiError::invalid("starting_after", "`starting_after` needs `stream=true`"));
        }
        if asked.stream && !asked.include.is_empty() {
            let message = "`include`: the parts of a stream are fixed when its response is created";
            return Err(ApiError::new(Code::UnsupportedParameter, message).with_param("include"));
        }
        Ok(asked)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn queries_are_read_or_refused_by_name() {
        let all = "include=a&include[]=b&include%5B2%5D=c&stream=false&include_obfuscation=false";
        assert_eq!(RetrieveQuery::read(all).unwrap().include, ["a", "b", "c"]);
        let after = RetrieveQuery::read("stream=true&starting_after=7").unwrap();
        assert_eq!((after.stream, after.starting_after), (true, Some(7)));
        for (query, code, param) in [
            ("color=1", Code::UnknownParameter, "color"),
            ("stream=1", Code::InvalidValue, "stream"),
            ("stream=true&starting_after=-1", Code::InvalidValue, "starting_after"),
            ("starting_after=1", Code::InvalidValue, "starting_after"),
            ("include_obfuscation=true", Code::UnsupportedParameter, "include_obfuscation"),
            ("stream=true&include=a", Code::UnsupportedParameter, "include"),
        ] {
            let error = RetrieveQuery::read(query).unwrap_err();
            assert_eq!((error.code, error.param.as_deref()), (code, Some(param)), "{query}");
        }
    }
}
