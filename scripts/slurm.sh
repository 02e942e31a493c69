#!/bin/sh
# Train on several machines:  sbatch scripts/slurm.sh RECIPE --shards DIR --out DIR [settings]
#
# DIR is on a disk that all machines see. Ten minutes before the time is over the run is told to end: it saves, and is
# put back into the queue, where the same command goes on. Add your account and partition.
#SBATCH --job-name=tmatch
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@600
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -eu
FIRST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-8}"
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # else restarted processes look for each other where they were before

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun \
  --nnodes="$SLURM_NNODES" --nproc-per-node="${SLURM_GPUS_ON_NODE:-8}" --max-restarts=3 --shutdown-timeout=300 \
  --rdzv-backend=c10d --rdzv-endpoint="$FIRST:29500" --rdzv-id="$SLURM_JOB_ID" \
  -m tmatch train "$@" &
run=$!
preempted=
trap 'preempted=yes; kill -TERM "$run"' TERM
wait "$run" && code=0 || code=$?
[ -z "$preempted" ] || { wait "$run" || true; code=0; scontrol requeue "$SLURM_JOB_ID"; }
exit "$code"
