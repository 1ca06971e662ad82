# tidegate: one command each. `make help` lists them.
# Everything runs in .venv, which is made from the hashed lock files when it is missing or they changed.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup setup-train run jars kafka up down test check format bench bench-cluster lock clean distclean

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP   := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet --progress-bar off
CODE  := schemas operators jobs replay deploy tests examples
OUT   := out
# Test files that run at once; most of those with a cluster wait for it, so two cores bear two.
TEST_JOBS ?= 2

# A python3.11, or a python3 that is 3.11, and can make virtual environments (Debian's may not);
# PYTHON=/path/to/python3.11 overrides the search.
IS_311  := import sys, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))
PYTHON ?= $(shell for p in python3.11 python3 python; do \
	if $$p -c '$(IS_311)' >/dev/null 2>&1; then echo $$p; break; fi; done)

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' \
		| while IFS=$$'\t' read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

setup: $(STAMP) ## make .venv from the lock files (the other targets do it when needed)

$(STAMP): requirements-build.lock requirements.lock pyproject.toml
	@if [ -z "$(PYTHON)" ] || ! "$(PYTHON)" -c '$(IS_311)' 2>/dev/null; then \
		echo "tidegate needs Python 3.11 with venv (PyFlink 2.3 and the pins are tested with it)." >&2; \
		echo "  found:  $$("$(or $(PYTHON),python3)" --version 2>/dev/null | head -n 1)" >&2; \
		echo "  remedy: install it (Debian: python3.11-venv), or make PYTHON=/path/to/python3.11" >&2; \
		exit 1; fi
	@echo "== setup: $(VENV) with $$("$(PYTHON)" --version), from requirements.lock (about 1 GB, some minutes the first time)"
	@# An environment that works is kept: the lock says all that must be in it.
	@$(BIN)/python -c '$(IS_311)' 2>/dev/null || "$(PYTHON)" -m venv --clear $(VENV)
	@$(PIP) --require-hashes -r requirements-build.lock
	@# No build isolation: it would fetch build tools that no hash pins.
	@$(PIP) --require-hashes --no-build-isolation -r requirements.lock
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

setup-train: $(STAMP) requirements-train.lock ## add what the training recipe needs (JAX)
	@echo "== setup: JAX, from requirements-train.lock"
	@$(PIP) --require-hashes -r requirements-train.lock

run: $(STAMP) ## score a recorded week of real flights on an embedded Flink, then read what it did
	@echo "== run: examples/flights through the Flink job, outputs in $(OUT)/flights"
	@$(BIN)/tidegate run examples/flights/flights.toml --log examples/flights/week.jsonl.gz \
		--out $(OUT)/flights --overwrite
	@$(BIN)/python -m examples.flights.evaluate $(OUT)/flights

# What Maven fetches, pinned in a pom each; the stamps keep it from running again until the pom changes.
MVN          ?= mvn
CONNECTOR    := deploy/jars
BROKER       := deploy/local/kafka
JARS_STAMP   := $(CONNECTOR)/lib/.copied
KAFKA_STAMP  := $(BROKER)/lib/.copied
# The goal is named with its version, so that it does the same whatever Maven would bind it to.
COPY_JARS    := org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies

jars: $(JARS_STAMP) ## fetch the Kafka connector of Flink (needs Maven)

kafka: $(KAFKA_STAMP) ## fetch a Kafka broker, for the local cluster and the tests (needs Maven)

$(JARS_STAMP) $(KAFKA_STAMP): %/lib/.copied: %/pom.xml
	@if ! command -v $(MVN) >/dev/null; then \
		echo "the jars of $< cannot be fetched" >&2; \
		echo "  found:  no $(MVN) on the PATH" >&2; \
		echo "  needed: Maven 3, and the repository that it is configured with" >&2; \
		echo "  remedy: install it (Debian: maven), or copy the jars into $(@D) and touch $@" >&2; \
		exit 1; fi
	@echo "== jars: $< into $(@D)"
	@rm -rf $(@D)
	@$(MVN) --batch-mode --quiet -Dstyle.color=never --file $< $(COPY_JARS) -DoutputDirectory=$(CURDIR)/$(@D)
	@touch $@

up: $(STAMP) $(JARS_STAMP) $(KAFKA_STAMP) ## start a broker, a Flink cluster and the job of simulated shipments here
	@$(BIN)/python -m deploy.local up

down: $(STAMP) ## end them; what they know stays, for the next `make up`
	@$(BIN)/python -m deploy.local down

test: $(STAMP) ## run every test (those with a broker need Maven, once, and are skipped without it)
	@if command -v $(MVN) >/dev/null; then $(MAKE) --no-print-directory jars kafka; \
		else echo "== test: no $(MVN), so tests that need a Kafka broker are skipped"; fi
	@echo "== test: pytest, $(TEST_JOBS) at a time"
	@$(BIN)/python -m pytest --numprocesses=$(TEST_JOBS) --dist=loadfile

check: $(STAMP) ## format, lint and types
	@echo "== check: ruff format"
	@$(BIN)/ruff format --check .
	@echo "== check: ruff"
	@$(BIN)/ruff check .
	@echo "== check: mypy --strict"
	@$(BIN)/mypy

format: $(STAMP) ## apply the formatter and the safe lint fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(STAMP) ## measure the job beside pass-through, per-event PyFlink, the replay and a bare loop
	@echo "== bench: 2M simulated events, 20k keys"
	@$(BIN)/python -m tests.benchmarks

bench-cluster: $(STAMP) $(JARS_STAMP) $(KAFKA_STAMP) ## measure the job between Kafka topics beside one that only copies
	@echo "== bench-cluster: 2M simulated events through a broker and a cluster of its own"
	@$(BIN)/python -m tests.benchmarks.cluster

# UV: the resolver that writes the locks (any recent one; not needed to install from them).
UV      ?= uv
COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'
lock: ## resolve the dependencies anew and write the lock files (needs uv)
	@echo "== lock: requirements-build.lock, requirements.lock, requirements-train.lock"
	@$(COMPILE) --upgrade requirements-build.in --output-file requirements-build.lock
	@$(COMPILE) --upgrade pyproject.toml --extra cluster --extra examples --extra dev \
		--output-file requirements.lock
	@$(COMPILE) --upgrade pyproject.toml --extra train --constraint requirements.lock \
		--output-file requirements-train.lock

clean: ## remove outputs and caches
	rm -rf $(OUT) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove .venv and the fetched jars, too
	rm -rf $(VENV) $(CONNECTOR)/lib $(BROKER)/lib
