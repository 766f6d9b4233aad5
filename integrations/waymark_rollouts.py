"""Client of `POST /v1/rollouts`, shared by the adapters beside this file. Needs the standard library alone.

    client = Client("http://localhost:8080")
    batch = client.play([{"question": "Who wrote Faust?", "answers": ["Goethe"]}], n=8, reward="exact_match")

Batches are streamed: `play` returns when all trajectories have ended, `stream` yields each as it ends, and
`play_async` can be canceled. Closing the connection cancels the episodes on the server.
"""

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import socket
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

URL = "WAYMARK_URL"
# Limits of a request.
MOST_QUESTIONS = 1024
MOST_SAMPLES = 64
MOST_TRAJECTORIES = 4096
# Each waits for one stream. Trainers start a coroutine per trajectory.
THREADS = ThreadPoolExecutor(max_workers=256, thread_name_prefix="waymark")


class RolloutError(RuntimeError):
    """Error of a request. `status` and `code` are the server's, if it answered."""

    def __init__(self, message, status=None, code=None):
        super().__init__(message)
        self.status = status
        self.code = code


class Canceled(RolloutError):
    """Error of a request that was canceled from this side."""


@dataclass
class Batch:
    """Trajectories in the order of the questions. `generation` names the weights of the last request, if there were several."""

    id: str
    model: str
    generation: str
    trajectories: list[dict]


class Cancel:
    """Switch that ends a request from another thread."""

    def __init__(self):
        self._lock = threading.Lock()
        self._socket = None
        self.set = False

    def attach(self, connection):
        """Takes a connection that is open. Its socket is kept, because the connection forgets it when the reply begins."""
        with self._lock:
            self._socket = connection.sock
            if self.set:
                raise Canceled("the request was canceled before it was sent")

    def __call__(self):
        """Closes the connection, which wakes the thread that reads from it."""
        with self._lock:
            self.set = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)


