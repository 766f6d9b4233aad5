"""LiteLLM."""

import os
from typing import Literal

# Prices are not fetched from anywhere.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from pydantic import BaseModel, Field
from suite import BASE, CITY, EMBEDDER, FOLLOW_UP, KEY, PLAIN, QUESTION, SEARCHING, WEATHER, feature, run


class City(BaseModel):
    name: str = Field(max_length=40)
    country: Literal["Italy", "France"]


def options(name):
    return {"model": f"openai/{name}", "api_base": BASE, "api_key": KEY, "num_retries": 0}


ask = [{"role": "user", "content": QUESTION}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Paris"]}}, "required": ["city"]},
    },
}


@feature("chat")
def chat():
    whole = litellm.completion(**options(SEARCHING), messages=ask)
    assert whole.choices[0].message.content and whole.usage.total_tokens > 0, whole
    hosted = {**options(SEARCHING), "model": f"hosted_vllm/{SEARCHING}"}
    assert litellm.completion(**hosted, messages=ask).choices[0].message.content


@feature("stream")
def stream():
    chunks = list(litellm.completion(**options(SEARCHING), messages=ask, stream=True))
    whole = litellm.stream_chunk_builder(chunks, messages=ask)
    assert whole.choices[0].message.content and whole.choices[0].finish_reason == "stop", whole


@feature("tools")
def tools():
    messages = [{"role": "user", "content": WEATHER}]
    for name in PLAIN, SEARCHING:
        asked = {**options(name), "tools": [TOOL], "max_tokens": 600}
        called = litellm.completion(messages=messages, tool_choice="required", **asked).choices[0].message
        call = called.tool_calls[0]
        assert call.function.name == "get_weather", called
        result = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": "Sunny"}
        answer = litellm.completion(messages=[*messages, called, result], **asked).choices[0].message
        assert answer.content or answer.tool_calls, answer


@feature("structured output")
def structured():
    for name in PLAIN, SEARCHING:
        made = litellm.completion(**options(name), messages=[{"role": "user", "content": CITY}], response_format=City)
        City.model_validate_json(made.choices[0].message.content)


@feature("file search")
def search():
    tool = {"type": "file_search", "vector_store_ids": ["default"]}
    made = litellm.responses(**options(SEARCHING), input=QUESTION, tools=[tool], include=["file_search_call.results"])
    kinds = [item["type"] if isinstance(item, dict) else item.type for item in made.output]
    assert "file_search_call" in kinds, kinds


@feature("responses")
def responses():
    text, kinds = "", []
    for event in litellm.responses(**options(SEARCHING), input=QUESTION, stream=True):
        kinds.append(getattr(event.type, "value", event.type))
        text += event.delta if kinds[-1] == "response.output_text.delta" else ""
    assert text and kinds[-1] == "response.completed", kinds


@feature("multi-turn")
def turns():
    first = litellm.completion(**options(SEARCHING), messages=ask).choices[0].message
    follow = [*ask, first, {"role": "user", "content": FOLLOW_UP}]
    assert litellm.completion(**options(SEARCHING), messages=follow).choices[0].message.content
    one = litellm.responses(**options(SEARCHING), input=QUESTION)
    assert litellm.responses(**options(SEARCHING), input=FOLLOW_UP, previous_response_id=one.id).output


@feature("embeddings")
def embeddings():
    made = litellm.embedding(model=f"openai/{EMBEDDER}", api_base=BASE, api_key=KEY, input=["Rome", "Paris"])
    assert [len(one["embedding"]) for one in made.data] == [384, 384], made


run()
