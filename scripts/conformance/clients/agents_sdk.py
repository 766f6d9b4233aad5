"""OpenAI's Agents SDK, over responses (its default) and over chat."""

from typing import Literal

from agents import (
    Agent,
    FileSearchTool,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel, Field
from suite import BASE, CITY, FOLLOW_UP, KEY, PLAIN, QUESTION, SEARCHING, WEATHER, feature, run

set_tracing_disabled(True)


def client():
    return AsyncOpenAI(base_url=BASE, api_key=KEY, max_retries=0)


def responses_model(model):
    return OpenAIResponsesModel(model=model, openai_client=client())


def chat_model(model):
    return OpenAIChatCompletionsModel(model=model, openai_client=client())


KINDS = [responses_model, chat_model]
LIMITED = ModelSettings(max_tokens=600)
FORCED = ModelSettings(max_tokens=600, tool_choice="required")


class City(BaseModel):
    name: str = Field(max_length=40)
    country: Literal["Italy", "France"]


@function_tool
def get_weather(city: Literal["Rome", "Paris"]) -> str:
    """Tells the weather of a city."""
    return f"{city}: sunny, 21 degrees"


@feature("chat")
async def chat():
    agent = Agent(name="guide", instructions="Answer briefly.", model=chat_model(SEARCHING))
    assert (await Runner.run(agent, QUESTION)).final_output


@feature("stream")
async def stream():
    for kind in KINDS:
        result = Runner.run_streamed(Agent(name="guide", model=kind(SEARCHING)), QUESTION)
        text = ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
        assert text and text == result.final_output, (kind, text, result.final_output)


def called(result):
    """Returns the names of the functions that were called; searches have none."""
    items = [item.raw_item for item in result.new_items if item.type == "tool_call_item"]
    return [item.name for item in items if item.type == "function_call"]


@feature("tools")
async def tools():
    for kind in KINDS:
        for model in PLAIN, SEARCHING:
            agent = Agent(name="guide", model=kind(model), tools=[get_weather], model_settings=FORCED)
            # The SDK demands a call once and leaves the later turns to the model; `strict` is its default.
            result = await Runner.run(agent, WEATHER, max_turns=6)
            assert called(result)[0] == "get_weather", result.new_items
            result = Runner.run_streamed(agent, WEATHER, max_turns=6)
            async for _ in result.stream_events():
                pass
            assert called(result)[0] == "get_weather", result.new_items
        other = Agent(name="forecaster", model=kind(PLAIN), model_settings=LIMITED)
        router = Agent(name="router", model=kind(PLAIN), handoffs=[handoff(other)], model_settings=FORCED)
        result = await Runner.run(router, WEATHER, max_turns=4)
        assert result.last_agent.name == "forecaster", result.new_items


@feature("structured output")
async def structured():
    for kind in KINDS:
        for model in PLAIN, SEARCHING:
            agent = Agent(name="guide", model=kind(model), output_type=City)
            assert isinstance((await Runner.run(agent, CITY)).final_output, City)
        agent = Agent(name="guide", model=kind(PLAIN), output_type=City, tools=[get_weather], model_settings=FORCED)
        result = await Runner.run(agent, CITY, max_turns=8)
        assert called(result) and isinstance(result.final_output, City), result.new_items


@feature("file search")
async def search():
    tool = FileSearchTool(vector_store_ids=["default"], max_num_results=3, include_search_results=True)
    agent = Agent(name="guide", model=responses_model(SEARCHING), tools=[tool])
    result = await Runner.run(agent, QUESTION)
    calls = [item for item in result.new_items if item.type == "tool_call_item"]
    assert calls[0].raw_item.type == "file_search_call" and calls[0].raw_item.results, calls


@feature("responses")
async def responses():
    agent = Agent(name="guide", instructions="Answer briefly.", model=responses_model(SEARCHING))
    result = await Runner.run(agent, QUESTION)
    assert result.final_output and result.last_response_id, result


@feature("multi-turn")
async def turns():
    for kind in KINDS:
        agent = Agent(name="guide", model=kind(SEARCHING), tools=[get_weather])
        session = SQLiteSession("conversation")
        assert (await Runner.run(agent, QUESTION, session=session)).final_output
        assert (await Runner.run(agent, FOLLOW_UP, session=session)).final_output
    first = await Runner.run(agent, QUESTION)
    follow = [*first.to_input_list(), {"role": "user", "content": FOLLOW_UP}]
    assert (await Runner.run(agent, follow)).final_output
    agent = Agent(name="guide", model=responses_model(SEARCHING))
    first = await Runner.run(agent, QUESTION)
    assert (await Runner.run(agent, FOLLOW_UP, previous_response_id=first.last_response_id)).final_output


run()
