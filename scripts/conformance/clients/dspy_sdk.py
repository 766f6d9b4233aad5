"""DSPy: predictions through its adapters, and its agent."""

from typing import Literal

import dspy
from dspy.lm15 import AccessPolicy, ModelSupport, OpenAIChatCompat, ProviderDefinition, register_provider
from suite import BASE, CITY, EMBEDDER, FOLLOW_UP, KEY, PLAIN, QUESTION, SEARCHING, feature, run


def model(name, **options):
    return dspy.LM(f"openai/{name}", api_base=BASE, api_key=KEY, num_retries=0, cache=False, **options)


# DSPy sends schemas only to providers that declare them.
register_provider(
    ProviderDefinition.chat(
        AccessPolicy(provider="waymark", base_url=BASE, env_keys=("WAYMARK_API_KEY",)), compat=OpenAIChatCompat()
    ),
    supports=ModelSupport(response_schema=True, function_calling=True),
)


class Place(dspy.Signature):
    """Names a city and its country."""

    question: str = dspy.InputField()
    country: Literal["Italy", "France"] = dspy.OutputField()


@feature("chat")
def chat():
    answer = model(SEARCHING)(QUESTION)[0]
    assert answer, answer


@feature("structured output")
def structured():
    for name in PLAIN, SEARCHING:
        declared = dspy.LM(f"waymark/{name}", api_base=BASE, api_key=KEY, cache=False, max_tokens=600)
        with dspy.context(lm=declared, adapter=dspy.JSONAdapter()):
            made = dspy.Predict(Place)(question=CITY)
        assert made.country in ("Italy", "France"), made


@feature("responses")
def responses():
    assert model(SEARCHING, model_type="responses")(QUESTION)[0]


@feature("multi-turn")
def turns():
    chat = model(SEARCHING)
    messages = [{"role": "user", "content": QUESTION}]
    first = chat(messages=messages)[0]
    text = first if isinstance(first, str) else first["text"]
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": FOLLOW_UP}]
    assert chat(messages=messages)[0]


@feature("embeddings")
def embeddings():
    made = dspy.Embedder(f"openai/{EMBEDDER}", api_base=BASE, api_key=KEY, caching=False)(["Rome", "Paris"])
    assert made.shape == (2, 384), made.shape


run()
