# Two commands need nothing but Python: `make demo` and `make test`. Both set up what they need.

PYTHON ?= python3
SEED ?= 0
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

PEER := benchmarks/.venv-trl
PEER_READY := $(PEER)/.ready

.PHONY: help install demo demo-score study-score test test-slow test-tinker tinker-server lint study smollm2 bench bench-quick \
	bench-scaling bench-where bench-peer clean

help:            ## show this list
	@grep -E '^[a-z0-9-]+: .*##|^[a-z0-9-]+:  +##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(READY)   ## virtual environment, torch for this machine, inwit and its tests

$(READY): pyproject.toml scripts/install.sh
	PYTHON=$(PYTHON) VENV=$(VENV) sh scripts/install.sh
	@touch $(READY)

demo: install    ## train GRPO and ICRL on the embedded task (SEED=0), minutes on two cores
	rm -rf runs/demo
	$(BIN)/inwit compare recipes/checkout/demo.toml --out runs/demo --seed $(SEED) --jobs 2

demo-score: install   ## SCoRe, the classic mistake and its baselines (SEED=0), minutes on two cores
	rm -rf runs/demo-score
	$(BIN)/inwit compare recipes/checkout-again/demo.toml --out runs/demo-score --seed $(SEED) --jobs 2

test: install    ## the fast tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test-slow: install   ## the slow tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

tinker-server:   ## SkyRL's server of the Tinker protocol, in an environment of its own (Python 3.12)
	sh scripts/tinker-server.sh install

test-tinker: install tinker-server   ## the tests against that server
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m tinker -rs

lint: install    ## format, lint and types
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy

study: install   ## the study of docs/results.md: three seeds
	$(BIN)/inwit compare recipes/checkout/demo.toml --out runs/study --jobs 2 --seed 0 --seed 1 --seed 2

study-score: install   ## the studies of SCoRe in docs/results.md: an hour on two cores
	$(BIN)/inwit compare recipes/lock/study.toml --out runs/study-lock --jobs 2 --seed 0 --seed 1 --seed 2 --seed 3 --seed 4
	$(BIN)/inwit compare recipes/checkout-again/study.toml --out runs/study-checkout-again --jobs 2 --seed 0 --seed 1 --seed 2
	$(BIN)/inwit compare recipes/checkout-again/weak.toml --out runs/study-weak --jobs 2 --seed 0 --seed 1 --seed 2

smollm2: install ## ten steps of ICRL on SmolLM2-135M-Instruct
	$(BIN)/inwit train recipes/smollm2/icrl.toml --out runs/smollm2

bench: bench-peer   ## every case beside TRL and the machine's limit: more than an hour on two cores
	$(BIN)/python -m benchmarks.speed

bench-quick: bench-peer   ## the same for one model of 3.2M parameters, in minutes
	$(BIN)/python -m benchmarks.speed --quick

bench-scaling: install   ## ICRL's step beside GRPO's; steps of 1,000 to 100,000 tokens
	$(BIN)/python -m benchmarks.scaling all

bench-where: install   ## where the time of a step goes, by phase
	$(BIN)/python -m benchmarks.where

bench-peer: install $(PEER_READY)   ## a virtual environment with TRL, for the benchmark alone

# torch first and alone, as in scripts/install.sh: the CPU build where the index has one
$(PEER_READY): benchmarks/requirements-trl.txt
	[ -x $(PEER)/bin/python ] || $(BIN)/python -m venv $(PEER)
	$(PEER)/bin/python -m pip install -q --disable-pip-version-check "torch==2.13.0+cpu" 2>/dev/null || \
	  $(PEER)/bin/python -m pip install -q --disable-pip-version-check "torch==2.13.0"
	$(PEER)/bin/python -m pip install -q --disable-pip-version-check -r benchmarks/requirements-trl.txt
	@touch $@

clean:           ## remove the virtual environment and caches; runs stay
	rm -rf $(VENV) $(PEER) benchmarks/.cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
