#!/bin/sh
# Train on several machines:  sbatch scripts/slurm.sh RECIPE --shards DIR --out DIR [settings]
#
# DIR is on a disk that all machines see. Ten minutes before the time is over the run is told to end: it saves, and is
# put back into the queue, where the same command goes on. `scancel` ends it for good, saved if
# that takes no longer than the cluster waits (KillWait). Add your
# account and partition. On machines without GPUs, say how many processes: PROCESSES=2 sbatch --gpus-per-node=0 ...
#SBATCH --job-name=tmatch
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -eu
FIRST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-8}"
# Checkpoints are agreed upon by Gloo: where machines have several networks, set GLOO_SOCKET_IFNAME to one they share.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # else restarted processes look for each other where they were before

PROCESSES=${PROCESSES:-${SLURM_GPUS_ON_NODE:-1}}
# A wrong setting is said once, and not by every process and restart.
WORLD_SIZE=$((SLURM_NNODES * PROCESSES)) python -m tmatch train "$@" --dry-run >/dev/null
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun \
  --nnodes="$SLURM_NNODES" --nproc-per-node="$PROCESSES" --max-restarts=3 \
  --shutdown-timeout=300 --rdzv-backend=c10d --rdzv-endpoint="$FIRST:$((29000 + SLURM_JOB_ID % 1000))" --rdzv-id="$SLURM_JOB_ID" \
  -m tmatch train "$@" &
run=$!
again=
end='scancel --signal=TERM "$SLURM_JOB_ID.0" || true' # the processes; srun itself, told to end, would kill them before they saved
trap "again=yes; $end" USR1                  # the time is nearly over
trap "$end" TERM                             # cancelled, or pushed out by another job
while :; do
  wait "$run" && code=0 || code=$?
  kill -0 "$run" 2>/dev/null || break # a signal ends the waiting, not the run
done
[ -z "$again" ] || { code=0; scontrol requeue "$SLURM_JOB_ID"; }
exit "$code"
