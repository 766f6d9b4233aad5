"""One row of `pace.sh`: the time between tokens as wrk, AIPerf and the server saw it, in milliseconds."""

import json
import re
import sys

BUCKET = re.compile(r'^waymark_step_seconds_bucket\{le="([^"]+)"\} (\S+)')


def histogram(path):
    """Returns the cumulative counts by bound, the sum and the count."""
    bounds, total = {}, {}
    for line in open(path):
        if bucket := BUCKET.match(line):
            bounds[float(bucket[1].replace("+Inf", "inf"))] = float(bucket[2])
        elif line.startswith(("waymark_step_seconds_sum", "waymark_step_seconds_count")):
            name, value = line.split()
            total[name.rsplit("_", 1)[1]] = float(value)
    return bounds, total["sum"], total["count"]


def steps(before, after):
    """Returns the mean of the steps between two scrapes in seconds, and the share of those that took 25 ms at most."""
    (early, early_sum, early_count), (late, late_sum, late_count) = histogram(before), histogram(after)
    count = late_count - early_count
    return (late_sum - early_sum) / count, (late[0.025] - early[0.025]) / count


def chunks(path):
    """The times between chunks of all streams, in milliseconds: mean, median and 99th percentile."""
    gaps = []
    for line in open(path):
        gaps += json.loads(line)["metrics"].get("inter_chunk_latency", {}).get("value", [])
    gaps.sort()
    return sum(gaps) / len(gaps), gaps[len(gaps) // 2], gaps[int(len(gaps) * 0.99)]


def main():
    streams, tokens, wrk, before, after, summary, records = sys.argv[1:]
    # The end of the sequence is a step as well.
    p50, p99 = (float(field) / 1000 / (int(tokens) + 1) for field in wrk.split()[4:6])
    mean = json.load(open(summary))["inter_token_latency"]["avg"]
    seen = chunks(records)
    step, share = steps(before, after)
    seen = ", ".join(f"{gap:.2f}" for gap in seen)
    print(f"| {streams} | {p50:.2f}, {p99:.2f} ms | {seen} ms | {mean:.2f} ms | {1000 * step:.2f} ms, {share:.1%} |")


main()
