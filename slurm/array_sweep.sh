#!/usr/bin/env bash
# Sweep of four learning rates, two at a time, one node each: sbatch slurm/array_sweep.sh [CONFIG] [key=value ...]
#SBATCH --job-name=sweep
#SBATCH --array=0-3%2
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@900
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%A_%a.log
#SBATCH --export=MEGAPTM_HOME,MEGAPTM_VENV,MEGAPTM_IMAGE,MEGAPTM_ALLOW_CODE,PYTHONPATH,MEGAPTM_CHAIN,MEGAPTM_CHECK
source "${MEGAPTM_HOME:-$SLURM_SUBMIT_DIR}/slurm/common.sh"

rates=(3e-4 6e-4 12e-4 24e-4)
rate=${rates[$SLURM_ARRAY_TASK_ID]}
train configs/gpt2/small.yaml "$@" optimizer.lr="$rate" run="runs/sweep/lr-$rate"
