"""Log-probabilities of the same texts on two servers, for `serve_check.py`.

The texts are episodes of the first server. They are teacher-forced: each server gives the log-probability of every token
after the tokens before it, so that one different token does not change all later ones.
"""

import collections
import json
import math
import time

# Most probable tokens that are compared at each position.
LISTED = 20
# Texts to score, and tokens of a longer one that are read: a CPU scores some hundred tokens per second.
TEXTS = 8
TOKENS = 768


def quantile(values, share):
    """The value below which a share of the values lies; 0 without values."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def texts(server, episodes):
    """Token IDs of episodes, the shortest first, with the origin of each token."""
    found = []
    for episode in episodes:
        tokens = json.loads(server.get(f"/v1/traces/{episode}"))["tokens"]
        origins = [run["origin"] for run in tokens["runs"] for _ in range(run["tokens"])]
        found.append(dict(episode=episode, ids=tokens["ids"][:TOKENS], origins=origins[:TOKENS]))
    return sorted(found, key=lambda text: len(text["ids"]))[:TEXTS]


def score(server, model, taken, until):
    """Scores one text after the other; none begins after `until`, so that there may be fewer results than texts."""
    scored = []
    for text in taken:
        if scored and time.monotonic() >= until:
            break
        sampling = dict(max_tokens=1, temperature=0, prompt_logprobs=LISTED)
        reply = server.post("/inference/v1/generate", dict(model=model, token_ids=text["ids"], sampling_params=sampling))
        scored.append([listed(entry) for entry in reply["prompt_logprobs"]])
    return scored


def listed(entry):
    """Log-probabilities of one position by token ID; None at the first token, which nothing precedes."""
    return entry and {int(token): value["logprob"] for token, value in entry.items()}


def divergence(ours, theirs):
    """KL divergence in nats over the tokens that both list, with all others as one token: a lower bound."""
    both = [(math.exp(ours[token]), math.exp(theirs[token])) for token in ours if token in theirs]
    rest = [max(1 - sum(pair[side] for pair in both), 1e-9) for side in (0, 1)]
    return max(sum(p * math.log(p / q) for p, q in [*both, tuple(rest)] if p > 0 and q > 0), 0.0)


def compare(taken, ours, theirs):
    """Differences over all positions, apart for the tokens that the policy wrote and for those that it read."""
    positions = collections.defaultdict(list)
    for text, one, other in zip(taken, ours, theirs):
        for at in range(1, len(text["ids"])):
            if one[at] and other[at]:
                who = "written" if text["origins"][at] == "policy" else "read"
                positions[who].append((text["ids"][at], one[at], other[at]))
    return {who: summary(positions[who]) for who in ("written", "read") if positions[who]}


def summary(positions):
    """Differences over positions, each a token and the log-probabilities of both servers there, in nats."""
    gaps = [abs(one[token] - other[token]) for token, one, other in positions]
    divergences = [divergence(one, other) for _, one, other in positions]
    changed = [margin(one, other) for _, one, other in positions if best(one) != best(other)]
    count = len(positions)
    return dict(
        tokens=count, gap_mean=sum(gaps) / count, gap_p99=quantile(gaps, 0.99), gap_max=max(gaps),
        divergence_mean=sum(divergences) / count, divergence_p99=quantile(divergences, 0.99), divergence_max=max(divergences),
        same_best=count - len(changed), margin_max=max(changed, default=0.0),
        loss=[-sum(position[side][position[0]] for position in positions) / count for side in (1, 2)],
    )


def best(entry):
    return max(entry, key=entry.get)


def margin(one, other):
    """Lead of the first server's best token over the second's, by the first server."""
    return one[best(one)] - one.get(best(other), min(one.values()))


def lines(pair, compared):
    """The comparison as a table."""
    for who, found in compared.items():
        yield (
            f"  {pair}, tokens {who}: {found['tokens']}, difference mean {found['gap_mean']:.5f}, p99 {found['gap_p99']:.4f}, "
            f"max {found['gap_max']:.4f} nats; KL mean {found['divergence_mean']:.6f}; best token the same at "
            f"{100 * found['same_best'] / found['tokens']:.2f} %, elsewhere at most {found['margin_max']:.3f} nats apart"
        )
