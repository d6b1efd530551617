#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# One torchrun per node, which starts one worker per GPU itself. berth gives each torchrun its node
# rank and the rendezvous address (PET_*), so it needs no --nnodes, --rdzv-endpoint or --node-rank.
# A plain script does not need torchrun at all: see several-nodes.sh.
#
#   sbatch --nodes=4 --gpus-per-node=4 --cpus-per-gpu=8 torchrun.sh train.py
#SBATCH --nodes=2
#SBATCH --no-kill
#SBATCH --time=01:00:00

berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
"$berth" run --per-node -- torchrun "$@"
