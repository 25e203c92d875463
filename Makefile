# Everything runs in .venv; each target sets up what it needs.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test families integrations check bench fuzz torture format clean

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

# timm and torchvision in an environment of their own: torchvision's operators may not fit the torch of the other one.
families: setup
	@test -x .venv-families/bin/python || $(BIN)/python -m venv .venv-families
	@.venv-families/bin/python -m pip install --quiet --disable-pip-version-check --no-deps timm==1.0.30 torchvision==0.28.0 || echo "timm and torchvision cannot be installed: their networks are skipped"
	@.venv-families/bin/python -c 'import sysconfig, pathlib; here = pathlib.Path(sysconfig.get_path("purelib")); \
	  (here / "main.pth").write_text(str(pathlib.Path.cwd() / here.relative_to(pathlib.Path.cwd()).as_posix().replace(".venv-families", ".venv")))'
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} PYTHONPATH=src .venv-families/bin/python -m pytest -q tests/capture/test_families.py

# Lightning, TensorBoard and (MLFLOW=1, 400 MB; WANDB=1) trackers in an environment of their own, beside the packages of the other.
integrations: setup
	@test -x .venv-integrations/bin/python || $(BIN)/python -m venv .venv-integrations
	@.venv-integrations/bin/python -c 'import sysconfig, pathlib; here = pathlib.Path(sysconfig.get_path("purelib")); \
	  (here / "main.pth").write_text(str(pathlib.Path.cwd() / here.relative_to(pathlib.Path.cwd()).as_posix().replace(".venv-integrations", ".venv")))'
	@.venv-integrations/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  lightning==2.6.6 torchmetrics==1.9.0 tensorboard==2.21.0 $(if $(WANDB),wandb==0.31.0) $(if $(MLFLOW),mlflow==3.17.2) \
	  || echo "lightning and tensorboard cannot be installed: their tests are skipped"
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} PYTHONPATH=src .venv-integrations/bin/python -m pytest -q -rs tests/integrations

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
	OMP_NUM_THREADS=1 PYTHONPATH=src:tests $(BIN)/python tests/fuzz/torture.py $${N:-100} --seed $${SEED:-0}

bench: setup
	$(BIN)/python benchmarks/run.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-families .venv-integrations .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache layerlaw-demo
