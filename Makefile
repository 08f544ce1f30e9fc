# make demo    install, then optimize every example on the GPU if there is one, otherwise on the CPU
# make test    install what tests need, then every check, the same here and in CI
# make lint    format, lint, types, import contracts
# make unit    the fast tests
# make adversarial  every known way to cheat against the judge, on every device of this machine
# make clean   remove the environment, runs and caches of this folder

PYTHON ?= python3
VENV ?= .venv
EXAMPLES ?= examples
OUT ?= runs/demo
BIN := $(VENV)/bin

.PHONY: demo test lint unit integration adversarial clean
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

test: lint unit integration

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(VENV)/.installed-dev
	$(BIN)/pytest -n auto --maxprocesses 4 -m "not integration and not gpu and not adversarial"

integration: $(VENV)/.installed-dev
	$(BIN)/pytest -n auto --maxprocesses 4 -m "integration and not (alone or gpu or adversarial)"
	$(BIN)/pytest -m "(alone or gpu) and not adversarial"

adversarial: $(VENV)/.installed-dev
	$(BIN)/pytest tests/adversarial

clean:
	rm -rf $(VENV) runs build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
