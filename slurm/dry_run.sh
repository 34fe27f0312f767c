# A dry run: everything that a job would run is printed, and nothing runs.
# shellcheck shell=bash

dry_run() { # SCRIPT COMMAND...: everything that would run, and nothing runs
  local code=0
  section "script $1"
  cat "$1"
  shift
  section "resources: $NODES nodes, $GPUS GPUs each; environment: ${CONTAINER:-$VENV}"
  section command
  printf '%s\n' "$*"
  section configuration
  if [[ -z $CONFIG ]]; then
    echo "none: a configuration and a plan apply to training only (--config FILE shows those of a run)"
  else
    uecr config show "$CONFIG" "${RESOLVED[@]}" || code=$?
    section plan
    uecr plan "$CONFIG" "${RESOLVED[@]}" || code=$?
  fi
  ((code == 0)) || refuse "the dry run found an error, see above"
  finish 0 DONE "dry run; nothing was started"
}

section() { printf '\n# --- %s\n' "$*"; }

uecr() { "${PYTHON[@]}" -m nemo_uecr "$@" 2>&1; }
