#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Several nodes: a rank on each GPU of each node. berth starts one agent a node by srun, and the
# ranks meet over the fastest network that all nodes reach; `berth info` in a job says which.
#
#   sbatch --nodes=4 --gpus-per-node=4 several-nodes.sh python train.py
#
# --no-kill: when a node fails, Slurm else ends this script too, and puts the whole job back into the
# queue. So it goes on here: berth names the node within ten seconds, and what stands below happens.
#SBATCH --nodes=2
#SBATCH --no-kill
#SBATCH --time=01:00:00

berth run --report "berth-$SLURM_JOB_ID.json" -- "$@"
code=$?
[ $code -eq 0 ] || echo "ended with code $code; why, and what to do next: berth-$SLURM_JOB_ID.json" >&2
exit $code
