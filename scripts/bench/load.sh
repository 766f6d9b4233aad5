#!/usr/bin/env bash
# The server under load, without a model: scripts/bench/load.sh [WAYMARK] > table.md
#
# Starts `waymark serve --mock` and drives it with wrk, which nobody here wrote. Needs wrk, curl and python3 on the path;
# writes a table in Markdown to standard output and what it does to standard error. SECONDS_EACH (5) is how long each
# row runs. Client and server share the machine: the figures are of both.
set -euo pipefail
waymark=${1:-target/release/waymark}
each=${SECONDS_EACH:-5}
here=$(cd "$(dirname "$0")" && pwd)
log=$(mktemp)
. "$here/mock.sh"
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null || true; rm -f "$log"' EXIT

say() { echo "$*" >&2; }

# drive CONNECTIONS SECONDS PATH [BODY]: sets `requests`, `seconds`, `bytes`, `p50`, `p99`, `errors`, `timeouts` and
# `statuses`.
drive() {
    local line
    line=$(wrk -t1 -c"$1" -d"$2s" --timeout 30s -s "$here/load.lua" "$url" -- "${@:3}" | grep '^load ')
    read -r _ requests seconds bytes p50 p99 errors timeouts statuses <<<"$line"
    say "$1 connections, $3: $line"
}

rss() { awk '/^VmRSS/ {print $2}' "/proc/$server/status"; }
calc() { python3 -c "print($1)"; }

plain='{"model":"plain","messages":[{"role":"user","content":"Say something."}]'
whole="$plain}"
stream="$plain,\"stream\":true}"

echo "wrk: $(wrk -v 2>&1 | head -n 1 | cut -d' ' -f2); $(nproc) cores, client and server on the same"
echo
start --max-batch 512 --step-tokens 4096 --max-waiting 1024
usage=$(curl -s -H 'content-type: application/json' -d "$whole" "$url/v1/chat/completions")
tokens=$(python3 -c 'import json,sys; print(json.loads(sys.argv[1])["usage"]["completion_tokens"])' "$usage")
echo "| connections | \`/health\` requests/s | whole answers/s | streams/s | streamed tokens/s | p50 of a stream | p99 | p99 per token |"
echo "|---|---|---|---|---|---|---|---|"
for connections in 1 64 512; do
    drive "$connections" "$each" /health
    floor=$(calc "round($requests/$seconds)")
    drive "$connections" "$each" /v1/chat/completions "$whole"
    answers=$(calc "round($requests/$seconds)")
    drive "$connections" "$each" /v1/chat/completions "$stream"
    [ "$statuses" = "200=$requests" ] || say "not all were answered: $statuses"
    echo "| $connections | $floor | $answers | $(calc "round($requests/$seconds)") | $(calc "round($requests/$seconds*$tokens)") |" \
        "$(calc "round($p50/1e3,1)") ms | $(calc "round($p99/1e3,1)") ms | $(calc "round($p99/$tokens)") µs |"
done
echo
echo "Every stream has $tokens tokens; steps of the mock take no time, so all of it is the server's and the client's own."
stop

echo
# The end of the sequence is a step as well.
steps=$((tokens + 1))
echo "| connections | step of the mock | p50 per step | p99 per step | p99 above the step |"
echo "|---|---|---|---|---|"
start --max-batch 512 --step-tokens 4096 --max-waiting 1024 --mock-step-ms 20
for connections in 1 64 512; do
    drive "$connections" "$((each + 5))" /v1/chat/completions "$stream"
    echo "| $connections | 20 ms | $(calc "round($p50/1e3/$steps,2)") ms | $(calc "round($p99/1e3/$steps,2)") ms | $(calc "round($p99/1e3/$steps-20,2)") ms |"
done
stop

echo
start --max-batch 1024 --step-tokens 4096 --max-waiting 2048 --mock-step-ms 1000
wrk -t1 -c1 -d2s --timeout 30s -s "$here/load.lua" "$url" -- /v1/chat/completions "$stream" >/dev/null 2>&1
before=$(rss)
wrk -t1 -c1000 -d12s --timeout 30s -s "$here/load.lua" "$url" -- /v1/chat/completions "$stream" >/dev/null 2>&1 &
client=$!
sleep 8
open=$(curl -s "$url/metrics" | awk '/^waymark_sessions_(running|waiting|parked)(_total)?[ {]/ {n += $NF} END {print n + 0}')
during=$(rss)
wait "$client" || true
echo "Memory: $before kB with one stream, $during kB with 1000 that wait for their next token ($open sessions):" \
    "$(calc "round(($during-$before)/1000,1)") kB each."
kill -9 "$server"; wait "$server" 2>/dev/null || true; server=""

echo
start --max-batch 32 --max-waiting 64 --mock-step-ms 20
drive 512 "$each" /v1/chat/completions "$stream"
under="$statuses, in $(calc "round($seconds,1)") s, $errors broken connections"
drive 8 2 /v1/chat/completions "$stream"
echo "Overload: 512 connections on a server that decodes 32 at a time and lets 64 wait got the statuses $under;" \
    "8 connections right after that $statuses."
stop
