"""Questions and trajectories of `/v1/rollouts`."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class Question(TypedDict):
    """Question to play, with what its scores and rewards need."""

    question: str
    id: NotRequired[str]
    prompt_ids: NotRequired[list[int]]
    answers: NotRequired[list[str]]
    supporting: NotRequired[list[str]]
    support: NotRequired[list[str]]
    without: NotRequired[list[str]]


class Trajectory(TypedDict):
    """Trajectory of a question. The lists that begin with `response` have the same length."""

    question: int
    question_id: NotRequired[str]
    sample: int
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float | None]
    reward: float | None
    reward_parts: dict[str, float]
    answer: str | None
    stop_reason: str
    num_turns: int
    metrics: dict[str, Any]


class Failure(TypedDict):
    """Episode that failed."""

    question: int
    sample: int
    code: str
    message: str


class RolloutBatch(TypedDict):
    """Trajectories of a request, in the order of the questions."""

    id: str
    object: str
    created: int
    model: str
    generation: str
    trajectories: list[Trajectory]
    failures: list[Failure]
