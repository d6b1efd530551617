#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# An MPI program: berth is the PMIx server of its ranks, and gives Open MPI and UCX the network that
# it chose. It starts as many ranks as the job has tasks. On nodes with GPUs, set the number with -n.
#
#   sbatch --nodes=2 --ntasks-per-node=8 mpi.sh ./solver input
#SBATCH --nodes=2
#SBATCH --no-kill
#SBATCH --time=01:00:00

berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
"$berth" run ${SLURM_NTASKS:+-n "$SLURM_NTASKS"} --pmix on -- "$@"
