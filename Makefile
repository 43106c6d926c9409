# Targets for development and CI. Each target creates the environment .venv first, if necessary.

PYTHON ?=
CONSTRAINTS ?= .ci/constraints.txt
VENV := .venv/bin
READY := .venv/.ready

# Four test processes; tests of real clusters start first (tests/conftest.py). Two processes mostly wait for Ray and
# Slurm, and leave two cores to the others.
WORKERS := -n 4 --no-loadscope-reorder

# There are more threads than cores: waiting threads must sleep instead of spinning.
quick tests drills faults: export OMP_WAIT_POLICY := passive

# If this were set, each of the hundreds of processes of the tests would compile the project again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test format-check lint types types-and-tests tests drills nightly loaded faults fuzz fmt site bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*  ## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

setup: $(READY)  ## create the environment in .venv
	@echo 'Installed .venv/bin/megaptm; `source .venv/bin/activate` adds it to PATH.'

demo: $(READY)  ## text -> corpus -> training on two processes -> resume -> results; TEXT=file, folder or glob
	@$(VENV)/python -m megaptm.demo $(if $(TEXT),'$(TEXT)')

quick: $(READY)  ## run the quick tests of tests/tiers.yaml, before each commit; ARGS="-x --lf"
	@$(VENV)/python -m pytest -m 'not drill' -n 2 $$($(VENV)/python -m tests.tiers) $(ARGS)

test: format-check lint types-and-tests  ## run formatter, linter, type checker and tests, as CI does

types-and-tests: $(READY)  # in parallel: tests first wait for clusters
	@$(MAKE) --jobs 2 types tests

format-check: $(READY)  ## check the format
	@$(VENV)/ruff format --check .

lint: $(READY)  ## run the linter
	@$(VENV)/ruff check .

types: $(READY)  ## check the types
	@$(VENV)/mypy megaptm data_pipeline

tests: $(READY)  ## run the tests; some of them: make tests ARGS="tests/config -k nearest"
	@$(VENV)/python -m pytest -m 'not drill' $(or $(ARGS),$(WORKERS))

drills: $(READY)  ## run long tests: runs and builds that are killed, or lose disk or network
	@$(VENV)/python -m pytest -m drill $(ARGS)

loaded: $(READY)  ## run the tests three times and the demo beside two busy loops, to find flaky tests; ROUNDS=3
	@for loop in 1 2; do while :; do :; done & loops="$$loops $$!"; done; trap "kill $$loops" EXIT; \
	for round in $$(seq $(or $(ROUNDS),3)); do echo "== round $$round" && $(MAKE) tests || exit 1; done; \
	$(MAKE) demo

nightly: drills faults fuzz bench  ## run drills, faults, fuzz and benchmarks

faults: $(READY)  ## hit a run on four processes with seeded faults (docs/faults.md); SEED=0 COUNT=100 MINUTES=30
	@$(VENV)/python -m tests.faults --seed $(or $(SEED),0) --count $(or $(COUNT),100)
	@$(VENV)/python -m tests.faults --seed $(or $(SEED),0) --kinds 'kill a rank' --per-minute $(or $(MINUTES),30)

fuzz: $(READY)  ## run commands on damaged files (docs/fuzz.md); SEED=0 READS=2000 COMMANDS=50 cases per kind
	@$(VENV)/python -m tests.fuzz --seed $(or $(SEED),0) --reads $(or $(READS),2000) --commands $(or $(COMMANDS),50)

fmt: $(READY)  ## format, and fix linter errors
	@$(VENV)/ruff format .
	@$(VENV)/ruff check --fix .

site: $(READY)  ## build the documentation in build/site; broken links fail
	@$(VENV)/uv pip install --quiet --python $(VENV)/python '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(VENV)/python -m mkdocs build --quiet && echo 'build/site/index.html'

bench: $(READY)  ## run the benchmarks, besides that of a GPU (python benchmarks/gpu.py)
	@for file in $(filter-out benchmarks/gpu.py,$(wildcard benchmarks/*.py)); do echo "== $$file" && $(VENV)/python $$file || exit 1; done

clean:  ## remove the environment and caches, but no runs and corpora
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml .ci/environment $(CONSTRAINTS)
	@PYTHON="$(PYTHON)" CONSTRAINTS="$(CONSTRAINTS)" .ci/environment
	@touch $@
