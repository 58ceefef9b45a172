# Everything a developer or a first user needs; `make help` lists it.
PYTHON ?= python3.11
ENGINE ?= process
DATA ?= breast
VENV := .venv
VENDOR := .venv-vendor
FATE_FLOW := .venv-fate-flow
SECRETFLOW := .venv-secretflow
FATE := .venv-fate
SITE := .venv-site
QUOTES := .venv-quotes
RUN := $(VENV)/bin/python
NODE_MODULES := tools/javascript/node_modules
# words.js is left out: its object has the form of JSON, which tests read
PRETTIER := node $(NODE_MODULES)/prettier/bin/prettier.cjs --print-width 100 --log-level warn "gateway/console/static/!(words).{js,css}" "gateway/console/static/{pages,compose}/*.js"
WORKERS ?= 5
export PYTHONDONTWRITEBYTECODE := # compile a module once, not at every start
# for environments that have the requirements alone
export PYTHONPATH := $(CURDIR)/clients/python

.PHONY: help setup demo environments test test-scale test-fast check fmt docs site proto lock release bench chaos clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

PIP_INSTALL := -m pip install -q --disable-pip-version-check
# a further environment, by the pip of the first
NEW_ENVIRONMENT = $(PYTHON) -m venv --without-pip $(1) && $(RUN) -m pip --python $(1)/bin/python install -q --disable-pip-version-check --require-hashes
# Python compiles a module at its first import; most modules of large libraries have none
UNCOMPILED := --no-compile

$(VENV)/.run: requirements/gateway.txt # what running needs
	$(PYTHON) -m venv $(VENV)
	$(RUN) $(PIP_INSTALL) --require-hashes -r $<
	@touch $@

