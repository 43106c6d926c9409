#!/usr/bin/env bash
# BERT large on 32 GPUs: sbatch slurm/bert_large.sh [CONFIG] [key=value ...]
#SBATCH --job-name=bert-large
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@900
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
#SBATCH --export=MEGAPTM_HOME,MEGAPTM_VENV,MEGAPTM_IMAGE,MEGAPTM_ALLOW_CODE,PYTHONPATH,MEGAPTM_CHAIN,MEGAPTM_CHECK
source "${MEGAPTM_HOME:-$SLURM_SUBMIT_DIR}/slurm/common.sh"

train configs/bert/large.yaml devices=32 "$@"
