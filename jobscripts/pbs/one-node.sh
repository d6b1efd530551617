#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# One node: a rank on each GPU that was asked for, or one on each mpiproc where there is none.
#
#   qsub -l select=1:ncpus=16:ngpus=4 -v PROGRAM="python train.py" one-node.sh
#
# PROGRAM is read as a shell reads a line: quote what has blanks. A comma ends a value of -v; qsub takes
# the whole of it from your environment:
#   PROGRAM="python train.py --name 'run 1' --sizes 32,64" qsub -v PROGRAM one-node.sh
# Torque: qsub -l nodes=1:ppn=16:gpus=4 ... (the #PBS lines below: -l nodes=1:ppn=2)
#PBS -N berth
#PBS -j oe
#PBS -l select=1:ncpus=2:mpiprocs=2
#PBS -l walltime=01:00:00

cd "$PBS_O_WORKDIR" || exit
trap : TERM # on qdel and at the walltime PBS signals this shell, too: it waits for berth
eval "berth run -- ${PROGRAM:?say what to run: qsub -v PROGRAM=...}"
