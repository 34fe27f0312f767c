# The end of a job: its one last line, with cause and node, or a requeue.
# shellcheck shell=bash

end_job() { # CODE of the run
  local code=$1 cause
  if [[ -n $CANCELLED ]]; then
    cause=$(srun_cause)
    [[ $cause != *": lost, says Slurm" ]] || finish 1 FAILED "$cause, which requeues the job"
    time_is_up ||
      finish 143 CANCELLED "ended from outside (${CANCELLED%/None}); what was saved stays, the same sbatch command continues it"
    # The run itself may have ended before, and only the nodes' leaving took longer.
    [[ $code == 0 || $code == "$SAVED" ]] ||
      finish 1 FAILED "the time limit passed before the step under way was saved; ask for more notice (sbatch --signal=B:USR1@SECONDS) or a longer --time"
  fi
  case $code in
    0) finish 0 DONE "$(last_line "$LOGS/driver.log")" ;;
    "$SAVED")
      end_if_all_notice
      requeue "$(last_line_but_srun | grep . || echo "ended before it printed a line")"
      ;;
  esac
  cause=$(cat "$LOGS/cause" 2>/dev/null)
  [[ -n $cause ]] || cause=$(srun_cause)$(node_said)
  finish 1 FAILED "${cause:-node $HEAD: srun ended with code $STEP_CODE and no node said why; see $LOGS}"
}

end_if_all_notice() { # each attempt would do one step, and be requeued for ever
  [[ $STOP_SIGNAL == USR1 && -n ${UECR_JOB_END:-} ]] || return 0
  local left=$((UECR_JOB_END - $(date +%s) + SECONDS - STOP_AT)) text
  ((STOP_AT < 45 && left > 3 * STOP_AT)) || return 0 # Slurm may send it a minute early
  text="SIGUSR1 came $STOP_AT s after the start and $left s before the time limit; if that is the notice, $MORE_TIME"
  ((ATTEMPT > 0)) || { say "$text" && return 0; } # the first may be a preemption's
  finish 1 FAILED "$text; what was saved stays"
}

time_is_up() { [[ $CANCELLED == *TimeLimit* || $CANCELLED == TIMEOUT* ]]; }

srun_cause() { # "srun: error: n2: task 1: Killed" or "srun: error: Node failure on n2"
  sed -nE -e 's/^srun: error: Node failure on (.*)$/node \1: lost, says Slurm/p' \
    -e 's/^srun: error: ([^ :]+): (task.*)$/node \1: \2/p' "$LOGS/srun.log" 2>/dev/null | head -n 1
}

node_said() { # the last line of the node's log that srun names
  local node
  node=$(srun_cause | sed -nE 's/^node ([^:]+): task.*/\1/p')
  [[ -z $node || ! -s $LOGS/node-$node.log ]] || printf '; its last line: %s' "$(last_line "$LOGS/node-$node.log")"
}

requeue() { # TEXT
  set -- "${1%% Run again with*}" # Slurm does
  say "REQUEUED: $1"
  printf 'REQUEUED: %s\n' "$1" >"$LOGS/final"
  FINISHED=yes
  local code=0
  scontrol requeue "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}" || code=$?
  if ((code == 0 || code > 128)); then # above: Slurm's signal ended it before it returned
    sleep "$GRACE_S" # Slurm ends this script
    exit 0
  fi
  finish 1 FAILED "saved, but Slurm does not requeue this job (sbatch --requeue); the same sbatch command continues it"
}
