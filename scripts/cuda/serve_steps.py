"""Steps of `serve_check.py`: each asks one server for something, and returns its results or fails."""

import concurrent.futures
import dataclasses
import functools
import json
import subprocess
import time

import serve_answers
import serve_scores
from serve_answers import FAULTS, answered
from serve_client import DRAIN_SECONDS, GRACE, Failure, Server, at_once
from serve_scores import quantile

README = (
    "Where was the composer of Don Giovanni born?", "Who painted the Mona Lisa?", "Where is the Mona Lisa shown?",
    "Which river flows past the Mona Lisa?",
)
DEMO_CLIENTS = 16
# Questions that each policy gets at once with the others, and questions with an answer in JSON.
EACH, IN_JSON = 3, 3
SCHEMA = dict(
    type="object", properties=dict(answer=dict(type="string", maxLength=60), certain=dict(type="boolean")),
    required=["answer", "certain"], additionalProperties=False,
)
# Questions of one client of a load, and at least of all its clients.
QUESTIONS, AT_LEAST = 5, 16
REPLAYS, LEAVING, DRAINED = 6, 8, 8
# Metrics that count faults.
FAULTY = (
    "waymark_step_failures_total", "waymark_invariant_violations_total", "waymark_search_failures_total",
    "waymark_turn_failures_total",
)


@dataclasses.dataclass
class Session:
    """One server with the questions to ask, and all rows of its answers."""

    server: Server
    models: list
    demo: list
    load: list
    clients: list
    # Texts to score: episodes of the first server that has any.
    taken: list
    rows: list = dataclasses.field(default_factory=list)
    scored: list = dataclasses.field(default_factory=list)

    @property
    def main(self):
        return self.models[0]

    def ask(self, phase, item, model=None, index="demo"):
        row = serve_answers.ask(self.server, phase, model or self.main, index, item)
        self.rows.append(row)
        return row

    def of(self, *phases):
        return [row for row in self.rows if row["phase"] in phases and "error" not in row]


def readme(session, until):
    """The README's questions, one after the other."""
    rows = [session.ask("readme", dict(id=f"readme-{at}", question=question)) for at, question in enumerate(README)]
    return dict(line="; ".join(str(row["answer"]) for row in answered(rows)))


def demo(session, until):
    """The demo's questions by 16 clients."""
    rows, seconds = at_once(functools.partial(session.ask, "demo"), session.demo, DEMO_CLIENTS, until)
    good = answered(rows)
    correct = sum(row["correct"] for row in good)
    return dict(line=f"{correct} of {len(good)} correct in {seconds:.1f} s")


def policies(session, until):
    """The same questions to all policies, all at once."""
    asked = [(item, model) for item in session.demo[:EACH] for model in session.models]
    rows, seconds = at_once(lambda pair: session.ask("policies", *pair), asked, len(asked), until)
    return dict(line=f"{len(answered(rows))} answers of {len(session.models)} policies in {seconds:.1f} s")


def schema(session, until):
    """Answers in JSON that a schema describes, of the first policy and of the model without one."""
    texts = []
    form = dict(type="json_schema", json_schema=dict(name="answer", schema=SCHEMA, strict=True))
    for model in (session.main, "plain"):
        for item in session.demo[:IN_JSON]:
            messages = [dict(role="user", content=item["question"])]
            body = dict(model=model, messages=messages, max_tokens=300, temperature=0, response_format=form)
            texts.append(session.server.post("/v1/chat/completions", body)["choices"][0]["message"]["content"] or "")
    wrong = [text for text in texts if not fits(text)]
    if wrong:
        raise Failure(f"{len(wrong)} of {len(texts)} answers do not fit the schema, such as {wrong[0][:200]!r}")
    return dict(texts=texts, line=f"{len(texts)} fit the schema, such as {' '.join(texts[0].split())}")


