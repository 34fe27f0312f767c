# What an sbatch script was called with: options, resources, environment, and what follows --.
# shellcheck shell=bash

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
      --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
      *) refuse "unknown option '$1'; changes of the configuration come after --, --help lists the options" ;;
    esac
  done
}

set_option() {
  case $1 in
    --config) CONFIG=$2 ;;
    --container) CONTAINER=$(image_in_full "$2") ;;
    --mounts) MOUNTS=$2 ;;
    --venv) VENV=$2 ;;
    --logs) LOG_ROOT=$2 ;;
    *)
      [[ $2 =~ ^[1-9][0-9]*$ ]] || refuse "option $1: got '$2', expected a whole number above 0"
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

check_port() { # the head takes it and the next one
  (($1 >= 1024 && $1 <= 65534)) || refuse "option --ray-port: got $1, expected 1024 to 65534"
  (($1 < 10001 || $1 > 10999)) ||
    refuse "option --ray-port: got $1, but the head takes it and the next one, and Ray's workers take 10002 to 10999; expected a port outside 10001 to 10999"
}

sbatch_value() { # SCRIPT OPTION: its value in the script's #SBATCH lines
  sed -n "s/^#SBATCH --$2=//p" "$1" | tail -n 1
}

find_resources() { # SCRIPT
  [[ -z ${SLURM_JOB_ID:-} || -n $DRY_RUN || -z $ASKED_NODES$ASKED_GPUS ]] ||
    refuse "--nodes and --gpus after the script are for a dry run; ask sbatch: sbatch --nodes=N --gpus-per-node=N SCRIPT"
  NODES=${SLURM_JOB_NUM_NODES:-${ASKED_NODES:-$(sbatch_value "$1" nodes)}}
  local asked=${SLURM_GPUS_PER_NODE:-${ASKED_GPUS:-$(sbatch_value "$1" gpus-per-node)}} there=${SLURM_GPUS_ON_NODE:-}
  GPUS=${asked##*:} # it may name a kind: h100:8
  GPUS=${GPUS:-${there:-0}}
  ((GPUS <= ${there:-GPUS})) || GPUS=$there # more than were asked for come with --exclusive
  CPUS=${SLURM_CPUS_ON_NODE:-1}
}

in_full() { # PATH: nodes look for it from another folder
  if [[ $1 == /* ]]; then echo "$1"; else echo "$PWD/$1"; fi
}

image_in_full() { # pyxis takes a name without a folder for an image of a registry
  case $1 in
    *.sqsh | ./* | ../*) in_full "$1" ;;
    *) echo "$1" ;;
  esac
}

# NeMo-RL's image has vLLM and Megatron-Bridge in the environments of its workers, $1, and lacks what .venv-container has.
# shellcheck disable=SC2016
IN_CONTAINER='
worker=${NEMO_RL_VENV_DIR:-/opt/ray_venvs}/$1/bin/python
shift
[ -x "$worker" ] || worker=python
PYTHONPATH=$0:$0/.venv-container${PYTHONPATH:+:$PYTHONPATH} exec "$worker" "$@"
'

find_python() { # COMMAND: our package lies on top of either environment and changes nothing in it
  local lent=$ROOT/.venv-container/cyclopts worker=none
  UECR_JOB_MOUNTS=${CONTAINER:+$ROOT:$ROOT,$SUBMIT_DIR:$SUBMIT_DIR${HF_HOME:+,$HF_HOME:$HF_HOME}${MOUNTS:+,$MOUNTS}}
  export UECR_JOB_MOUNTS # nemo_uecr/files.py
  [[ -z $CONTAINER || -d $lent ]] ||
    refuse "no $lent, which NeMo-RL's image lacks; in $ROOT: pip install --no-deps --target .venv-container 'cyclopts<6' docstring-parser"
  if [[ -n $CONTAINER && -z $DRY_RUN ]]; then
    case $1 in
      evaluate) worker=nemo_rl.models.generation.vllm.vllm_worker.VllmGenerationWorker ;;
      convert) worker=nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker ;;
    esac
    unset PYTHONPATH # that of the submitting shell names packages of another Python
    PYTHON=(bash -c "$IN_CONTAINER" "$ROOT" "$worker")
  else
    VENV=$(in_full "${VENV:-$ROOT/.venv}")
    PYTHON=("$VENV/bin/python")
    [[ -x ${PYTHON[0]} ]] || refuse "no interpreter at ${PYTHON[0]}; make setup, or name another environment: --venv FOLDER"
    export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}
    local error
    error=$("${PYTHON[@]}" -c 'import nemo_uecr.cli' 2>&1) ||
      refuse "$VENV is not complete: $(tail -n 1 <<<"$error"); run make setup to its end, or name another environment: --venv FOLDER"
  fi
}

check_words() { # COMMAND: what follows --, checked by the command itself, which prints its settings and makes nothing
  local answer
  answer=$(uecr "$1" --dry-run "${REST[@]}") || refuse "$(tail -n 1 <<<"${answer//nemo-uecr: error: /}")"
  section settings
  printf '%s\n' "$answer"
}

refuse_words() { # COMMAND: a job that prints a help text has nothing to do
  local word
  for word in "${REST[@]}"; do
    [[ $word != --help && $word != -h ]] || refuse "$word after -- runs nothing; read it with: nemo-uecr $1 --help"
    [[ $1 != train || $word != --resume ]] || refuse "leave out --resume; the job adds it itself"
  done
}
