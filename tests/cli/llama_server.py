#!/usr/bin/env python3
"""A stand-in for llama.cpp's `llama-server`: its flags, `/health`, and `/completion` with slots and a prompt cache.

It samples always the same token, and computes what follows the common prefix of a prompt and its slot, as the program does.
With `--ignore-bans` it samples the first banned token instead.
"""
import argparse
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = 28  # Any token that is whole text.
flags = argparse.ArgumentParser()
flags.add_argument("--version", action="store_true")
flags.add_argument("--ignore-bans", action="store_true")
for name in ("model", "host"):
    flags.add_argument(f"--{name}")
for name in ("port", "threads", "threads-batch", "ctx-size", "parallel"):
    flags.add_argument(f"--{name}", type=int)
options = flags.parse_args()
if options.version:
    print("version: 0 (stand-in)")
    raise SystemExit
assert not any(name.startswith("LLAMA_ARG_") for name in os.environ), "the benchmark passes no variables of llama-server on"
assert os.path.isfile(options.model) and options.threads == options.threads_batch and options.ctx_size % options.parallel == 0
slots = [[] for _ in range(options.parallel)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert self.path == "/completion" and ask["cache_prompt"] and ask["stream"] and ask["ignore_eos"] and ask["top_k"] == 1
        assert [TOKEN, False] not in ask["logit_bias"]
        token = ask["logit_bias"][0][0] if options.ignore_bans else TOKEN
        prompt, slot = ask["prompt"], slots[ask["id_slot"]]
        cached = min(len(os.path.commonprefix([prompt, slot])), len(prompt) - 1)
        sampled = [token] * ask["n_predict"]
        # The last sampled token is not computed.
        slots[ask["id_slot"]] = prompt + sampled[:-1]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for id in sampled:
            self.event({"index": 0, "content": "x", "tokens": [id], "stop": False})
        timings = {"cache_n": cached, "prompt_n": len(prompt) - cached}
        self.event({"index": 0, "content": "", "tokens": [], "stop": True, "timings": timings})
        self.close_connection = True

    def event(self, value):
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())

    def log_message(self, *_):
        pass


ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()
