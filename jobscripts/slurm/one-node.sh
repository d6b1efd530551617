#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# One node: one rank per GPU of the job, or one per task if it has no GPUs.
#
#   sbatch --gpus-per-node=4 --cpus-per-gpu=8 one-node.sh python train.py
#SBATCH --nodes=1
#SBATCH --time=01:00:00

berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
"$berth" run -- "$@"
