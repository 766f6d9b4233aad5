"""LangChain's OpenAI client against a running server: ask_langchain.py URL. Prints `ok` at the end, or fails."""

import sys

from langchain_openai import ChatOpenAI

options = {"base_url": sys.argv[1] + "/v1", "api_key": "none", "max_retries": 0, "model": "routerag"}

# Chat, streamed.
chunks = list(ChatOpenAI(**options, stream_usage=True).stream("Who wrote Faust?"))
assert "".join(chunk.text for chunk in chunks) == "Goethe", chunks
whole = chunks[0]
for chunk in chunks[1:]:
    whole += chunk
assert whole.usage_metadata["total_tokens"] > 0
assert whole.response_metadata["finish_reason"] == "stop"

# Responses, streamed.
model = ChatOpenAI(**options, use_responses_api=True, include=["file_search_call.results"])
chunks = list(model.stream("Who wrote Faust and Tell?"))
whole = chunks[0]
for chunk in chunks[1:]:
    whole += chunk
assert whole.text == "Goethe wrote Faust. Schiller wrote Tell.", whole
assert whole.response_metadata["status"] == "completed", whole.response_metadata
cited = [note for block in whole.content if block["type"] == "text" for note in block.get("annotations", [])]
assert [note["file_id"] for note in cited] == ["p1", "p2"], whole.content

print("ok")
