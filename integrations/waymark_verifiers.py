"""Harness of verifiers over `POST /v1/rollouts`, which prime-rl trains with. Needs verifiers 0.4.

    [env.agent.harness]
    id = "waymark_verifiers"
    url = "http://waymark:8080"
    reward = "exact_match"

with this folder in PYTHONPATH, and `env.agent.runtime.type = "subprocess"`: nothing runs in it. The prompt of a task is
the question, its field `answer` (or the one that `answers` names) holds the accepted answers. The policy is the run's
model unless `policy` names another one.
"""

import itertools
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.types import AssistantMessage, Usage, UserMessage
from waymark_rollouts import Client, accepted_answers, check_temperature

__all__ = ["WaymarkHarness"]


class WaymarkHarnessConfig(vf.HarnessConfig):
    """Settings of the harness."""

    id: str = "waymark_verifiers"
    url: str | None = None
    """Address of the server. `None` takes the variable WAYMARK_URL."""
    policy: str | None = None
    """Name of the policy. `None` takes the model of the run."""
    answers: str = "answer"
    """Field of the task's data with the accepted answers."""
    reward: Any = "exact_match"
    """Reward function, as in the request. `None` leaves rewards to the task."""
    options: dict[str, Any] = {}
    """Further fields of the request."""


class WaymarkHarness(vf.Harness[WaymarkHarnessConfig]):
    """Harness whose turns and searches run in Waymark. It writes the tokens into the trace itself."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        config = self.config
        sampling = ctx.sampling.model_dump(include={"temperature", "top_p", "max_tokens"}, exclude_none=True)
        check_temperature(sampling.setdefault("temperature", 1))
        _, question = self.resolve_text_prompt(data)
        client = Client(config.url)
        asked = {"question": question, "answers": accepted_answers(getattr(data, config.answers, None))}
        options = {"model": config.policy or ctx.model, "reward": config.reward, **sampling, **config.options}
        batch = await client.play_async([asked], **{key: value for key, value in options.items() if value is not None})
        one = batch.trajectories[0]
        await record(trace, client, batch.model, question, one)
        if one["reward"] is not None:
            trace.record_reward("waymark", one["reward"])
        trace.record_metrics({key: float(value) for key, value in one["metrics"].items() if value is not None})
        trace.root_reply = one["answer"]
        trace.info["waymark"] = {"generation": batch.generation, "stop_reason": one["stop_reason"]}
        return vf.ProgramResult(exit_code=0, stdout=one["answer"] or "", stderr="")


async def record(trace, client, model, question, one):
    """Appends a trajectory to a trace: the prompt, and a message for each run of tokens with the same mask."""
    append(trace, UserMessage(content=question), one["prompt_ids"])
    rows = zip(one["response_ids"], one["response_mask"], one["response_logprobs"], strict=True)
    for sampled, run in itertools.groupby(rows, key=lambda row: row[1] == 1):
        ids, _, logprobs = map(list, zip(*run, strict=True))
        text = await client.text(model, ids)
        if not sampled:
            append(trace, UserMessage(content=text), ids)
            continue
        before = sum(len(node.token_ids) for node in trace.nodes)
        node = append(trace, AssistantMessage(content=text), ids, logprobs)
        usage = Usage(prompt_tokens=before, completion_tokens=len(ids))
        trace.calls.append(vf.ModelCall(node=node, model=model, endpoint="/v1/rollouts", finish_reason="stop", usage=usage))
    if trace.calls and one["stop_reason"] == "length":
        trace.calls[-1].finish_reason = "length"


def append(trace, message, ids, logprobs=()):
    """Appends a message and the tokens that it adds. Returns the index of its node."""
    sampled = bool(logprobs)
    node = vf.MessageNode(
        parent=len(trace.nodes) - 1 if trace.nodes else None,
        message=message,
        sampled=sampled,
        token_ids=ids,
        mask=[sampled] * len(ids),
        logprobs=list(logprobs),
    )
    trace.nodes.append(node)
    trace.notify()
    return len(trace.nodes) - 1
