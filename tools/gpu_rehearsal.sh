#!/usr/bin/env bash
# Both calls of tools/gpu_quarter.sh without a GPU, at tiny sizes, as a machine with one would get them: a copy of the
# tree without .git, what is carried, and the packages that are there, torch's CUDA build over empty GPU libraries.
#   tools/gpu_rehearsal.sh ENVIRONMENT    made where there is none: Python 3.12, about 1.5 GB; carried files beside it
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "$1"
env=$(cd "$1" && pwd) python=$(cd "$1" && pwd)/bin/python

machine=(accelerate==1.15.0 annotated-doc anyio attrs certifi charset-normalizer click execnet filelock fsspec h11 hf-xet
  httpcore httpx huggingface_hub==1.33.0 hypothesis idna iniconfig jinja2 markdown-it-py markupsafe mdurl mpmath networkx
  numpy==2.5.2 packaging pandas peft pluggy psutil pyarrow pygments pytest pytest-xdist python-dateutil pyyaml regex
  requests rich safetensors==0.8.0 scipy setuptools shellingham six sortedcontainers sympy tokenizers==0.23.2 tqdm
  transformers==5.17.0 typer typing_extensions==4.15.0 urllib3 xxhash)
if [ ! -e "$env/.installed" ]; then
  "${PYTHON:-python3.12}" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' ||
    { echo "gpu_rehearsal: needs Python 3.12: make PYTHON=python3.12 gpu-rehearsal" >&2 && exit 2; }
  "${PYTHON:-python3.12}" -m venv "$env"
  echo "installing what a machine with a GPU has into $env (about 1.5 GB)"
  install=(-m pip install --quiet --disable-pip-version-check --no-compile --no-deps)
  "$python" "${install[@]}" torch==2.11.0 triton==3.6.0 "${machine[@]}"
  # The interpreter of this Triton takes no newer numpy; on a GPU nothing is interpreted.
  "$python" "${install[@]}" --target "$env/interpreter" numpy==2.3.5
  torch=$env/lib/python3.12/site-packages/torch
  "$python" "$root/tools/gpu_stubs.py" "$torch/lib" "$env/stubs"
  # transformers asks this in every forward, and without a device it is a segmentation fault.
  sed -i 's/return _cuda_isCurrentStreamCapturing()/return False/' "$torch/cuda/graphs.py"
  touch "$env/.installed"
fi
export PYTHON=$python LD_LIBRARY_PATH=$env/stubs INTERPRETER_SITE=$env/interpreter DEVICE=cpu WORK=$env/work
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive MKL_NUM_THREADS=1

rm -rf "$env/work" "$env/copy" "$env/out"
cd "$root"
[ -d "$env/carried/second" ] || bash tools/gpu_quarter.sh --prepare "$env/carried" # remove it to fetch it again
for call in first second; do
  rm -rf "$env/copy" && mkdir -p "$env/copy/carried" "$env/out/$call"
  git ls-files -coz --exclude-standard | xargs -0 cp --parents -t "$env/copy"
  cp -r "$env/carried/$call" "$env/copy/carried"
  bytes=$(find "$env/copy" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
  started=$EPOCHSECONDS
  (cd "$env/copy" && OUT=$env/out/$call bash tools/gpu_quarter.sh "--$call" "$env/out/$call" carried) || failed=1
  echo "$call call: $((EPOCHSECONDS - started)) s, $((bytes >> 20)) of 64 MiB carried, files back:" "$env/out/$call"/*
  [ "$bytes" -le $((64 << 20)) ] || failed=1
  grep -H "no time left" "$env/out/$call/table.md" && failed=1
done
exit "${failed:-0}"
