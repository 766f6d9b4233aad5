"""Questions, the answers of a server, and the comparison of two servers' answers, for `serve_check.py`."""

import http.client
import json
import re
import string
import time

from serve_client import Failure

# A request or a step that ends with one of these has failed; the others go on.
FAULTS = (Failure, OSError, http.client.HTTPException, ValueError, KeyError, TypeError, IndexError)
# Questions that may turn from wrong to right or back on any two servers, however few were asked.
FLIPS = 2
# Phases whose questions have known answers and are asked of the first policy.
JUDGED = ("demo", "load")
# Events of a trace with text of the policy.
WRITTEN = ("think", "text", "query", "answer")


def load(path):
    """The questions of a file of JSON lines, each with `question` and `answers`."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return [dict(question=line["question"], answers=line["answers"], id=line.get("id", at)) for at, line in enumerate(lines)]


def normal(text):
    """A text in lower case without punctuation, articles and surplus spaces, as exact match compares it."""
    kept = "".join(character for character in (text or "").lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def exact(answer, accepted):
    return any(normal(answer) == normal(each) for each in accepted)


def ask(server, phase, model, index, item):
    """Asks a question. Returns a row; that of a failure has an error instead of an answer."""
    row = dict(phase=phase, model=model, id=item["id"], question=item["question"])
    began = time.monotonic()
    try:
        reply = server.post("/v1/agent", dict(model=model, question=item["question"], rag=dict(index=index)))
        usage = reply["usage"]
        row.update(
            answer=reply["answer"], end=reply["finish_reason"], episode=reply["id"], text=transcript(reply["trace"]),
            written=usage["completion_tokens"], read=usage["prompt_tokens"] + usage["environment_tokens"],
            searches=usage["searches"], correct=exact(reply["answer"], item.get("answers", [])),
        )
    except FAULTS as error:
        row["error"] = f"{type(error).__name__}: {error}"[:300]
    row["seconds"] = time.monotonic() - began
    return row


def transcript(trace):
    """All that the policy wrote, in one text."""
    wrote = [event for event in trace if event["type"] in WRITTEN]
    return "\n".join(f"{event['type']}: {event.get('text') or ''}" for event in wrote)


def answered(rows):
    """The rows with an answer. Fails if there is none, or if a question failed."""
    good = [row for row in rows if "error" not in row]
    if not good or len(good) < len(rows):
        why = next((row["error"] for row in rows if "error" in row), "no time")
        raise Failure(f"{len(rows) - len(good)} of {len(rows)} questions failed: {why}")
    return good


def compare(ours, theirs):
    """Counts of equal answers, equal texts and exact matches, by phase and policy, over questions that both answered."""
    key = lambda row: (row["phase"], row["model"], row["id"])
    one, other = ({key(row): row for row in rows if "error" not in row} for rows in (ours, theirs))
    groups = {}
    for both in (each for each in one if each in other):
        groups.setdefault(both[:2], []).append((one[both], other[both]))
    return [dict(phase=phase, model=model, **counts(pairs)) for (phase, model), pairs in groups.items()]


def counts(pairs):
    count = lambda test: sum(bool(test(one, other)) for one, other in pairs)
    return dict(
        questions=len(pairs), same_answer=count(lambda one, other: one["answer"] == other["answer"]),
        same_text=count(lambda one, other: one["text"] == other["text"]),
        correct=[sum(pair[side]["correct"] for pair in pairs) for side in (0, 1)],
        gained=count(lambda one, other: other["correct"] and not one["correct"]),
        lost=count(lambda one, other: one["correct"] and not other["correct"]),
    )


def faults(compared, main, percent):
    """Reasons why two servers do not agree: an answer to a question of the README, or exact match beyond the bound."""
    found = []
    for group in compared:
        if group["phase"] == "readme" and group["same_answer"] < group["questions"]:
            found.append(f"{group['questions'] - group['same_answer']} of {group['questions']} answers to the README's questions differ")
    judged = [group for group in compared if group["phase"] in JUDGED and group["model"] == main]
    asked, change = (sum(map(of, judged)) for of in (lambda group: group["questions"], lambda group: group["gained"] - group["lost"]))
    if abs(change) > max(FLIPS, percent * asked / 100):
        found.append(f"exact match changes by {change:+} of {asked} questions, the bound is {percent:g} %")
    return found


def lines(pair, compared):
    """The comparison as a table."""
    for group in compared:
        known = f", correct {group['correct'][0]} and {group['correct'][1]} (+{group['gained']} -{group['lost']})"
        yield (
            f"  {pair} {group['phase']:9} {group['model']:20} {group['questions']:4} questions: same answer {group['same_answer']}, "
            f"same whole text {group['same_text']}{known if group['phase'] != 'readme' else ''}"
        )
