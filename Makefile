# Everything a newcomer and CI need: `make demo`, `make test`. Both set up their own environment in .venv first.

PYTHON ?=
CONSTRAINTS ?= .ci/constraints.txt
VENV := .venv/bin
READY := .venv/.ready

# All tests in four processes; real clusters first (tests/conftest.py): two of the four wait for those of Ray and of
# Slurm, and leave two cores to the others.
BESIDE := -n 4 --no-loadscope-reorder

# More threads than cores: one that waits for another sleeps, or it would burn the time that the other needs.
tests drills: export OMP_WAIT_POLICY := passive

# Where it is set, each of the hundreds of processes that tests start would compile the project again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test format-check lint types types-and-tests tests drills nightly loaded fuzz fmt site bench clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

setup: $(READY)  ## the environment, in .venv
	@echo 'megaptm is .venv/bin/megaptm; `source .venv/bin/activate` puts it on the PATH.'

demo: $(READY)  ## real text -> corpus -> training on two processes -> resume -> results; TEXT=file, folder or glob
	@$(VENV)/python -m megaptm.demo $(if $(TEXT),'$(TEXT)')

test: format-check lint types-and-tests  ## formatter, linter, types and tests: what CI runs

types-and-tests: $(READY)  # at once: tests wait for clusters when they begin
	@$(MAKE) --jobs 2 types tests

format-check: $(READY)  ## the formatter has nothing to change
	@$(VENV)/ruff format --check .

lint: $(READY)  ## the linter has nothing to say
	@$(VENV)/ruff check .

types: $(READY)  ## the types fit
	@$(VENV)/mypy megaptm data_pipeline

tests: $(READY)  ## the tests; one of them: make tests ARGS="tests/config -k nearest"
	@$(VENV)/python -m pytest -m 'not drill' $(or $(ARGS),$(BESIDE))

drills: $(READY)  ## runs and builds that are killed, cut off, and starved of disk and network
	@$(VENV)/python -m pytest -m drill $(ARGS)

loaded: $(READY)  ## the tests, three times, and the demo, beside two busy loops: nothing may fail by chance; ROUNDS=3
	@for loop in 1 2; do while :; do :; done & loops="$$loops $$!"; done; trap "kill $$loops" EXIT; \
	for round in $$(seq $(or $(ROUNDS),3)); do echo "== round $$round" && $(MAKE) tests || exit 1; done; \
	$(MAKE) demo

nightly: drills fuzz bench  ## what takes too long for every change: drills, fuzz, benchmarks

fuzz: $(READY)  ## every file that a command reads, spoiled; SEED=0 READS=2000 COMMANDS=50, of each kind (docs/fuzz.md)
	@$(VENV)/python -m tests.fuzz --seed $(or $(SEED),0) --reads $(or $(READS),2000) --commands $(or $(COMMANDS),50)

fmt: $(READY)  ## let the formatter and the linter repair what they can
	@$(VENV)/ruff format .
	@$(VENV)/ruff check --fix .

site: $(READY)  ## the documentation as a site, in build/site; a broken link fails
	@$(VENV)/uv pip install --quiet --python $(VENV)/python '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(VENV)/python -m mkdocs build --quiet && echo 'build/site/index.html'

bench: $(READY)  ## each benchmark prints a table and a ratio
	@for file in benchmarks/*.py; do echo "== $$file" && $(VENV)/python $$file || exit 1; done

clean:  ## remove the environment and all caches, but no run and no corpus
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml .ci/environment $(CONSTRAINTS)
	@PYTHON="$(PYTHON)" CONSTRAINTS="$(CONSTRAINTS)" .ci/environment
	@touch $@
