#!/usr/bin/env python3
"""Asks an inference engine for each fact of the wire that `waymark serve --engine` relies on, and prints a table.

    scripts/conformance/engine.py http://gpu:8000 --model Qwen/Qwen3-0.6B
    scripts/conformance/engine.py http://gpu:8000 --model tiny --adapter /adapters/policy    # adapters too
    scripts/conformance/engine.py http://gpu:8000 --model tiny --route completions           # as for older versions of vLLM
    scripts/conformance/engine.py http://127.0.0.1:8080 --kind waymark                       # another Waymark

The results: `ok`; `differs`, with what was seen; `refused`, with status and message; `skipped`. Facts that a policy can do
without are marked. The exit status is 1 if another fact differs or is refused. The key is read from
`WAYMARK_ENGINE_KEY`. Needs nothing but Python.
"""

import argparse
import http.client
import json
import os
import random
import re
import socket
import sys
import time
import urllib.parse

PROBE = 'Where was <search> Mozart\nborn?</search> In 1756, à Salzbourg; 莫扎特 🎼 <information>(Title: "a_b")'
GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"
# Parameters without effect, which replace the defaults that vLLM takes from `generation_config.json` on `/v1/completions`.
NEUTRAL = {"top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0}
# Largest difference of two log-probabilities of the same token under the same weights: kernels and batches differ.
TOLERANCE = 0.05


class Differs(Exception):
    """The engine answers, and not as expected."""


class Refused(Exception):
    """The engine refuses a request that it should take."""

    def __init__(self, status, body):
        super().__init__(f"{status}: {json.dumps(body) if isinstance(body, dict) else body}")
        self.status = status
        self.body = body


class Skipped(Exception):
    """The fact cannot be asked for here."""


def expect(holds, seen):
    """Raises `Differs` if a condition does not hold."""
    if not holds:
        raise Differs(seen)


class Engine:
    """An engine at an address."""

    def __init__(self, url, model, kind, route, key):
        self.url = urllib.parse.urlsplit(url)
        self.model = model
        self.kind = kind
        self.route = route
        self.key = key
        self.longest = 2048

    def connect(self, timeout=120):
        secure = self.url.scheme == "https"
        return (http.client.HTTPSConnection if secure else http.client.HTTPConnection)(self.url.netloc, timeout=timeout)

    def open(self, method, path, body=None, headers=None, key=None):
        """Sends a request. Returns the connection and the response."""
        connection = self.connect()
        sent = {"content-type": "application/json", **(headers or {})}
        if key or self.key:
            sent["authorization"] = f"Bearer {key or self.key}"
        connection.request(method, self.url.path.rstrip("/") + path, None if body is None else json.dumps(body), sent)
        return connection, connection.getresponse()

    def call(self, method, path, body=None, headers=None, key=None):
        """Returns the status and the body, parsed if it is JSON."""
        connection, response = self.open(method, path, body, headers, key)
        text = response.read().decode()
        connection.close()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, text

    def wanted(self, method, path, body=None, headers=None):
        """Returns the body of an answer that must be 200."""
        status, answer = self.call(method, path, body, headers)
        if status != 200:
            raise Refused(status, answer)
        return answer

    def body(self, ids, params, **more):
        """Returns a request for tokens in the form of the route."""
        salt = {"cache_salt": more.pop("salt")} if "salt" in more else {}
        if self.route == COMPLETIONS:
            params = {**NEUTRAL, **params, "logprobs": max(params.get("logprobs", 0), 1)}
            named = {"return_token_ids": True, "return_tokens_as_token_ids": True}
            return {"model": self.model, "prompt": ids, **named, **params, **salt, **more}
        params = {"logprobs": 0, **params}
        text = {"output_mode": "text"} if "stop" in params and self.kind == "vllm" else {}
        return {"model": self.model, "token_ids": ids, "sampling_params": params, **text, **salt, **more}

    def ask(self, ids, headers=None, salt=None, model=None, **params):
        """Returns the answer to a request for tokens."""
        body = self.body(ids, {"temperature": 0, "ignore_eos": True, **params}, **({"salt": salt} if salt else {}))
        if model:
            body["model"] = model
        return self.wanted("POST", self.route, body, headers)

    def tokens(self, ids, **params):
        """Returns the sampled token IDs, their log-probabilities, and the choice."""
        choice = self.ask(ids, **params)["choices"][0]
        return choice["token_ids"], logprobs(choice), choice

    def stream(self, ids, **params):
        """Returns the events of a stream, without the closing one, and the last line."""
        body = self.body(ids, {"temperature": 0, "ignore_eos": True, **params})
        connection, response = self.open("POST", self.route, {**body, "stream": True, "stream_options": {"include_usage": True}})
        if response.status != 200:
            raise Refused(response.status, response.read().decode())
        lines = [line.decode().strip() for line in response if line.startswith(b"data: ")]
        connection.close()
        return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"], lines[-1] if lines else ""


def logprobs(choice):
    """Log-probabilities of the tokens of a choice, in either form."""
    told = choice.get("logprobs") or {}
    if "content" in told:
        return [entry["logprob"] for entry in told["content"]]
    return told.get("token_logprobs") or []


def prompt(length=70):
    """Returns token IDs that are in every vocabulary, and in no cache."""
    return [random.randrange(5, 200) for _ in range(length)]


def scores(engine, ids):
    """Returns the scores of a sequence. The first one is null."""
    answer = engine.ask(ids, max_tokens=1, prompt_logprobs=0)
    return answer.get("prompt_logprobs") or answer["choices"][0].get("prompt_logprobs")


FACTS = []


def fact(name, needed=True):
    """Adds a check to the table."""

    def add(check):
        FACTS.append((name, needed, check))
        return check

    return add


@fact("`/v1/models` lists the model, without a parent")
def models(engine):
    listed = engine.wanted("GET", "/v1/models")["data"]
    found = [row for row in listed if row["id"] == engine.model or row.get("parent") == engine.model]
    expect(found, f"served: {', '.join(row['id'] for row in listed)}")
    return f"{len(listed)} models"


@fact("`/tokenize` gives token IDs and the context length")
def tokenize(engine):
    named = {"model": engine.model} if engine.kind == "vllm" else {}
    answer = engine.wanted("POST", "/tokenize", {"prompt": PROBE, "add_special_tokens": False, **named})
    expect(answer["tokens"] and isinstance(answer["max_model_len"], int), str(answer))
    engine.longest = answer["max_model_len"]
    back = engine.wanted("POST", "/detokenize", {"tokens": answer["tokens"], **named})
    expect(back["prompt"] == PROBE, f"the probe comes back as {back['prompt']!r}")
    return f"{len(answer['tokens'])} tokens, the probe comes back, context {engine.longest}"


@fact("token IDs in, token IDs out, `finish_reason`, `usage`")
def generate(engine):
    ids = prompt()
    answer = engine.ask(ids, max_tokens=8)
    choice = answer["choices"][0]
    expect(len(choice["token_ids"]) == 8 and choice["finish_reason"] == "length", str(choice)[:200])
    expect(answer["usage"]["prompt_tokens"] == len(ids), f"usage {answer['usage']}, {len(ids)} tokens were sent")
    return f"{len(ids)} in, 8 out"


@fact("a log-probability for each sampled token")
def token_logprobs(engine):
    ids, values, choice = engine.tokens(prompt(), max_tokens=6, logprobs=2)
    expect(len(values) == len(ids) and all(value <= 0.01 for value in values), f"{len(ids)} tokens with {values}")
    content = (choice["logprobs"] or {}).get("content")
    if content is None:
        listed = [name for others in choice["logprobs"]["top_logprobs"] for name in others]
        expect(all(name.startswith("token_id:") for name in listed), f"alternatives {listed[:4]}, without their IDs")
        return "with IDs of the alternatives"
    expect([entry["token_id"] for entry in content] == ids, "the IDs differ from `token_ids`")
    ranks = [other["rank"] for other in content[0]["top_logprobs"]]
    expect({1, 2} <= set(ranks), f"ranks {ranks} of the two most probable tokens")
    return "with IDs and ranks of the alternatives"


@fact("log-probabilities are those of temperature 1, whatever the temperature")
def full_distribution(engine):
    ids = prompt(20)
    sampled, values, _ = engine.tokens(ids, max_tokens=12, temperature=1.7, seed=5, top_p=0.9)
    told = scores(engine, ids + sampled)[len(ids) :]
    worst = max(abs(score[str(token)]["logprob"] - value) for token, value, score in zip(sampled, values, told, strict=True))
    expect(worst < TOLERANCE, f"they differ from `prompt_logprobs` by up to {worst:.3f}")
    return f"within {worst:.4f} of `prompt_logprobs`"


@fact("`prompt_logprobs` scores a sequence")
def prompt_logprobs(engine):
    ids = prompt(32)
    told = scores(engine, ids)
    expect(told and len(told) == len(ids) and told[0] is None, f"{told and len(told)} scores of {len(ids)} tokens")
    expect(all(str(token) in score for token, score in zip(ids[1:], told[1:])), "the score of a token itself is missing")
    return f"{len(told) - 1} scores"


@fact("a stream has the same tokens, one `finish_reason`, `usage` and `[DONE]`")
def stream(engine):
    ids = prompt()
    whole, _, _ = engine.tokens(ids, max_tokens=9)
    events, last = engine.stream(ids, max_tokens=9)
    choices = [choice for event in events for choice in event["choices"]]
    streamed = [token for choice in choices for token in choice.get("token_ids") or []]
    expect(streamed == whole, f"{streamed}, not {whole}")
    expect(sum(len(logprobs(choice)) for choice in choices) == 9, "a token came without its log-probability")
    expect([choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"], "finish reasons differ")
    usage = [event["usage"] for event in events if event.get("usage")]
    expect(usage and usage[-1]["prompt_tokens"] == len(ids), f"usage {usage}")
    expect(last == "data: [DONE]", f"the last line is {last!r}")
    return f"{len(events)} events"


@fact("a seed repeats its tokens, and may be negative")
def seed(engine):
    ids = prompt()
    same = [engine.tokens(ids, max_tokens=12, temperature=1, seed=-7)[0] for _ in range(2)]
    expect(same[0] == same[1], f"{same}")
    return ""


@fact("sampling parameters that are left out are neutral")
def neutral(engine):
    if engine.route == COMPLETIONS:
        raise Skipped("they are sent, because vLLM fills them from `generation_config.json`")
    ids = prompt()
    left_out, _, _ = engine.tokens(ids, max_tokens=24, temperature=1, seed=11)
    sent, _, _ = engine.tokens(ids, max_tokens=24, temperature=1, seed=11, **NEUTRAL)
    expect(left_out == sent, f"{left_out}, not {sent}")
    return ""


@fact("`stop_token_ids` ends a turn, with the token")
def stop_tokens(engine):
    ids = prompt()
    sampled, _, _ = engine.tokens(ids, max_tokens=24, temperature=1, seed=3)
    at = next(at for at in range(4, 24) if sampled[at] not in sampled[:at])
    ended, _, choice = engine.tokens(ids, max_tokens=24, temperature=1, seed=3, stop_token_ids=[sampled[at]])
    expect(ended == sampled[: at + 1], f"{ended}, not {sampled[: at + 1]}")
    expect(choice["finish_reason"] == "stop", f"finish_reason {choice['finish_reason']}")
    return f"stop_reason {choice.get('stop_reason')!r}"


@fact("`stop` ends a turn, with the string's tokens")
def stop_strings(engine):
    named = {"model": engine.model} if engine.kind == "vllm" else {}
    for number in range(20):
        ids = prompt()
        sampled, _, _ = engine.tokens(ids, max_tokens=24, temperature=1, seed=number)
        texts = [engine.wanted("POST", "/detokenize", {"tokens": [token], **named})["prompt"] for token in sampled]
        found = [at for at in range(3, 24) if re.fullmatch(r"[A-Za-z]+", texts[at]) and texts[at] not in "".join(texts[:at])]
        if found:
            break
    else:
        raise Skipped("no word was sampled")
    at = found[0]
    ended, _, choice = engine.tokens(
        ids, max_tokens=24, temperature=1, seed=number, stop=[texts[at]], include_stop_str_in_output=True
    )
    expect(ended == sampled[: at + 1], f"{ended} at {texts[at]!r}, not {sampled[: at + 1]}")
    expect(choice["finish_reason"] == "stop", f"finish_reason {choice['finish_reason']}")
    return f"stop_reason {choice.get('stop_reason')!r}"


@fact("`allowed_token_ids` restricts sampling")
def allowed(engine):
    sampled, _, _ = engine.tokens(prompt(), max_tokens=8, temperature=1, allowed_token_ids=[65, 66, 67])
    expect(set(sampled) <= {65, 66, 67}, str(sampled))
    return ""


@fact("`logit_bias` of 100 decides")
def logit_bias(engine):
    sampled, _, _ = engine.tokens(prompt(), max_tokens=4, logit_bias={"65": 100})
    expect(sampled == [65] * 4, str(sampled))
    return ""


@fact("`top_k`, `top_p`, `min_p`, penalties and `min_tokens` are taken")
def sampling(engine):
    first, _, _ = engine.tokens(prompt(), max_tokens=4, temperature=1, top_k=1, top_p=0.9, min_p=0.1, min_tokens=2)
    engine.tokens(prompt(), max_tokens=4, repetition_penalty=1.2, frequency_penalty=0.1, presence_penalty=0.1)
    return f"{len(first)} tokens"


@fact("`X-Session-ID` and `cached_tokens`: a second turn takes the first from the cache", needed=False)
def cached(engine):
    ids = prompt(130)
    session = {"x-session-id": f"conformance-{random.getrandbits(32)}"}
    sampled, _, _ = engine.tokens(ids, headers=session, max_tokens=8)
    time.sleep(0.2)
    usage = engine.ask(ids + sampled + prompt(8), headers=session, max_tokens=2)["usage"]
    told = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    expect(told, f"cached_tokens {told} of {usage['prompt_tokens']}: vLLM tells with --enable-prompt-tokens-details")
    return f"{told} of {usage['prompt_tokens']} tokens"


@fact("`cache_salt` separates caches")
def salt(engine):
    ids = prompt(130)
    engine.ask(ids, salt="a", max_tokens=2)
    time.sleep(0.2)
    usage = engine.ask(ids, salt="b", max_tokens=2)["usage"]
    told = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    expect(told == 0, f"{told} tokens of another salt came from the cache")
    return ""


@fact("`weight_versions` names the weights of a turn", needed=False)
def versions(engine):
    _, _, choice = engine.tokens(prompt(), max_tokens=4)
    expect(choice.get("weight_versions"), "not sent: other weights are then noticed by checks alone")
    return str(choice["weight_versions"])


@fact("`structured_outputs` (not used: forms are checked token by token)", needed=False)
def structured(engine):
    params = {"max_tokens": 20, "temperature": 1, "structured_outputs": {"regex": "[0-9]{3}"}}
    choice = engine.wanted("POST", engine.route, engine.body(prompt(), params))["choices"][0]
    named = {"model": engine.model} if engine.kind == "vllm" else {}
    text = engine.wanted("POST", "/detokenize", {"tokens": choice["token_ids"], **named})["prompt"]
    expect(re.match(r"[0-9]{3}", text), repr(text))
    return repr(text)


@fact("`priority` (not used: shares are kept in front of the engine)", needed=False)
def priority(engine):
    engine.wanted("POST", engine.route, engine.body(prompt(), {"max_tokens": 2}, priority=1))
    return ""


@fact("refusals: an ID out of the vocabulary, a sequence that is too long, none, an unknown model")
def refusals(engine):
    seen = []
    too_long = [7] * (engine.longest + 10)
    cases = [([9_999_999], None, {400}), (too_long, None, {400, 413}), ([], None, {400, 422}), ([7], "nope", {404})]
    for ids, model, allowed in cases:
        try:
            engine.ask(ids, max_tokens=2, model=model)
            raise Differs(f"{len(ids)} tokens of {model or engine.model} were answered")
        except Refused as refused:
            expect(refused.status in allowed, f"{refused}, expected {allowed}")
            expect(isinstance(refused.body, dict) and "message" in refused.body.get("error", {}), f"shape: {refused}")
            seen.append(refused.status)
    return f"{seen}, all as `error.message`"


@fact("a client that leaves ends its generation", needed=False)
def leaves(engine):
    gauge = r"^(?:vllm:num_requests_running|waymark_sessions_running)(?:\{[^}]*\})? (\S+)$"
    body = engine.body(prompt(), {"max_tokens": 1500, "ignore_eos": True}, stream=True)
    connection, response = engine.open("POST", engine.route, body)
    response.readline()
    running = re.search(gauge, engine.wanted("GET", "/metrics"), re.M)
    if not running or float(running[1]) == 0:
        raise Skipped("no gauge of running requests, or the generation had ended already")
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    left = time.monotonic()
    while float(re.search(gauge, engine.wanted("GET", "/metrics"), re.M)[1]):
        expect(time.monotonic() < left + 5, "it ran on for 5 s")
        time.sleep(0.02)
    return f"after {time.monotonic() - left:.2f} s"


@fact("a wrong key gets 401")
def wrong_key(engine):
    if not engine.key:
        raise Skipped("no key: set WAYMARK_ENGINE_KEY")
    status, body = engine.call("POST", engine.route, engine.body([7], {"max_tokens": 1}), key="wrong")
    expect(status == 401, f"{status}: {body}")
    return json.dumps(body)


@fact("adapters are loaded, listed, used and unloaded by name")
def adapters(engine):
    if not engine.adapter:
        raise Skipped("--adapter names none")
    name = f"conformance-{random.getrandbits(32):08x}"
    engine.wanted("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": engine.adapter})
    status, body = engine.call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": engine.adapter})
    expect(status == 400 and "already been loaded" in str(body), f"loaded twice: {status} {body}")
    listed = engine.wanted("GET", "/v1/models")["data"]
    expect(any(row["id"] == name and row.get("parent") == engine.model for row in listed), f"listed: {listed}")
    engine.ask(prompt(), model=name, max_tokens=4)
    engine.wanted("POST", "/v1/unload_lora_adapter", {"lora_name": name})
    status, body = engine.call("POST", engine.route, {**engine.body([7], {"max_tokens": 1}), "model": name})
    expect(status == 404, f"after unloading: {status} {body}")
    status, body = engine.call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": "/nowhere"})
    expect(status in (400, 404), f"a path that does not exist: {status} {body}")
    return ""


@fact("SGLang's `/generate` (not used)", needed=False)
def sglang(engine):
    asked = {"input_ids": prompt(20), "sampling_params": {"max_new_tokens": 4, "temperature": 0}, "return_logprob": True}
    answer = engine.wanted("POST", "/generate", asked)
    expect("output_ids" in answer and answer["meta_info"]["output_token_logprobs"], str(answer)[:200])
    return f"{len(answer['output_ids'])} tokens"


def look(engine, check):
    """Returns the result of a check, and what was seen."""
    try:
        return "ok", check(engine)
    except Differs as seen:
        return "differs", str(seen)
    except Refused as refused:
        return "refused", str(refused)
    except Skipped as reason:
        return "skipped", str(reason)
    except (AttributeError, LookupError, TypeError, ValueError, StopIteration, OSError, http.client.HTTPException) as error:
        return "differs", f"{type(error).__name__}: {error}"


def first_model(engine):
    """Returns the name of the first base model."""
    rows = engine.wanted("GET", "/v1/models")["data"]
    return next(row.get("parent") or row["id"] for row in rows if row.get("protocol") not in ("embedding", "rerank"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--model", help="name of the model there; the first base model when not given")
    parser.add_argument("--kind", choices=["vllm", "waymark"], default="vllm")
    parser.add_argument("--route", choices=["auto", "generate", "completions"], default="auto")
    parser.add_argument("--adapter", help="directory of a PEFT adapter, as the engine sees it")
    arguments = parser.parse_args()
    engine = Engine(arguments.url, arguments.model, arguments.kind, GENERATE, os.environ.get("WAYMARK_ENGINE_KEY"))
    engine.adapter = arguments.adapter
    engine.model = arguments.model or first_model(engine)
    status, _ = engine.call("POST", GENERATE, engine.body([7], {"max_tokens": 1}))
    if arguments.route == "completions" or (arguments.route == "auto" and status == 404):
        engine.route = COMPLETIONS
    told = engine.call("GET", "/version")[1]
    version = told.get("version") if isinstance(told, dict) else "unknown"
    print(f"`{engine.route}` of `{engine.model}`, {arguments.kind}, version {version}\n")
    print("| fact | result | seen |\n|---|---|---|")
    failed = 0
    for name, needed, check in FACTS:
        result, seen = look(engine, check)
        failed += needed and result in ("differs", "refused")
        shown = seen.replace("|", "\\|").replace("\n", " ")[:240]
        print(f"| {name}{'' if needed else ' (optional)'} | {result} | {shown} |", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
