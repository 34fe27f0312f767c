#!/usr/bin/env bash
# Both calls of a quarter of an hour without a GPU, at tiny sizes, as a machine with one would get them: a copy of the tree
# without .git, what is carried, and the packages that are there, with torch's CUDA build and NVIDIA's libraries.
#   tools/quarter_rehearsal.sh gpu_quarter|cluster_quarter ENVIRONMENT
# ENVIRONMENT is made where there is none: Python 3.12, 6 GB. What is carried lies in ENVIRONMENT/QUARTER/carried.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) quarter=$1
mkdir -p "$2/$quarter"
env=$(cd "$2" && pwd) here=$(cd "$2/$quarter" && pwd) python=$(cd "$2" && pwd)/bin/python

machine=(absl-py accelerate==1.15.0 aiohappyeyeballs aiohttp aiosignal annotated-doc anyio attrs certifi
  charset-normalizer click cloudpickle contourpy cycler einops execnet filelock fonttools frozenlist fsspec grpcio h11
  hf-xet httpcore httpx huggingface_hub==1.33.0 hypothesis idna iniconfig jinja2 kiwisolver llvmlite markdown
  markdown-it-py markupsafe matplotlib mdurl ml-dtypes mpmath msgpack multidict networkx numba numpy==2.5.2 onnx
  onnx-ir onnxscript opencv-python-headless packaging pandas peft pillow pluggy portalocker prometheus-client
  propcache protobuf psutil py-cpuinfo pyarrow pybind11 pygments pyparsing pytest pytest-xdist python-dateutil pyyaml
  regex requests rich safetensors==0.8.0 scipy sentencepiece setuptools==81.0.0 shellingham six sortedcontainers sympy
  tensorboard tensorboard-data-server tiktoken tokenizers==0.23.2 torchaudio==2.11.0 torchvision==0.26.0 tqdm
  transformers==5.17.0 triton==3.6.0 typer typing_extensions==4.15.0 urllib3 uvloop werkzeug wheel wrapt xxhash yarl)
if [ ! -e "$env/.installed" ]; then
  "${PYTHON:-python3.12}" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' ||
    { echo "quarter_rehearsal: needs Python 3.12: make PYTHON=python3.12 ${quarter/_quarter/-rehearsal}" >&2 && exit 2; }
  "${PYTHON:-python3.12}" -m venv "$env"
  echo "installing what a machine with a GPU has into $env (6 GB)"
  install=("$python" -m pip install --quiet --disable-pip-version-check --no-compile)
  "${install[@]}" torch==2.11.0 'cuda-toolkit[cccl,crt,profiler]==13.0.2' # with headers that an extension is compiled with
  "${install[@]}" --no-deps "${machine[@]}"
  # The interpreter of this Triton takes no newer numpy; on a GPU nothing is interpreted.
  "${install[@]}" --no-deps --target "$env/interpreter" numpy==2.3.5
  touch "$env/.installed"
fi
export PYTHON=$python INTERPRETER_SITE=$env/interpreter DEVICE=cpu WORK=$here/work PATIENCE=${PATIENCE:-4}
if [ "$quarter" = cluster_quarter ]; then # vLLM is linked to NVIDIA's driver, which comes with a GPU; 100: no device
  export CUDA_DRIVER=$env/libcuda.so.1
  printf 'int %s(void) { return 100; }\n' cuGetProcAddress_v2 cuPointerGetAttribute cuTensorMapEncodeTiled |
    gcc -shared -fPIC -s -x c - -Wl,-soname,libcuda.so.1 -o "$CUDA_DRIVER"
fi
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive MKL_NUM_THREADS=1

rm -rf "$here/work" "$here/out"
cd "$root"
started=$EPOCHSECONDS
[ -e "$here/carried/.complete" ] || bash "tools/$quarter.sh" --prepare "$here/carried" # remove it to fetch it again
touch "$here/carried/.complete"
echo "what is carried: $((EPOCHSECONDS - started)) s"
for call in first second; do
  rm -rf "$here/copy" && mkdir -p "$here/copy/carried" "$here/out/$call"
  git ls-files -coz --exclude-standard | xargs -0 cp --parents -t "$here/copy"
  cp -r "$here/carried/$call" "$here/copy/carried"
  bytes=$(find "$here/copy" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
  started=$EPOCHSECONDS
  (cd "$here/copy" && bash "tools/$quarter.sh" "--$call" "$here/out/$call" carried) || failed=1
  echo "$call call: $((EPOCHSECONDS - started)) s, $((bytes >> 20)) of 64 MiB carried, files back:" "$here/out/$call"/*
  [ "$bytes" -le $((64 << 20)) ] || failed=1
  grep -H "no time left" "$here/out/$call/table.md" && failed=1
done
exit "${failed:-0}"
