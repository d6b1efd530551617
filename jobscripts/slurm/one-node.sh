#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# One node: a rank on each GPU that the job has there, without GPUs one a task.
#
#   sbatch --gpus-per-node=4 one-node.sh python train.py
#SBATCH --nodes=1
#SBATCH --time=01:00:00

berth run -- "$@"
