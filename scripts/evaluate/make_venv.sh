#!/bin/sh
# Makes the evaluation venv: sh scripts/evaluate/make_venv.sh [FOLDER], by default .venv-evaluate.
# 2 GB with a CPU build of torch, more with the one that PyPI serves; Python 3.11.
set -eu
here=$(dirname "$0")
venv=${1:-.venv-evaluate}
test -x "$venv/bin/python" || "${PYTHON:-python3.11}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet -r "$here/requirements.txt"
"$venv/bin/python" -m pip install --quiet --no-deps -r "$here/requirements-no-deps.txt"
"$venv/bin/python" -c 'import faster_whisper, jiwer, speechmos, torch'
