# What gpu_quarter.sh and cluster_quarter.sh share; they source it, with their own arguments.
# shellcheck shell=bash
set -euo pipefail
started=$EPOCHSECONDS
name=$(basename "$0" .sh) root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3} work=$(realpath -m "${WORK:-/tmp/$name}") call=${1:-} patience=${PATIENCE:-1}
case $call in --prepare) given=2 ;; --first | --second) given=3 ;; *) given=none ;; esac
if [ "$given" = none ] || [ $# -lt "$given" ]; then
  sed -n '2,/^$/s/^# //p' "$0" >&2 # that script's first lines say what it takes
  exit 2
fi

# parts OUT ARGUMENT...: this call's parts, in what its limit leaves of the time since the start
parts() {
  local out limit=460
  [ "$call" = --second ] && limit=225
  out=$(realpath -m "$1")
  cd "$root"
  exec "$python" -m "benchmarks.$name" "${call#--}" "$out" --work "$work" --device "${DEVICE:-cuda}" \
    --seconds $((patience * limit + started - EPOCHSECONDS)) --patience "$patience" "${@:2}"
}
