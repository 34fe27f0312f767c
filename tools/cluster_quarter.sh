#!/usr/bin/env bash
# NeMo-RL's Megatron workers, teacher and loop on one GPU, in a quarter of an hour: two calls without a network.
#   tools/cluster_quarter.sh --prepare DIR       where there is a network: DIR/first and DIR/second, to carry with this clone
#   tools/cluster_quarter.sh --first OUT DIR     480 s at most, with DIR/first: Transformer Engine, student, teacher, a step
#   tools/cluster_quarter.sh --second OUT DIR    240 s at most, with DIR/second: the whole loop over Ray and vLLM; then what
#                                                failed, or had no time, in the first call
# --only PART... runs these parts of the first call alone.
# results.json, table.md and parts.log come to OUT after each part. Packages and models stay in WORK (default:
# /tmp/cluster_quarter), where the second call finds them. DEVICE=cpu rehearses at tiny sizes; PATIENCE=4 multiplies limits.
# PYTHON (default: python3) is Python 3.12 with torch 2.11 for CUDA 13; nothing is installed into it. --prepare asks more of
# it: setuptools, wheel and CUDA's headers (tools/quarter_rehearsal.sh installs them); and for g++, xz and NeMo-RL's source
# in NEMO_RL_SOURCE (default: ~/.cache/nemo_uecr/nemo_rl/v0.7.0). One core compiles for minutes.

# shellcheck source=tools/quarter.sh
source "$(dirname "${BASH_SOURCE[0]}")/quarter.sh"
parts_of_kit=$root/tools/cluster

extension() { # Transformer Engine's for torch, which its publisher has as source alone, with host C++: VERSION LIBRARY
  local source=$build/transformer_engine_torch-$1 torch headers flags
  rm -rf "$source"
  "$python" -m pip download --quiet --no-deps --no-build-isolation --no-binary=transformer-engine-torch -d "$build" \
    "transformer-engine-torch==$1" # its metadata asks for torch, hence no isolation
  tar xzf "$source.tar.gz" -C "$build"
  torch=$("$python" -c 'import torch; print(torch.__path__[0])')
  headers=("$torch"/include{,/torch/csrc/api/include} "${torch%/torch}"/nvidia/{cu13/include{,/cccl},cudnn/include,nccl/include}
    "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')")
  flags=(-std=c++17 -O1 -g0 -w -fPIC -shared -s -fvisibility=hidden -DTORCH_EXTENSION_NAME=transformer_engine_torch
    -DTORCH_API_INCLUDE_EXTENSION_H "${headers[@]/#/-isystem}" -I. -Icommon_headers{,/common,/common/include} -Icsrc)
  # All files as one: torch's headers, a minute for each file, are read once.
  (cd "$source" && find csrc -name '*.cpp' | sort | sed 's/.*/#include "&"/' >all.cpp &&
    g++ "${flags[@]}" all.cpp -o "$2.new" -L"$torch/lib" -lc10 -lc10_cuda -ltorch -ltorch_cpu -ltorch_cuda -ltorch_python)
  mv "$2.new" "$2"
}

bare() { # FOLDER LIBRARY...: without machine code of other GPUs than sm_90, and packed as FOLDER/../../NAME/site.tar.xz
  local site=$build/$1/site library
  for library in "${@:2}"; do "$python" "$parts_of_kit/strip_fatbin.py" "$site/$library" 90; done
  find "$site" -name __pycache__ -prune -exec rm -rf {} +
  tar c -C "$build/$1" site | xz -6 -T0 >"$dir/$1/site.tar.xz"
}

