"""Asynchronous client of `/v1/agent` and `/v1/rollouts`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self, cast

import httpx2

from .events import Event
from .rollouts import Question, RolloutBatch, Trajectory

# Maximum number of reconnections of a resumable stream that bring no event.
RECONNECTIONS = 5

# Maximum number of seconds to wait because the server asks for it. By default a stream waits 30 s for its client.
LONGEST_WAIT = 25.0


class WaymarkError(Exception):
    """Error that the server returned, in OpenAI's form. `retry_after` is its `Retry-After` in seconds, or 0."""

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = 0.0


class Client:
    """Client of a server. `api_key` defaults to the variable `WAYMARK_API_KEY`.

    >>> async with Client("http://127.0.0.1:8080") as client:
    ...     async for event in client.ask("Who painted the Mona Lisa?"):
    ...         if event["type"] == "answer":
    ...             print(event["text"], end="")
    """

    def __init__(self, url: str = "http://127.0.0.1:8080", api_key: str | None = None, timeout: float = 300.0) -> None:
        key = api_key or os.environ.get("WAYMARK_API_KEY")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx2.AsyncClient(base_url=url, headers=headers, timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def ask(self, question: str, *, resumable: bool = False, **options: Any) -> AsyncIterator[Event]:
        """Yields the events of an episode. `options` are fields of `/v1/agent`, such as `model`, `history` or `rag`.

        With `resumable`, a lost or early ended stream is resumed, and no event is missed or repeated.
        """
        body = {"question": question, "stream": True, "resumable": resumable, **options}
        number, episode, attempts = 0, None, 0
        while True:
            send = (
                self._http.stream("POST", "/v1/agent", json=body)
                if episode is None
                else self._http.stream("GET", f"/v1/agent/{episode}", headers={"last-event-id": str(number)})
            )
            lost: Exception
            wait = 0.0
            try:
                async for name, told, data in _messages(send):
                    number, attempts = told or number, 0
                    event = _event(name, data)
                    if event["type"] == "started":
                        episode = event["id"]
                    yield event
                    if event["type"] in ("finished", "failed"):
                        return
                lost = WaymarkError(200, "the stream ended before the episode did")
            except httpx2.TransportError as error:
                lost = error
            except WaymarkError as error:
                # The key has too many requests, or a proxy answers while the server restarts or hangs.
                if error.status not in (429, 502, 503, 504):
                    raise
                lost = error
                wait = min(error.retry_after, LONGEST_WAIT)
            attempts += 1
            if not resumable or episode is None or attempts > RECONNECTIONS:
                raise lost
            # A server that restarts needs seconds, not milliseconds.
            await asyncio.sleep(max(wait, min(0.2 * 2**attempts, 5)))

    async def rollouts(self, questions: Sequence[Question], **options: Any) -> RolloutBatch:
        """Plays questions and returns all trajectories. `options` are fields of `/v1/rollouts`, such as `n`."""
        response = await self._http.post("/v1/rollouts", json={"questions": list(questions), **options})
        await _check(response)
        return cast(RolloutBatch, response.json())

    async def stream_rollouts(self, questions: Sequence[Question], **options: Any) -> AsyncIterator[Trajectory]:
        """Yields trajectories as they end. An episode that fails raises a `WaymarkError`, and so does a stream that is cut
        off."""
        body = {"questions": list(questions), "stream": True, **options}
        finished = False
        async for name, _, data in _messages(self._http.stream("POST", "/v1/rollouts", json=body)):
            if name in ("failure", "error"):
                raise _error(200, data)
            finished = finished or name == "finished"
            if name == "trajectory":
                yield cast(Trajectory, data)
        if not finished:
            raise WaymarkError(200, "the stream ended before the batch did")


async def _messages(send: Any) -> AsyncIterator[tuple[str, int | None, dict[str, Any]]]:
    """Yields the name, the number and the data of each event of a stream."""
    async with send as response:
        await _check(response)
        name, number, data = "message", None, []
        async for line in _lines(response):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if line and field == "event":
                name = value
            elif line and field == "id":
                number = int(value)
            elif line and field == "data":
                data.append(value)
            elif not line and data:
                if data != ["[DONE]"]:
                    yield name, number, json.loads("\n".join(data))
                name, number, data = "message", None, []


async def _lines(response: httpx2.Response) -> AsyncIterator[str]:
    """Yields the lines of a stream. Only line feeds end them: `aiter_lines` also cuts at U+2028, U+2029 and U+0085, which
    stand in passages from the web, and which JSON does not escape."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode()
    if rest:
        yield rest.decode()


async def _check(response: httpx2.Response) -> None:
    if response.is_success:
        return
    await response.aread()
    try:
        error = _error(response.status_code, response.json())
    except json.JSONDecodeError:
        error = WaymarkError(response.status_code, response.text)
    # A proxy may send a date, which is ignored.
    after = response.headers.get("retry-after", "")
    error.retry_after = float(after) if after.isdecimal() else 0.0
    raise error


def _error(status: int, body: Any) -> WaymarkError:
    error = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        # A proxy's error need not have OpenAI's form.
        return WaymarkError(status, str(error))
    return WaymarkError(status, error.get("message", str(body)), error.get("code"), error.get("param"))


def _event(name: str, data: dict[str, Any]) -> Event:
    if name == "error":
        raise _error(200, data)
    return cast(Event, data)
