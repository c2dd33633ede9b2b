# Every target sets up what it needs. PYTHON picks the interpreter, EXTRAS adds optional parts (peers,ray,postgres,litellm,s3,otel).
PYTHON ?= python3
EXTRAS ?=
PORT ?= 3000
# Tests at once: as many as there are cores, four at most, for each takes a gigabyte. 0: one after the other.
WORKERS ?= logical
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
comma := ,
ALL_EXTRAS := offline-encoder,dev$(if $(EXTRAS),$(comma)$(EXTRAS))

export DAGSTER_DISABLE_TELEMETRY := 1
export HF_HUB_DISABLE_TELEMETRY := 1

.PHONY: help venv demo test test-slow test-all kernels probes gauntlet ui bench verdicts lint docs dbt dist sbom clean clean-results

help:
	@echo "make demo   set up, run the whole chain on the built-in synthetic pool, print the report's path"
	@echo "make test   set up, run the quick tests; test-slow: those of real processes, a browser, Ray, PostgreSQL; test-all: both"
	@echo "make kernels set up, compile what the policies play (a first run does it by itself)"
	@echo "make probes set up, run the gauntlet's probes of SECURITY.md in full (seeds and counts are printed)"
	@echo "make gauntlet set up, play clients, attackers, failures and kills against servers and runs"
	@echo "make ui     set up, open Dagster on http://127.0.0.1:3000 (PORT=3001: on another port)"
	@echo "make bench  set up with the peers, measure speed beside them"
	@echo "make verdicts set up, judge the answers of reports on tables of known truth"
	@echo "make lint   set up, run ruff, the import contracts, mypy and dg check defs"
	@echo "make docs   set up, build the documentation site into build/site; dead links and unknown names fail"
	@echo "make dbt    set up, put dbt into build/dbt, an environment of its own that sees the libraries of .venv"
	@echo "make dist   set up, build sdist and wheel into dist/ and check them; sbom: list what an installation holds"
	@echo "make clean  delete .venv and build files; clean-results: delete the results, after asking"

venv: $(STAMP)

# The stamp remembers the extras too: asking for others installs again.
$(STAMP): pyproject.toml constraints.txt $(if $(filter $(ALL_EXTRAS),$(shell cat $(STAMP) 2>/dev/null)),,force)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing cabs-routing[$(ALL_EXTRAS)] into $(VENV) (about two minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(ALL_EXTRAS)]"
	@echo "$(ALL_EXTRAS)" > $(STAMP)

.PHONY: force
force:

demo: venv
	@$(BIN)/cabs run --pool demo

# The tests of a file stay together, for their fixtures, in the order of tests/conftest.py, not by their number; a
# thread a worker, for more would wait for each other.
PYTEST = OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 \
	--dist loadfile --no-loadscope-reorder
test: venv
	@$(PYTEST) -m "not e2e and not ray and not slow" $(PYTEST_ARGS)

# The rest: what takes long, real processes, kill -9, a browser, Ray, PostgreSQL.
test-slow: venv
	@$(PYTEST) -m "e2e or ray or slow" $(PYTEST_ARGS)

test-all: test
	@$(MAKE) --no-print-directory test-slow

# What all policies play, compiled side by side into numba's cache: tests that start at once would each compile it.
kernels: venv
	@$(BIN)/python -m benchmarks.speed.compiling

probes: venv
	@$(BIN)/python -m tests.gauntlet --workers 2 $(PROBES_ARGS)

# Anthropic's package goes into build/gauntlet, not beside the project's; OpenAI's comes with LiteLLM.
gauntlet: EXTRAS := $(if $(EXTRAS),$(EXTRAS)$(comma))postgres,litellm
gauntlet:
	@$(MAKE) --no-print-directory venv EXTRAS=$(EXTRAS)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target build/gauntlet \
		-r tests/gauntlet/requirements.txt
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -v -o "python_files=test_*.py attacks.py" tests/gauntlet $(GAUNTLET_ARGS)

ui: venv
	@$(BIN)/cabs ui --port $(PORT)

bench: EXTRAS := $(if $(EXTRAS),$(EXTRAS)$(comma))peers
bench:
	@$(MAKE) --no-print-directory venv EXTRAS=$(EXTRAS)
	@for name in solver replay embed; do $(BIN)/python -m benchmarks.speed.$$name || exit 1; done

verdicts: venv
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.answer_worlds $(VERDICTS_ARGS)

lint: venv
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mypy
	@$(BIN)/dg check defs

docs: venv
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# dbt and mypy want different versions of one library, so dbt lies in front of what .venv has, not in it.
dbt: venv
	@$(PYTHON) -m venv build/dbt
	@$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$(build/dbt/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/shared.pth"
	@build/dbt/bin/python -m pip install --quiet --disable-pip-version-check -e ".[dbt]"

dist: venv
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist
	@$(BIN)/twine check --strict dist/*

# What an installation of the wheel holds and nothing of ours, seen from outside: the tool's own packages stay out.
sbom: dist
	@rm -rf build/release build/tools
	@$(PYTHON) -m venv build/release && $(PYTHON) -m venv build/tools
	@build/release/bin/pip install --quiet -c constraints.txt dist/*.whl
	@build/tools/bin/pip install --quiet cyclonedx-bom==7.5.0
	@printf '[project]\nname = "cabs-routing"\nversion = "%s"\nlicense = "MIT"\n' \
		"$$($(BIN)/python -c 'import cabs_core; print(cabs_core.__version__)')" > build/root.toml
	@build/tools/bin/cyclonedx-py environment --pyproject build/root.toml --output-reproducible \
		--output-format JSON --output-file build/sbom.cdx.json build/release/bin/python
	@echo "build/sbom.cdx.json"

clean:
	rm -rf $(VENV) build *.egg-info

# Results take hours to make again: it says what would go, and asks.
clean-results:
	@test -d .cabs || { echo "there are no results in .cabs"; exit 0; }; \
	du -sh .cabs/artifacts .cabs/embeddings .cabs/dagster 2>/dev/null; \
	printf 'delete .cabs with all of it? [y/N] '; read answer; \
	if [ "$$answer" = y ]; then rm -rf .cabs; else echo "nothing was deleted"; fi
