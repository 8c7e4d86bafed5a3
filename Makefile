# Every target is one line of the list that bare `make` prints: the text after its `##`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin

# Tests start hundreds of processes. Without cached bytecode each of them would compile all of Gapless again.
unexport PYTHONDONTWRITEBYTECODE

# The stamp is named after the folder, so that a copied or moved tree is set up again.
STAMP := .venv/.setup-$(shell pwd -P | cksum | cut -d ' ' -f 1)

# Four workers on two processors: tests of whole nodes mostly wait for a timer, a disk or another process.
# Who gets which files, and in what order, is in tests/scheduling.py.
WORKERS ?= 4
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help
help: ## List the targets
	@echo "usage: make TARGET"
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

.PHONY: setup
setup: $(STAMP) ## Create .venv with the pinned dependencies; instant when nothing changed
	@:

$(STAMP): requirements/runtime.txt requirements/dev.txt pyproject.toml scripts/setup
	@scripts/setup
	@touch $@

.PHONY: demo
demo: setup ## Watch real processes lose a router, then Spark, and nobody lose an event
	@$(BIN)/gapless demo

.PHONY: test
test: lint ## Lint, types and every test, with a part of each campaign: below 8 minutes
	@# Mypy takes a minute of one processor, so it runs beside the tests. What it finds comes after their output.
	@found=$$(mktemp); trap 'rm -f $$found' EXIT; \
	$(BIN)/mypy --no-error-summary >$$found 2>&1 & types=$$!; \
	status=0; $(PYTEST) -m "not long" || status=$$?; \
	wait $$types || { cat $$found; exit 1; }; \
	exit $$status

.PHONY: test-long
test-long: setup ## The campaigns: all seeds, all examples, long random runs
	@$(PYTEST) -m "long or hypothesis" --hypothesis-profile=long

.PHONY: check
check: lint types ## The fast part of `make test`: lint, types and the tests that are not slow
	@$(PYTEST) -m "not long and not slow"

.PHONY: test-cluster
test-cluster: setup ## Views on a Spark master with two workers, which lose processes
	@$(BIN)/pytest -m cluster tests/spark

.PHONY: lint
lint: setup ## Ruff: rules and formatting
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo "lint: not formatted; run: make format" >&2; exit 1; }

.PHONY: types
types: setup ## Mypy, strict, on src
	@$(BIN)/mypy --no-error-summary

.PHONY: sim
sim: setup ## Simulate: make sim [SEED=0x5f3a] [COMMIT=9c1e2d7] [ARGS="..."]
	@[ -z "$(COMMIT)" ] || git rev-parse HEAD 2>/dev/null | grep -q "^$(COMMIT)" || \
		echo "sim: this tree is not at commit $(COMMIT), so the run may differ" >&2
	@$(BIN)/gapless sim $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: chaos
chaos: setup ## Break real processes 200 times, and see that nothing is lost: make chaos [SEED=7] [ARGS="..."]
	@mkdir -p build
	@$(BIN)/python -m tests.chaos --faults 200 --seed $(or $(SEED),1) --plot build/chaos-recovery.svg $(ARGS)

.PHONY: mutants
mutants: setup ## Break the protocol on purpose and see that the tests notice
	@$(BIN)/python -m tests.mutants

.PHONY: bench
bench: setup ## Measure the core path
	@$(BIN)/python benchmarks/core_path.py

.PHONY: bench-content
bench-content: setup ## Measure matching: rows and XML against up to 100,000 subscriptions
	@$(BIN)/python -m benchmarks.content

# What each of these measures, and how long it takes, is in docs/benchmarks.md.
.PHONY: bench-network
bench-network: bench-rates bench-filters bench-edge bench-faults bench-startup ## Measure real networks, beside other systems: about 45 minutes

.PHONY: bench-rates
bench-rates: setup ## Durable events/s, latency and fan-out beside NATS, Redis, RabbitMQ and ActiveMQ
	@$(BIN)/python -m benchmarks.throughput $(ARGS)

.PHONY: bench-filters
bench-filters: setup ## 4,000 content filters, durable and not, beside ActiveMQ and RabbitMQ
	@$(BIN)/python -m benchmarks.filters $(ARGS)

.PHONY: bench-edge
bench-edge: setup ## Guaranteed against best-effort, 1,000 to 16,000 subscribers: the paper's Figures 4 and 5
	@$(BIN)/python -m benchmarks.figures_4_5 $(ARGS)

.PHONY: bench-faults
bench-faults: setup ## Latency and nacks around failures of real processes: the paper's Figures 6 to 8
	@$(BIN)/python -m benchmarks.figures_6_8 $(ARGS)

.PHONY: bench-startup
bench-startup: setup ## Start a node that has 10 million events behind it
	@$(BIN)/python -m benchmarks.startup $(ARGS)

.PHONY: bench-views
bench-views: setup ## How stale live views are, what a hundred cost, beside Spark by hand and Pathway
	@$(BIN)/python -m benchmarks.ticket_sale $(ARGS)
	@$(BIN)/python -m benchmarks.views_many $(ARGS)
	@$(BIN)/python -m benchmarks.views_peers $(ARGS)

.PHONY: bench-hostile
bench-hostile: setup ## What a good client notices while another one attacks the node
	@$(BIN)/python -m benchmarks.hostile $(ARGS)

.PHONY: bench-history
bench-history: setup ## Rows a second that Spark reads from archives and from the live log
	@$(BIN)/python -m benchmarks.history $(ARGS)

.PHONY: golden
golden: setup ## Rewrite the expectations of the scenarios; review the difference like code
	@$(BIN)/pytest tests/scenarios --golden

.PHONY: lock
lock: ## Pin the dependencies of pyproject.toml anew (needs uv)
	@scripts/lock

.PHONY: format
format: setup ## Format the code and mend what ruff can mend by itself
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format --quiet

.PHONY: clean
clean: ## Remove .venv, caches and build results
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage htmlcov build dist
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
