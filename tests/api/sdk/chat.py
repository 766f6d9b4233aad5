"""Chat, models and embeddings through the official SDK: chat.py URL. Prints `ok` at the end, or fails."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
messages = [{"role": "user", "content": "Who wrote Faust?"}]
trace = {"rag": {"trace": True}}


def types(steps):
    return [step["type"] for step in steps]


# Whole.
whole = client.chat.completions.create(model="routerag", messages=messages, extra_body=trace)
message = whole.choices[0].message
assert message.content == "Goethe", message
assert "I must look." in message.reasoning_content
assert whole.choices[0].finish_reason == "stop"
assert whole.usage.completion_tokens_details.reasoning_tokens > 0
assert types(message.rag["trace"]) == ["search_started", "search_finished", "observation"], message.rag

# Streamed, chunk by chunk.
content, reasoning, steps, finish, usage = "", "", [], [], None
for chunk in client.chat.completions.create(
    model="routerag", messages=messages, stream=True, stream_options={"include_usage": True}, extra_body=trace
):
    usage = chunk.usage or usage
    for choice in chunk.choices:
        content += choice.delta.content or ""
        extra = choice.delta.model_extra or {}
        reasoning += extra.get("reasoning_content") or ""
        steps += (extra.get("rag") or {}).get("trace", [])
        finish += [choice.finish_reason] if choice.finish_reason else []
assert (content, finish) == ("Goethe", ["stop"]), (content, finish)
assert reasoning == message.reasoning_content
assert types(steps) == types(message.rag["trace"])
assert usage.total_tokens == whole.usage.total_tokens

# Streamed through the helper, which puts the whole message together again.
with client.chat.completions.stream(model="routerag", messages=messages, extra_body=trace) as stream:
    for event in stream:
        pass
    final = stream.get_final_completion().choices[0].message
assert final.content == "Goethe"
assert final.model_extra["reasoning_content"] == message.reasoning_content
assert types(final.model_extra["rag"]["trace"]) == types(message.rag["trace"])

# What supports the answer comes with its end, and stays whole when the helper puts the message together.
told = {"rag": {"trace": True, "citations": True}}
whole = client.chat.completions.create(model="routerag", messages=messages, extra_body=told)
cited = whole.choices[0].message.rag["citations"]
assert [citation["passage"] for citation in cited] == ["p1", "p3"], cited
with client.chat.completions.stream(model="routerag", messages=messages, extra_body=told) as stream:
    for event in stream:
        pass
    final = stream.get_final_completion().choices[0].message
assert final.model_extra["rag"]["citations"] == cited, final
assert types(final.model_extra["rag"]["trace"]) == types(message.rag["trace"])

# An answer can be sent back as history.
history = messages + [message.model_dump(exclude_none=True), {"role": "user", "content": "And Werther?"}]
assert client.chat.completions.create(model="routerag", messages=history).choices[0].message.content == "Goethe"

# Several choices, log-probabilities, models.
several = client.chat.completions.create(model="plain", messages=messages, n=3, logprobs=True, top_logprobs=2)
assert [choice.index for choice in several.choices] == [0, 1, 2]
assert several.choices[0].logprobs.content[0].top_logprobs[0].logprob <= 0
assert "a/b" in [model.id for model in client.models.list()]
assert client.models.retrieve("a/b").id == "a/b"

# Tools: called whole and streamed, and answered.
parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
tools = [{"type": "function", "function": {"name": "look", "parameters": parameters}}]
weather = [{"role": "user", "content": "How is the weather?"}]
whole = client.chat.completions.create(model="plain", messages=weather, tools=tools).choices[0]
assert (whole.finish_reason, whole.message.content) == ("tool_calls", None), whole
call = whole.message.tool_calls[0]
assert (call.type, call.function.name, call.function.arguments) == ("function", "look", '{"city":"Bonn"}'), call
name, arguments, finish = "", "", []
for chunk in client.chat.completions.create(model="plain", messages=weather, tools=tools, stream=True):
    for part in chunk.choices[0].delta.tool_calls or []:
        name += part.function.name or ""
        arguments += part.function.arguments
    finish += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
assert (name, arguments, finish) == ("look", call.function.arguments, ["tool_calls"]), (name, arguments, finish)
result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
answer = client.chat.completions.create(model="plain", messages=weather + [whole.message, result], tools=tools)
assert answer.choices[0].message.content == "It is warm.", answer

# Streamed through the helper, which keeps the index of a delta in its call, and answered.
with client.chat.completions.stream(model="plain", messages=weather, tools=tools) as stream:
    for event in stream:
        pass
    final = stream.get_final_completion().choices[0].message
result = {"role": "tool", "tool_call_id": final.tool_calls[0].id, "content": "21 degrees"}
answer = client.chat.completions.create(model="plain", messages=weather + [final, result], tools=tools)
assert answer.choices[0].message.content == "It is warm.", answer

# Embeddings: the SDK asks for base64 by itself.
embedding = client.embeddings.create(model="letters", input=["abba", "c"])
assert embedding.data[0].embedding == [2.0, 2.0, 0.0], embedding

# Errors keep their names.
try:
    client.chat.completions.create(model="nobody", messages=messages)
    raise AssertionError("no error")
except openai.NotFoundError as error:
    assert (error.code, error.param, bool(error.request_id)) == ("model_not_found", "model", True), error
try:
    client.chat.completions.create(model="plain", messages=messages, modalities=["audio"])
    raise AssertionError("no error")
except openai.BadRequestError as error:
    assert (error.code, error.param) == ("unsupported_parameter", "modalities"), error

print("ok")
