"""LlamaIndex: its model for servers like OpenAI's, its agents."""

from typing import Literal

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field
from suite import BASE, CITY, FOLLOW_UP, KEY, PLAIN, QUESTION, SEARCHING, WEATHER, feature, run


def model(name, **options):
    return OpenAILike(
        model=name, api_base=BASE, api_key=KEY, is_chat_model=True, max_retries=0, context_window=2048, **options
    )


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=40)
    country: Literal["Italy", "France"]


def get_weather(city: Literal["Rome", "Paris"]) -> str:
    """Tells the weather of a city."""
    return f"{city}: sunny, 21 degrees"


TOOL = FunctionTool.from_defaults(fn=get_weather)


@feature("chat")
def chat():
    assert model(SEARCHING).chat([ChatMessage(role="user", content=QUESTION)]).message.content
    assert model(SEARCHING).complete(QUESTION).text


@feature("stream")
def stream():
    last = None
    for last in model(SEARCHING).stream_chat([ChatMessage(role="user", content=QUESTION)]):
        pass
    assert last.message.content, last


@feature("tools")
async def tools():
    for name in PLAIN, SEARCHING:
        chat = model(name, is_function_calling_model=True, max_tokens=600)
        reply = chat.chat_with_tools([TOOL], user_msg=WEATHER, tool_required=True)
        assert chat.get_tool_calls_from_response(reply)[0].tool_name == "get_weather", reply
        agent = FunctionAgent(tools=[TOOL], llm=chat, system_prompt="Use the tool once.")
        assert await agent.run(WEATHER, max_iterations=8, early_stopping_method="generate")


@feature("structured output")
def structured():
    for name in PLAIN, SEARCHING:
        for calls in True, False:
            chat = model(name, is_function_calling_model=calls, should_use_structured_outputs=not calls)
            made = chat.as_structured_llm(City).complete(CITY).raw
            assert isinstance(made, City), (name, calls, made)


@feature("multi-turn")
def turns():
    chat = model(SEARCHING)
    messages = [ChatMessage(role="user", content=QUESTION)]
    messages.append(chat.chat(messages).message)
    messages.append(ChatMessage(role="user", content=FOLLOW_UP))
    assert chat.chat(messages).message.content


run()
