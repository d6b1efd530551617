#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# The program on all nodes, with one rank per GPU, in the image IMAGE (a file that all nodes see), by Apptainer.
#
#   IMAGE=pytorch.sif PROGRAM='python train.py' \
#       qsub -l select=2:ncpus=32:ngpus=4 -l place=scatter -v IMAGE,PROGRAM container.sh
#
# The shell parses PROGRAM as a command line. More in docs/guides/containers.md.
#PBS -N berth
#PBS -j oe
#PBS -l select=2:ncpus=2
#PBS -l place=scatter
#PBS -l walltime=01:00:00

cd "$PBS_O_WORKDIR" || exit
berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
trap : TERM # PBS signals this shell, too, on qdel and at the walltime; it has to wait for berth
export IMAGE="${IMAGE:?not set: submit with qsub -v IMAGE,PROGRAM}"
eval "'$berth' run --report 'berth-$PBS_JOBID.json' --container \"\$IMAGE\" -- \
	${PROGRAM:?not set: submit with qsub -v IMAGE,PROGRAM}"
