#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Several nodes: a rank on each GPU of each node. berth starts one agent a node by mpirun, PALS,
# pbs_tmrsh, pbsdsh or ssh, whichever is there first (--launcher overrules), and the ranks meet over the
# fastest network that all nodes reach, not over the one that the names of PBS_NODEFILE belong to.
#
#   qsub -l select=4:ncpus=64:ngpus=4 -l place=scatter -v PROGRAM="python train.py" several-nodes.sh
#
# PROGRAM is read as a shell reads a line (one-node.sh says more).
# place=scatter puts each chunk on a node of its own; without it two may be on one.
# PBS sends SIGTERM to the first node alone when the time is up or on qdel; berth passes it on, and the
# ranks have until SIGKILL (kill_delay, 10 s at the least) to save. `qsig -s TERM` is no way to stop a
# job: it ends PBS's own shell, and with it everything at once.
# Torque: #PBS -l nodes=2:ppn=4:gpus=4 instead of select and place.
#PBS -N berth
#PBS -j oe
#PBS -l select=2:ncpus=2:mpiprocs=2
#PBS -l place=scatter
#PBS -l walltime=01:00:00

cd "$PBS_O_WORKDIR" || exit
trap : TERM # on qdel and at the walltime PBS signals this shell, too: it waits for berth
eval "berth run --report 'berth-$PBS_JOBID.json' -- ${PROGRAM:?say what to run: qsub -v PROGRAM=...}"
code=$?
[ $code -eq 0 ] || echo "ended with code $code; why, and what to do next: berth-$PBS_JOBID.json" >&2
exit $code