case $call in
--prepare)
  mkdir -p "$2"
  dir=$(realpath "$2") build=$(realpath "$2")/build version=2.15.0
  nemo=${NEMO_RL_SOURCE:-$HOME/.cache/nemo_uecr/nemo_rl/v0.7.0}
  [ -d "$nemo/nemo_rl" ] || { echo "cluster_quarter: got $nemo, expected NeMo-RL's source tree; set NEMO_RL_SOURCE" >&2 && exit 2; }
  "$python" -c 'import sys, torch; sys.exit((*sys.version_info[:2], torch.__version__) != (3, 12, "2.11.0+cu130"))' 2>/dev/null ||
    { echo "cluster_quarter: got $python, expected Python 3.12 with torch 2.11.0+cu130; set PYTHON" >&2 && exit 2; }
  for one in first second; do
    mkdir -p "$dir/$one"
    rm -rf "${build:?}/$one"
    "$python" -m pip install --quiet --no-deps --no-compile --target "$build/$one/site" -r "$parts_of_kit/$one.txt"
  done
  [ -e "$build/extension-$version.so" ] || extension "$version" "$build/extension-$version.so"

  site=$build/first/site libraries=transformer_engine/wheel_lib
  cp "$build/extension-$version.so" "$site/$libraries/transformer_engine_torch.cpython-312-x86_64-linux-gnu.so"
  cp -r "$nemo/nemo_rl" "$site"
  mkdir -p "$site/examples" && cp "$nemo/examples/run_grpo.py" "$site/examples"
  # Its library was built with a cuBLAS newer than torch's, and asks for one function of grouped products, which a dense
  # model never calls; 15 is CUBLAS_STATUS_NOT_SUPPORTED. `stand_ins/sitecustomize.py` loads it.
  echo 'int cublasLtGroupedMatrixLayoutInit_internal(void) { return 15; }' |
    gcc -shared -fPIC -s -x c - -o "$site/libcublaslt_shim.so" \
      -Wl,--version-script=<(echo 'libcublasLt.so.13 { global: cublasLtGroupedMatrixLayoutInit_internal; };')
  # What no part reads.
  (cd "$site" && rm -rf bin tests tutorial scripts recipe example.py ray/{rllib,jars,serve,tune,data,train,llm} \
    ray/dashboard/client ray/core/libjemalloc.so)
  (cd "$build/second/site" && rm -rf bin tests vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so vllm/_flashmla* vllm/_moe_C* \
    vllm/third_party/deep_gemm/include mistral_common/data pycountry/locales xgrammar/lib &&
    strip --strip-debug xgrammar/libxgrammar_bindings.so)
  bare first "$libraries/libtransformer_engine.so"
  bare second vllm/{_C,_C_stable_libtorch,vllm_flash_attn/_vllm_fa3_C}.abi3.so
  cd "$root" && exec "$python" -m benchmarks.cluster_quarter prepare "$dir" ;;
--first | --second)
  mkdir -p "$work"
  if [ ! -e "$work/.$call" ]; then # not there from an earlier try
    "$python" -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="data")' \
      "$3/${call#--}/site.tar.xz" "$work"
    "$python" -m compileall -q -j 0 "$work/site" >"$work/compiled.log" 2>&1 || true # not in the first import, on one core
    touch "$work/.$call"
  fi
  mkdir -p "$work/bin" && ln -sf "$(type -P true)" "$work/bin/make" # Megatron would make helpers that its wheel has
  export PATH=$work/bin:$PATH
  # Transformer Engine asks for libraries of NVIDIA's that torch brings, and loads later or never.
  libraries=$("$python" -c 'import glob, torch; print(":".join(glob.glob(torch.__path__[0][:-5] + "nvidia/*/lib")))')
  export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} CUBLASLT_SHIM=$work/site/libcublaslt_shim.so
  export PYTHONPATH=$parts_of_kit/stand_ins:$work/site:$root NRL_MEGATRON_CHECKPOINT_DIR=$work/models/megatron
  export NEMO_RL_PY_EXECUTABLES_SYSTEM=1 RAY_DEDUP_LOGS=0 OMP_NUM_THREADS=${OMP_NUM_THREADS:-8} # one Python runs every actor
  parts "$2" "${@:4}" ;;
esac