def fits(text):
    """Returns True for a text that is JSON of the schema."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    right = isinstance(value, dict) and set(value) == {"answer", "certain"}
    return right and isinstance(value["answer"], str) and isinstance(value["certain"], bool)


def scores(session, until):
    """Log-probabilities of the tokens of short episodes, the same ones for all servers."""
    if not session.taken:
        session.taken += serve_scores.texts(session.server, [row["episode"] for row in session.of("demo")])
    session.scored += serve_scores.score(session.server, session.main, session.taken, until)
    tokens = sum(len(scored) for scored in session.scored)
    return dict(line=f"{len(session.scored)} of {len(session.taken)} texts, {tokens} tokens")


def load(session, until):
    """Questions by more and more clients, and then those of the first ones again, all at once."""
    measured, at = [], 0
    for round_, clients in enumerate(session.clients):
        now = time.monotonic()
        end = now + (until - now) / (len(session.clients) + 1 - round_)
        count = max(QUESTIONS * clients, AT_LEAST)
        rest = session.load[at:at + count]
        items = rest if len(rest) == count else session.load[-count:]
        measured.append(loaded(session, items, clients, end))
        at += count
    alone = {row["id"]: row["text"] for row in session.of("load")[:AT_LEAST]}
    again = [item for item in session.load if item["id"] in alone]
    rows, _ = at_once(lambda item: session.ask("again", item, index="load"), again, len(again), until)
    same = sum(row["text"] == alone[row["id"]] for row in answered(rows))
    shown = "".join(map(rates, measured))
    return dict(measured=measured, again=len(rows), same=same, line=f"asked again at once: {same} of {len(rows)} texts the same{shown}")


def rates(one):
    """One number of clients as a line of the table."""
    return (
        f"\n    {one['clients']:3} clients: {one['questions']} questions, {one['correct']} correct, {one['written_per_s']:.1f} tokens/s, "
        f"{one['questions_per_s']:.2f} questions/s, median {one['median_s']:.3f} s, p95 {one['p95_s']:.3f} s, "
        f"step {one['step_ms']:.2f} ms of {one['rows']:.1f} rows, gap {one['gap_ms']:.2f} ms, search {one['search_ms']:.1f} ms"
    )


def loaded(session, items, clients, until):
    """Rates and latencies of one number of clients."""
    before = session.server.metrics()
    rows, seconds = at_once(lambda item: session.ask("load", item, index="load"), items, clients, until)
    change = session.server.metrics()
    change.subtract(before)
    good = answered(rows)
    mean = lambda name: change[f"waymark_{name}_sum"] / max(change[f"waymark_{name}_count"], 1)
    latencies = [row["seconds"] for row in good]
    return dict(
        clients=clients, questions=len(good), seconds=seconds, correct=sum(row["correct"] for row in good),
        questions_per_s=len(good) / seconds, written_per_s=sum(row["written"] for row in good) / seconds,
        read_per_s=sum(row["read"] for row in good) / seconds, median_s=quantile(latencies, 0.5), p95_s=quantile(latencies, 0.95),
        first_text_s=mean("first_text_seconds"), step_ms=1e3 * mean("step_seconds"), gap_ms=1e3 * mean("gap_seconds"),
        rows=mean("batch_rows"), search_ms=1e3 * mean("search_seconds"), cores=change["process_cpu_seconds_total"] / seconds,
    )


def features(session, until):
    """Forced replays, a stream, clients that leave, and the metrics of faults."""
    server = session.server
    picked = session.of("demo", "policies")[-REPLAYS:]
    with concurrent.futures.ThreadPoolExecutor(REPLAYS) as pool:
        replays = list(pool.map(lambda row: server.post(f"/v1/traces/{row['episode']}/replay", dict(mode="forced")), picked))
    equal = sum(replay["ids_equal"] for replay in replays)
    body = dict(model=session.main, messages=[dict(role="user", content=README[0])])
    whole = server.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]
    streamed = server.stream(body)
    for item in session.demo[:LEAVING]:
        server.leave(dict(model=session.main, question=item["question"], rag=dict(index="demo")))
    for _ in range(50):
        state = server.metrics()
        if not state["waymark_blocks_used"] and not state["waymark_sessions_running"]:
            break
        time.sleep(0.1)
    faulty = {name: state[name] for name in FAULTY if state[name]}
    reasons = [
        (equal < len(replays), f"{len(replays) - equal} of {len(replays)} forced replays have other token IDs"),
        (streamed != whole, f"the stream gave {streamed!r} instead of {whole!r}"),
        (state["waymark_blocks_used"], f"{state['waymark_blocks_used']:.0f} blocks are held although no client is left"),
        (faulty, f"metrics count faults: {faulty}"),
    ]
    if any(wrong for wrong, _ in reasons):
        raise Failure("; ".join(reason for wrong, reason in reasons if wrong))
    cancelled = state["waymark_episodes_total cancelled"]
    left = f"{cancelled:.0f} of {len(session.demo[:LEAVING])} clients that left were cancelled"
    return dict(replays=len(replays), cancelled=cancelled, line=f"{equal} replays and a stream equal, {left}, no block held")


def drain(session, until):
    """SIGTERM while questions run: they are answered, and the process ends with 0."""
    server, items = session.server, session.load[:DRAINED]
    with concurrent.futures.ThreadPoolExecutor(DRAINED) as pool:
        asked = [pool.submit(session.ask, "drain", item, index="load") for item in items]
        running = 0.0
        for _ in range(100):
            ended = sum(each.done() for each in asked)
            # The request for the metrics is one of those in flight.
            running = server.metrics()["waymark_http_in_flight"] - 1
            # A connection that the server has not accepted yet would be reset.
            if ended + running >= len(items):
                break
            time.sleep(0.01)
        server.process.terminate()
        began = time.monotonic()
        try:
            server.process.wait(DRAIN_SECONDS + GRACE)
        except subprocess.TimeoutExpired:
            raise Failure(f"the server did not end within {DRAIN_SECONDS + GRACE} s after SIGTERM") from None
        seconds, rows = time.monotonic() - began, [each.result() for each in asked]
    lost = [row["error"] for row in rows if "error" in row and "503" not in row["error"] and "refused" not in row["error"]]
    code = server.process.returncode
    if code or lost or running < 1:
        raise Failure(f"exit code {code}, {running:.0f} questions ran, {len(lost)} were lost: {lost[:1]}")
    good = len(session.of("drain"))
    return dict(line=f"{running:.0f} ran, {good} of {len(rows)} answered, exit code 0 after {seconds:.2f} s")


# Steps in the order of their value, each with its share of a server's time. The last one ends the server.
STEPS = {
    readme: 5, demo: 25, policies: 15, schema: 10, scores: 15, load: 25, features: 10, drain: 5,
}
