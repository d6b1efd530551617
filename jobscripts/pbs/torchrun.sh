#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# torchrun on every node: it starts the workers itself, one on each GPU. berth says to each torchrun
# which node it is and where they meet (PET_*): it needs no --nnodes, --rdzv-endpoint or --node-rank,
# and nobody has to look for an address in `hostname -I`.
#
#   qsub -l select=4:ncpus=64:ngpus=4 -l place=scatter -v PROGRAM=train.py torchrun.sh
#
# PROGRAM is read as a shell reads a line (one-node.sh says more).
# Torque: #PBS -l nodes=2:ppn=4:gpus=4 instead of select and place.
#PBS -N berth
#PBS -j oe
#PBS -l select=2:ncpus=2
#PBS -l place=scatter
#PBS -l walltime=01:00:00

cd "$PBS_O_WORKDIR" || exit
trap : TERM # on qdel and at the walltime PBS signals this shell, too: it waits for berth
eval "berth run --per-node -- torchrun ${PROGRAM:?say what to run: qsub -v PROGRAM=...}"
