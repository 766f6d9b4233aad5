"""Runner shared by the clients in Python: each feature is checked once and reported as a line of JSON."""

import asyncio
import inspect
import json
import os
import sys
import time
import traceback

URL = sys.argv[1]
BASE = URL + "/v1"
KEY = os.environ.get("WAYMARK_API_KEY", "none")
# Policy that searches, policy that does not, and embedder, as `/v1/models` names them.
SEARCHING, PLAIN, EMBEDDER = sys.argv[2:5]

QUESTION = "Who painted the Mona Lisa?"
FOLLOW_UP = "Where was he born?"
CITY = "Name a city in Italy and the number of its bridges."
WEATHER = "How is the weather in Rome? Call the function."

_features = []


def feature(name):
    """Registers a function as the check of a feature. Features are checked in the order of the file."""

    def register(function):
        _features.append((name, function))
        return function

    return register


def run():
    """Checks all features and prints a line for each."""
    for name, function in _features:
        began = time.monotonic()
        try:
            outcome = asyncio.run(function()) if inspect.iscoroutinefunction(function) else function()
            result = {"feature": name, "ok": True, "note": outcome}
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            result = {"feature": name, "ok": False, "note": f"{type(error).__name__}: {error}"[:600]}
        result["seconds"] = round(time.monotonic() - began, 2)
        print(json.dumps(result), flush=True)
