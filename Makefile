# Everything runs in .venv; each target sets up what it needs.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test families notebooks integrations ray docs package check bench fuzz torture format clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "layerlaw needs Python 3.11 or newer; try make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { echo "making .venv failed; on Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: setup
	$(BIN)/layerlaw demo

test: setup
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -n 2 --dist loadfile

# An environment of its own, $(1), that sees the packages of .venv below its own (and not layerlaw, which stands there by a link).
define BESIDE
	@test -x $(1)/bin/python || $(BIN)/python -m venv $(1)
	@$(1)/bin/python -c 'import sysconfig, pathlib; here = pathlib.Path(sysconfig.get_path("purelib")); \
	  (here / "main.pth").write_text(str(pathlib.Path.cwd() / here.relative_to(pathlib.Path.cwd()).as_posix().replace("$(1)", ".venv")))'
endef

# timm and torchvision in an environment of their own: torchvision's operators may not fit the torch of the other one.
families: setup
	$(call BESIDE,.venv-families)
	@.venv-families/bin/python -m pip install --quiet --disable-pip-version-check --no-deps timm==1.0.30 torchvision==0.28.0 || echo "timm and torchvision cannot be installed: their networks are skipped"
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} PYTHONPATH=$(CURDIR)/src .venv-families/bin/python -m pytest -q tests/capture/test_families.py tests/integrations/test_by_name.py tests/cli/test_named.py

# Jupyter, marimo, datasets and jax in an environment of their own, for the tests that are skipped without them.
notebooks: setup
	$(call BESIDE,.venv-notebooks)
	@.venv-notebooks/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt ipykernel nbclient ipywidgets marimo datasets==5.2.0 jax
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} PYTHONPATH=$(CURDIR)/src .venv-notebooks/bin/python -m pytest -q tests/test_notebook.py tests/data/test_prepared.py tests/probing/test_given_features.py tests/cli/test_named.py

# The documentation: every example is run. Links between pages are checked (-W); those to other hosts are listed, not followed.
docs: setup
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONPATH=$(CURDIR)/src $(BIN)/python -m sphinx -b html -W --keep-going -q docs docs/_build/html
	@echo "docs/_build/html/index.html"

# sdist and wheel, used as a stranger would: the wheel is installed where nothing of src/ is seen.
package: setup
	$(call BESIDE,.venv-package)
	@.venv-package/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build hatchling "readme_renderer[md]" twine
	.venv-package/bin/python scripts/package.py

# Lightning, TensorBoard and (MLFLOW=1, 400 MB; WANDB=1) trackers in an environment of their own, beside the packages of the other.
integrations: setup
	$(call BESIDE,.venv-integrations)
	@.venv-integrations/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  lightning==2.6.6 torchmetrics==1.9.0 tensorboard==2.21.0 $(if $(WANDB),wandb==0.31.0) $(if $(MLFLOW),mlflow==3.17.2) \
	  || echo "lightning and tensorboard cannot be installed: their tests are skipped"
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} PYTHONPATH=$(CURDIR)/src .venv-integrations/bin/python -m pytest -q -rs tests/integrations

# Ray in an environment of its own: sweeps over a cluster of two nodes on this machine.
ray: setup
	$(call BESIDE,.venv-ray)
	@.venv-ray/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt ray==2.60.0 \
	  || echo "ray cannot be installed: its tests are skipped"
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} PYTHONPATH=$(CURDIR)/src .venv-ray/bin/python -m pytest -q -rs tests/lab/test_engines.py

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/tallies.py
	$(BIN)/python scripts/ledger.py --stale

# Damaged files: N mutants in all (the tests try 300 for each reader); SEED gives others.
fuzz: setup
	FUZZ_IN_ALL=$${N:-20000} FUZZ_SEED=$${SEED:-0} OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 tests/fuzz/test_readers.py

# Work that is killed at N random moments and goes on, against unbroken runs.
torture: setup
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/src:tests $(BIN)/python tests/fuzz/torture.py $${N:-100} --seed $${SEED:-0}

bench: setup
	$(BIN)/python benchmarks/run.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-families .venv-notebooks .venv-integrations .venv-ray .venv-package dist docs/_build docs/_gallery docs/_api .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache layerlaw-demo
