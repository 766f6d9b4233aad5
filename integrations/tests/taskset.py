"""Taskset of verifiers for the test of its harness."""

import verifiers.v1 as vf
from servers import MONA_LISA

__all__ = ["Questions"]


class QuestionData(vf.TaskData):
    """Question with its accepted answers."""

    answer: list[str] = []


class Question(vf.Task[QuestionData]):
    """Task without rewards of its own."""


class Questions(vf.Taskset[Question, vf.TasksetConfig]):
    """One question."""

    def load(self):
        yield Question(QuestionData(prompt=MONA_LISA["question"], answer=MONA_LISA["answers"]))
