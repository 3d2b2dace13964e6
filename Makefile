# The commands for people: `make` lists the targets. Everything runs from .venv, which `setup` creates.

PYTHON  ?= python3
BIN     := .venv/bin
STAMP   := .venv/.setup-complete
BEGUN   := .venv/.setup-begun
PIP     := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt
LOG     := .venv/setup.log
PEERS   := .venv/peers
WORKERS ?= 2
PYTEST  := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 10

DEMO_OUT   := runs/demo
DEMO_TRAIN := train minatar/breakout --steps 500000
DEMO_WATCH := watch

.DEFAULT_GOAL := help
.PHONY: help setup demo test check peers torture bench clean

# One arithmetic thread per worker: two workers with a thread pool each would compete for the cores.
test check peers torture: export OMP_NUM_THREADS := 1
test check peers torture: export OPENBLAS_NUM_THREADS := 1

help: ## list the targets
	@awk -F ':[^#]*## ' '/^[a-z]+:[^#]*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with everything in it (all extras and the development tools)
	@:

# BEGUN becomes the stamp at the very end. If it exists at the start, the last set-up was interrupted and .venv cannot
# be trusted, so it is cleared first. Torch is installed first, at its exact version.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "lambda-replay needs Python 3.11 \
	or newer, which $(PYTHON) is not; choose another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up .venv: this takes a few minutes the first time, and 2.5 GB of disk. The log is $(LOG)."
	@rm -f $@
	@$(PYTHON) -m venv $$(test ! -e $(BEGUN) || echo --clear) .venv
	@touch $(BEGUN)
	@{ $(PIP) "$$(grep '^torch==' constraints.txt)" && $(PIP) -e '.[all,dev]'; } >$(LOG) 2>&1 || \
		{ rm -f $(BEGUN); tail -n 20 $(LOG); echo "The set-up failed; run make clean to start over."; exit 1; } >&2
	@mv $(BEGUN) $@ && touch $@

demo: setup ## train DQN(λ) on MinAtar Breakout for about a minute; writes a learning curve and an animation
	@out=$(DEMO_OUT); number=1; \
	while [ -e "$$out" ]; do number=$$((number + 1)); out=$(DEMO_OUT)-$$number; done; \
	[ "$$out" = $(DEMO_OUT) ] || echo "$(DEMO_OUT) already exists, so this run goes to $$out."; \
	set -x; $(BIN)/lambda-replay $(DEMO_TRAIN) --out "$$out" && $(BIN)/lambda-replay $(DEMO_WATCH) "$$out"

test: setup ## run all tests except the torture tests
	@$(PYTEST)

check: setup ## run everything a change must pass: format, lint, types, tests (including the import order)
	@echo "— format"; $(BIN)/ruff format --check .
	@echo "— lint";   $(BIN)/ruff check .
	@echo "— types";  $(BIN)/mypy
	@echo "— tests";  $(PYTEST)

peers: $(PEERS)/.setup-complete ## run the tests that need other libraries, which have an environment of their own
	@$(PEERS)/bin/python -m pytest -m peers --durations 5 $$(grep -l 'pytest.mark.peers' tests/test_*.py)

# They want other versions than constraints.txt has.
$(PEERS)/.setup-complete: pyproject.toml constraints.txt | setup
	@echo "Setting up $(PEERS) with Tianshou, TorchRL, rlax and sb3-contrib. The log is $(LOG)."
	@$(PYTHON) -m venv --clear $(PEERS)
	@for packages in "$$(grep '^torch==' constraints.txt)" "-e .[bench] pytest hypothesis"; do \
		$(PEERS)/bin/python -m pip install --disable-pip-version-check --progress-bar off $$packages || exit 1; \
	done >$(LOG) 2>&1 || { tail -n 20 $(LOG); echo "The set-up failed; run make peers again." >&2; exit 1; }
	@touch $@

torture: setup ## run the long tests: kill and resume, many seeds
	@$(PYTEST) -m torture

bench: setup ## measure how fast training is on this machine
	@$(BIN)/lambda-replay bench

clean: ## remove .venv, caches and builds; keep runs/
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
