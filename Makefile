# `make help` lists all targets. They need only Python 3.11 to 3.13, which make finds, or which `make PYTHON=...` names.

.DELETE_ON_ERROR:
.PHONY: help setup demo test lint quick rest everything test-oldest test-newest test-extras docs clean

# Python's compiled files are kept: without them, each process compiles rljax and its tests anew, which takes seconds.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
DEMO := runs/demo/$(shell date +%Y%m%d-%H%M%S)
DEMO_STEPS := 30000
PYTEST_FLAGS :=
# K/N: of the rest, and of the tests with other versions, only part K of N (from 0 on) runs.
SHARE := 0/1
# Where a part is empty, pytest ends with 5.
IN_PART = --share $(SHARE) $(PYTEST_FLAGS) || [ $$? -eq 5 ]
# One process per core, up to four: most of a test's time is compilation, which uses only one core.
PYTEST := -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile
REST := -m "slow or learn"
# With other versions, only tests whose result may differ run: no tests that take minutes, and no tests of style.
OTHER_VERSIONS := -m "not learn" --ignore=tests/agents/contract/test_probes.py --ignore=tests/test_style.py -k "not killed"

# The first Python that runs (some are only shims), has a supported version and can make environments.
PYENV := $(wildcard $(HOME)/.pyenv/versions/3.13.*/bin/python3) $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python3) \
	$(wildcard $(HOME)/.pyenv/versions/3.11.*/bin/python3)
find_python = $(shell for python in python3.13 python3.12 python3.11 python3 python $(PYENV); do \
	"$$python" -c 'import ensurepip, venv, sys; sys.exit(not $(1) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1 \
	&& { command -v "$$python"; break; }; done)
PYTHON = $(call find_python,(3, 11))
NEWER = $(call find_python,(3, 12))

# $(call environment,FOLDER,PYTHON,PIP'S ARGUMENTS): an environment with an editable installation of rljax.
define environment
	@"$(or $(2),false)" -c 'import ensurepip, venv, sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || { \
		echo "no Python 3.11, 3.12 or 3.13 that has venv. Name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "$(1): $$("$(2)" --version) from $(2); this takes a minute or two"
	@"$(2)" -m venv --clear $(1)
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check $(3)
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
endef

help:  ## list the targets
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

test: setup  ## lint, types and the quick tests, in some minutes
	@$(MAKE) --no-print-directory --jobs 2 lint quick

lint: setup  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --project . --pythonpath $(BIN)/python

# With almost no optimisation, programs compile in a third of the time, and most of a test's time is compilation. Small
# programs are not worth a split among threads. Tests that train for long are optimised. The newest packages are tested
# as users have them. Only JAX 0.10 knows the last flag.
TRAINED := tests/buffers/test_goals.py tests/agents/contract/test_learning.py tests/agents/contract/test_defaults.py
unoptimised = XLA_FLAGS="--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1 \
	$(shell $(1) -c 'import importlib.metadata as m; \
	print("--xla_cpu_use_fusion_emitters=false" if m.version("jax").startswith("0.10.") else "")') $(XLA_FLAGS)" $(1)

# One or two agents stand for all in what agents share; tests marked `slow` or `learn` are the rest.
quick: setup  ## the quick tests
	$(call unoptimised,$(BIN)/python) $(PYTEST) -m "not slow and not learn" $(PYTEST_FLAGS)

rest: setup  ## the other tests, many of which train; SHARE=0/16 runs the first sixteenth of them
	$(BIN)/python $(PYTEST) --dist worksteal $(REST) $(TRAINED) $(IN_PART)
	$(call unoptimised,$(BIN)/python) $(PYTEST) --dist worksteal $(REST) $(addprefix --ignore=,$(TRAINED)) $(IN_PART)

everything: test rest test-oldest test-newest  ## all tests, with all versions; takes an hour or two

test-oldest: .venv-oldest/installed  ## tests with the oldest supported packages
	$(call unoptimised,.venv-oldest/bin/python) $(PYTEST) $(OTHER_VERSIONS) $(IN_PART)

.venv-oldest/installed: requirements-oldest.txt pyproject.toml
	$(call environment,.venv-oldest,$(PYTHON),--constraint requirements-oldest.txt hatchling ".[dev]")

# With Python 3.12 or newer, `make test` already uses the newest JAX.
test-newest: setup  ## tests with the newest JAX, if there is a Python for it
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then \
		echo "make test has already run with the newest JAX"; \
	elif test -z "$(NEWER)"; then \
		echo "skipped: the newest JAX needs Python 3.12 or 3.13, and none was found"; \
	else \
		$(MAKE) .venv-newest/installed || exit 1; \
		.venv-newest/bin/python $(PYTEST) $(OTHER_VERSIONS) $(IN_PART); \
	fi

.venv-newest/installed: requirements.txt pyproject.toml
	$(call environment,.venv-newest,$(NEWER),--requirement requirements.txt)

test-extras: .venv-extras/installed  ## tests of adapters with large packages
	.venv-extras/bin/python $(PYTEST) tests/envs/test_conformance.py tests/envs/test_signals.py tests/envs/host/test_envpool.py tests/envs/host/test_minigrid.py tests/envs/host/test_popgym.py $(PYTEST_FLAGS)

# In a variable, since commas would part the arguments of `call`.
WITH_EXTRAS := .[dev,box2d,craftax,envpool,minigrid,playground,popgym]
.venv-extras/installed: requirements.txt pyproject.toml
	$(call environment,.venv-extras,$(PYTHON),--constraint requirements.txt hatchling "$(WITH_EXTRAS)")

docs: .venv-docs/installed  ## the site, in site/
	.venv-docs/bin/python scripts/site/build.py

.venv-docs/installed: requirements-docs.txt
	@"$(or $(PYTHON),false)" -c 'import ensurepip, venv' || { echo "no Python that has venv: make docs PYTHON=..." >&2; exit 1; }
	@echo "an environment for the site in .venv-docs"
	@"$(PYTHON)" -m venv --clear .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements-docs.txt
	@touch $@

clean:  ## remove the environments and the tools' caches; runs/ stays
	rm -rf .venv .venv-oldest .venv-newest .venv-extras .venv-docs build dist site .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
