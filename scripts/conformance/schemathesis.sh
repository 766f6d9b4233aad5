#!/usr/bin/env bash
# Sends requests that schemathesis generates from a server's own /openapi.json, and fails on any 5xx, any status or
# content type that is not documented, and any body that is not as described.
#
#   scripts/conformance/schemathesis.sh URL [EXAMPLES]
#
# For a server with keys, WAYMARK_API_KEY holds one with all scopes.
#
# The first use installs schemathesis into target/schemathesis. If that is impossible, the script says so and succeeds.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly URL=${1:?the server\'s address, such as http://127.0.0.1:8080}
readonly EXAMPLES=${2:-40}
readonly ENVIRONMENT=target/schemathesis

if ! missing=$(tests/api/sdk/install schemathesis); then
    echo "skipped: $missing"
    exit 0
fi

# Three things the document cannot say: which names are served (others give nothing but a 404), that a conversation ends with
# a user's words, and, before OpenAPI 3.2, that the schema of an event stream is that of its events' data: of those only the
# form is checked here, their content by the golden transcripts.
cd "$ENVIRONMENT"
bin/python - "$URL" >openapi.json <<'PYTHON'
import json, os, sys, urllib.request

key = os.environ.get("WAYMARK_API_KEY")
headers = {"Authorization": f"Bearer {key}"} if key else {}

def get(path):
    with urllib.request.urlopen(urllib.request.Request(sys.argv[1] + path, headers=headers)) as response:
        return json.load(response)

document, names = get("/openapi.json"), {"embedding": [], "other": []}
for model in get("/v1/models")["data"]:
    names["embedding" if model["protocol"] == "embedding" else "other"].append(model["id"])
for schema, shape in document["components"]["schemas"].items():
    if schema.endswith("Request") and "model" in shape.get("properties", {}):
        known = names["embedding" if schema.startswith("Embedding") else "other"]
        if known:
            shape["properties"]["model"] = {"type": "string", "enum": known}
document["components"]["schemas"]["ChatRole"]["enum"] = ["user"]
document["components"]["schemas"]["ChatMessage"]["required"] = ["role", "content"]
for path in document["paths"].values():
    for operation in path.values():
        for response in operation["responses"].values():
            if "text/event-stream" in response.get("content", {}):
                event = {"type": "object", "properties": {"data": {"type": "string"}}}
                response["content"]["text/event-stream"]["schema"] = event
json.dump(document, sys.stdout)
PYTHON

header=()
if [[ -n ${WAYMARK_API_KEY:-} ]]; then
    header=(--header "Authorization: Bearer $WAYMARK_API_KEY")
fi
exec bin/st run openapi.json --url "$URL" "${header[@]}" \
    --seed 6 --max-examples "$EXAMPLES" --phases examples,coverage,fuzzing --mode all \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
    --suppress-health-check filter_too_much,too_slow --generation-database none --request-timeout 120 --no-color \
    --continue-on-failure
