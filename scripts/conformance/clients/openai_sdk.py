"""OpenAI's SDK for Python."""

from typing import Literal

import openai
from pydantic import BaseModel, Field
from suite import BASE, CITY, EMBEDDER, FOLLOW_UP, KEY, PLAIN, QUESTION, SEARCHING, WEATHER, feature, run

client = openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0)
ask = [{"role": "user", "content": QUESTION}]


class City(BaseModel):
    name: str = Field(max_length=40)
    country: Literal["Italy", "France"]
    bridges: int


class GetWeather(BaseModel):
    """Tells the weather of a city."""

    city: Literal["Rome", "Paris"]


@feature("chat")
def chat():
    whole = client.chat.completions.create(model=SEARCHING, messages=ask)
    assert whole.choices[0].message.content, whole
    assert whole.usage.total_tokens > whole.usage.prompt_tokens > 0, whole.usage
    short = client.chat.completions.create(model=PLAIN, messages=ask, max_tokens=5)
    assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 5), short
    cut = client.chat.completions.create(model=SEARCHING, messages=ask, max_tokens=50)
    content = cut.choices[0].message.content or ""
    assert cut.usage.completion_tokens <= 50 and "<" not in content and "think" not in content, cut


@feature("stream")
def stream():
    with client.chat.completions.stream(
        model=SEARCHING, messages=ask, stream_options={"include_usage": True}
    ) as events:
        deltas = "".join(event.delta for event in events if event.type == "content.delta")
        final = events.get_final_completion()
    assert deltas == final.choices[0].message.content != "", final
    assert final.usage.completion_tokens > 0, final


@feature("tools")
def tools():
    tool = openai.pydantic_function_tool(GetWeather)
    messages = [{"role": "user", "content": WEATHER}]
    for model in PLAIN, SEARCHING:
        options = {"model": model, "tools": [tool]}
        called = client.chat.completions.parse(messages=messages, tool_choice="required", **options).choices[0]
        assert called.finish_reason in ("tool_calls", "stop"), called
        call = called.message.tool_calls[0]
        assert isinstance(call.function.parsed_arguments, GetWeather), call
        result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 degrees"}
        answer = client.chat.completions.create(messages=[*messages, called.message, result], **options)
        assert answer.choices[0].finish_reason in ("stop", "tool_calls"), answer
        # The default choice with `strict`, streamed: a call or a text, and each is whole.
        with client.chat.completions.stream(messages=messages, parallel_tool_calls=True, **options) as events:
            final = events.until_done().get_final_completion().choices[0]
        assert final.message.content or final.message.tool_calls, final


@feature("structured output")
def structured():
    for model in PLAIN, SEARCHING:
        parsed = client.chat.completions.parse(
            model=model, messages=[{"role": "user", "content": CITY}], response_format=City
        )
        assert isinstance(parsed.choices[0].message.parsed, City), parsed
    tool = openai.pydantic_function_tool(GetWeather)
    beside = client.chat.completions.parse(
        model=PLAIN, messages=[{"role": "user", "content": CITY}], response_format=City, tools=[tool]
    )
    message = beside.choices[0].message
    assert isinstance(message.parsed, City) or message.tool_calls, beside
    loose = client.chat.completions.create(
        model=PLAIN,
        messages=[{"role": "user", "content": CITY + " Answer in JSON."}],
        response_format={"type": "json_object"},
        max_tokens=600,
    )
    assert loose.choices[0].message.content.lstrip().startswith("{"), loose


@feature("file search")
def search():
    response = client.responses.create(
        model=SEARCHING,
        input=QUESTION,
        tools=[{"type": "file_search", "vector_store_ids": ["default"]}],
        include=["file_search_call.results"],
    )
    calls = [item for item in response.output if item.type == "file_search_call"]
    assert calls and calls[0].queries and calls[0].results, response.output
    notes = [note for item in response.output if item.type == "message" for note in item.content[0].annotations]
    assert all(note.type == "file_citation" for note in notes), notes
    found = client.vector_stores.search("default", query="Mona Lisa", max_num_results=3)
    assert len(found.data) == 3 and found.data[0].content[0].text, found
    # A vector store of the client's own.
    store = client.vector_stores.create(name="bridges")
    text = b"# Bridges\n\nThe Rialto bridge crosses the Grand Canal in Venice."
    made = client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=("bridges.md", text))
    assert made.status == "completed", made
    found = client.vector_stores.search(store.id, query="Rialto bridge")
    assert "Grand Canal" in found.data[0].content[0].text, found
    tool = {"type": "file_search", "vector_store_ids": [store.id]}
    asked = client.responses.create(model=SEARCHING, input="Which canal does the Rialto bridge cross?", tools=[tool])
    assert asked.status in ("completed", "incomplete"), asked
    client.vector_stores.delete(store.id)
    return f"{len(notes)} citations"


@feature("responses")
def responses():
    with client.responses.stream(model=SEARCHING, input=QUESTION) as events:
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        final = events.get_final_response()
    assert final.status == "completed" and final.output_text == text != "", final
    parsed = client.responses.parse(model=PLAIN, input=CITY, text_format=City)
    assert isinstance(parsed.output_parsed, City), parsed
    tool = openai.pydantic_function_tool(GetWeather)["function"]
    called = client.responses.parse(
        model=PLAIN, input=WEATHER, tools=[{"type": "function", **tool}], tool_choice="required"
    )
    call = called.output[0]
    GetWeather.model_validate(call.parsed_arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"}
    assert client.responses.create(model=PLAIN, input=[result], previous_response_id=called.id).output_text
    count = client.responses.input_tokens.count(model=SEARCHING, input=QUESTION)
    assert count.input_tokens > 0, count
    assert client.responses.retrieve(final.id).output_text == text
    client.responses.delete(final.id)


@feature("multi-turn")
def turns():
    first = client.responses.create(model=SEARCHING, input=QUESTION)
    second = client.responses.create(model=SEARCHING, input=FOLLOW_UP, previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens and second.output_text, second
    items = [{"role": "user", "content": QUESTION}, *first.output, {"role": "user", "content": FOLLOW_UP}]
    assert client.responses.create(model=SEARCHING, input=items, store=False).output_text
    conversation = client.conversations.create()
    client.responses.create(model=SEARCHING, input=QUESTION, conversation=conversation.id)
    client.responses.create(model=SEARCHING, input=FOLLOW_UP, conversation=conversation.id)
    assert len(list(client.conversations.items.list(conversation.id))) >= 4
    client.conversations.delete(conversation.id)
    first = client.chat.completions.create(model=SEARCHING, messages=ask).choices[0].message
    follow = client.chat.completions.create(
        model=SEARCHING, messages=[*ask, first, {"role": "user", "content": FOLLOW_UP}]
    )
    assert follow.choices[0].message.content, follow


@feature("embeddings")
def embeddings():
    made = client.embeddings.create(model=EMBEDDER, input=["Rome", "Paris"])
    assert [len(one.embedding) for one in made.data] == [384, 384], made
    # "Rome" in the encoding of OpenAI's embedders, cl100k_base, as some clients send it.
    tokens = client.embeddings.create(model=EMBEDDER, input=[[49, 638]])
    assert max(abs(a - b) for a, b in zip(tokens.data[0].embedding, made.data[0].embedding)) < 1e-5, "token IDs"


run()
