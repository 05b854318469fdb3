PYTHON ?= python3
BIN := .venv/bin
JUPYTERS_OWN := $(addprefix metadata.language_info.,codemirror_mode file_extension mimetype nbconvert_exporter \
	pygments_lexer version) cell.metadata.editable cell.metadata.slideshow

export PYTHONDONTWRITEBYTECODE :=  # where it is set, each process compiles pslab anew as it starts

.PHONY: figures figures-all quick test test-all lab git-filter docs site clean

figures: .venv/.ready  ## real MNIST, real processes: the figures of the thesis, in results/
	$(BIN)/python -m pslab figures

figures-all: .venv/.ready  ## the figures of every study
	$(BIN)/python -m pslab figures --all

quick: .venv/.ready  ## the best policy for processes like this machine's, as far as two minutes of search show
	$(BIN)/python -m pslab advise --model mlp:64 --data mnist:8192,1000 --learning-rate 0.2 --pushes 640 --pull changed \
		--target 0.85 --minutes 2

test: .venv/.ready  ## style, types, layers, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet pslab tests
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -n auto --dist worksteal

test-all: .venv/.ready  ## the tests, including the long ones
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m "slow or not slow"

lab: .venv/.ready  ## JupyterLab on the notebooks; git gets them without outputs
	$(BIN)/python -m pslab lab

git-filter:  ## git gets notebooks without outputs, as .gitattributes says; its setting is in no file of a repository
	test ! -e .git || ! command -v git > /dev/null || git config filter.without-outputs.clean \
		"$(BIN)/python -m nbstripout --keep-id --extra-keys '$(JUPYTERS_OWN)'"

docs: .venv/.ready  ## the page of policies, from the table of names
	$(BIN)/python -m pslab list --markdown > docs/policies.md

site: .venv/.ready  ## the documentation as pages, in results/site
	$(BIN)/python -c "import material, mkdocstrings" 2>&- || $(BIN)/python -m pip install --quiet --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "results/site/index.html; its search needs a server: $(BIN)/python -m http.server --directory results/site"

.venv/.ready: pyproject.toml
	@echo "setting up .venv: a minute or a few, depending on the network"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip uninstall --quiet --yes pslab 2>/dev/null || true  # its name before, which shares the command
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	$(MAKE) --silent git-filter
	@touch $@

clean:  ## everything that can be made again, but the records
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache *.egg-info results/figures results/notebooks results/site
