#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# An MPI program: berth is the PMIx server of its ranks, and tells Open MPI and UCX the same network as
# all others. As many ranks as the node file has lines, which is the sum of mpiprocs.
#
#   qsub -l select=2:ncpus=16:mpiprocs=16 -v PROGRAM="./solver input" mpi.sh
#
# PROGRAM is read as a shell reads a line (one-node.sh says more).
# Torque: #PBS -l nodes=2:ppn=16 instead of select.
#PBS -N berth
#PBS -j oe
#PBS -l select=2:ncpus=2:mpiprocs=2
#PBS -l place=scatter
#PBS -l walltime=01:00:00

cd "$PBS_O_WORKDIR" || exit
trap : TERM # on qdel and at the walltime PBS signals this shell, too: it waits for berth
ranks=$(grep -c . "$PBS_NODEFILE")
eval "berth run -n $ranks --pmix on -- ${PROGRAM:?say what to run: qsub -v PROGRAM=...}"
