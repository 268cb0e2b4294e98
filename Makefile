# What one does with Rota, a line or two each. Needs make and Python 3.11 or later; all else goes into .venv.

BIN := .venv/bin
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
# What follows the command: make run ARGS='--http 127.0.0.1:9000', make test ARGS='-k heartbeat'.
ARGS ?=
# Test processes side by side, more than two cores since many tests wait; each starts a Postgres and a Valkey of its own.
JOBS ?= 3
SEEDS ?= 10000
# Groups of SDK objects to simulate.
GROUPS ?= 50000
# How long each half of `make torture` takes, about, and all of `make fuzz`.
MINUTES ?= 10
PYTEST := $(BIN)/pytest -n $(JOBS) --dist worksteal
TORTURE = ROTA_MINUTES=$(MINUTES) $(BIN)/python -m pytest -o faulthandler_timeout=0 -p tests.support.torture

# Hundreds of processes start from these sources: they compile them once.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test test-all coverage sim model mutants torture fuzz bench peers lint docs images proto locks clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

run: .venv/base.stamp ## Install and start the service in the foreground, on a SQLite store
	$(BIN)/rota serve $(ARGS)

test: .venv/dev.stamp .venv/pgbouncer.stamp .venv/network.stamp .venv/operating.stamp .venv/browser.stamp ## Install and run the tests, on real Postgres and Valkey
	$(PYTEST) $(ARGS)

test-all: .venv/dev.stamp .venv/pgbouncer.stamp .venv/network.stamp .venv/operating.stamp .venv/browser.stamp .venv/tla.stamp ## The tests and those that take minutes
	$(PYTEST) -m "not torture and not alone" $(ARGS)
	$(BIN)/pytest -m "alone and not torture" $(ARGS) || [ $$? = 5 ] # 5: ARGS chose none of these

coverage: .venv/dev.stamp ## Branches of the core that its own quick tests and a few simulated worlds reach; fails below 95 %
	$(PYTEST) -q tests/unit tests/conformance tests/simulation/test_seeds.py --cov --cov-fail-under=95 \
		-k "not assignor and not support and not fuzz and not violates_anything"
	$(BIN)/coverage report --include='*/rota/core/replica/*' --fail-under=95

sim: .venv/dev.stamp ## Simulate SEEDS=10000 faulty worlds, and GROUPS=50000 groups of members; or replay SEED=4711
	$(BIN)/python -m tests.simulation.sim $(if $(SEED),--first $(SEED) --seeds 1,--seeds $(SEEDS)) $(ARGS)
	$(if $(SEED)$(filter 0,$(GROUPS)),,$(BIN)/python -m tests.simulation.sim --world groups --seeds $(GROUPS))

model: .venv/dev.stamp .venv/tla.stamp ## Check the rules in docs/model with TLC, within larger bounds than make test-all
	$(BIN)/python -m tests.model.check $(ARGS)

mutants: .venv/mutants.stamp ## Play each small change of the cores, fences and storage against their quick tests, for hours; one room: ARGS=replica
	$(BIN)/python -m tests.mutation $(ARGS)

torture: .venv/dev.stamp .venv/pgbouncer.stamp .venv/network.stamp .venv/operating.stamp ## Faults and kills, then load, for about MINUTES=10 each, and a table of what came out
	rm -f build/torture/rows.jsonl
	$(TORTURE) -n $(JOBS) --dist worksteal -m "torture and not alone" $(ARGS) || [ $$? = 5 ]
	$(TORTURE) -m "torture and alone" $(ARGS) || [ $$? = 5 ]

fuzz: .venv/dev.stamp ## Attack each thing that takes bytes, about MINUTES=10 in all; SEED=4711 and ARGS=http1 repeat a run of one
	GRPC_VERBOSITY=NONE $(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench: .venv/dev.stamp .venv/peers.stamp ## Measure, beside the floor and the peers, in one run
	$(BIN)/python bench/run.py $(ARGS)

peers: .venv/peers.stamp ## Build and fetch the systems that `make bench ARGS=race` runs beside Rota; needs Go, Maven and Java 17

lint: .venv/dev.stamp ## Style, types, the layers of the architecture, and the wire contract
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports --no-logo
	cd proto && ../$(BIN)/buf lint && ../$(BIN)/buf format --diff --exit-code && ../$(BIN)/buf breaking --against baseline.binpb

docs: .venv/dev.stamp ## Write the generated references and dashboards again, and build the site: build/site/index.html
	$(BIN)/python docs/generate.py && $(BIN)/python deploy/grafana/dashboards.py
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -d build/doctrees docs build/site

images: .venv/dev.stamp .venv/browser.stamp ## Take the docs' pictures of the console again
	$(BIN)/python -m tests.console.screenshots docs/images

proto: .venv/dev.stamp ## Write service/rota/v1 again, from proto/
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=service --pyi_out=service --grpc_python_out=service proto/rota/v1/*.proto

locks: .venv/release.stamp ## Resolve what is shipped again: requirements/*.lock with hashes, and the list of licences
	UV=$(BIN)/uv requirements/renew.sh
	rm -rf build/server && $(BIN)/python -m pip install --quiet --require-hashes --target build/server -r requirements/server.lock
	$(BIN)/python requirements/components.py requirements/server.lock build/server --licences THIRD-PARTY.md

clean: ## Remove .venv and all that can be made again
	rm -rf .venv build dist .coverage* htmlcov .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find service tests bench migrations docs -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Rota needs Python 3.11 or later. None is on the PATH; name it: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

# The stamps are older than pyproject.toml when there is something to install.
.venv/base.stamp: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[server,cli]'
	@touch $@

.venv/dev.stamp: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ .venv/base.stamp

# What builds and checks a release.
.venv/release.stamp: pyproject.toml | .venv/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[release]'
	@touch $@

# The tool that changes the cores for `make mutants`.
.venv/mutants.stamp: pyproject.toml | .venv/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[mutants]'
	@touch $@

# What the tests need beyond wheels.
.venv/pgbouncer.stamp: tests/support/debian_package.py | .venv/dev.stamp
	$(BIN)/python -m tests.support.debian_package pgbouncer
	@touch $@

# What the tests cut networks with.
.venv/network.stamp: tests/support/debian_package.py | .venv/dev.stamp
	$(BIN)/python -m tests.support.debian_package ip nft
	@touch $@

# What the tests of charts, alerts and proxies run.
.venv/operating.stamp: tests/support/debian_package.py tests/support/helm.py | .venv/dev.stamp
	$(BIN)/python -m tests.support.debian_package nginx caddy haproxy promtool
	$(BIN)/python -m tests.support.helm 4 3
	@touch $@

# What the tests of pages look with.
.venv/browser.stamp: tests/support/debian_package.py tests/support/browser.py | .venv/dev.stamp
	$(BIN)/python -m tests.support.browser
	@touch $@

# The systems of the race, in build/peers, with pinned checksums. Those that cannot be installed are skipped by name.
.venv/peers.stamp: $(wildcard bench/race/peers/*) bench/race/install.py | .venv/dev.stamp
	$(BIN)/python -m bench.race.install
	@touch $@

# The model checker of docs/model, with a pinned checksum.
.venv/tla.stamp: tests/support/tlc.py | .venv/dev.stamp
	$(BIN)/python -m tests.support.tlc
	@touch $@
