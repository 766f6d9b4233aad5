"""Servers that the tests ask: Waymark with its mock, Waymark with a random model, and one that answers as it is told."""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "integrations"), str(ROOT / "scripts/bench")]

from local_services import Server  # noqa: E402

PROGRAM = Path(os.environ.get("WAYMARK", ROOT / "target/debug/waymark")).resolve()
FOLDER = tempfile.TemporaryDirectory()
KEY = "WAYMARK_API_KEY"
# Seconds in which something must come about, on a slow and busy machine too.
PATIENCE = 60
# Metrics: sessions in the batch, and episodes that were canceled.
RUNNING = "waymark_sessions_running"
CANCELED = 'waymark_episodes_total{policy="search-r1",outcome="cancelled"}'
MONA_LISA = {"question": "Who painted the Mona Lisa?", "answers": ["This is the mock: it has no model behind it."]}


def index():
    """Builds an index of the demo's corpus once. Returns its path."""
    path = Path(FOLDER.name) / "index"
    if not path.exists():
        build = [PROGRAM, "index", "build", "--corpus", ROOT / "demo/corpus.jsonl", "--embedder", "mock", "--out", path]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return path


class WithServer(unittest.TestCase):
    """Tests that share a server with these flags."""

    flags = ("--mock",)

    @classmethod
    def setUpClass(cls):
        name = cls.__name__
        flags = [*cls.flags, "--index", index(), "--embedder", "mock", "--read-only-index", "--state", "none"]
        cls.server = Server(str(PROGRAM), Path(FOLDER.name), name, *flags)
        cls.url = f"http://127.0.0.1:{cls.server.port}"

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        assert status == 0, cls.server.log.read_text()

    def metric(self, name):
        """Returns the value of a metric without labels."""
        from local_services import call

        text = call(self.server.port, "GET", "/metrics")[1]
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{")))

    def until(self, name, wanted):
        """Waits until a metric has this value."""
        end = time.monotonic() + PATIENCE
        while (found := self.metric(name)) != wanted:
            if time.monotonic() > end:
                self.fail(f"{name} is {found}, not {wanted}")
            time.sleep(0.05)


def random_model():
    """Writes a Llama of one layer with random weights, whose tokens are bytes. Returns its path."""
    path = Path(FOLDER.name) / "random"
    if path.exists():
        return path
    path.mkdir()
    hidden, heads, inner, vocab = 32, 2, 48, 258
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": 1,
        "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": hidden // heads, "intermediate_size": inner,
        "vocab_size": vocab, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": True, "bos_token_id": 256, "eos_token_id": 257, "torch_dtype": "float32",
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    # GPT-2's letters for bytes.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(others)}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = [{"id": 256 + at, "content": name, **plain} for at, name in enumerate(["<|begin|>", "<|end|>"])]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {letters[byte]: byte for byte in range(256)}, "merges": []},
    }  # fmt: skip
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    names = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (path / "tokenizer_config.json").write_text(json.dumps({**names, "chat_template": template}))
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,),
        layer + "input_layernorm.weight": (hidden,), layer + "post_attention_layernorm.weight": (hidden,),
        **{f"{layer}self_attn.{name}_proj.weight": (hidden, hidden) for name in "qkvo"},
        layer + "mlp.gate_proj.weight": (inner, hidden), layer + "mlp.up_proj.weight": (inner, hidden),
        layer + "mlp.down_proj.weight": (hidden, inner),
    }  # fmt: skip
    generator = random.Random(24)
    header, data = {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [1.0] * count if len(shape) == 1 else [generator.gauss(0, 0.5) for _ in range(count)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += struct.pack(f"<{count}f", *values)
    head = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    return path


class Told(ThreadingHTTPServer):
    """Server that answers each request with the next of the prepared answers: a status and a body, or a stream's events."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self):
        """Stops the server."""
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append((self.path, dict(self.headers), body))
        status, answer = self.server.answers.pop(0)
        if not isinstance(answer, str):
            answer = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in answer)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_):
        pass
