#!/bin/sh
# Makes tests/reference anew: sh scripts/reference/capture_all.sh, from the root of the repository.
set -eu
reference=${REFERENCE_VENV:-.venv-reference}
test -x "$reference/bin/python" || sh scripts/reference/make_venv.sh "$reference"
tiny=$(mktemp -d)
trap 'rm -rf "$tiny"' EXIT
.venv/bin/python scripts/make_checkpoint.py --size tiny --variant custom_voice --out "$tiny"
"$reference/bin/python" -m scripts.reference.capture assets/model tests/reference/bundled
"$reference/bin/python" -m scripts.reference.capture "$tiny" tests/reference/tiny_custom_voice
