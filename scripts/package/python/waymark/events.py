"""Events of an episode, by their `type`. A server of a later version may send fields and types that are not listed."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class Usage(TypedDict):
    """Counts of tokens and searches."""

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    environment_tokens: int
    cached_tokens: int
    searches: int
    search_ms: float


class Citation(TypedDict):
    """Passage that supports a part of the answer, from the character `start` to the character before `end`."""

    start: int
    end: int
    passage: str
    title: str
    stated: bool


class Passage(TypedDict):
    """Passage of the index."""

    id: str
    title: str
    text: str


class Hit(TypedDict):
    """Passage that a search found, and how."""

    rank: int
    score: float
    passage: Passage
    metadata: NotRequired[dict[str, Any]]
    path: dict[str, Any]


class Token(TypedDict):
    """Token of a delta with its log-probability, which a forced token lacks."""

    id: int
    text: str
    bytes: list[int]
    logprob: float | None
    top: list[dict[str, Any]]


class Started(TypedDict):
    type: Literal["started"]
    id: str
    model: str
    protocol: str
    question: str
    prompt_tokens: int


class TurnStarted(TypedDict):
    type: Literal["turn_started"]
    turn: int


class Think(TypedDict):
    """Delta of the reasoning."""

    type: Literal["think"]
    turn: int
    text: str
    tokens: NotRequired[list[Token]]


class Query(TypedDict):
    """Delta of a query, as the policy writes it."""

    type: Literal["query"]
    turn: int
    text: str
    tokens: NotRequired[list[Token]]


class Answer(TypedDict):
    """Delta of the answer."""

    type: Literal["answer"]
    text: str
    tokens: NotRequired[list[Token]]


class Refusal(TypedDict):
    """Text in which the policy explains that it gives no answer."""

    type: Literal["refusal"]
    text: str


class ToolCall(TypedDict):
    """Call of a client's tool."""

    type: Literal["tool_call"]
    turn: int
    name: str
    arguments: str


class Text(TypedDict):
    """Delta of text outside every known tag."""

    type: Literal["text"]
    turn: int
    text: str
    tokens: NotRequired[list[Token]]


class SearchStarted(TypedDict):
    type: Literal["search_started"]
    turn: int
    query: str
    entities: NotRequired[list[str]]
    mode: str
    k: int


class SearchFinished(TypedDict):
    type: Literal["search_finished"]
    turn: int
    query: str
    mode: str
    hits: list[Hit]
    triples: NotRequired[list[dict[str, Any]]]
    snapshot: int | None
    cached: bool
    milliseconds: float
    neutralised: int
    error: NotRequired[str]
    cut: NotRequired[dict[str, int]]


class Withdrawn(TypedDict):
    """The policy withdrew one of its searches."""

    type: Literal["withdrawn"]
    turn: int
    search: int
    query: str
    removed: NotRequired[int]


class Observation(TypedDict):
    """Text that the environment added to the context."""

    type: Literal["observation"]
    turn: int
    text: str
    tokens: int
    truncated: bool


class Invalid(TypedDict):
    """The turn has no action that the protocol knows."""

    type: Literal["invalid"]
    turn: int
    message: str


class Resumed(TypedDict):
    """A generation went on after a failure. No token is repeated."""

    type: Literal["resumed"]
    turn: int
    tokens: int
    reason: str


class Budget(TypedDict):
    """A limit was reached."""

    type: Literal["budget"]
    kind: str


class Finished(TypedDict):
    type: Literal["finished"]
    reason: str
    answer: str | None
    usage: Usage
    turns: int
    searches: int
    citations: list[Citation]


class Failed(TypedDict):
    """An error ended the episode."""

    type: Literal["failed"]
    message: str
    code: str


Event = (
    Started
    | TurnStarted
    | Think
    | Query
    | Answer
    | Refusal
    | ToolCall
    | Text
    | SearchStarted
    | SearchFinished
    | Withdrawn
    | Observation
    | Invalid
    | Resumed
    | Budget
    | Finished
    | Failed
)
