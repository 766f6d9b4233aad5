"""LiteLLM's OpenAI client against a running server: ask_litellm.py URL. Prints `ok` at the end, or fails."""

import os
import sys

# Prices are not fetched from anywhere.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm  # noqa: E402

options = {"model": "openai/routerag", "api_base": sys.argv[1] + "/v1", "api_key": "none", "num_retries": 0}
messages = [{"role": "user", "content": "Who wrote Faust?"}]

# Chat, streamed.
content, reasoning, finish = "", "", None
for chunk in litellm.completion(**options, messages=messages, stream=True):
    delta = chunk.choices[0].delta
    content += delta.content or ""
    reasoning += getattr(delta, "reasoning_content", None) or ""
    finish = chunk.choices[0].finish_reason or finish
assert (content, finish) == ("Goethe", "stop"), (content, finish)
assert "I must look." in reasoning

# Responses, streamed.
text, kinds = "", []
for event in litellm.responses(**options, input="Who wrote Faust and Tell?", stream=True):
    kinds.append(getattr(event.type, "value", event.type))
    text += event.delta if kinds[-1] == "response.output_text.delta" else ""
assert text == "Goethe wrote Faust. Schiller wrote Tell.", text
assert kinds[-1] == "response.completed", kinds

print("ok")
