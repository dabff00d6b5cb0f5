# make demo: a model answers here.  make lab: the same notebook in JupyterLab.  make test, make bench, make clean.
.DEFAULT_GOAL := demo
.PHONY: setup demo lab test bench clean

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
    $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
CMAKE_ARGS ?= -DGGML_NATIVE=OFF
export CMAKE_ARGS
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# The one place that names the version of llama-cpp-python is the `llama` extra.
LLAMA := $(shell sed -n 's/.*"llama-cpp-python>=\([0-9.]*\)".*/\1/p' pyproject.toml)

# Building llama.cpp takes minutes and pip's own cache does not look at CMAKE_ARGS, so wheels are kept by their flags.
PYTAG  := $(shell $(PYTHON) -c 'import sys, platform as p; print("py%d%d-%s-%s" % (*sys.version_info[:2], p.system(), p.machine()))')
quoted  = '$(subst ','\'',$(1))'
FLAGS  := $(shell printf '%s' $(call quoted,$(CMAKE_ARGS)) | cksum | cut -d' ' -f1)
WHEELS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/rishi/wheels/$(PYTAG)-llama$(LLAMA)-$(FLAGS)

# Stamps carry what they were made from, so a changed pyproject or other flags make a new environment up to date.
STATE := $(shell (cat pyproject.toml; printf '%s' '$(PYTAG)-$(FLAGS)') | cksum | cut -d' ' -f1)
DEMO  := .venv/.demo-$(STATE)
DEV   := .venv/.dev-$(STATE)
PY    := .venv/bin/python
PIP   := $(PY) -m pip --quiet

setup: $(DEV)

demo: $(DEMO)
	@$(PY) tests/demo.py

lab: $(DEMO)
	$(PY) -m jupyterlab $(shell [ "$$(id -u)" != 0 ] || echo --allow-root) nbs/demo.ipynb

test: $(DEV)
	@$(PY) tests/browser.py
	$(PY) -m ruff check .
	$(PY) -m pytest

bench: $(DEV)
	@failed=; for f in tests/bench/[!_]*.py; do echo "== $$f"; $(PY) $$f || failed="$$failed $$f"; done; \
	[ -z "$$failed" ] || { echo "missed:$$failed"; exit 1; }

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find rishi rishi_jupyter tests nbs -name __pycache__ -prune -exec rm -rf {} +

$(PY):
	@[ -n "$(PYTHON)" ] || { echo "rishi needs Python 3.11 or later; none was found. Set PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
	  echo "No virtual environment could be made; on Debian or Ubuntu: apt-get install python3-venv"; exit 1; }

# A finished build is moved into place, so that an interrupted one leaves nothing that looks like a wheel.
$(DEMO): | $(PY)
	@if [ ! -d "$(WHEELS)" ]; then \
	  [ -n "$$CXX" ] || command -v c++ || command -v g++ || command -v clang++ || { \
	    echo "llama.cpp has to be built and there is no C++ compiler; on Debian or Ubuntu: apt-get install g++"; exit 1; }; \
	  echo "building llama-cpp-python $(LLAMA) with CMAKE_ARGS=$$CMAKE_ARGS: some minutes, once"; \
	  part="$(WHEELS).part.$$$$"; \
	  $(PIP) wheel --no-deps --no-cache-dir --no-binary llama-cpp-python -w "$$part" llama-cpp-python==$(LLAMA) && \
	  mv "$$part" "$(WHEELS)" || { rm -rf "$$part"; exit 1; }; \
	fi
	@echo "installing into .venv"
	@$(PIP) install --no-deps --force-reinstall "$(WHEELS)"/*.whl
	@$(PIP) install -e '.[llama,demo]'
	@touch $@

$(DEV): | $(DEMO)
	@echo "installing what the tests need"
	@$(PIP) install -e '.[llama,demo,dev]'
	@touch $@
