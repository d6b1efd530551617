#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Ray on all nodes of the job, and a driver on the first one when all have joined. Nothing of Ray is left afterwards.
# Activate the environment that has Ray here: PBS gives a job its own PATH.
#
#   qsub -l select=4:ncpus=64:ngpus=4 -l place=scatter -v PROGRAM="python driver.py" ray.sh
#
# The shell parses PROGRAM as a command line (see one-node.sh).
#PBS -N berth
#PBS -j oe
#PBS -l select=2:ncpus=2
#PBS -l place=scatter
#PBS -l walltime=01:00:00

cd "$PBS_O_WORKDIR" || exit
berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
trap : TERM # PBS signals this shell, too, on qdel and at the walltime; it has to wait for berth
eval "'$berth' run --report 'berth-$PBS_JOBID.json' --ray -- ${PROGRAM:?not set: submit with qsub -v PROGRAM=...}"
