# A dry run: everything that a job would run is printed, and nothing runs.
# shellcheck shell=bash

dry_run() { # SCRIPT COMMAND...: everything that would run, and nothing runs
  local script=$1 code=0 planned=0 plan
  section "script $script"
  cat "$script"
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
    plan=$(uecr plan "$CONFIG" "${RESOLVED[@]}") || planned=$?
    if [[ $plan == *"whose sizes are not known here"* ]]; then
      echo "none: ${plan##*error: }"
    else
      printf '%s\n' "$plan"
      if ((planned == 0)); then compare_notice "$(sbatch_value "$script" signal)" "$plan"; else code=$planned; fi
    fi
  fi
  ((code == 0)) || refuse "the dry run found an error, see above"
  finish 0 DONE "dry run; nothing was started, data and models were not looked at (nemo-uecr doctor does)"
}

compare_notice() { # B:USR1@SECONDS PLAN: a step that is longer than the notice is lost at the time limit
  local notice=${1##*@} step
  step=$(sed -nE 's/^ *whole step +([0-9,.]+).*/\1/p' <<<"$2" | head -n 1)
  step=${step//,/}
  [[ $step != *.* ]] || step=$((${step%.*} + 1))
  [[ -n $step && -n $notice ]] || return 0
  section notice
  if ((step < notice)); then
    echo "the notice of $notice s is longer than the longest step planned, $step s"
  else
    echo "the longest step planned, $step s with every response at its limit, is no shorter than the notice of $notice s: see the expected one with nemo-uecr plan --response-tokens MEAN, and ask for more than that: sbatch --signal=B:USR1@SECONDS"
  fi
}

section() { printf '\n# --- %s\n' "$*"; }

uecr() { "${PYTHON[@]}" -m nemo_uecr "$@" 2>&1; }
