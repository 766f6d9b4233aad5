"""Haystack: its generators, its agent and its embedders."""

from typing import Literal

from haystack.components.agents import Agent
from haystack.components.embedders import OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from pydantic import BaseModel, Field
from suite import BASE, CITY, EMBEDDER, FOLLOW_UP, KEY, PLAIN, QUESTION, SEARCHING, WEATHER, feature, run

TOKEN = Secret.from_token(KEY)


class City(BaseModel):
    name: str = Field(max_length=40)
    country: Literal["Italy", "France"]


def get_weather(city: Literal["Rome", "Paris"]) -> str:
    """Tells the weather of a city."""
    return f"{city}: sunny, 21 degrees"


TOOL = create_tool_from_function(get_weather)


def model(name, **options):
    return OpenAIChatGenerator(model=name, api_base_url=BASE, api_key=TOKEN, max_retries=0, **options)


ask = [ChatMessage.from_user(QUESTION)]


@feature("chat")
def chat():
    assert model(SEARCHING).run(ask)["replies"][0].text


@feature("stream")
def stream():
    pieces = []
    reply = model(SEARCHING, streaming_callback=lambda chunk: pieces.append(chunk.content)).run(ask)["replies"][0]
    assert reply.text and "".join(pieces) == reply.text, (pieces, reply)


@feature("tools")
def tools():
    for name in PLAIN, SEARCHING:
        chat = model(name, tools=[TOOL], generation_kwargs={"max_tokens": 600, "tool_choice": "required"})
        asked = [ChatMessage.from_user(WEATHER)]
        call = chat.run(asked)["replies"][0]
        assert call.tool_calls[0].tool_name == "get_weather", call
        result = ChatMessage.from_tool("Sunny", origin=call.tool_calls[0])
        chat = model(name, tools=[TOOL], tools_strict=True, generation_kwargs={"max_tokens": 600})
        assert chat.run([*asked, call, result])["replies"][0]
        agent = Agent(chat_generator=chat, tools=[TOOL], max_agent_steps=4)
        assert agent.run(asked)["messages"]


@feature("structured output")
def structured():
    for name in PLAIN, SEARCHING:
        chat = model(name, generation_kwargs={"response_format": City})
        City.model_validate_json(chat.run([ChatMessage.from_user(CITY)])["replies"][0].text)


@feature("responses")
def responses():
    from haystack.components.generators.chat import OpenAIResponsesChatGenerator

    chat = OpenAIResponsesChatGenerator(model=SEARCHING, api_base_url=BASE, api_key=TOKEN, max_retries=0)
    assert chat.run(ask)["replies"][0].text


@feature("multi-turn")
def turns():
    chat = model(SEARCHING)
    first = chat.run(ask)["replies"][0]
    assert chat.run([*ask, first, ChatMessage.from_user(FOLLOW_UP)])["replies"][0].text


@feature("embeddings")
def embeddings():
    made = OpenAITextEmbedder(model=EMBEDDER, api_base_url=BASE, api_key=TOKEN).run("Rome")
    assert len(made["embedding"]) == 384


run()
