#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# The program on all nodes, with one rank per GPU, in the image IMAGE (a file that all nodes see), by Apptainer.
#
#   IMAGE=pytorch.sif sbatch --nodes=2 --gpus-per-node=4 --cpus-per-gpu=8 container.sh python train.py
#
# More in docs/guides/containers.md.
#SBATCH --nodes=2
#SBATCH --time=01:00:00

berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
"$berth" run --report "berth-$SLURM_JOB_ID.json" --container "${IMAGE:?not set: the image}" -- "$@"