$(VENV)/.done: $(VENV)/.run requirements/dev.txt pyproject.toml # and what developing needs
	$(RUN) $(PIP_INSTALL) $(UNCOMPILED) --require-hashes -r requirements/dev.txt
	$(RUN) $(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(VENDOR)/.run: examples/reference_vendor/requirements.txt
	$(PYTHON) -m venv $(VENDOR)
	$(VENDOR)/bin/python $(PIP_INSTALL) --require-hashes -r $<
	@touch $@

$(VENDOR)/.done: $(VENDOR)/.run examples/reference_vendor/requirements-test.txt
	$(VENDOR)/bin/python $(PIP_INSTALL) --require-hashes -r examples/reference_vendor/requirements-test.txt
	@touch $@

$(FATE_FLOW)/.done: requirements/fate-flow.txt | $(VENV)/.run # FATE's published server, with which tests run jobs
	$(call NEW_ENVIRONMENT,$(FATE_FLOW)) --no-deps -r $<
	@touch $@

$(SECRETFLOW)/.done: examples/secretflow_vendor/requirements.txt | $(VENV)/.run # SecretFlow as published, a component of tests
	$(call NEW_ENVIRONMENT,$(SECRETFLOW)) $(UNCOMPILED) --no-deps -r $<
	PYTHONPATH=examples/secretflow_vendor $(SECRETFLOW)/bin/python -c "import sfvendor.regression, sfvendor.intersection" # containers could not compile
	@touch $@

$(QUOTES)/.done: requirements/recorded-quotes.txt | $(VENV)/.run # reports of SGX and TDX, which tests verify
	$(RUN) -m tools.recorded_quotes $(QUOTES)
	@touch $@

$(FATE)/.done: examples/fate_vendor/requirements.txt | $(VENV)/.run # FATE's published algorithms, components of a test's job
	$(call NEW_ENVIRONMENT,$(FATE)) -r $<
	@touch $@

$(SITE)/.done: requirements/site.txt | $(VENV)/.run # what builds the documentation as static pages
	$(call NEW_ENVIRONMENT,$(SITE)) $(UNCOMPILED) -r $<
	@touch $@

$(NODE_MODULES)/.done: tools/javascript/package-lock.json # the formatter of the console's pages
	npm ci --prefix tools/javascript --no-audit --no-fund --loglevel=error
	@touch $@

setup: $(VENV)/.done $(VENDOR)/.done ## make both virtual environments

demo: $(VENV)/.run $(VENDOR)/.run ## two institutions train a model together (ENGINE=process|docker DATA=breast|credit ARGS=--keep)
	$(RUN) -m gateway.cli.main demo --engine $(ENGINE) --data $(DATA) $(ARGS)

environments: $(SITE)/.done $(QUOTES)/.done $(FATE_FLOW)/.done $(SECRETFLOW)/.done $(FATE)/.done ## all further environments, for site, test and test-scale

test: setup $(FATE_FLOW)/.done $(SECRETFLOW)/.done $(QUOTES)/.done ## the suite; without Docker, MariaDB, S3 or HDFS it says what was not shown (ARGS=-k...)
	$(VENDOR)/bin/python -m pytest examples/reference_vendor/tests -q -p no:cacheprovider -n $(WORKERS) --dist loadfile --no-loadscope-reorder
	$(RUN) -m pytest -q -m "not scale" -n $(WORKERS) --dist loadgroup --durations=40 $(ARGS)

test-scale: setup $(SECRETFLOW)/.done $(FATE)/.done ## requirements at their full size: 100 jobs under Docker, tables of 5 GiB, a release from a fresh clone, FATE's algorithms (14 GB of disk, minutes)
	$(RUN) -m pytest -q -m scale -n 2 --dist loadgroup --durations=0 tests/scale tests/network $(ARGS)

test-fast: setup ## what takes milliseconds, and whether texts, reasons and pages are complete: under a minute
	$(RUN) -m pytest -q -m "not slow and not docker and not mariadb and not postgresql" tests/domain tests/registry tests/routes tests/store \
	  tests/cli/test_languages.py tests/test_documents.py tests/test_reference.py

check: setup $(NODE_MODULES)/.done ## format, lint, types, the rooms' import rules, words, how the code reads
	$(VENV)/bin/ruff format --check . || { echo "run: make fmt" >&2; exit 1; }
	$(PRETTIER) --check || { echo "run: make fmt" >&2; exit 1; }
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python -m tools.words
	$(VENV)/bin/python -m tools.readability

fmt: setup $(NODE_MODULES)/.done ## put the code into form
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .
	$(PRETTIER) --write

docs: setup ## write the pages that follow from the code: settings, reasons, endpoints
	$(RUN) -m tools.docs

site: setup $(SITE)/.done $(NODE_MODULES)/.done ## build the documentation as static pages, dist/site/index.html
	$(RUN) -m tools.site build dist/site

bench: setup ## measure against bare containers, in one run
	$(RUN) -m tools.bench $(ARGS)

RELEASE := dist/release
release: setup $(SITE)/.done $(NODE_MODULES)/.done ## build a release from the last commit in dist/release, and with KEY=FILE sign and verify it (ARGS=--without-images)
	rm -rf $(RELEASE)
	$(RUN) -m tools.release build $(RELEASE) $(if $(KEY),--key $(KEY)) $(ARGS)
	$(if $(KEY),$(RUN) -m tools.release verify $(RELEASE) --public-key $(KEY).pub)

SEED ?= 1
COUNT ?= 0
DATABASE ?= mariadb
chaos: ENGINE := $(if $(filter file,$(origin ENGINE)),both,$(ENGINE)) # other than the demo's
chaos: setup ## every fault in every phase of a job, on two real nodes, by processes and by Docker, with one gateway and with two, and over links; needs root (SEED=1 COUNT=0: all ENGINE=process|docker|links|k8s|swarm DATABASE=mariadb|postgresql)
	$(RUN) -m tools.chaos --engine $(ENGINE) --database $(DATABASE) --seed $(SEED) --count $(COUNT) $(ARGS)

proto: ## renew the code made from the transport layer's protobuf messages
	$(VENV)/bin/uv tool run --from grpcio-tools python -m grpc_tools.protoc -I. --python_out=. adapter/bfia/channel/ptp.proto

lock: ## renew the hash-pinned requirement files
	$(VENV)/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header pyproject.toml -o requirements/gateway.txt
	$(VENV)/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header pyproject.toml --group dev -o requirements/dev.txt
	$(VENV)/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header pyproject.toml --extra k8s -o requirements/gateway-k8s.txt
	$(VENV)/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header pyproject.toml --all-extras -o requirements/gateway-all.txt
	$(VENV)/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --override requirements/fate-flow-without.txt requirements/fate-flow.in -o requirements/fate-flow.txt
	$(VENV)/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --override examples/secretflow_vendor/requirements-other.txt \
	  examples/secretflow_vendor/requirements.in -o examples/secretflow_vendor/requirements.txt
	$(VENV)/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header requirements/site.in -o requirements/site.txt
	$(VENV)/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header requirements/attestations.in -o requirements/attestations.txt
	cd examples/fate_vendor && ../../$(VENV)/bin/uv pip compile -q --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --no-header $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS)) \
	  requirements.in -o requirements.txt
	cd examples/reference_vendor && for f in requirements requirements-test; do \
	  ../../$(VENV)/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --no-emit-find-links --no-header $$f.in -o $$f.txt; done

clean: ## remove the environments and everything a demo left
	rm -rf $(VENV) $(VENDOR) $(FATE_FLOW) $(SECRETFLOW) $(FATE) $(SITE) $(NODE_MODULES) var
