# A server without a model, for the benches in this folder that source this file. They set `waymark` to its program and
# `log` to its log file, and kill `server` when they end.
server=""

# start FLAG…: starts a server on a free port; sets `server` and `url`.
start() {
    "$waymark" serve --mock --port 0 --log warn "$@" >"$log" 2>&1 &
    server=$!
    url=""
    for _ in $(seq 300); do
        url=$(grep -oE 'http://127\.0\.0\.1:[0-9]+' "$log" | head -n 1 || true)
        [ -n "$url" ] && curl -sf "$url/ready" >/dev/null && return
        kill -0 "$server" 2>/dev/null || { cat "$log" >&2; exit 1; }
        sleep 0.1
    done
    echo "the server was not ready in 30 s" >&2; exit 1
}

stop() {
    kill -TERM "$server"
    wait "$server" || { echo "the server ended with status $?" >&2; exit 1; }
    server=""
}
