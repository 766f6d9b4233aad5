"""Tests of the client with a stub in place of httpx2.

    python3 scripts/package/python/client_test.py
"""

import asyncio
import json
import sys
import types
import unittest
from unittest import mock

if sys.version_info < (3, 11):
    print("skipped: the client needs Python 3.11")
    sys.exit()


class Response:
    """A stream of events that succeeds."""

    status_code, is_success = 200, True

    def __init__(self, body):
        self.body = body

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return None

    async def aiter_bytes(self):
        yield self.body


class Refusal(Response):
    """A reply of a server that has too many requests for the next 7 seconds."""

    status_code, is_success = 429, False
    headers = {"retry-after": "7"}

    async def aread(self):
        return self.body

    def json(self):
        return json.loads(self.body)


class AsyncClient:
    """Answers with the prepared `responses`, and then every request with `body`."""

    body = b""
    responses = []

    def __init__(self, **settings):
        self.settings = settings

    def stream(self, method, path, json=None, headers=None):
        return AsyncClient.responses.pop(0) if AsyncClient.responses else Response(AsyncClient.body)

    async def aclose(self):
        return None


stub = types.ModuleType("httpx2")
stub.AsyncClient, stub.Response, stub.TransportError = AsyncClient, Response, OSError
sys.modules["httpx2"] = stub

from waymark import Client, WaymarkError  # noqa: E402

TRAJECTORY = ("trajectory", {"question": 0, "sample": 0})
END = ("finished", {"id": "rollout-1", "model": "m", "generation": "fp_1", "trajectories": 1, "failures": 0})


def played(*events):
    """Returns the trajectories of a streamed batch with these events."""
    AsyncClient.body = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events).encode()

    async def play():
        async with Client() as client:
            return [trajectory async for trajectory in client.stream_rollouts([{"question": "Who?"}])]

    return asyncio.run(play())


class Batches(unittest.TestCase):
    """Streamed batches of trajectories."""

    def test_a_batch_that_finishes_is_whole(self):
        self.assertEqual(played(TRAJECTORY, END), [TRAJECTORY[1]])
        self.assertEqual(played(END), [])

    def test_a_stream_that_is_cut_off_is_no_batch(self):
        for events in [(), (TRAJECTORY,)]:
            with self.assertRaisesRegex(WaymarkError, "ended before the batch did"):
                played(*events)

    def test_an_episode_that_fails_is_raised(self):
        failure = ("failure", {"question": 0, "sample": 1, "code": "overloaded", "message": "no room"})
        with self.assertRaisesRegex(WaymarkError, "no room"):
            played(TRAJECTORY, failure, END)


def frame(number, name, **data):
    """Returns an event of an episode, as it is sent."""
    return f"id: {number}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()


class Resumption(unittest.TestCase):
    """Streams of an episode whose connection is lost."""

    def test_a_server_that_has_too_many_requests_is_asked_again_when_it_has_time(self):
        refusal = Refusal(json.dumps({"error": {"message": "too many", "code": "rate_limit_exceeded"}}).encode())
        AsyncClient.responses = [Response(frame(1, "started", id="ep-1")), refusal, Response(frame(2, "finished"))]

        async def asked():
            async with Client() as client:
                return [event["type"] async for event in client.ask("Who?", resumable=True)]

        with mock.patch("asyncio.sleep") as sleep:
            self.assertEqual(asyncio.run(asked()), ["started", "finished"])
        self.assertEqual([call.args[0] for call in sleep.await_args_list], [0.4, 7.0])


if __name__ == "__main__":
    unittest.main()
