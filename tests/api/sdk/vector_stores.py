"""The official Python SDK over vector stores and files: created, filled, searched, asked and deleted."""

import sys
import time

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)

text = client.files.create(file=("rivers.md", b"# Rivers\n\nThe Ubangi flows through Bangui.\n"), purpose="assistants")
assert (text.object, text.filename, text.status) == ("file", "rivers.md", "processed"), text
records = client.files.create(
    file=("lakes.jsonl", b'{"id": "a", "title": "Lake Kivu", "text": "Lake Kivu lies in Rwanda."}\n'), purpose="user_data"
)
assert {file.id for file in client.files.list()} == {text.id, records.id}
assert client.files.content(text.id).read().startswith(b"# Rivers")

store = client.vector_stores.create(name="waters", file_ids=[text.id], metadata={"of": "the test"})
assert (store.object, store.name) == ("vector_store", "waters"), store
added = client.vector_stores.files.create_and_poll(
    vector_store_id=store.id,
    file_id=records.id,
    attributes={"kind": "lake", "depth": 485},
    chunking_strategy={"type": "static", "static": {"max_chunk_size_tokens": 200, "chunk_overlap_tokens": 20}},
)
assert added.status == "completed", added
assert added.chunking_strategy.static.max_chunk_size_tokens == 200, added
for _ in range(1200):
    store = client.vector_stores.retrieve(store.id)
    if store.status == "completed":
        break
    time.sleep(0.05)
assert (store.file_counts.completed, store.file_counts.total) == (2, 2), store
assert store.id in [listed.id for listed in client.vector_stores.list()]
assert client.vector_stores.update(store.id, name="lakes and rivers").name == "lakes and rivers"

found = list(client.vector_stores.search(store.id, query="Kivu"))
assert (found[0].file_id, found[0].filename) == (records.id, "lakes.jsonl"), found
assert found[0].attributes["kind"] == "lake", found
filtered = client.vector_stores.search(
    store.id, query="Kivu", filters={"type": "ne", "key": "kind", "value": "lake"}
)
assert [result.file_id for result in filtered] == [text.id]

response = client.responses.create(
    model="routerag",
    input="Which lake?",
    tools=[{"type": "file_search", "vector_store_ids": [store.id]}],
    include=["file_search_call.results"],
)
searches = [item for item in response.output if item.type == "file_search_call"]
assert {result.file_id for result in searches[0].results} <= {text.id, records.id}, searches

parsed = list(client.vector_stores.files.content(records.id, vector_store_id=store.id))
assert "Rwanda" in parsed[0].text, parsed
listed = list(client.vector_stores.files.list(store.id, filter="completed"))
assert {file.id for file in listed} == {text.id, records.id}
assert client.vector_stores.files.delete(records.id, vector_store_id=store.id).deleted
assert [result.file_id for result in client.vector_stores.search(store.id, query="Kivu")] == [text.id]
assert client.files.delete(text.id).deleted
assert list(client.vector_stores.search(store.id, query="Kivu")) == []

batch = client.vector_stores.file_batches.create_and_poll(vector_store_id=store.id, file_ids=[records.id])
assert (batch.object, batch.status, batch.file_counts.completed) == ("vector_store.files_batch", "completed", 1), batch
members = client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store.id)
assert [file.id for file in members] == [records.id], members
assert client.vector_stores.file_batches.cancel(batch.id, vector_store_id=store.id).status == "completed"

bad = client.files.create(file=("picture.png", b"\x89PNG"), purpose="assistants")
failed = client.vector_stores.files.create_and_poll(vector_store_id=store.id, file_id=bad.id)
assert (failed.status, failed.last_error.code) == ("failed", "unsupported_file"), failed

assert client.vector_stores.delete(store.id).deleted
try:
    client.vector_stores.retrieve(store.id)
    raise AssertionError("the vector store is gone")
except openai.NotFoundError as error:
    assert error.code == "vector_store_not_found", error
print("ok")
