#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# torchrun on every node: it starts the workers itself, one on each GPU. berth says to each torchrun
# which node it is and where they meet (PET_*): it needs no --nnodes, --rdzv-endpoint or --node-rank.
# A plain script does not need torchrun at all: see several-nodes.sh.
#
#   sbatch --nodes=4 --gpus-per-node=4 torchrun.sh train.py
#SBATCH --nodes=2
#SBATCH --no-kill
#SBATCH --time=01:00:00

berth run --per-node -- torchrun "$@"
