# make install | demo | test | unit | reference | bench | clean. PYTHON=python3.12 selects another Python (3.10 or newer).

PYTHON = python3
BIN = .venv/bin

.PHONY: install demo test unit reference bench clean

install: .venv/.installed

# The stamp file skips the installation if nothing changed. pip before 21.3 cannot install a pyproject.toml as editable.
.venv/.installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing trueup and its requirements into .venv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=23"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[demo,dev]"
	@touch $@

demo: install
	@$(BIN)/trueup demo

test: install
	@tests/install-tools
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist loadgroup --no-loadscope-reorder

# Pure logic only: no server, no Spark, under a minute.
unit: install
	$(BIN)/pytest -q tests/unit

# docs/reference.md, generated from the commands and the settings.
reference: install
	@$(BIN)/python -m trueup.cli.reference > docs/.reference.part && mv docs/.reference.part docs/reference.md

# Speed compared with other tools, on this machine; writes bench/RESULTS*.md.
bench: install
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	@$(BIN)/python bench/difflog.py --growth
	@$(BIN)/python bench/diff.py --growth --uuid
	@$(BIN)/python bench/tube.py
	@$(BIN)/python bench/switchover.py
	@$(BIN)/python bench/repair.py

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
