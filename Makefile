# `make` lists what there is. Everything runs in a virtual environment of this folder's own, made on first use.
VENV ?= .venv
export VENV
BIN := $(VENV)/bin
JOBS ?= 3
.DEFAULT_GOAL := help
.PHONY: help setup setup-dev setup-ray serve demo test test-containers test-ray parity lint format bench bench-large bench-overhead bench-peers bench-ray bench-sharing bench-watching loadtest loadtest-compare loadtest-wrk proto clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup:
	@scripts/setup serve

setup-dev:
	@scripts/setup dev

setup-ray:
	@scripts/setup ray

serve: setup ## Serve on http://127.0.0.1:8000 (PORT=… for another); Ctrl-C drains and stops
	@exec $(BIN)/attention serve

demo: setup ## Post a real request and show the weights; starts a service if none runs
	@$(BIN)/attention demo $(if $(PORT),--url http://127.0.0.1:$(PORT))

test: setup-dev ## Every test, by three processes; JOBS=1 for one, ARGS=… for pytest
	@scripts/test-tools
	@OMP_WAIT_POLICY=PASSIVE PATH="$(abspath $(VENV))/tools/usr/bin:$$PATH" $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

test-containers: setup-dev ## Build the images and run them, without Docker: as root, on Debian
	@scripts/container-tools
	@$(BIN)/python -m pytest tests/containers -m containers --timeout 3600 $(ARGS)

test-ray: setup-ray ## deploy/ray on a real Ray cluster of two nodes on this machine, about 4 minutes; first installs Ray, 500 MB
	@scripts/alone $(BIN)/python -m pytest tests/deploy/ray $(ARGS)

parity: setup-dev ## Measure how far our numbers are from other libraries', and print the tables
	@rm -f test-artifacts/parity.md
	@$(BIN)/python -m pytest -q -m parity tests/models tests/service/test_text.py $(ARGS)
	@cat test-artifacts/parity.md

lint: setup-dev ## ruff, mypy --strict, import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: setup-dev ## Format the code
	@$(BIN)/ruff format -q .
	@$(BIN)/ruff check --fix -q .

bench: setup-dev ## Benchmarks: bench-report/report.md, with pictures; ARGS=--quick for a first impression
	@$(BIN)/python -m loadtest.bench $(ARGS)

bench-overhead: setup-dev ## Of those, the idle overhead: a lone small request less its compute time
	@$(BIN)/python -m loadtest.bench stages --cases S --formats safetensors --out bench-report/overhead $(ARGS)

bench-peers: setup-dev ## Other servers beside this one, installed into .bench-peers; same work, same run
	@$(BIN)/python -m loadtest.peers $(ARGS)

bench-large: setup-dev ## What small requests wait beside large JSON bodies, with two workers
	@$(BIN)/python -m loadtest.bench.large $(ARGS)

bench-ray: setup-ray ## The service on Ray beside a single process of it, behind Serve's proxy and behind HAProxy
	@scripts/alone $(BIN)/python -m deploy.ray.measure $(ARGS)

bench-sharing: setup-dev ## How much sooner a lone long sequence is computed when idle cores help
	@$(BIN)/python -m loadtest.bench.sharing $(ARGS)

bench-watching: setup-dev ## What log lines and spans cost, in processor time of a small request
	@$(BIN)/python -m loadtest.bench.watching $(ARGS)

loadtest: setup-dev ## Locust against URL=… (default http://127.0.0.1:8000), headless, 30 s
	@$(BIN)/locust -f loadtest/locustfile.py --headless -u 8 -r 8 -t 30s --host $(or $(URL),http://127.0.0.1:8000) $(ARGS)

loadtest-compare: setup-dev ## Backends beside each other, the rate each holds: loadtest-report/report.html; ARGS=--quick
	@$(BIN)/attention loadtest $(ARGS)

loadtest-wrk: setup-dev ## Is the load generator right? The same load by wrk, in turns with Locust
	@scripts/test-tools
	@$(BIN)/python -m loadtest.report.wrk $(ARGS)

proto: setup-dev ## Generate the messages of gRPC from their .proto files
	@$(BIN)/python -m pip install --quiet -c constraints.txt grpcio-tools
	@scripts/proto $(BIN)/python

clean: ## Remove the virtual environment, caches and exported graphs
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis models/artifacts/*/ test-artifacts .bench-peers
