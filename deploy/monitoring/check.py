#!/usr/bin/env python3
"""Asks Prometheus every query of the dashboard and names those without data.

    deploy/monitoring/check.py                          # the Prometheus of compose.yaml
    deploy/monitoring/check.py http://127.0.0.1:19090

The server must have answered a question before, and been scraped twice since.
"""

import json
import sys
import urllib.parse
import urllib.request
from pathlib import Path

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"

# Values that Grafana would fill in.
VARIABLES = {"$__rate_interval": "1m", "$__interval": "10s", "$__range": "15m"}


def panels(listed):
    """Yields the panels, those of rows included."""
    for panel in listed:
        yield panel
        yield from panels(panel.get("panels", []))


def has_data(prometheus, query):
    """Returns `True` if `query` has a result now. A query that Prometheus refuses ends the program."""
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    url = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return bool(json.load(answer)["data"]["result"])


def main():
    prometheus = sys.argv[1].rstrip("/") if len(sys.argv) > 1 else "http://127.0.0.1:9090"
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [(p["title"], t["expr"]) for p in panels(dashboard["panels"]) for t in p.get("targets", [])]
    empty = [(title, query) for title, query in queries if not has_data(prometheus, query)]
    for title, query in empty:
        print(f"no data: {title}: {query}")
    print(f"{len(queries) - len(empty)} of {len(queries)} queries have data")
    return 1 if empty or not queries else 0


if __name__ == "__main__":
    sys.exit(main())
