# make help says what there is. Needs Python 3.11 to 3.13 (found by itself, or `make PYTHON=...`) and nothing else.

.DELETE_ON_ERROR:
.PHONY: help setup demo test lint quick learn test-oldest test-newest test-extras clean

BIN := .venv/bin
DEMO := runs/demo/$(shell date +%Y%m%d-%H%M%S)
DEMO_STEPS := 30000
PYTEST_FLAGS :=
# One process per core, up to four: most of a test is compilation, which knows one core only.
PYTEST := -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile
# With other versions: what could differ there, and not what takes minutes or never runs anything.
OTHER_VERSIONS := -m "not learn" --ignore=tests/agents/test_probes.py --ignore=tests/test_style.py -k "not killed"

# The first Python that runs (some are only shims), is of the right age and can make environments.
PYENV := $(wildcard $(HOME)/.pyenv/versions/3.13.*/bin/python3) $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python3) \
	$(wildcard $(HOME)/.pyenv/versions/3.11.*/bin/python3)
find_python = $(shell for python in python3.13 python3.12 python3.11 python3 python $(PYENV); do \
	"$$python" -c 'import ensurepip, venv, sys; sys.exit(not $(1) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1 \
	&& { command -v "$$python"; break; }; done)
PYTHON = $(call find_python,(3, 11))
NEWER = $(call find_python,(3, 12))

# $(call environment,FOLDER,PYTHON,PIP'S ARGUMENTS): an environment with rljax in it, editable.
define environment
	@"$(or $(2),false)" -c 'import ensurepip, venv, sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || { \
		echo "no Python 3.11, 3.12 or 3.13 that has venv. Name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "$(1): $$("$(2)" --version) from $(2); this takes a minute or two"
	@"$(2)" -m venv --clear $(1)
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check $(3)
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
endef

help:  ## what there is to make
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' Makefile | while read -r name text; do printf 'make %-12s %s\n' "$$name" "$$text"; done

setup: .venv/installed  ## an environment in .venv with the tested versions of everything

.venv/installed: requirements.txt pyproject.toml
	$(call environment,.venv,$(PYTHON),--requirement requirements.txt)

demo: setup  ## train SAC on Hopper-v5 for a few minutes; evaluate, draw and film it
	$(BIN)/rljax train sac --env Hopper-v5 --steps $(DEMO_STEPS) --out $(DEMO)
	$(BIN)/rljax eval $(DEMO) --episodes 10
	$(BIN)/rljax plot $(DEMO) --output $(DEMO)/curve.png
	-$(BIN)/rljax play $(DEMO) --output $(DEMO)/play.mp4
	@echo
	@echo "The run:            $(DEMO)"
	@echo "Summary:            $(DEMO)/summary.json"
	@echo "Learning curve:     $(DEMO)/curve.png"
	@echo "Film of the policy: $(DEMO)/play.mp4"
	@echo "Train on:           $(BIN)/rljax resume $(DEMO) --steps 300000"

test: lint quick  ## lint, types and the quick tests

lint: setup  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --project . --pythonpath $(BIN)/python

# Hardly optimised, programs compile in a third of the time, and most of a test is compilation. Not so where it trains for
# long; and the newest packages are tested as users have them. The second flag is one that only JAX 0.10 knows.
TRAINED := tests/buffers/test_goals.py tests/agents/test_learning.py
unoptimised = XLA_FLAGS="--xla_backend_optimization_level=0 $(shell $(1) -c 'import importlib.metadata as m; \
	print("--xla_cpu_use_fusion_emitters=false" if m.version("jax").startswith("0.10.") else "")') $(XLA_FLAGS)" $(1)

quick: setup  ## the quick tests
	$(call unoptimised,$(BIN)/python) $(PYTEST) -m "not learn" $(PYTEST_FLAGS)

learn: setup  ## the tests that take longer, many of which train until something is learnt
	$(BIN)/python $(PYTEST) --dist worksteal -m learn $(TRAINED) $(PYTEST_FLAGS)
	$(call unoptimised,$(BIN)/python) $(PYTEST) --dist worksteal -m learn $(addprefix --ignore=,$(TRAINED)) $(PYTEST_FLAGS)

test-oldest: .venv-oldest/installed  ## tests with the oldest packages supported
	$(call unoptimised,.venv-oldest/bin/python) $(PYTEST) $(OTHER_VERSIONS) $(PYTEST_FLAGS)

.venv-oldest/installed: requirements-oldest.txt pyproject.toml
	$(call environment,.venv-oldest,$(PYTHON),--constraint requirements-oldest.txt hatchling ".[dev]")

# With Python 3.12 or newer `make test` runs on the newest JAX anyway.
test-newest: setup  ## tests with the newest JAX, where a Python for it is found
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then \
		echo "make test has already run with the newest JAX"; \
	elif test -z "$(NEWER)"; then \
		echo "skipped: the newest JAX needs Python 3.12 or 3.13, and none was found"; \
	else \
		$(MAKE) .venv-newest/installed && .venv-newest/bin/python $(PYTEST) $(OTHER_VERSIONS) $(PYTEST_FLAGS); \
	fi

.venv-newest/installed: requirements.txt pyproject.toml
	$(call environment,.venv-newest,$(NEWER),--requirement requirements.txt)

test-extras: .venv-extras/installed  ## tests of the adapters whose packages are too heavy for all
	.venv-extras/bin/python $(PYTEST) tests/envs/test_conformance.py $(PYTEST_FLAGS)

.venv-extras/installed: requirements.txt pyproject.toml
	$(call environment,.venv-extras,$(PYTHON),--constraint requirements.txt hatchling ".[dev,envpool,playground]")

clean:  ## remove the environments and what tools left behind; runs/ stays
	rm -rf .venv .venv-oldest .venv-newest .venv-extras build dist .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
