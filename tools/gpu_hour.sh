#!/usr/bin/env bash
# What only a GPU can show, on a machine with one and without a network: results.json and table.md in half an hour.
#   tools/gpu_hour.sh --prepare DIR    where there is a network: DIR/wheels, to carry with this clone
#   tools/gpu_hour.sh --out DIR [--wheels DIR] [--models DIR] [--minutes 30] [--device cuda|cpu]
# With --wheels it makes OUT/venv, which also sees what PYTHON (default: python3) has; without, it runs with PYTHON itself.
# Random models of Qwen3's sizes are made in --models (default: OUT/models) where there are none. PACKAGES are installed
# beside this one; parts that miss one are skipped.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
package="nemo-uecr[local,lora,lowbit,triton,verify,test]"
read -ra others <<<"${PACKAGES-vllm trl}"
out='' wheels='' given=()

while [ $# -gt 0 ]; do
  case $1 in
  --prepare)
    exec "$python" -m pip wheel --wheel-dir "$2/wheels" "$package @ file://$root" "${others[@]}" ;;
  --out) out=$2 ;;
  --wheels) wheels=$2 ;;
  --models | --minutes | --device) given+=("$1" "$2") ;;
  *) sed -n '2,7s/^# //p' "$0" >&2 && exit 2 ;;
  esac
  shift 2
done
[ -n "$out" ] || { echo "gpu_hour: --out DIR is missing" >&2 && exit 2; }
mkdir -p "$out"

if [ -n "$wheels" ]; then
  "$python" -m venv --system-site-packages "$out/venv"
  python=$out/venv/bin/python
  "$python" -m pip install --quiet --no-index --find-links "$wheels" "$package" "${others[@]}"
fi
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "$python" -m benchmarks.gpu_hour --out "$out" "${given[@]}"
