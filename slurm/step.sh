# The step: the srun that starts it, heartbeats and signals while it runs.
# shellcheck shell=bash

build_step() { # NODES: the srun words before the command
  STEP=(srun --nodes="$1" --ntasks="$1" --ntasks-per-node=1 --cpus-per-task="$CPUS" --cpu-bind=none
    --kill-on-bad-exit=1 --wait="$GRACE_S" --unbuffered)
  [[ -n $CONTAINER ]] || return 0
  [[ -z ${NCCL_IB_HCA:-} ]] || export MELLANOX_VISIBLE_DEVICES=${MELLANOX_VISIBLE_DEVICES:-all} # enroot reads it
  STEP+=(--container-image="$CONTAINER" --container-workdir="$SUBMIT_DIR" --container-writable --no-container-mount-home
    --container-mounts="$UECR_JOB_MOUNTS,$LOGS:$LOGS")
}

# What NeMo-RL's own script for Slurm sets on each node: $1 a file of the CPUs beside each GPU, to which NeMo-RL binds its
# workers, in the folder that Ray takes and leaves; $2 the node's CPUs. Then the rest.
# shellcheck disable=SC2016
ON_NODE='
files=$(ulimit -Hn) now=$(ulimit -Sn)
[[ $files != unlimited && $files -lt 65535 ]] || files=65535
[[ $now == unlimited || $now -ge $files ]] || ulimit -Sn "$files"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(($2 < 16 ? $2 : 16))} NRL_GPU_CPU_AFFINITY_FILE=$1
mkdir -p "${1%/*}"
timeout 60 nvidia-smi --query-gpu=index,pci.bus_id --format=csv,noheader 2>/dev/null | while IFS=", " read -r gpu place; do
  place=${place,,} # 00000000:1B:00.0, which the system writes 0000:1b:00.0
  cpus=$(cat "${PCI:-/sys/bus/pci/devices}/${place:4}/local_cpulist") && echo "$gpu:$cpus"
done >"$1"
shift 2
exec "$@"
'

watch_step() { # PID: heartbeats until the step has ended; sets STEP_CODE
  local pid=$1 beat=$SECONDS failed='' grace=$GRACE_S
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1 &
    wait $!
    if ((SECONDS - beat >= HEARTBEAT_S)); then
      beat=$SECONDS
      say "heartbeat: $(status_text)"
    fi
    if [[ -n $CANCELLED || -f $LOGS/cause || (-n $STOP_SIGNAL && -n $STOP_KILLS) ]]; then
      failed=${failed:-$SECONDS}
      [[ -z $CANCELLED ]] || grace=$LAST_WORD_S
      [[ -z $STOP_KILLS ]] || kill -TERM "$pid" 2>/dev/null
      ((SECONDS - failed < grace)) || kill -KILL "$pid" 2>/dev/null
    fi
    supervisor_is_alive || kill -KILL "$pid" 2>/dev/null
  done 2>/dev/null # bash itself would say "Killed", with the whole command line
  wait "$pid" 2>/dev/null
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
  CANCELLED=${CANCELLED:-$(job_over)}
  [[ -z $CANCELLED ]] || return 0
  STOP_SIGNAL=$1 STOP_AT=$SECONDS
  say "SIG$1: asking the run to save and end"
  : >"$LOGS/stop"
}
