#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Ray on all nodes of the job, and a driver on the first one when all have joined. Nothing of Ray is left afterwards.
# Activate the environment that has Ray before sbatch, or here.
#
#   sbatch --nodes=4 --gpus-per-node=4 --cpus-per-gpu=8 ray.sh python driver.py
#
#SBATCH --nodes=2
#SBATCH --no-kill
#SBATCH --time=01:00:00

berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
"$berth" run --report "berth-$SLURM_JOB_ID.json" --ray -- "$@"
