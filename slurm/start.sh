# Before the step: the attempt's folder, the traps, and a check of every node and of the container.
# shellcheck shell=bash

start_job() { # names of nodes, the attempt's folder, the end of the job, the traps
  [[ -n ${SLURM_JOB_ID:-} ]] || refuse "this script is for sbatch; try: sbatch $SCRIPT, or bash $SCRIPT --dry-run"
  mapfile -t NODE_NAMES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  HEAD=${NODE_NAMES[0]}
  ATTEMPT=${SLURM_RESTART_COUNT:-0}
  LOGS=${LOG_ROOT:-$SUBMIT_DIR/slurm-logs}/$SLURM_JOB_ID-$ATTEMPT
  mkdir -p "$LOGS" || refuse "node $HEAD: cannot make $LOGS; name a folder on a shared file system: --logs FOLDER"
  LOGS=$(cd "$LOGS" && pwd) || refuse "node $HEAD: cannot enter $LOGS; name another folder: --logs FOLDER"
  # A Slurm that was set up anew, or another cluster on this file system, gives the same numbers again.
  rm -f "$LOGS"/{cause,ended,stop,status,final,head-address,progress} "$LOGS"/left-*
  CANARY=$SLURM_JOB_ID-$ATTEMPT-$$
  if ! echo "$CANARY" 2>/dev/null >"$LOGS/canary" || [[ $(cat "$LOGS/canary") != "$CANARY" ]]; then
    refuse "node $HEAD: cannot write in $LOGS ($(df -hP "$LOGS" | awk 'NR == 2 {print $4 " free of " $2}')); make room, or name another folder: --logs FOLDER"
  fi
  local end
  end=$(job_record | sed -n 's/.* EndTime=\([^ ]*\).*/\1/p')
  [[ $end == 20* ]] && UECR_JOB_END=$(date -d "$end" +%s) && export UECR_JOB_END
  export SLURM_EXPORT_ENV=ALL # sbatch --export=NONE means this script; srun would pass no PATH either
  STOP_SIGNAL='' CANCELLED=''
  trap 'on_signal USR1' USR1
  trap 'on_signal TERM' TERM
  [[ -z $EARLY_SIGNAL ]] || on_signal "$EARLY_SIGNAL"
  say "job $SLURM_JOB_ID attempt $ATTEMPT on ${NODE_NAMES[*]}; logs in $LOGS; ends ${end:-never}"
}

job_record() { # one task of an array has the array's number, for which Slurm lists every task
  scontrol show job -o "$SLURM_JOB_ID" 2>/dev/null | grep "^JobId=$SLURM_JOB_ID "
}

job_over() { # STATE/REASON from one answer; nothing while the job lives, or where Slurm does not answer
  job_record |
    sed -nE '/ JobState=(RUNNING|SIGNALING|STOPPED|SUSPENDED|RESIZING) /d; s|.* JobState=([^ ]+) Reason=([^ ]+).*|\1/\2|p'
}

check_image() { # whether a container that is a file is there
  if [[ $CONTAINER == *.sqsh || $CONTAINER == /* || $CONTAINER == ./* ]] && [[ ! -f $CONTAINER ]]; then
    refuse "node ${HEAD:-$(hostname)}: no container image at $CONTAINER; make one with: enroot import --output $CONTAINER docker://nvcr.io#nvidia/nemo-rl:v0.7.0, or use --venv FOLDER"
  fi
}

check_container() {
  [[ -n $CONTAINER ]] || return 0
  check_image
  srun --help 2>&1 | grep -q -- --container-image ||
    refuse "node $HEAD: srun has no --container-image (pyxis is not installed); use --venv FOLDER instead of --container"
}

preflight() { # every node answers "ok NODE" or says in one line what is missing there
  local answers missing=() name how='srun said'
  answers=$(timeout "$PREFLIGHT_S" srun --nodes="$NODES" --ntasks="$NODES" --ntasks-per-node=1 --chdir=/ \
    bash -c "$NODE_CHECK" check "$LOGS/canary" "$CANARY" "$ROOT/nemo_uecr/__init__.py" \
    "${CONTAINER:+in-container}" "${PYTHON[0]}" "$1" 2>&1)
  (($? != 124)) || how="did not answer within $PREFLIGHT_S s"
  end_if_cancelled
  end_if_early
  name=$(grep -m 1 '^node [^ ]*: ' <<<"$answers")
  [[ -z $name ]] || refuse "$name"
  for name in "${NODE_NAMES[@]}"; do
    grep -qx "ok $name" <<<"$answers" || missing+=("$name")
  done
  ((${#missing[@]} == 0)) ||
    refuse "node ${missing[0]}: $how: $(tail -n 1 <<<"$answers")"
}

end_if_cancelled() { # a signal that came during a foreground command has been handled by now, or Slurm says it is over
  CANCELLED=${CANCELLED:-$(job_over)}
  [[ -z $CANCELLED ]] || end_job 1
}

end_if_early() { # such an attempt would end at its first step, and the next one again
  [[ $STOP_SIGNAL != USR1 ]] ||
    finish 1 FAILED "SIGUSR1 came before the run began: the time limit is not longer than the notice; $MORE_TIME"
}

# Runs on each node outside any container. $1 canary $2 its content $3 a file of ours $4 in a container? $5 python $6 GPUs
# shellcheck disable=SC2016
NODE_CHECK='
problem() { echo "node $SLURMD_NODENAME: $*"; exit 0; }
[ "$(cat "$1" 2>/dev/null)" = "$2" ] ||
  problem "does not see ${1%/*}; name a folder on a shared file system: --logs FOLDER"
[ -f "$3" ] || problem "does not see $3; submit from a clone on a shared file system"
[ -n "$4" ] || [ -x "$5" ] || problem "no interpreter at $5; put the environment on a shared file system"
if [ "$6" -gt 0 ]; then
  found=$(nvidia-smi -L 2>/dev/null | grep -c "^GPU ")
  [ "$found" -ge "$6" ] || problem "nvidia-smi shows $found GPUs, the job has $6 on each node"
fi
echo "ok $SLURMD_NODENAME"
'
