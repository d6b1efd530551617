#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# One torchrun per node, which starts one worker per GPU itself. berth gives each torchrun its node
# rank and the rendezvous address (PET_*), so it needs no --nnodes, --rdzv-endpoint or --node-rank,
# and no address from `hostname -I`.
#
#   qsub -l select=4:ncpus=64:ngpus=4 -l place=scatter -v PROGRAM=train.py torchrun.sh
#
# The shell parses PROGRAM as a command line (see one-node.sh).
# Torque: #PBS -l nodes=2:ppn=4:gpus=4 instead of select and place.
#PBS -N berth
#PBS -j oe
#PBS -l select=2:ncpus=2
#PBS -l place=scatter
#PBS -l walltime=01:00:00

cd "$PBS_O_WORKDIR" || exit
berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
trap : TERM # PBS signals this shell, too, on qdel and at the walltime; it has to wait for berth
eval "'$berth' run --per-node -- torchrun ${PROGRAM:?not set: submit with qsub -v PROGRAM=...}"
