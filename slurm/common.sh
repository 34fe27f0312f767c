# Functions of the sbatch scripts in this folder: arguments, dry run, checks before the start, the step, signals, the end.
# shellcheck shell=bash
#
# A job ends with one line that begins with "slurm: DONE", "slurm: REQUEUED", "slurm: CANCELLED" or "slurm: FAILED"; the
# last one names the cause and, where it lies on a node, the node.

set -uo pipefail

SAVED=75           # a run that saved because it was asked to end; nemo_uecr/stopping.py
GRACE_S=60         # for the nodes of a failed job to end by themselves
PREFLIGHT_S=120    # for every node to answer the checks before the start
MOST_ATTEMPTS=20   # of a command that Slurm ends at its time limit; a training run advances in every attempt

script_usage() {
  cat <<'USAGE'
usage: sbatch [SBATCH OPTIONS] SCRIPT [OPTIONS] [-- ARGUMENTS]     bash SCRIPT --dry-run [OPTIONS] [-- ARGUMENTS]
  --config FILE        configuration of the run (train scripts have one)
  --container IMAGE    run in a container (pyxis and enroot): a .sqsh file or an image name
  --mounts A:B,...     more folders that the container sees
  --venv FOLDER        run in a virtual environment instead (default: .venv)
  --smoke              the same short local run on every node, no GPU used (train scripts)
  --logs FOLDER        where the folder of each attempt goes, on a shared file system (default: slurm-logs)
  --ray-port NUMBER    port of the Ray head (default: 9900)
  --register-s, --heartbeat-s, --silence-s SECONDS
                       longest wait for all nodes (600); time between heartbeats (60); longest silence of the run (7200)
  --dry-run            print script, command, resolved configuration and plan; run nothing
  --nodes N, --gpus N  for a dry run outside a job: what sbatch will be given
What follows -- changes the configuration (train: key=value) or goes to the command (eval, convert).
USAGE
}

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

# --- arguments -----------------------------------------------------------------------------------------------------

read_arguments() { # what the sbatch script was called with
  CONTAINER='' MOUNTS='' VENV='' SMOKE='' DRY_RUN='' LOG_ROOT='' RAY_PORT=9900 REGISTER_S=600 HEARTBEAT_S=60
  SILENCE_S=7200 ASKED_NODES='' ASKED_GPUS='' REST=()
  while (($#)); do
    case $1 in
      --dry-run) DRY_RUN=yes && shift ;;
      --smoke) SMOKE=yes && shift ;;
      --help | -h) script_usage && FINISHED=yes && exit 0 ;;
      --) shift && REST=("$@") && break ;;
      --config | --container | --mounts | --venv | --logs | --ray-port | --register-s | --heartbeat-s | --silence-s | \
        --nodes | --gpus)
        (($# >= 2)) || refuse "option $1 needs a value; --help lists the options"
        set_option "$1" "$2"
        shift 2
        ;;
      *) refuse "unknown option '$1'; changes of the configuration come after --, --help lists the options" ;;
    esac
  done
}

set_option() {
  case $1 in
    --config) CONFIG=$2 ;;
    --container) CONTAINER=$2 ;;
    --mounts) MOUNTS=$2 ;;
    --venv) VENV=$2 ;;
    --logs) LOG_ROOT=$2 ;;
    *)
      [[ $2 =~ ^[1-9][0-9]*$ ]] || refuse "option $1: got '$2', expected a whole number above 0"
      ((${#2} <= 9)) || refuse "option $1: got '$2', expected at most nine digits"
      case $1 in
        --ray-port) check_port "$2" && RAY_PORT=$2 ;;
        --register-s) REGISTER_S=$2 ;;
        --heartbeat-s) HEARTBEAT_S=$2 ;;
        --silence-s) SILENCE_S=$2 ;;
        --nodes) ASKED_NODES=$2 ;;
        --gpus) ASKED_GPUS=$2 ;;
      esac
      ;;
  esac
}

check_port() { # the head takes it and the next one; nemo_uecr/cluster/ports.py says the same of the node's process
  (($1 >= 1024 && $1 <= 65534)) || refuse "option --ray-port: got $1, expected 1024 to 65534"
  (($1 < 10001 || $1 > 10999)) || refuse "option --ray-port: got $1, but Ray's workers take 10002 to 10999; choose another"
}

# --- resources -----------------------------------------------------------------------------------------------------

sbatch_value() { # SCRIPT OPTION: its value in the script's #SBATCH lines
  sed -n "s/^#SBATCH --$2=//p" "$1" | tail -n 1
}

