#!/usr/bin/env bash
# Starts the page and the API, and says when they are ready. Flags and TTS_ variables are app.py's:
#
#   scripts/run_server.sh
#   TTS_API_KEY=some-long-key scripts/run_server.sh --host 0.0.0.0 --port 8000 --model Qwen/Qwen3-TTS-12Hz-1.7B-Base
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
if [[ ! -x "$(command -v "$python")" ]]; then
    echo "There is no $python: run make run once, or name a Python with PYTHON=." >&2
    exit 1
fi
# A port of its own choice would be one that nobody here knows.
export TTS_PORT=${TTS_PORT:-${GRADIO_SERVER_PORT:-7860}}

"$python" app.py "$@" &
app=$!
trap 'kill -TERM $app 2>/dev/null' INT TERM
url=$("$python" - "$@" 2>/dev/null <<'PY'
from backend.settings import load_settings
print(load_settings().url)
PY
) || url=
until [[ -z "$url" ]] || "$python" - "$url" 2>/dev/null <<'PY'
import sys, urllib.request
# Not by way of a proxy, which knows no server of this machine.
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{sys.argv[1]}/health", timeout=2)
PY
do
    kill -0 $app 2>/dev/null || break
    sleep 0.5
done
if [[ -n "$url" ]] && kill -0 $app 2>/dev/null; then
    echo "Ready: page $url, API $url/v1"
fi
# A trapped signal interrupts the first wait.
wait $app || { trap - INT TERM; wait $app; }
