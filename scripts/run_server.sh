#!/usr/bin/env bash
# Starts the page and the API, and says when they are ready. Flags are app.py's:
#
#   scripts/run_server.sh
#   TTS_API_KEY=some-long-key PORT=8000 HOST=0.0.0.0 scripts/run_server.sh --model Qwen/Qwen3-TTS-12Hz-1.7B-Base
set -euo pipefail
cd "$(dirname "$0")/.."
host=${HOST:-127.0.0.1} port=${PORT:-7860} python=${PYTHON:-.venv/bin/python}
if [[ ! -x "$(command -v "$python")" ]]; then
    echo "There is no $python: run make run once, or name a Python with PYTHON=." >&2
    exit 1
fi

"$python" app.py --host "$host" --port "$port" "$@" &
app=$!
trap 'kill -TERM $app 2>/dev/null' INT TERM
until "$python" - "$port" 2>/dev/null <<'PY'
import sys, urllib.request
urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/health", timeout=2)
PY
do
    kill -0 $app 2>/dev/null || break
    sleep 0.5
done
if kill -0 $app 2>/dev/null; then
    echo "Ready: page http://$host:$port, API http://$host:$port/v1"
fi
# A trapped signal interrupts the first wait.
wait $app || { trap - INT TERM; wait $app; }