class Client:
    """Client of a server.

    `url` defaults to the variable WAYMARK_URL; the key is in the variable that `key_variable` names, if the server has
    keys. `silence` bounds the time without a byte (the server sends a comment every 15 s), `patience` the time for which
    a busy server is asked again.
    """

    def __init__(self, url=None, key_variable="WAYMARK_API_KEY", silence=60.0, connect=10.0, patience=300.0):
        self.url = (url or os.environ.get(URL, "http://127.0.0.1:8080")).rstrip("/")
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not the address of a server: {self.url!r}; expected http://HOST:PORT")
        self.key_variable = key_variable
        self.silence = silence
        self.connect = connect
        self.patience = patience

    def headers(self):
        """Returns the headers of a request."""
        key = os.environ.get(self.key_variable)
        return {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}

    @contextlib.contextmanager
    def _open(self, method, path, body, cancel):
        """Sends a request, and yields the response if its status is 200."""
        parts = urllib.parse.urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname, parts.port, timeout=self.connect)
        try:
            try:
                connection.connect()
            except OSError as error:
                raise RolloutError(f"no connection to {self.url}: {error}") from error
            cancel.attach(connection)
            connection.sock.settimeout(self.silence)
            connection.request(method, parts.path + path, None if body is None else json.dumps(body), self.headers())
            response = connection.getresponse()
            if response.status != 200:
                raise _refusal(f"{method} {self.url}{path}", response)
            yield response
        except (OSError, http.client.HTTPException) as error:
            if cancel.set:
                raise Canceled(f"{method} {path} was canceled") from error
            what = f"nothing came for {self.silence:g} s" if isinstance(error, TimeoutError) else repr(error)
            raise RolloutError(f"{method} {self.url}{path} broke off: {what}") from error
        finally:
            connection.close()

    def call(self, method, path, body=None):
        """Returns the JSON that a route answers with."""
        with self._open(method, path, body, Cancel()) as response:
            return json.loads(response.read())

    async def text(self, model, ids):
        """Returns the text of token IDs."""
        body = {"model": model, "tokens": ids}
        answer = await asyncio.get_running_loop().run_in_executor(THREADS, lambda: self.call("POST", "/detokenize", body))
        return answer["prompt"]

    def stream(self, questions, cancel=None, **options):
        """Yields `("trajectory" | "failure" | "finished", data)` as they come. `options` are fields of the request."""
        cancel = cancel or Cancel()
        body = {"questions": questions, "stream": True, **options}
        until = time.monotonic() + self.patience
        while True:
            try:
                with self._open("POST", "/v1/rollouts", body, cancel) as response:
                    yield from _events(response, cancel)
                return
            except RolloutError as error:
                # A refusal comes before the first trajectory, so that nothing is played twice.
                if error.status not in (429, 503) or time.monotonic() > until or cancel.set:
                    raise
                time.sleep(1)

    def play(self, questions, cancel=None, **options):
        """Plays questions. Fails if one of the episodes fails."""
        trajectories = []
        end = None
        with contextlib.closing(self.stream(questions, cancel, **options)) as events:
            for event, data in events:
                if event == "failure":
                    where = f"question {data['question']}, sample {data['sample']}"
                    raise RolloutError(f"an episode failed ({where}): {data['code']}: {data['message']}", code=data["code"])
                if event == "finished":
                    end = data
                else:
                    trajectories.append(data)
        trajectories.sort(key=lambda one: (one["question"], one["sample"]))
        return Batch(end["id"], end["model"], end["generation"], trajectories)

    def play_each(self, questions, cancel=None, **options):
        """Plays each question as often as it stands in the list, in as few requests as the server's limits allow."""
        if not questions:
            raise ValueError("there are no questions to play")
        groups = [(question, len(list(same))) for question, same in itertools.groupby(questions)]
        size = groups[0][1]
        if size > MOST_SAMPLES or any(count != size for _, count in groups):
            size = 1
            groups = [(question, 1) for question in questions]
        part = min(MOST_QUESTIONS, MOST_TRAJECTORIES // size)
        batches = [
            self.play([question for question, _ in groups[start : start + part]], cancel, n=size, **options)
            for start in range(0, len(groups), part)
        ]
        last = batches[-1]
        return Batch(last.id, last.model, last.generation, [one for batch in batches for one in batch.trajectories])

    async def play_async(self, questions, **options):
        """Does the same as `play_each` in a thread. Canceling the task cancels the episodes."""
        cancel = Cancel()
        playing = asyncio.get_running_loop().run_in_executor(THREADS, lambda: self.play_each(questions, cancel, **options))
        try:
            return await asyncio.shield(playing)
        except asyncio.CancelledError:
            cancel()
            playing.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise


def _refusal(what, response):
    text = response.read(4096).decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        code, message = error.get("code"), error.get("message")
    except (ValueError, KeyError, TypeError, AttributeError):
        code, message = None, text
    return RolloutError(f"{what}: {response.status} {code or response.reason}: {message}", response.status, code)


def _events(response, cancel):
    """Yields the events of a stream, whose last must be `finished`."""
    event = ""
    for raw in response:
        line = raw.decode().rstrip("\r\n")
        field, _, value = line.partition(": ")
        if field == "event":
            event = value
        elif field == "data":
            data = json.loads(value)
            if event == "error":
                raise RolloutError(f"the batch failed: {data['error']['code']}: {data['error']['message']}")
            yield event, data
            if event == "finished":
                return
    if cancel.set:
        raise Canceled("POST /v1/rollouts was canceled")
    raise RolloutError("the stream of /v1/rollouts ended before its event `finished`")


def logprobs(trajectory):
    """Returns the log-probabilities, with 0 for tokens that were not sampled: their mask is 0."""
    return [value or 0.0 for value in trajectory["response_logprobs"]]


def question_text(prompt):
    """Returns the question of a prompt: a text, or the last message of the user in a conversation."""
    if isinstance(prompt, str):
        return prompt
    said = [message["content"] for message in prompt if message["role"] == "user"]
    if not said or not isinstance(said[-1], str):
        raise ValueError(f"no text of a user in the prompt {prompt!r}")
    return said[-1]


def accepted_answers(truth):
    """Returns the accepted answers of a data set's field: one, several, or `{"target": …}` as in Search-R1's data."""
    if isinstance(truth, dict):
        truth = truth.get("target", truth.get("ground_truth"))
        return accepted_answers(truth)
    if truth is None:
        return []
    # Rows of parquet files hold arrays.
    return [truth] if isinstance(truth, str) else [str(answer) for answer in truth]


def check_temperature(temperature):
    """Refuses temperatures whose log-probabilities a trainer would compute differently."""
    if temperature not in (0, 1):
        raise ValueError(
            f"temperature {temperature}: /v1/rollouts returns log-probabilities at temperature 1; sample with 1, or with 0 "
            "for validation"
        )
