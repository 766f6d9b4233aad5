#!/usr/bin/env bash
# The time between two tokens as two clients and the server itself see it: scripts/bench/pace.sh [WAYMARK] > table.md
#
# Starts `waymark serve --mock` with steps of 20 ms and drives it with wrk and with AIPerf (`pip install aiperf`), neither of
# which anybody here wrote, at 1 and at 64 streams. wrk sees whole streams, whose time is divided by their steps; AIPerf
# sees every chunk; the server's figures are those of `waymark_step_seconds` while AIPerf ran. Needs wrk, aiperf, curl
# and python3 on the path. AIPerf requires a tokenizer, although the server counts tokens: TOKENIZER is a folder with
# one; by default AIPerf downloads its own. Clients and server share the machine.
set -euo pipefail
waymark=${1:-target/release/waymark}
tokenizer=${TOKENIZER:-builtin}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
log=$work/log
. "$here/mock.sh"
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null || true; rm -rf "$work"' EXIT

start --max-batch 512 --step-tokens 4096 --max-waiting 1024 --mock-step-ms 20

# A text that goes on: unlike in a chat, where tags are not told, each token is an event.
body='{"model":"plain","prompt":"Say something.","max_tokens":100'
usage=$(curl -s -H 'content-type: application/json' -d "$body}" "$url/v1/completions")
tokens=$(python3 -c 'import json,sys; print(json.loads(sys.argv[1])["usage"]["completion_tokens"])' "$usage")
echo '{"text": "Say something."}' >"$work/prompts.jsonl"

# row STREAMS: how each of the three sees that many streams at once.
row() {
    local streams=$1 line
    line=$(wrk -t1 -c"$streams" -d10s --timeout 30s -s "$here/load.lua" "$url" -- /v1/completions "$body,\"stream\":true}" \
        | grep '^load ')
    curl -s "$url/metrics" >"$work/before"
    aiperf profile --model plain --url "$url" --endpoint-type completions --extra-inputs max_tokens:100 --streaming \
        --use-server-token-count --tokenizer "$tokenizer" --no-server-metrics \
        --input-file "$work/prompts.jsonl" --custom-dataset-type single-turn \
        --concurrency "$streams" --request-count "$((streams * 6))" --workers-max 1 --ui none --artifact-dir "$work/$streams" >&2
    curl -s "$url/metrics" >"$work/after"
    python3 "$here/pace.py" "$streams" "$tokens" "$line" "$work/before" "$work/after" \
        "$work/$streams/profile_export_aiperf.json" "$work/$streams/profile_export.jsonl"
}

echo "wrk $(wrk -v 2>&1 | head -n 1 | cut -d' ' -f2), AIPerf $(aiperf --version | tail -n 1); $(nproc) cores, clients and server on the same"
echo
echo "| streams | wrk: p50, p99 per step | AIPerf: mean, p50, p99 between chunks | AIPerf's time between tokens, mean | the server: mean of a step, share of at most 25 ms |"
echo "|---|---|---|---|---|"
for streams in 1 64; do row "$streams"; done
stop
