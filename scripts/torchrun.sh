#!/bin/sh
# Train on all GPUs of this machine:  scripts/torchrun.sh RECIPE --shards DIR --out DIR [settings]
# or, where there is none, on cores of its CPU:  PROCESSES=2 scripts/torchrun.sh shapes-dtm-mean --out DIR [settings]
#
# The same line goes on after a crash, Ctrl-C or a reboot, with this or another number of processes. One that dies is
# started again, with all others, from the last checkpoint, up to three times. SIGTERM saves and ends with 0, Ctrl-C
# saves and ends with 130.
set -eu
if [ -z "${PROCESSES:-}" ]; then
  PROCESSES=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
  if [ "$PROCESSES" -lt 1 ]; then
    echo "There is no GPU here; say how many processes are to train, a core each: PROCESSES=2 $0 ..." >&2
    exit 2
  fi
fi
case $PROCESSES in
0 | *[!0-9]*)
  echo "PROCESSES says how many are to train, a whole number from 1 up; got $PROCESSES." >&2
  exit 2
  ;;
esac
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # else restarted processes look for each other where they were before

# A wrong setting is said once, and not by every process and restart.
WORLD_SIZE="$PROCESSES" python -m tmatch train "$@" --dry-run >/dev/null
# In a group of its own: the Ctrl-C of a terminal reaches this script alone, which tells the processes that train.
python -c 'import os, sys; os.setpgrp(); os.execvp(sys.argv[1], sys.argv[1:])' \
  torchrun --standalone --nproc-per-node="$PROCESSES" --max-restarts=3 --shutdown-timeout=300 -m tmatch train "$@" &
run=$!
# Its processes save and end with 0; torchrun itself, told to end, would end with 1. Those that are told before their
# first step have nothing to save and die of it: torchrun, which would start others in their place, is ended then.
over=
end() {
  signalled=yes
  told=" $(pgrep -d ' ' -P "$run") " || true
  pkill -TERM -P "$run" || { over=yes && kill -TERM "$run"; }
  while sleep 1 && kill -0 "$run" 2>/dev/null; do
    for process in $(pgrep -P "$run"); do
      case $told in *" $process "*) ;; *) over=yes && kill -TERM "$run" && return ;; esac
    done
  done
}
interrupted=
trap end TERM HUP # a terminal that closes, too
trap 'interrupted=yes; end' INT QUIT
while :; do
  signalled=
  wait "$run" && code=0 || code=$?
  [ -n "$signalled" ] || break # a signal ends the waiting, not the run
done
[ -z "$over" ] || code=0
[ -z "$interrupted" ] || [ "$code" -ne 0 ] || code=130
exit "$code"
