#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# One node: one rank per requested GPU, or one per mpiproc without GPUs.
#
#   qsub -l select=1:ncpus=16:ngpus=4 -v PROGRAM="python train.py" one-node.sh
#
# The shell parses PROGRAM as a command line, so quote arguments that contain blanks. A comma ends a
# value of -v. If yours contains one, let qsub take the variable from your environment:
#   PROGRAM="python train.py --name 'run 1' --sizes 32,64" qsub -v PROGRAM one-node.sh
# Torque: qsub -l nodes=1:ppn=16:gpus=4 ... (the #PBS lines below: -l nodes=1:ppn=2)
#PBS -N berth
#PBS -j oe
#PBS -l select=1:ncpus=2:mpiprocs=2
#PBS -l walltime=01:00:00

cd "$PBS_O_WORKDIR" || exit
berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
trap : TERM # PBS signals this shell, too, on qdel and at the walltime; it has to wait for berth
eval "'$berth' run -- ${PROGRAM:?not set: submit with qsub -v PROGRAM=...}"
