# `make run` and `make test` set up everything they need in .venv; the second time it is there.

VENV := .venv
PY := $(VENV)/bin/python
UV := $(VENV)/bin/uv
# Passed on: make run ARGS="--share", make test ARGS="-k voices".
ARGS ?=

PYTHON ?= $(shell for python in python3.12 python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info[:2] not in [(3, 11), (3, 12)])' 2>/dev/null \
	&& echo $$python && break; done)
HARDWARE := $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
CPU_LOCK := $(UV) pip compile --quiet --no-header --no-annotate --python-version 3.11 \
	--python-platform x86_64-unknown-linux-gnu --override scripts/requirements-cpu.overrides \
	scripts/requirements-cpu.in
# Fails quietly where packages cannot be installed.
apt_install = { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(1); }

.PHONY: help run test bench lint lock clean chromium

help:
	@echo 'make run     start the app; ARGS="--help" shows its options'
	@echo 'make test    all tests; ARGS="-m \"not engine and not browser\"" for the fast ones'
	@echo 'make bench   measure speed and memory'
	@echo 'make lint    ruff and mypy'
	@echo 'make lock    resolve requirements-cpu.txt again'
	@echo 'make clean   remove what tests and tools leave behind (not .venv)'

run: $(VENV)/installed-$(HARDWARE)
	@exec $(PY) app.py $(ARGS)

test: $(VENV)/installed-dev chromium
	@exec $(PY) -m pytest $(ARGS)

bench: $(VENV)/installed-dev chromium
	@exec $(PY) scripts/bench.py $(ARGS)

lint: $(VENV)/installed-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

lock: $(VENV)/installed-dev
	@{ sed -n '/^#/p' requirements-cpu.txt; $(CPU_LOCK); } > requirements-cpu.new
	@mv requirements-cpu.new requirements-cpu.txt

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .gradio test-results
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

chromium:
	@command -v chromium >/dev/null || $(call apt_install,chromium) || \
		echo 'Chromium is missing, so the browser tests are skipped; on Debian: apt-get install chromium.'

$(VENV)/installed-dev: $(VENV)/installed-$(HARDWARE) pyproject.toml
	@$(UV) pip install --python $(PY) --group dev
	@touch $@

$(VENV)/installed-gpu: requirements.txt | $(UV)
	@$(UV) pip install --python $(PY) --compile-bytecode -r requirements.txt
	@touch $@

$(VENV)/installed-cpu: requirements-cpu.txt | $(UV)
	@$(PY) -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || $(call apt_install,libnuma1) || { \
		echo 'vLLM needs libnuma on a CPU and it is missing; on Debian: apt-get install libnuma1.' >&2; exit 1; }
	@$(UV) pip install --python $(PY) --compile-bytecode --no-deps -r requirements-cpu.txt
	@touch $@

$(UV): | $(PY)
	@$(PY) -m pip install --quiet --disable-pip-version-check uv==0.13.9

$(PY):
	@test -n '$(PYTHON)' || { \
		echo 'Python 3.11 or 3.12 is needed and neither was found; name one with make PYTHON=/path/to/python3.12 ...' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { $(call apt_install,python3-venv) && $(PYTHON) -m venv $(VENV); } || { \
		rm -rf $(VENV); \
		echo 'Python cannot make a virtual environment; on Debian: apt-get install python3-venv.' >&2; exit 1; }
