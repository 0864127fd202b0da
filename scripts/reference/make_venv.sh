#!/bin/sh
# Makes the environment of the reference package: sh scripts/reference/make_venv.sh [FOLDER], by default .venv-reference.
# Needs uv on the path, or in .venv as `make test` leaves it. Python 3.11, 5 GB.
set -eu
here=$(dirname "$0")
venv=${1:-.venv-reference}
uv=$(command -v uv || echo .venv/bin/uv)
test -x "$venv/bin/python" || "$uv" venv --quiet --python "${PYTHON:-python3.11}" "$venv"
"$uv" pip install --quiet --python "$venv/bin/python" -r "$here/requirements.txt"
# Its own requirements ask for gradio and for any torchaudio.
"$uv" pip install --quiet --python "$venv/bin/python" --no-deps qwen-tts==0.1.1
# Built against another torch, and only the 25 Hz tokenizer would call it; torchaudio works without.
rm -f "$venv"/lib/python3.*/site-packages/torchaudio/lib/*.so
"$venv/bin/python" -c 'import qwen_tts'
