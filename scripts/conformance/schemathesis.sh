#!/usr/bin/env bash
# Sends what schemathesis makes of a server's own /openapi.json to that server, and fails on any 5xx, any status or
# content type that is not documented, and any body that is not as described.
#
#   scripts/conformance/schemathesis.sh URL [EXAMPLES]
#
# It installs itself into target/schemathesis on first use; where that is impossible it says so and succeeds.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly VERSION=4.32.5
readonly URL=${1:?the server\'s address, such as http://127.0.0.1:8080}
readonly EXAMPLES=${2:-40}
readonly ENVIRONMENT=target/schemathesis

installed() { "$ENVIRONMENT/bin/st" --version 2>/dev/null | grep -qF "$VERSION"; }

if ! installed; then
    python3 -m venv "$ENVIRONMENT" >/dev/null 2>&1 || true
    "$ENVIRONMENT/bin/pip" install --quiet "schemathesis==$VERSION" >/dev/null 2>&1 || true
fi
if ! installed; then
    echo "skipped: schemathesis $VERSION cannot be installed here"
    exit 0
fi

exec "$ENVIRONMENT/bin/st" run "$URL/openapi.json" \
    --seed 6 --max-examples "$EXAMPLES" --phases examples,coverage,fuzzing --mode all \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
    --generation-database none --request-timeout 30 --no-color --continue-on-failure
