# make demo    the main job on built-in data           make check   lint, format, types, import layers
# make test    the whole suite                         make bench   benchmarks, ratios and JSON results
# make bench-gpu   steps, memory, seconds a run and images per second of training on an NVIDIA GPU
# Each sets up .venv by itself; a second call reuses it.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
INSTALL := pyproject.toml constraints.txt

.PHONY: demo test check bench bench-gpu format clean

demo: .venv/demo.stamp
	@$(BIN)/python examples/demo.py

test: .venv/dev.stamp .venv/browser.txt
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder

check: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_layers.py

bench: .venv/dev.stamp
	$(BIN)/python -m benchmarks

bench-gpu: .venv/dev.stamp
	$(BIN)/python -m benchmarks gpu images_per_second

format: .venv/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv demo .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/demo.stamp: $(INSTALL)
	@echo "Setting up .venv for the demo (once) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) -e ".[torch,demo]"
	@touch $@

.venv/dev.stamp: $(INSTALL)
	@echo "Setting up .venv with the development tools (once) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) -e ".[torch,report,demo,dev]"
	@touch $@ .venv/demo.stamp

# A gigabyte, so only where it is asked for: tests/test_grouped_conv.py skips without it.
.venv/kernels.stamp: .venv/dev.stamp
	@$(PIP) "triton>=3.2"
	@touch $@

# The path of a Chromium, or the reason why there is none (the page tests then skip, saying it).
.venv/browser.txt: .venv/dev.stamp tests/get_browser.py
	@$(BIN)/python tests/get_browser.py $@
