"""LangChain: its chat model over chat and responses, its agents, its embeddings."""

from typing import Literal

from langchain.agents import create_agent
from langchain.tools import tool
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field
from suite import BASE, CITY, EMBEDDER, FOLLOW_UP, KEY, PLAIN, QUESTION, SEARCHING, WEATHER, feature, run


def model(name, **options):
    return ChatOpenAI(model=name, base_url=BASE, api_key=KEY, max_retries=0, **options)


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=40)
    country: Literal["Italy", "France"]


@tool
def get_weather(city: Literal["Rome", "Paris"]) -> str:
    """Tells the weather of a city."""
    return f"{city}: sunny, 21 degrees"


@feature("chat")
def chat():
    answer = model(SEARCHING).invoke([SystemMessage("Answer briefly."), HumanMessage(QUESTION, name="alice")])
    assert answer.content and answer.usage_metadata["total_tokens"] > 0, answer


@feature("stream")
def stream():
    chunks = list(model(SEARCHING).stream(QUESTION))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.text and whole.response_metadata["finish_reason"] == "stop", whole


@feature("tools")
def tools():
    for name in PLAIN, SEARCHING:
        for responses in False, True:
            chat = model(name, use_responses_api=responses, max_completion_tokens=600)
            call = chat.bind_tools([get_weather], tool_choice="get_weather").invoke(WEATHER)
            assert call.tool_calls[0]["name"] == "get_weather", call
            result = get_weather.invoke(call.tool_calls[0])
            answer = chat.bind_tools([get_weather], strict=True).invoke([HumanMessage(WEATHER), call, result])
            assert answer.text or answer.tool_calls, answer
        agent = create_agent(model(name, max_completion_tokens=600), [get_weather], name="guide")
        messages = agent.invoke({"messages": [HumanMessage(WEATHER)]}, {"recursion_limit": 12})["messages"]
        assert isinstance(messages[-1], AIMessage), messages


@feature("structured output")
def structured():
    for name in PLAIN, SEARCHING:
        for method in "json_schema", "function_calling":
            made = model(name).with_structured_output(City, method=method).invoke(CITY)
            assert isinstance(made, City), (name, method, made)
    made = model(PLAIN, max_completion_tokens=300).with_structured_output(City, method="json_mode", include_raw=True)
    assert made.invoke(CITY + " Answer in JSON.")["raw"].content.lstrip().startswith("{")
    agent = create_agent(model(PLAIN), [], response_format=City)
    assert isinstance(agent.invoke({"messages": [HumanMessage(CITY)]})["structured_response"], City)


@feature("file search")
def search():
    chat = model(SEARCHING, use_responses_api=True, include=["file_search_call.results"])
    tool = {"type": "file_search", "vector_store_ids": ["default"], "max_num_results": 3}
    answer = chat.bind_tools([tool]).invoke(QUESTION)
    kinds = [block["type"] for block in answer.content]
    assert "file_search_call" in kinds and "text" in kinds, kinds


@feature("responses")
def responses():
    chat = model(SEARCHING, use_responses_api=True)
    whole = None
    for chunk in chat.stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    assert whole.text and whole.response_metadata["status"] == "completed", whole


@feature("multi-turn")
def turns():
    for options in {}, {"use_responses_api": True}, {"use_responses_api": True, "use_previous_response_id": True}:
        chat = model(SEARCHING, **options)
        messages = [HumanMessage(QUESTION)]
        messages.append(chat.invoke(messages))
        messages.append(HumanMessage(FOLLOW_UP))
        assert chat.invoke(messages).text, options


@feature("embeddings")
def embeddings():
    # Its default sends token IDs in the encoding of OpenAI's embedders.
    made = OpenAIEmbeddings(model=EMBEDDER, base_url=BASE, api_key=KEY, max_retries=0)
    text = OpenAIEmbeddings(model=EMBEDDER, base_url=BASE, api_key=KEY, check_embedding_ctx_length=False)
    question = "Rome is the capital of Italy."
    one, other = made.embed_query(question), text.embed_query(question)
    assert len(one) == 384 and max(abs(a - b) for a, b in zip(one, other)) < 1e-3, "token IDs and text differ"


run()
