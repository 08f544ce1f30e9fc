# make demo    install, then optimize two examples on the GPU if there is one, otherwise on the CPU
# make demo-all  the same for all of examples/
# make test    install what tests need, then every check, the same here and in CI
# make lint    format, lint, types, import contracts
# make unit    the fast tests
# make alone   the part of `make integration` that needs a machine without other load; `make side-by-side` the rest
# make gpu     the tests that need a GPU; `make test` runs them too where there is one
# make train-env  the environment of the training (verl), over that of the tests: .venv-train
# make train   the tests of the training in one process
# make train-ray  one PPO run on Ray, killed and taken up again; every preset composed by verl
# make adversarial  every known way to cheat against the judge, on every device of this machine
# make clean   remove the environment, runs and caches of this folder

PYTHON ?= python3
VENV ?= .venv
TRAIN ?= .venv-train
EXAMPLES ?= examples/rotary_embedding.py examples/masked_softmax.py
OUT ?= runs/demo
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest --durations=30
# A file's tests stay together, so that what they share is made once; an idle process takes from the other's end.
SIDE_BY_SIDE := --dist worksteal -n auto --maxprocesses
# tests/conftest.py sees to it that no such test lies elsewhere.
INTEGRATION := tests/integration tests/adversarial

# Every test begins many processes: each would compile torch's, verl's and our Python anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-all test lint unit integration side-by-side alone test-env train train-ray train-env gpu adversarial clean
.DEFAULT_GOAL := demo

$(VENV)/.installed: pyproject.toml constraints.txt scripts/environment.py
	@$(PYTHON) scripts/environment.py $(VENV)
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt scripts/environment.py
	@$(PYTHON) scripts/environment.py $(VENV) --dev
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	@out="$(OUT)"; if [ -e "$$out" ]; then out="$$out-$$(date +%Y%m%d-%H%M%S)"; fi; \
	echo "cuda-agent optimize $(EXAMPLES) --out $$out"; \
	exec $(BIN)/cuda-agent optimize $(EXAMPLES) --out "$$out"

demo-all: EXAMPLES := examples
demo-all: demo

test: lint unit integration gpu

test-env: $(VENV)/.installed-dev

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/lint-imports

unit: $(VENV)/.installed-dev
	$(PYTEST) $(SIDE_BY_SIDE) 4 --ignore tests/integration --ignore tests/gpu -m "not integration and not gpu and not adversarial"

integration: side-by-side alone

side-by-side: $(VENV)/.installed-dev
	$(PYTEST) $(SIDE_BY_SIDE) 4 $(INTEGRATION) -m "integration and not (alone or gpu or adversarial)"

alone: $(VENV)/.installed-dev
	$(PYTEST) $(INTEGRATION) -m "alone and not (gpu or adversarial)"

$(TRAIN)/.installed: constraints-train.txt scripts/train_environment.py $(VENV)/.installed-dev
	$(BIN)/python scripts/train_environment.py $(TRAIN) --over $(VENV)
	@touch $@

train-env: $(TRAIN)/.installed

train: $(TRAIN)/.installed
	$(TRAIN)/bin/python -m pytest --durations=10 -p no:xdist tests/training --ignore tests/training/on_ray

train-ray: $(TRAIN)/.installed
	$(TRAIN)/bin/python -m pytest --durations=10 -p no:xdist tests/training/on_ray

gpu: $(VENV)/.installed-dev
	@if ! nvidia-smi -L >/dev/null 2>&1; then echo "no GPU: tests/gpu is left out"; exit 0; fi; set -ex; \
	$(PYTEST) $(SIDE_BY_SIDE) 14 tests/gpu -m "not alone"; \
	$(PYTEST) tests/gpu -m alone

adversarial: $(VENV)/.installed-dev
	$(BIN)/pytest tests/adversarial

clean:
	rm -rf $(VENV) runs build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
