"""instructor, in its default mode and its modes for schemas."""

from typing import Literal

import instructor
import openai
from pydantic import BaseModel, Field
from suite import BASE, CITY, FOLLOW_UP, KEY, PLAIN, QUESTION, SEARCHING, feature, run


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=40)
    country: Literal["Italy", "France"]


class Painter(BaseModel):
    """A painter."""

    name: str = Field(max_length=40)


def client(**options):
    return instructor.from_openai(openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0), **options)


@feature("structured output")
def structured():
    for name in PLAIN, SEARCHING:
        for options in {}, {"mode": instructor.Mode.JSON_SCHEMA}:
            made = client(**options).chat.completions.create(
                model=name, response_model=City, max_retries=0, messages=[{"role": "user", "content": CITY}]
            )
            assert isinstance(made, City), (name, options, made)


@feature("stream")
def stream():
    parts = list(
        client().chat.completions.create_partial(
            model=PLAIN, response_model=City, messages=[{"role": "user", "content": CITY}]
        )
    )
    assert parts[-1].name is not None and parts[-1].country in ("Italy", "France"), parts


@feature("multi-turn")
def turns():
    messages = [{"role": "user", "content": QUESTION}]
    made, raw = client().chat.completions.create_with_completion(
        model=SEARCHING, response_model=Painter, max_retries=0, messages=messages
    )
    assert isinstance(made, Painter) and raw.usage.total_tokens > 0, made
    messages += [{"role": "assistant", "content": made.name}, {"role": "user", "content": FOLLOW_UP}]
    made = client().chat.completions.create(model=SEARCHING, response_model=City, max_retries=0, messages=messages)
    assert isinstance(made, City), made


run()
