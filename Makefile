# Every target works as the first command on a fresh clone with Python 3.11 to 3.13 and make.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python
WORKERS ?= 2

# The first interpreter that runs and is new enough; override with `make PYTHON=/path/to/python ...`.
works = $(shell $(1) -c 'import sys, venv; print(int(sys.version_info >= (3, 11)))' 2>/dev/null | grep 1 >/dev/null && echo $(1))
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3 python,$(call works,$(p))))

# Small matrices: threads of the linear algebra library cost more than they bring, and two per core stall.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

INSTALLED := $(VENV)/.installed
BUILT := _build/.built
SITE_SOURCES := $(shell find book bvf_tutorial results -type f -not -path '*/.*' -not -path '*/__pycache__/*' \
                  2>/dev/null | sed 's/ /\\ /g') _config.yml _toc.yml
CHAPTERS = $(wildcard book/*.ipynb)

.PHONY: help setup book student slides course pdf epub release colab site-speed test slow-test coverage mutation study experiments figures reproduce lint format notebooks lab bench gpu-bench soak site-test screenshots linkcheck clean distclean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | while IFS="$$(printf '\t')" read -r name text; do \
	  printf '  make %-12s %s\n' "$$name" "$$text"; done

setup: $(INSTALLED) ## create .venv with everything the book needs

$(INSTALLED): pyproject.toml requirements.txt constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer with the venv module was found." \
	  "Install one (on Debian: python3 and python3-venv) or run make PYTHON=/path/to/python."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --requirement requirements.txt
	@touch $@

book: $(BUILT) ## execute every chapter and build the site in _build/html; warnings are errors

# Always from nothing: a second build over a failed one would hide its warnings.
$(BUILT): $(INSTALLED) $(SITE_SOURCES)
	rm -rf _build
	$(BIN)/jupyter-book build . -n -W --keep-going
	@touch $@

test: $(INSTALLED) ## run the unit tests and every notebook
	$(RUN) -m pytest --numprocesses=$(WORKERS) --dist=loadfile

slow-test: $(INSTALLED) ## run the tests of benchmark length
	$(RUN) -m pytest --numprocesses=$(WORKERS) --dist=load -m slow tests

coverage: $(INSTALLED) ## run the unit tests and say which branches of the package none of them takes; under 95% is a failure
	$(RUN) -m pytest --numprocesses=$(WORKERS) --dist=loadfile --cov tests

# The tool has a folder of its own: nothing else needs it.
mutation: $(INSTALLED) ## plant small errors in the mathematics, one at a time, and name those that no test notices
	$(RUN) -m pip install --quiet --constraint constraints.txt --upgrade --target .cache/mutation mutmut==3.8.1
	@set -e; for suite in returns halfspace "tabular --sample 60"; do PYTHONPATH=.cache/mutation $(RUN) -m tools.mutation $$suite; done

study: $(INSTALLED) ## run the side-by-side study of results/safe_improvement.csv (resumes)
	$(RUN) -m studies.safe_improvement

experiments: $(INSTALLED) ## train every curve of results/experiments that is missing: hours (resumes; FIG="grid ppo" for some)
	$(RUN) -m studies.experiments $(FIG) --processes $(WORKERS)

figures: $(INSTALLED) ## draw every figure and its table from results/experiments into _build/figures
	$(RUN) -m studies.figures $(FIG)

# Beside the committed tables, never over them, where `make book` does not clear it away.
reproduce: $(INSTALLED) ## train one figure again and draw it: make reproduce FIG=grid (resumes; into .cache/reproduced)
	@test -n "$(FIG)" || { echo "Say which: make reproduce FIG=grid; python -m studies.experiments --help lists them."; exit 1; }
	$(RUN) -m studies.experiments $(FIG) --processes $(WORKERS) --output .cache/reproduced
	$(RUN) -m studies.figures $(FIG) --tables .cache/reproduced --output .cache/reproduced/figures

lint: $(INSTALLED) ## check style, types, docstrings and the form of the notebooks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/interrogate --quiet bvf_tutorial
	$(RUN) -m tools.notebooks normalise --check
	$(RUN) -m tools.claims --check

format: $(INSTALLED) ## rewrite code and notebooks in their normal form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(RUN) -m tools.notebooks normalise
	$(RUN) -m tools.claims
	$(RUN) -m tools.licences
	$(RUN) -m tools.house

notebooks: $(INSTALLED) ## execute every chapter in place and store its outputs
	$(RUN) -m tools.notebooks execute

student: $(INSTALLED) ## write the chapters without solutions to dist/student
	$(RUN) -m tools.student

slides: $(INSTALLED) ## write a deck of slides per chapter to dist/slides
	$(RUN) -m tools.slides

course: $(INSTALLED) ## write the graded assignments, for nbgrader, to dist/course
	$(RUN) -m tools.assignments

release: $(INSTALLED) ## build and check sdist and wheel in dist/, test the wheel in a clean environment
	rm -rf dist/*.whl dist/*.tar.gz
	$(RUN) -m tools.release build
	$(RUN) -m tools.release test

colab: $(INSTALLED) ## run every chapter in an environment like Colab's: 8 GB, long
	$(RUN) -m tools.colab

pdf: $(BUILT) ## print the whole book to dist/bvf-tutorial.pdf
	$(RUN) -m tools.printed pdf

epub: $(BUILT) ## write the whole book to dist/bvf-tutorial.epub
	$(RUN) -m tools.printed epub

lab: $(INSTALLED) ## open the chapters in JupyterLab
	$(BIN)/jupyter lab --notebook-dir=. book

bench: $(INSTALLED) ## run the benchmarks that need no GPU
	@set -e; for script in $(filter-out benchmarks/gpu.py benchmarks/soak.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(RUN) -m "benchmarks.$$(basename "$$script" .py)"; done

soak: $(INSTALLED) ## train for an hour and watch the memory
	$(RUN) -m benchmarks.soak

gpu-bench: $(INSTALLED) ## check and time the simulation on a GPU, in less than six minutes
	$(RUN) -m benchmarks.gpu --out results/gpu.csv

site-test: $(BUILT) ## open every page in a headless Chromium, with no request leaving the machine
	$(RUN) -m pytest -m site tests/site

site-speed: $(BUILT) ## how heavy each page is and how long until it can be used
	$(RUN) -m tools.loading

screenshots: $(BUILT) ## photograph every page, wide and narrow, light and dark
	$(RUN) -m tools.screenshots

linkcheck: $(INSTALLED) ## follow every external link (needs the internet)
	$(BIN)/jupyter-book build . --builder linkcheck

clean: ## remove what was built, keep .venv
	rm -rf _build build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage

distclean: clean ## remove .venv too
	rm -rf $(VENV) *.egg-info
