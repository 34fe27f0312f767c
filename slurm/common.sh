# What the sbatch scripts in this folder source: the two kinds of jobs, and the files with their parts.
# shellcheck shell=bash
#
# A job ends with one line that begins with "slurm: DONE", "slurm: REQUEUED", "slurm: CANCELLED" or "slurm: FAILED"; the
# last one names the cause and, where it lies on a node, the node.

set -uo pipefail

SAVED=75           # a run that saved because it was asked to end; nemo_uecr/stopping.py
GRACE_S=60         # for the nodes of a failed job to end by themselves
LAST_WORD_S=10     # the same of a cancelled one: KillWait after its signal, 30 s as a rule, Slurm kills this script
PREFLIGHT_S=120    # for every node to answer the checks before the start
MOST_ATTEMPTS=20   # of a command that Slurm ends at its time limit; a training run advances in every attempt
MORE_TIME='ask for more time, sbatch --time, or for less notice, sbatch --signal=B:USR1@SECONDS'

# Where the time limit is not longer than the notice, the signal comes with the start: unhandled, it would end this script.
EARLY_SIGNAL=''
trap 'EARLY_SIGNAL=USR1' USR1

ROOT=$(cd "$ROOT" && pwd) # nodes look for it from another folder

# shellcheck source=slurm/arguments.sh
source "$ROOT/slurm/arguments.sh"
# shellcheck source=slurm/dry_run.sh
source "$ROOT/slurm/dry_run.sh"
# shellcheck source=slurm/start.sh
source "$ROOT/slurm/start.sh"
# shellcheck source=slurm/step.sh
source "$ROOT/slurm/step.sh"
# shellcheck source=slurm/end_or_requeue.sh
source "$ROOT/slurm/end_or_requeue.sh"

# --- what is printed -----------------------------------------------------------------------------------------------

say() { printf 'slurm: %s\n' "$*"; }

FINISHED=
finish() { # CODE WORD TEXT...: the job's last line
  local code=$1 word=$2
  shift 2
  FINISHED=yes
  say "$word: $*"
  [[ -n ${LOGS:-} && -d $LOGS ]] && printf '%s: %s\n' "$word" "$*" 2>/dev/null >"$LOGS/final"
  exit "$code"
}

refuse() { finish 2 FAILED "$*"; }

on_exit() {
  local code=$?
  [[ -n $FINISHED ]] || say "FAILED: the script of the job ended early with code $code"
}

# --- the two kinds of jobs -----------------------------------------------------------------------------------------

run_training() { # SCRIPT CONFIG ARGUMENTS...
  SCRIPT=$1 CONFIG=$2 STOP_KILLS=''
  shift 2
  trap on_exit EXIT
  read_arguments "$@"
  find_resources "$SCRIPT"
  find_python train
  refuse_words train
  if [[ -n $DRY_RUN ]]; then
    local words
    check_image
    words=$(uecr slurm command --nodes "$NODES" --gpus "$GPUS" ${SMOKE:+--smoke} "$CONFIG" "${REST[@]}") ||
      refuse "${words#nemo-uecr: error: }"
    eval "RESOLVED=($words)" # quoted by shlex.join: nemo-uecr train CONFIG key=value ..., of the local back end with --resume
    RESOLVED=("${RESOLVED[@]:3}")
    [[ -z $SMOKE ]] || RESOLVED=("${RESOLVED[@]:1}")
    [[ ${RESOLVED[*]} != *--resume ]] || unset 'RESOLVED[-1]'
    dry_run "$SCRIPT" "$words"
  fi
  start_job
  check_container
  preflight "$([[ -n $SMOKE ]] && echo 0 || echo "$GPUS")"
  build_step "$NODES"
  local names
  names=$(IFS=, && echo "${NODE_NAMES[*]}")
  # Unset, a token that any Ray has left in ~/.ray makes the head ask for it, and the workers bring none.
  export RAY_AUTH_MODE=${RAY_AUTH_MODE:-disabled}
  "${STEP[@]}" bash -c "$ON_NODE" node "/tmp/uecr-ray-${LOGS##*/}/gpu-cpus" "$CPUS" \
    "${PYTHON[@]}" -m nemo_uecr slurm node --job "$LOGS" --nodes "$names" --gpus "$GPUS" --cpus "$CPUS" \
    --port "$RAY_PORT" --register-s "$REGISTER_S" --heartbeat-s "$HEARTBEAT_S" --silence-s "$SILENCE_S" \
    ${SMOKE:+--smoke} "$CONFIG" "${REST[@]}" 2> >(tee -a "$LOGS/srun.log" >&2) &
  watch_step $!
  end_job "$(cat "$LOGS/ended" 2>/dev/null || echo 1)"
}

run_command() { # SCRIPT COMMAND ARGUMENTS...: one nemo-uecr command on one node, which continues what it finds on disk
  SCRIPT=$1 CONFIG='' STOP_KILLS=yes RESOLVED=()
  local command=$2
  shift 2
  trap on_exit EXIT
  read_arguments "$@"
  find_resources "$SCRIPT"
  find_python "$command"
  [[ -z $SMOKE ]] || refuse "--smoke is for the train scripts"
  ((NODES == 1)) || refuse "nemo-uecr $command runs on one node, the job has $NODES; sbatch --nodes=1"
  refuse_words "$command"
  if [[ -n $DRY_RUN ]]; then
    check_image
    check_words "$command"
    dry_run "$SCRIPT" "nemo-uecr $command ${REST[*]@Q}"
  fi
  start_job
  check_container
  preflight 0
  build_step 1
  export UECR_JOB_PROGRESS=$LOGS/progress # nemo_uecr/stopping.py
  "${STEP[@]}" "${PYTHON[@]}" -m nemo_uecr "$command" "${REST[@]}" > >(tee -a "$LOGS/driver.log") \
    2> >(tee -a "$LOGS/srun.log" "$LOGS/driver.log" >&2) &
  watch_step $!
  if [[ -n $STOP_SIGNAL && $STEP_CODE != 0 ]]; then
    refuse_standstill "$command"
    ((ATTEMPT < MOST_ATTEMPTS)) || finish 1 FAILED "node $HEAD: not done after $ATTEMPT requeues; give it more time: --time"
    end_job "$SAVED"
  fi
  ((STEP_CODE == 0)) || [[ -f $LOGS/cause ]] ||
    echo "node $HEAD: nemo-uecr $command ended with code $STEP_CODE: $(last_line_but_srun)" >"$LOGS/cause"
  end_job "$STEP_CODE"
}

refuse_standstill() { # COMMAND: the next attempt would have as little time; a preemption says nothing about that
  [[ $STOP_SIGNAL == USR1 && ! -f $LOGS/progress ]] || return 0
  [[ -z $CANCELLED ]] || time_is_up || return 0
  finish 1 FAILED "node $HEAD: nemo-uecr $1 saved nothing new in the $STOP_AT s before SIGUSR1, nor would the next attempt; $MORE_TIME"
}

last_line_but_srun() { grep -v -e '^srun: ' -e '^slurmstepd[^ ]*: ' "$LOGS/driver.log" 2>/dev/null | tail -n 1 | cut -c 1-300; }
