#!/bin/sh
# Train on all GPUs of this machine:  scripts/torchrun.sh RECIPE --data.folders DIR --out DIR [settings]
# or, without GPUs, on CPU cores:  PROCESSES=2 scripts/torchrun.sh shapes-dtm-mean --out DIR [settings]
#
# Rerun the same command to resume after a crash, Ctrl-C or a reboot, with any number of processes. If a process dies,
# all of them restart from the last checkpoint, up to three times. SIGTERM saves and exits with 0, Ctrl-C saves and exits
# with 130.
set -eu
if [ -z "${PROCESSES:-}" ]; then
  PROCESSES=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
  if [ "$PROCESSES" -lt 1 ]; then
    echo "No GPU found; set the number of processes, one core each: PROCESSES=2 $0 ..." >&2
    exit 2
  fi
fi
case $PROCESSES in
0 | *[!0-9]*)
  echo "PROCESSES must be a positive integer; got $PROCESSES." >&2
  exit 2
  ;;
esac
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # or restarted processes would use the old store

# Report wrong settings once, not in every process.
WORLD_SIZE="$PROCESSES" python -m tmatch train "$@" --dry-run >/dev/null
# In its own process group: Ctrl-C in a terminal reaches only this script, which signals the training processes.
python -c 'import os, sys; os.setpgrp(); os.execvp(sys.argv[1], sys.argv[1:])' \
  torchrun --standalone --nproc-per-node="$PROCESSES" --max-restarts=3 --shutdown-timeout=300 -m tmatch train "$@" &
run=$!
# The processes save and exit with 0; torchrun would exit with 1 if it were signalled. Processes that are signalled before
# their first step have nothing to save and die; torchrun, which would restart them, is then terminated.
over=
end() {
  signalled=yes
  children=" $(pgrep -d ' ' -P "$run") " || true
  pkill -TERM -P "$run" || { over=yes && kill -TERM "$run"; }
  while sleep 1 && kill -0 "$run" 2>/dev/null; do
    for process in $(pgrep -P "$run"); do
      case $children in *" $process "*) ;; *) over=yes && kill -TERM "$run" && return ;; esac
    done
  done
}
interrupted=
trap end TERM HUP # HUP: the terminal closes
trap 'interrupted=yes; end' INT QUIT
while :; do
  signalled=
  wait "$run" && code=0 || code=$?
  [ -n "$signalled" ] || break # a signal ended `wait`, not the run
done
[ -z "$over" ] || code=0
[ -z "$interrupted" ] || [ "$code" -ne 0 ] || code=130
exit "$code"
