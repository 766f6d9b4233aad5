"""The parsers of Prometheus's Python library on the metrics of a running server: read_metrics.py URL. Prints `ok` at
the end, or fails."""

import sys
import urllib.request

import prometheus_client.openmetrics.parser as openmetrics
import prometheus_client.parser as classic

url = sys.argv[1]
ask = urllib.request.Request(url + "/v1/agent", b'{"question": "Who wrote Faust?", "model": "routerag"}')
ask.add_header("content-type", "application/json")
urllib.request.urlopen(ask).read()


def scrape(accept, parser):
    """Returns the families by name, and the media type."""
    request = urllib.request.Request(url + "/metrics", headers={"accept": accept})
    with urllib.request.urlopen(request) as response:
        families = parser.text_string_to_metric_families(response.read().decode())
        return {family.name: family for family in families}, response.headers["content-type"]


# The first scrape is a series of the later ones.
scrape("*/*", classic)
# The header of Prometheus 3.
prometheus = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;"
    "q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
opened, kind = scrape(prometheus, openmetrics)
assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8", kind
plain, kind = scrape("text/plain", classic)
assert kind == "text/plain; version=0.0.4; charset=utf-8", kind


def series(families):
    """Returns the names and labels of all samples."""
    samples = (sample for family in families.values() for sample in family.samples)
    bounds = lambda labels: {name: float(value) if name == "le" else value for name, value in labels.items()}
    return {(sample.name, tuple(sorted(bounds(sample.labels).items()))) for sample in samples}


assert series(opened) == series(plain), series(opened) ^ series(plain)
for name, kind in [
    ("waymark_http_requests", "counter"),
    ("waymark_episode_seconds", "histogram"),
    ("waymark_step_seconds", "histogram"),
    ("waymark_http_in_flight", "gauge"),
    ("waymark_build", "info"),
]:
    assert opened[name].type == kind and opened[name].documentation, name
assert plain["waymark_episode_seconds"].type == "histogram"
assert sum(sample.value for sample in plain["waymark_episodes"].samples) == 1

print("ok")
