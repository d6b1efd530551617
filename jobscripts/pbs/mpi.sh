#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# An MPI program: berth is the PMIx server of its ranks, and gives Open MPI and UCX the network that it
# chose. It starts as many ranks as the node file has lines, which is the sum of mpiprocs.
#
#   qsub -l select=2:ncpus=16:mpiprocs=16 -v PROGRAM="./solver input" mpi.sh
#
# The shell parses PROGRAM as a command line (see one-node.sh).
# Torque: #PBS -l nodes=2:ppn=16 instead of select.
#PBS -N berth
#PBS -j oe
#PBS -l select=2:ncpus=2:mpiprocs=2
#PBS -l place=scatter
#PBS -l walltime=01:00:00

cd "$PBS_O_WORKDIR" || exit
berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
trap : TERM # PBS signals this shell, too, on qdel and at the walltime; it has to wait for berth
ranks=$(grep -c . "$PBS_NODEFILE")
eval "'$berth' run -n $ranks --pmix on -- ${PROGRAM:?not set: submit with qsub -v PROGRAM=...}"
