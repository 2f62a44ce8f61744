# Two commands do everything on a fresh machine with Python >= 3.11: `make quickstart` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Tests and the quickstart never touch an accelerator or a hub unless asked to.
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
.PHONY: help quickstart install install-dev test sglang-server test-sglang test-tpu check format study clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.installed-train: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[train]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[train,dev]'
	touch $@ $(VENV)/.installed-train

install: $(VENV)/.installed-train ## create .venv and install envgen and the trainer

install-dev: $(VENV)/.installed-dev ## the same with the test and lint tools

quickstart: install ## documents -> environments -> SFT -> ERPO -> report, on this machine (about 10 minutes on 2 cores)
	$(BIN)/autoforge run configs/quickstart.toml

test: install-dev ## run all tests (about 12 minutes on 2 cores)
	JAX_PLATFORMS=cpu $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder

# A real SGLang server on the CPU, in an environment of its own (3.3 GB, in ~/.cache/autoforge; made once).
SGLANG_VENV := .venv-sglang
sglang-server: ## make .venv-sglang: a real SGLang server for this machine's CPU
	PYTHON=$(PYTHON) tests/sglang/install_cpu.sh $(SGLANG_VENV)

test-sglang: install-dev sglang-server ## contract tests against a real SGLang server on this machine's CPU
	AUTOFORGE_SGLANG_PYTHON=$(CURDIR)/$(SGLANG_VENV)/bin/python JAX_PLATFORMS=cpu \
	  $(BIN)/python -m pytest -p no:xdist tests/sglang

# libtpu's compiler for TPUs that are not here, in an environment of its own.
TPU_VENV := .venv-tpu
test-tpu: ## compile the learner's and the engine's programs for TPUs; no TPU is needed (3 to 8 minutes)
	PYTHON=$(PYTHON) tests/tpu/install.sh $(TPU_VENV)
	JAX_PLATFORMS=cpu $(TPU_VENV)/bin/python -m pytest -p no:xdist tests/tpu

check: install-dev ## ruff, format, pyright, import-linter, shellcheck
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/shellcheck -x -P tpu_scripts tpu_scripts/*.sh

format: install-dev ## apply ruff's fixes and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

study: install ## the full study behind the README's table: 3 seeds of configs/train/cpu_study.toml
	for seed in 0 1 2; do \
	  $(BIN)/autoforge run configs/train/cpu_study.toml --set run.seed=$$seed --set run.name=study-$$seed || exit $$?; \
	done

clean: ## remove caches and the virtual environment (never runs/)
	rm -rf $(VENV) $(TPU_VENV) .jax_cache .pytest_cache .ruff_cache build *.egg-info
