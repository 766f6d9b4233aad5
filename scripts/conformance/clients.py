#!/usr/bin/env python3
"""Asks a server with real weights through the newest released clients, one feature after the other.

    scripts/conformance/clients.py target/release/waymark                # a table on standard output
    scripts/conformance/clients.py target/release/waymark --write        # the table of docs/clients.md too
    scripts/conformance/clients.py target/release/waymark --only litellm_sdk,ai_sdk

Installs the clients into `target/clients`, in their newest versions from PyPI and npm, and starts `waymark demo`. Exits
with 1 if a client fails at a feature.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "clients"
ENVIRONMENTS = ROOT / "target/clients"
PAGE = ROOT / "docs/clients.md"
FEATURES = [
    "chat", "stream", "tools", "structured output", "file search", "responses", "multi-turn", "embeddings",
]  # fmt: skip
# Longest time for one client, in seconds.
LIMIT = 900
# LiteLLM carries the vocabulary that LangChain would download otherwise.
TIKTOKEN = "litellm/litellm_core_utils/tokenizers"


@dataclass
class Client:
    """A client: the name in the table, its script, and the packages that it needs, of which the first is named."""

    title: str
    script: str
    packages: list[str]
    versions: dict[str, str] = field(default_factory=dict)
    results: dict[str, dict] = field(default_factory=dict)


CLIENTS = [
    Client("OpenAI, Python", "openai_sdk.py", ["openai"]),
    Client("OpenAI, JavaScript", "openai_node.mjs", ["openai", "zod"]),
    Client("OpenAI Agents SDK", "agents_sdk.py", ["openai-agents"]),
    Client("LangChain", "langchain_sdk.py", ["langchain-openai", "langchain", "litellm"]),
    Client("LlamaIndex", "llama_index_sdk.py", ["llama-index-llms-openai-like", "llama-index-core"]),
    Client("LiteLLM", "litellm_sdk.py", ["litellm", "litellm[mcp]"]),
    Client("instructor", "instructor_sdk.py", ["instructor"]),
    Client("DSPy", "dspy_sdk.py", ["dspy", "numpy"]),
    Client("Haystack", "haystack_sdk.py", ["haystack-ai"]),
    Client("Vercel AI SDK", "ai_sdk.mjs", ["ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "zod"]),
    Client("MCP, Python", "mcp_sdk.py", ["mcp"]),
    Client("MCP, JavaScript", "mcp_node.mjs", ["@modelcontextprotocol/sdk"]),
]


def install_python(client):
    """Installs the packages of a client into an environment of its own. Returns the command that runs its script."""
    folder = ENVIRONMENTS / Path(client.script).stem
    python = folder / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade", *client.packages]
    subprocess.run([python, *install], check=True)
    names = [package.split("[")[0] for package in client.packages]
    tell = "import json, sys; from importlib.metadata import version; print(json.dumps({n: version(n) for n in sys.argv[1:]}))"
    told = subprocess.run([python, "-c", tell, *names], check=True, capture_output=True, text=True)
    client.versions = json.loads(told.stdout)
    return [python, SCRIPTS / client.script]


def install_node(client):
    """Installs the packages of a client beside a copy of its script, where they are found."""
    folder = ENVIRONMENTS / Path(client.script).stem
    folder.mkdir(parents=True, exist_ok=True)
    newest = [f"{package}@latest" for package in client.packages]
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, *newest], check=True)
    for package in client.packages:
        manifest = folder / "node_modules" / package / "package.json"
        client.versions[package] = json.loads(manifest.read_text())["version"]
    for script in ("suite.mjs", client.script):
        shutil.copy(SCRIPTS / script, folder)
    return ["node", folder / client.script]


def environment(client):
    """Returns the variables for the script of a client."""
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    for folder in (ENVIRONMENTS / Path(client.script).stem).glob(f"lib/python*/site-packages/{TIKTOKEN}"):
        variables["TIKTOKEN_CACHE_DIR"] = variables["CUSTOM_TIKTOKEN_CACHE_DIR"] = str(folder)
    return variables


def check(client, server):
    """Runs the script of a client, and notes its results."""
    try:
        command = (install_node if client.script.endswith(".mjs") else install_python)(client)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"skipped: {client.title} cannot be installed here: {error}", file=sys.stderr)
        return
    began = time.monotonic()
    try:
        ran = subprocess.run(
            [*command, *server], check=False, env=environment(client), capture_output=True, text=True, timeout=LIMIT
        )
        said, errors, code = ran.stdout, ran.stderr, ran.returncode
    except subprocess.TimeoutExpired as late:
        said, errors, code = (late.stdout or b"").decode(), (late.stderr or b"").decode(), f"none in {LIMIT} s"
    for line in said.splitlines():
        if line.startswith('{"feature"'):
            result = json.loads(line)
            client.results[result["feature"]] = result
    if not client.results:
        client.results["start"] = {"feature": "start", "ok": False, "note": "it reported no feature"}
    failed = [result for result in client.results.values() if not result["ok"]]
    print(f"{client.title}: {len(client.results) - len(failed)} of {len(client.results)} features, "
          f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)  # fmt: skip
    for result in failed:
        print(f"    {result['feature']}: {result['note']}", file=sys.stderr)
    if code != 0:
        client.results["exit"] = {"ok": False, "note": f"exit status {code}"}
    if failed or code != 0:
        print(f"exit status {code}\n{errors[-6000:]}", file=sys.stderr)


def cell(client, feature):
    """Returns the mark of a feature. A script that crashed has shown none of those that it did not reach."""
    missing = "✗" if {"exit", "start"} & client.results.keys() else "–"
    return missing if feature not in client.results else "✓" if client.results[feature]["ok"] else "✗"


def table(clients, server, kept=()):
    """Returns the results as Markdown, with the rows of `kept` for clients that were not asked."""
    lines = ["| client | version | run | " + " | ".join(FEATURES) + " |", "|---" * (len(FEATURES) + 3) + "|"]
    run = f"{date.today().isoformat()}, {server}"
    for client in clients:
        cells = [cell(client, feature) for feature in FEATURES]
        name = client.packages[0].split("[")[0]
        row = f"| {client.title} | `{name}` {client.versions.get(name, '')} | {run} | " + " | ".join(cells) + " |"
        earlier = [line for line in kept if line.startswith(f"| {client.title} |")]
        lines.append(row if client.results or not earlier else earlier[0])
    return "\n".join(lines) + "\n"


def write(clients, version):
    """Replaces the table of the page. Clients that were not asked keep their rows."""
    page = PAGE.read_text()
    told = table(clients, version, page.splitlines())
    page, count = re.subn(r"(<!-- clients.py writes from here -->\n).*(<!-- to here -->)",
                          lambda found: found[1] + told + found[2], page, flags=re.DOTALL)  # fmt: skip
    assert count == 1, f"{PAGE} has no place for the table"
    PAGE.write_text(page)


def get(url):
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.read().decode()


def started(process, log):
    """Returns the address of the server once it is ready."""
    for _ in range(600):
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        if found:
            try:
                get(f"{found.group()}/ready")
                return found.group()
            except OSError:
                pass
        if process.poll() is not None:
            break
        time.sleep(0.5)
    raise SystemExit(f"the server is not ready:\n{log.read_text()}")


def names(url):
    """Returns the policy of the demo, the policy that does not search, and the embedder."""
    protocols = {model["id"]: model["protocol"] for model in json.loads(get(f"{url}/v1/models"))["data"]}
    searching = next(name for name in protocols if name.startswith("routerag-"))
    embedder = next(name for name, protocol in protocols.items() if protocol == "embedding")
    return searching, "plain", embedder


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("program", type=Path)
    options.add_argument("--only", help="scripts to run, by their names without endings", default="")
    options.add_argument("--write", action="store_true", help="write the table of docs/clients.md")
    given = options.parse_args()
    only = given.only.split(",") if given.only else []
    known = {Path(client.script).stem: client for client in CLIENTS}
    if unknown := set(only) - set(known):
        options.error(f"unknown script {sorted(unknown)[0]!r}: expected some of {', '.join(known)}")
    clients = [client for name, client in known.items() if not only or name in only]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as out:
            places = ["--state", f"{folder}/state", "--vector-stores", f"{folder}/stores"]
            command = [given.program.resolve(), "demo", "--port", "0", *places]
            process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            url = started(process, log)
            server = [url, *names(url)]
            for client in clients:
                check(client, server)
            blocks = re.search(r"^waymark_blocks_used(?:{[^}]*})? (\S+)$", get(f"{url}/metrics"), re.MULTILINE)
            assert float(blocks.group(1)) == 0, "KV blocks are held after the last request"
            version = json.loads(get(f"{url}/version"))["version"]
        finally:
            process.terminate()
            code = process.wait(timeout=60)
        assert code == 0, f"the server ended with {code}:\n{log.read_text()}"
    print(table(clients, version))
    if given.write:
        write(CLIENTS, version)
    untested = [client.title for client in clients if not client.results]
    if untested:
        print(f"not tested: {', '.join(untested)}", file=sys.stderr)
    # A client that was asked for by name, or all of them, must have shown something.
    missing = untested and (only or len(untested) == len(clients))
    sys.exit(bool(missing) or any(not result["ok"] for client in clients for result in client.results.values()))


if __name__ == "__main__":
    main()
