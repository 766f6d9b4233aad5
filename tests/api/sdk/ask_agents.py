"""OpenAI's Agents SDK against a running server: ask_agents.py URL. Prints `ok` at the end, or fails.

Its functions are `strict` and its choice between them is the model's, unless something else is said.
"""

import asyncio
import sys
from typing import Literal

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)
looked = []


class Verdict(BaseModel):
    warm: bool


@function_tool
def look(city: Literal["Bonn", "Jena"]) -> str:
    """Looks."""
    looked.append(city)
    return "21 degrees"


async def use(model):
    agent = Agent(name="guide", model=model, tools=[look])
    result = await Runner.run(agent, "How is the weather?")
    assert (result.final_output, looked) == ("It is warm.", ["Bonn"]), (result, looked)

    # The model wants to look at another city than there are.
    looked.clear()
    result = await Runner.run(agent, "How is it in Rome?")
    assert result.final_output == "It is warm." and looked[0] in ("Bonn", "Jena"), (result, looked)

    # Streamed, and with a form of the last answer.
    looked.clear()
    judge = Agent(name="judge", model=model, tools=[look], output_type=Verdict)
    result = Runner.run_streamed(judge, "How is the weather?")
    async for _ in result.stream_events():
        pass
    assert isinstance(result.final_output, Verdict) and looked == ["Bonn"], (result, looked)
    looked.clear()

    forecaster = Agent(name="forecaster", model=model)
    router = Agent(name="router", model=model, tools=[look], handoffs=[forecaster])
    result = await Runner.run(router, "Ask the forecaster.")
    assert (result.last_agent.name, result.final_output) == ("forecaster", "Sunny all week."), result


async def main():
    client = AsyncOpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
    for kind in OpenAIResponsesModel, OpenAIChatCompletionsModel:
        await use(kind(model="plain", openai_client=client))


asyncio.run(main())
print("ok")
