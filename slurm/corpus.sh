#!/usr/bin/env bash
# Build a corpus with Ray on all nodes: sbatch slurm/corpus.sh RECIPE.yaml|SOURCE... out=FOLDER [key=value ...]
#SBATCH --job-name=corpus
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
#SBATCH --export=MEGAPTM_HOME,MEGAPTM_VENV,MEGAPTM_IMAGE,MEGAPTM_RAY_START_SECONDS,MEGAPTM_ALLOW_CODE,PYTHONPATH
source "${MEGAPTM_HOME:-$SLURM_SUBMIT_DIR}/slurm/common.sh"

start_ray
once megaptm corpus build "$@" workers="${MEGAPTM_WORKERS:-$((SLURM_JOB_NUM_NODES * SRUN_CPUS_PER_TASK))}"
