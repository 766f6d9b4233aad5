"""Responses through the official SDK: responses.py URL. Prints `ok` at the end, or fails."""

import sys
import time

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
QUESTION = "Who wrote Faust and Tell?"
ANSWER = "Goethe wrote Faust. Schiller wrote Tell."
ITEMS = ["reasoning", "file_search_call"] * 2 + ["reasoning", "message"]
asked = {"model": "routerag", "input": QUESTION, "include": ["file_search_call.results"]}
asked["tools"] = [{"type": "file_search", "vector_store_ids": ["default"], "max_num_results": 3}]


def check(response):
    assert (response.status, response.output_text) == ("completed", ANSWER), response
    assert [item.type for item in response.output] == ITEMS
    searches = [item for item in response.output if item.type == "file_search_call"]
    assert [search.queries for search in searches] == [["Faust"], ["Tell"]]
    found = {result.file_id: result for search in searches for result in search.results}
    assert found["p1"].attributes["mode"] == "passage" and 0 <= found["p1"].score <= 1
    text = response.output[-1].content[0]
    notes = text.annotations
    assert [(note.type, note.file_id) for note in notes] == [("file_citation", "p1"), ("file_citation", "p2")]
    # The index is a place in the text as Python counts it: the end of the claim.
    ends = [text.text[: note.index] for note in notes]
    assert ends == ["Goethe wrote Faust.", ANSWER], ends
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens > 0


# Whole, and fetched again.
whole = client.responses.create(**asked, metadata={"a": "b"}, user="me")
check(whole)
again = client.responses.retrieve(whole.id, include=["file_search_call.results"])
check(again)
assert again == whole
assert client.responses.retrieve(whole.id).output[1].results is None

# Streamed, event by event.
text, reasoning, numbers, kinds = "", "", [], []
for event in client.responses.create(**asked, stream=True):
    numbers.append(event.sequence_number)
    kinds.append(event.type)
    text += event.delta if event.type == "response.output_text.delta" else ""
    reasoning += event.delta if event.type == "response.reasoning_text.delta" else ""
assert text == ANSWER and reasoning == "First Faust.Then Tell.Done.", (text, reasoning)
assert numbers == list(range(len(numbers)))
assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
assert kinds.count("response.file_search_call.completed") == 2
assert kinds.count("response.output_text.annotation.added") == 2

# Streamed through the helper, which puts the response together again and checks the order; own events do not trouble it.
with client.responses.stream(**asked, extra_body={"rag": {"trace": True}}) as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_response()
check(final)
assert kinds.count("response.rag.step") == 6, kinds
assert len(final.model_extra["rag"]["trace"]) == 6

# Continued, by id and by sending the items back.
more = client.responses.create(model="routerag", input="And Werther?", previous_response_id=whole.id)
assert more.previous_response_id == whole.id and more.usage.input_tokens > whole.usage.input_tokens
items = [{"role": "user", "content": QUESTION}, *(item.model_dump() for item in whole.output)]
back = client.responses.create(model="routerag", input=[*items, {"role": "user", "content": "And Werther?"}])
assert back.usage.input_tokens == more.usage.input_tokens

# Log-probabilities, a length stop.
short = client.responses.create(
    model="plain", input="slow", max_output_tokens=3, include=["message.output_text.logprobs"], top_logprobs=1
)
assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens"), short
assert len(short.output[0].content[0].logprobs[0].top_logprobs) == 1

# A function: a call, its output, and the answer; over the stored response, and over items that are sent back.
parameters = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Jena"]}}, "required": ["city"]}
look = {"type": "function", "name": "look", "description": "Looks.", "parameters": parameters, "strict": False}
weather = {"model": "plain", "tools": [look]}
called = client.responses.create(**weather, input="How is the weather?")
assert (called.status, [item.type for item in called.output]) == ("completed", ["function_call"]), called
call = called.output[0]
assert (call.name, call.arguments, call.status) == ("look", '{"city":"Bonn"}', "completed"), call
result = {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}
warm = client.responses.create(**weather, input=[result], previous_response_id=called.id)
assert (warm.status, warm.output_text) == ("completed", "It is warm."), warm
items = [{"role": "user", "content": "How is the weather?"}, call.model_dump(exclude_none=True), result]
sent = client.responses.create(**weather, input=items, store=False)
assert (sent.output_text, sent.usage.input_tokens) == (warm.output_text, warm.usage.input_tokens), sent
with client.responses.stream(**weather, input="How is the weather?") as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_response()
assert kinds.count("response.function_call_arguments.done") == 1, kinds
assert final.output[0].arguments == call.arguments, final

# In the background: fetched until it is over, followed from the middle, cancelled, forgotten.
queued = client.responses.create(**asked, background=True)
assert queued.status in ("queued", "in_progress"), queued
while (done := client.responses.retrieve(queued.id, include=asked["include"])).status in ("queued", "in_progress"):
    time.sleep(0.01)
check(done)
tail = list(client.responses.retrieve(queued.id, stream=True, starting_after=20))
assert (tail[0].sequence_number, tail[-1].type) == (21, "response.completed")
with client.responses.stream(response_id=queued.id, starting_after=20) as stream:
    assert [event.sequence_number for event in stream] == [event.sequence_number for event in tail]
assert client.responses.cancel(queued.id).status == "completed"
slow = client.responses.create(model="plain", input="slow", background=True)
assert client.responses.cancel(slow.id).status in ("cancelled", "completed")
client.responses.delete(queued.id)

# Errors keep their names.
try:
    client.responses.retrieve(queued.id)
    raise AssertionError("no error")
except openai.NotFoundError as error:
    assert error.code == "response_not_found", error
for wrong, param in [
    ({"include": ["everything"]}, "include[0]"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"truncation": "last"}, "truncation"),
]:
    try:
        client.responses.create(model="routerag", input="x", **wrong)
        raise AssertionError("no error")
    except openai.BadRequestError as error:
        assert error.param == param and error.request_id, error

print("ok")
