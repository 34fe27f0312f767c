# NeMo-RL's own image with this project beside it. The image has torch, Ray, vLLM and Megatron, each in the environment
# of its kind of worker; nothing of that is installed again or changed.
#
#   docker build --tag nemo-uecr .
#   docker run --rm --gpus all --shm-size 16g nemo-uecr nemo-uecr doctor
FROM nvcr.io/nvidia/nemo-rl:v0.7.0

LABEL org.opencontainers.image.title="nemo-uecr" \
      org.opencontainers.image.description="UECR-GRPO inside NVIDIA NeMo-RL" \
      org.opencontainers.image.version="0.4.0" \
      org.opencontainers.image.licenses="Apache-2.0"

# What the image lacks, on the path below.
RUN python -m pip install --no-cache-dir --no-deps --target /opt/nemo-uecr 'cyclopts<6' docstring-parser

COPY pyproject.toml README.md LICENSE CITATION.cff /opt/nemo-uecr/
COPY examples /opt/nemo-uecr/examples
COPY slurm /opt/nemo-uecr/slurm
COPY nemo_uecr /opt/nemo-uecr/nemo_uecr

# The path, and no installation: workers run in environments of their own and inherit PYTHONPATH from the driver.
ENV PYTHONPATH=/opt/nemo-uecr${PYTHONPATH:+:${PYTHONPATH}}

# vLLM and Megatron-Bridge are only in the environments of NeMo-RL's workers.
RUN printf '%s\n' '#!/bin/sh' \
      'case "$1" in' \
      '  evaluate) worker=nemo_rl.models.generation.vllm.vllm_worker.VllmGenerationWorker ;;' \
      '  convert) worker=nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker ;;' \
      'esac' \
      'python=${NEMO_RL_VENV_DIR:-/opt/ray_venvs}/$worker/bin/python' \
      '[ -x "$python" ] || python=python' \
      'exec "$python" -m nemo_uecr "$@"' > /usr/local/bin/nemo-uecr \
    && chmod 755 /usr/local/bin/nemo-uecr \
    && nemo-uecr --version
