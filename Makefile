# make train      train a small transformer
#                 [LAYOUT=layouts/fsdp.toml] [ARGS="--steps 200 model.d_model=256"]
# make test       every capability, in under ten minutes on two cores
#                 [ARGS="tests/train -k resume"]
# make test-slow  the tests that are marked slow, and random bits as users compile them
# make test-all   both
# make test-newest  what a new JAX could break, with the newest one that a Python at hand gets, in
#                 an environment of its own, .venv-newest; in under five minutes, install included
# make check      formatting, lint and types
# make docs       the documentation as a site, in build/site: python3 -m http.server -d build/site
# make clean      remove .venv, build/ and what pip left
#
# All set up .venv on first use, and again only when pyproject.toml changes. PYTHON=python3.12 picks
# the interpreter of an environment that is not there yet, VENV=.venv312 one beside it. The tests of
# compiled programs, all of them, with the newest jax and libtpu:
# HYPOTHESIS_PROFILE=nightly make test-all PYTHON=python3.12 VENV=.venv312 ARGS=tests/predict/compiler

PYTHON ?= python3
VENV   ?= .venv
LAYOUT ?= layouts/data.toml
ARGS   ?=
# Tests of single bits, which depend on the compiler and so run once more as users compile.
BITS    = tests/ops/test_random.py tests/train/checkpoints/test_digest.py
# Types that vary, collectives, derivatives, compiled programs, checkpoints and a training run.
NEWEST  = $(addprefix tests/lowering/,test_collective_shapes.py test_placement.py \
  test_gradients.py test_law.py) $(addprefix tests/predict/compiler/,test_collectives.py \
  test_hlo_text.py test_saved.py test_tpu_collectives.py) \
  tests/ops/test_quantize.py tests/train/checkpoints/test_checkpoints.py tests/train/test_loop.py \
  $(addprefix tests/proof/,test_experts.py test_programs.py test_steps.py)

.PHONY: train test test-slow test-all test-newest clean

train: $(VENV)/.installed
	$(VENV)/bin/meshdsl train --layout $(LAYOUT) $(ARGS)

test: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile -m "not slow" $(ARGS)

test-slow: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile -m slow $(ARGS) || [ $$? = 5 ]  # 5: none is slow
	HYPOTHESIS_PROFILE=nightly $(VENV)/bin/python -m pytest -n 2 $(BITS)

test-all: test test-slow

test-newest:
	@$(MAKE) --no-print-directory PYTHON=$$(.ci/newest-python) VENV=.venv-newest \
	  .venv-newest/.installed-test-newest
	.venv-newest/bin/python -m pytest -n 2 --dist loadfile -m "not slow" $(NEWEST) $(ARGS)

.PHONY: check types docs links stubs lock

check: $(VENV)/.installed-check
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	@$(MAKE) --no-print-directory types

types: $(VENV)/.installed-check links
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

docs: $(VENV)/.installed-docs links
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

# The package as one tree, for tools that read imports without running them: links to what is in
# meshdsl/, and to the three packages that stand beside it and install inside it.
links: stubs
	@rm -rf build/links && mkdir -p build/links/meshdsl
	@cd build/links/meshdsl && ln -s ../../../meshdsl/* ../../../layers ../../../layouts ../../../models .

# What type checkers read: a stub beside each file that needs one, which an install makes too.
stubs: | $(VENV)/bin/python
	@$(VENV)/bin/python stubs/make.py

# The versions that `pip install .[train]` takes with this Python, for installs that repeat.
lock:
	mkdir -p build
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed \
	  --report build/lock.json '.[train]'
	$(PYTHON) .ci/lock.py build/lock.json > build/lock.txt
	mv build/lock.txt requirements/python$$($(PYTHON) -c \
	  'import sys; print("%d.%d" % sys.version_info[:2])').txt

clean:
	rm -rf $(VENV) build *.egg-info

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "meshdsl needs Python 3.11 or newer, and $(PYTHON) does not run as one;" \
	         "make PYTHON=... picks another" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[train]'
	touch $@

$(VENV)/.installed-%: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[$*]'
	touch $@ $(VENV)/.installed
