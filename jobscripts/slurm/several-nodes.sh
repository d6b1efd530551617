#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Several nodes: one rank per GPU. berth starts one agent per node with srun, and the ranks meet over
# the fastest network that all nodes reach; `berth info` in a job shows which.
#
#   sbatch --nodes=4 --gpus-per-node=4 --cpus-per-gpu=8 several-nodes.sh python train.py
#
# --no-kill: otherwise Slurm ends this script when a node fails, and requeues the whole job. With it,
# berth names the node within ten seconds, and the lines below run.
#SBATCH --nodes=2
#SBATCH --no-kill
#SBATCH --time=01:00:00

berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
"$berth" run --report "berth-$SLURM_JOB_ID.json" -- "$@"
code=$?
[ $code -eq 0 ] || echo "exit code $code; cause and next step: berth-$SLURM_JOB_ID.json" >&2
exit $code