find_resources() { # SCRIPT
  NODES=${SLURM_JOB_NUM_NODES:-${ASKED_NODES:-$(sbatch_value "$1" nodes)}}
  GPUS=${SLURM_GPUS_ON_NODE:-${ASKED_GPUS:-$(sbatch_value "$1" gpus-per-node)}}
  GPUS=${GPUS:-0}
  CPUS=${SLURM_CPUS_ON_NODE:-1}
}

find_python() { # our package lies on top of either environment and changes nothing in it
  if [[ -n $CONTAINER && -z $DRY_RUN ]]; then
    unset PYTHONPATH # that of the submitting shell names packages of another Python
    # shellcheck disable=SC2016
    PYTHON=(bash -c 'PYTHONPATH=$0${PYTHONPATH:+:$PYTHONPATH} exec python "$@"' "$ROOT")
  else
    VENV=${VENV:-$ROOT/.venv}
    PYTHON=("$VENV/bin/python")
    [[ -x ${PYTHON[0]} ]] || refuse "no interpreter at ${PYTHON[0]}; make setup, or name another environment: --venv FOLDER"
    export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}
  fi
}

check_image() { # whether a container that is a file is there
  if [[ $CONTAINER == *.sqsh || $CONTAINER == /* || $CONTAINER == ./* ]] && [[ ! -f $CONTAINER ]]; then
    refuse "node ${HEAD:-$(hostname)}: no container image at $CONTAINER; make one with: enroot import docker://nvcr.io#nvidia/nemo-rl:v0.7.0"
  fi
}

check_words() { # COMMAND: what follows --, checked by the command itself, which prints its settings and makes nothing
  local answer
  answer=$(uecr "$1" --dry-run "${REST[@]}") || refuse "$(tail -n 1 <<<"${answer//nemo-uecr: error: /}")"
  section settings
  printf '%s\n' "$answer"
}

refuse_help() { # COMMAND: a job that prints a help text has nothing to do
  local word
  for word in "${REST[@]}"; do
    [[ $word != --help && $word != -h ]] || refuse "$word after -- runs nothing; read it with: nemo-uecr $1 --help"
  done
}

check_container() {
  [[ -n $CONTAINER ]] || return 0
  check_image
  srun --help 2>&1 | grep -q -- --container-image ||
    refuse "node $HEAD: srun has no --container-image (pyxis is not installed); use --venv FOLDER instead of --container"
}

# --- dry run -------------------------------------------------------------------------------------------------------

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
    show_plan || code=$?
  fi
  ((code == 0)) || refuse "the dry run found an error, see above"
  finish 0 DONE "dry run; nothing was started"
}

section() { printf '\n# --- %s\n' "$*"; }

uecr() { "${PYTHON[@]}" -m nemo_uecr "$@" 2>&1; }

show_plan() {
  if uecr --help | grep -q '^  plan '; then
    uecr plan "$CONFIG" "${RESOLVED[@]}"
  else
    echo "this version of nemo-uecr has no command 'plan'"
  fi
}

# --- before the start ----------------------------------------------------------------------------------------------

start_job() { # names of nodes, the attempt's folder, the end of the job, the traps
  [[ -n ${SLURM_JOB_ID:-} ]] || refuse "this script is for sbatch; try: sbatch $SCRIPT, or bash $SCRIPT --dry-run"
  mapfile -t NODE_NAMES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  HEAD=${NODE_NAMES[0]}
  ATTEMPT=${SLURM_RESTART_COUNT:-0}
  LOGS=${LOG_ROOT:-$SUBMIT_DIR/slurm-logs}/$SLURM_JOB_ID-$ATTEMPT
  mkdir -p "$LOGS" || refuse "node $HEAD: cannot make $LOGS; name a folder on a shared file system: --logs FOLDER"
  LOGS=$(cd "$LOGS" && pwd) || refuse "node $HEAD: cannot enter $LOGS; name another folder: --logs FOLDER"
  CANARY=$SLURM_JOB_ID-$ATTEMPT-$$
  if ! echo "$CANARY" 2>/dev/null >"$LOGS/canary" || [[ $(cat "$LOGS/canary") != "$CANARY" ]]; then
    refuse "node $HEAD: cannot write in $LOGS ($(df -hP "$LOGS" | awk 'NR == 2 {print $4 " free of " $2}')); make room, or name another folder: --logs FOLDER"
  fi
  local end
  end=$(job_field EndTime)
  [[ $end == 20* ]] && UECR_JOB_END=$(date -d "$end" +%s) && export UECR_JOB_END
  STOP_SIGNAL='' CANCELLED=''
  trap 'on_signal USR1' USR1
  trap 'on_signal TERM' TERM
  say "job $SLURM_JOB_ID attempt $ATTEMPT on ${NODE_NAMES[*]}; logs in $LOGS; ends ${end:-never}"
}

job_field() { scontrol show job -o "$SLURM_JOB_ID" 2>/dev/null | grep -o "\\b$1=[^ ]*" | head -n 1 | cut -d= -f2-; }

preflight() { # every node answers "ok NODE" or says in one line what is missing there
  local answers missing=() name
  answers=$(timeout "$PREFLIGHT_S" srun --nodes="$NODES" --ntasks="$NODES" --ntasks-per-node=1 --chdir=/ \
    bash -c "$NODE_CHECK" check "$LOGS/canary" "$CANARY" "$ROOT/nemo_uecr/__init__.py" \
    "${CONTAINER:+in-container}" "${PYTHON[0]}" "$1" 2>&1)
  end_if_cancelled
  name=$(grep -m 1 '^node [^ ]*: ' <<<"$answers")
  [[ -z $name ]] || refuse "$name"
  for name in "${NODE_NAMES[@]}"; do
    grep -qx "ok $name" <<<"$answers" || missing+=("$name")
  done
  ((${#missing[@]} == 0)) ||
    refuse "node ${missing[0]}: did not answer within $PREFLIGHT_S s: $(tail -n 1 <<<"$answers")"
}

end_if_cancelled() { # a signal that came during a foreground command has been handled by now, or Slurm says it is over
  local state
  state=$(job_field JobState) # empty where Slurm does not answer
  [[ -n $CANCELLED || -z $state || $state == RUNNING ]] || CANCELLED=$state/$(job_field Reason)
  [[ -z $CANCELLED ]] || end_job 1
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

# --- the step ------------------------------------------------------------------------------------------------------

build_step() { # NODES: the srun words before the command
  STEP=(srun --nodes="$1" --ntasks="$1" --ntasks-per-node=1 --cpus-per-task="$CPUS" --cpu-bind=none
    --kill-on-bad-exit=1 --wait="$GRACE_S" --unbuffered)
  [[ -n $CONTAINER ]] || return 0
  STEP+=(--container-image="$CONTAINER" --container-workdir="$SUBMIT_DIR" --no-container-mount-home
    --container-mounts="$ROOT:$ROOT,$SUBMIT_DIR:$SUBMIT_DIR,$LOGS:$LOGS${HF_HOME:+,$HF_HOME:$HF_HOME}${MOUNTS:+,$MOUNTS}")
}

watch_step() { # PID: heartbeats until the step has ended; sets STEP_CODE
  local pid=$1 beat=$SECONDS failed=''
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1 &
    wait $!
    if ((SECONDS - beat >= HEARTBEAT_S)); then
      beat=$SECONDS
      say "heartbeat: $(status_text)"
    fi
    if [[ -n $CANCELLED || -f $LOGS/cause || (-n $STOP_SIGNAL && -n $STOP_KILLS) ]]; then
      failed=${failed:-$SECONDS}
      [[ -z $STOP_KILLS ]] || kill -TERM "$pid" 2>/dev/null
      ((SECONDS - failed < GRACE_S)) || kill -KILL "$pid" 2>/dev/null
    fi
    supervisor_is_alive || kill -KILL "$pid" 2>/dev/null
  done
  wait "$pid"
  STEP_CODE=$?
}

status_text() {
  local text
  text=$(cat "$LOGS/status" 2>/dev/null)
  printf '%s after %d s; last line: %s' "${text:-starting}" "$SECONDS" "$(last_line "$LOGS/driver.log")"
}

last_line() { tail -c 4096 "$1" 2>/dev/null | tr '\r' '\n' | grep -v '^[[:space:]]*$' | tail -n 1 | cut -c 1-300; }

STATUS_SEEN='' STATUS_AT=0
supervisor_is_alive() { # the head renews its status; its clock may differ from ours, so only changes count
  local seen
  seen=$(stat -c %y "$LOGS/status" 2>/dev/null)
  if [[ $seen != "$STATUS_SEEN" ]]; then
    STATUS_SEEN=$seen STATUS_AT=$SECONDS
  elif [[ -n $seen && -z ${FOUND_HANGING:-} ]] && ((SECONDS - STATUS_AT > 5 * HEARTBEAT_S + 180)); then
    FOUND_HANGING=yes
    [[ -f $LOGS/cause ]] || echo "node $HEAD: has not renewed its status for $((SECONDS - STATUS_AT)) s" >"$LOGS/cause"
    return 1
  fi
}

on_signal() { # before the time limit, or at the end of the job
  if [[ $(job_field JobState) == RUNNING ]]; then
    STOP_SIGNAL=$1
    say "SIG$1: asking the run to save and end"
    : >"$LOGS/stop"
  else
    CANCELLED=$(job_field JobState)/$(job_field Reason)
  fi
}

# --- the end -------------------------------------------------------------------------------------------------------

end_job() { # CODE of the run
  local code=$1 cause
  if [[ -n $CANCELLED ]]; then
    cause=$(srun_cause)
    [[ $cause != *": lost, says Slurm" ]] || finish 1 FAILED "$cause, which requeues the job"
    case $CANCELLED in
      *TimeLimit* | TIMEOUT*) finish 1 FAILED "the time limit passed before the step under way was saved; ask for more notice: sbatch --signal=B:USR1@SECONDS" ;;
      *) finish 143 CANCELLED "ended from outside ($CANCELLED); what was saved stays, the same sbatch command continues it" ;;
    esac
  fi
  case $code in
    0) finish 0 DONE "$(last_line "$LOGS/driver.log")" ;;
    "$SAVED") requeue "$(last_line "$LOGS/driver.log")" ;;
  esac
  cause=$(cat "$LOGS/cause" 2>/dev/null)
  [[ -n $cause ]] || cause=$(srun_cause)$(node_said)
  finish 1 FAILED "${cause:-node $HEAD: srun ended with code $STEP_CODE and no node said why; see $LOGS}"
}

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
  say "REQUEUED: $1"
  printf 'REQUEUED: %s\n' "$1" >"$LOGS/final"
  FINISHED=yes
  if scontrol requeue "$SLURM_JOB_ID"; then
    sleep "$GRACE_S" # Slurm ends this script
    exit 0
  fi
  finish 1 FAILED "saved, but Slurm does not requeue this job (sbatch --requeue); the same sbatch command continues it"
}

# --- the two kinds of jobs -----------------------------------------------------------------------------------------

run_training() { # SCRIPT CONFIG ARGUMENTS...
  SCRIPT=$1 CONFIG=$2 STOP_KILLS=''
  shift 2
  trap on_exit EXIT
  read_arguments "$@"
  find_resources "$SCRIPT"
  find_python
  refuse_help train
  if [[ -n $DRY_RUN ]]; then
    local words
    check_image
    words=$(uecr cluster command --nodes "$NODES" --gpus "$GPUS" ${SMOKE:+--smoke} "$CONFIG" "${REST[@]}") ||
      refuse "${words#nemo-uecr: error: }"
    eval "RESOLVED=($words)" # quoted by shlex.join: nemo-uecr train CONFIG key=value ... --resume
    RESOLVED=("${RESOLVED[@]:3}")
    if [[ -n $SMOKE ]]; then RESOLVED=("${RESOLVED[@]:1}"); else unset 'RESOLVED[-1]'; fi
    dry_run "$SCRIPT" "$words"
  fi
  start_job
  check_container
  preflight "$([[ -n $SMOKE ]] && echo 0 || echo "$GPUS")"
  build_step "$NODES"
  local names
  names=$(IFS=, && echo "${NODE_NAMES[*]}")
  "${STEP[@]}" "${PYTHON[@]}" -m nemo_uecr cluster node --job "$LOGS" --nodes "$names" --gpus "$GPUS" --cpus "$CPUS" \
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
  find_python
  [[ -z $SMOKE ]] || refuse "--smoke is for the train scripts"
  ((NODES == 1)) || refuse "nemo-uecr $command runs on one node, the job has $NODES; sbatch --nodes=1"
  refuse_help "$command"
  if [[ -n $DRY_RUN ]]; then
    check_image
    check_words "$command"
    dry_run "$SCRIPT" "nemo-uecr $command ${REST[*]@Q}"
  fi
  start_job
  check_container
  preflight 0
  build_step 1
  "${STEP[@]}" "${PYTHON[@]}" -m nemo_uecr "$command" "${REST[@]}" > >(tee -a "$LOGS/driver.log") \
    2> >(tee -a "$LOGS/srun.log" "$LOGS/driver.log" >&2) &
  watch_step $!
  if [[ -n $STOP_SIGNAL && $STEP_CODE != 0 ]]; then
    ((ATTEMPT < MOST_ATTEMPTS)) || finish 1 FAILED "node $HEAD: not done after $ATTEMPT requeues; give it more time: --time"
    end_job "$SAVED"
  fi
  ((STEP_CODE == 0)) || [[ -f $LOGS/cause ]] ||
    echo "node $HEAD: nemo-uecr $command ended with code $STEP_CODE: $(last_line_but_srun)" >"$LOGS/cause"
  end_job "$STEP_CODE"
}

last_line_but_srun() { grep -v -e '^srun: ' -e '^slurmstepd: ' "$LOGS/driver.log" 2>/dev/null | tail -n 1 | cut -c 1-300; }
