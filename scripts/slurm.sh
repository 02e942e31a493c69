#!/bin/sh
# Train on several machines:  sbatch scripts/slurm.sh RECIPE --data.folders DIR --out DIR [settings]
#
# DIR is on a file system that all machines share. Ten minutes before its time limit the run saves and is requeued; the
# requeued job resumes it. `scancel` saves and ends it, if saving takes no longer than the cluster waits (KillWait). Add
# your account and partition. Without GPUs, set the number of processes: PROCESSES=2 sbatch --gpus-per-node=0 ...
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
# Processes also communicate by Gloo: if machines have several networks, set GLOO_SOCKET_IFNAME to a shared one.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # or restarted processes would use the old store

PROCESSES=${PROCESSES:-${SLURM_GPUS_ON_NODE:-1}}
# Report wrong settings once, not in every process.
WORLD_SIZE=$((SLURM_NNODES * PROCESSES)) python -m tmatch train "$@" --dry-run >/dev/null
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun \
  --nnodes="$SLURM_NNODES" --nproc-per-node="$PROCESSES" --max-restarts=3 \
  --shutdown-timeout=300 --rdzv-backend=c10d --rdzv-endpoint="$FIRST:$((29000 + SLURM_JOB_ID % 1000))" --rdzv-id="$SLURM_JOB_ID" \
  -m tmatch train "$@" &
run=$!
again=
end='scancel --signal=TERM "$SLURM_JOB_ID.0" || true' # the processes; srun would kill them before they save
trap "again=yes; $end" USR1                  # near the time limit
trap "$end" TERM                             # cancelled or preempted
while :; do
  wait "$run" && code=0 || code=$?
  kill -0 "$run" 2>/dev/null || break # a signal ended `wait`, not the run
done
[ -z "$again" ] || { code=0; scontrol requeue "$SLURM_JOB_ID"; }
exit "$code"
