#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Several nodes: one rank per GPU. berth starts one agent per node with the first of PALS, pbs_tmrsh, pbsdsh,
# prterun, mpirun and ssh that is present (--launcher overrides). The ranks meet over the fastest network
# that all nodes reach, whichever network the names in PBS_NODEFILE belong to.
#
#   qsub -l select=4:ncpus=64:ngpus=4 -l place=scatter -v PROGRAM="python train.py" several-nodes.sh
#
# The shell parses PROGRAM as a command line (see one-node.sh).
# place=scatter puts each chunk on a separate node; without it two chunks may share a node.
# At the walltime and on qdel, PBS sends SIGTERM to the first node only. berth passes it on, and the ranks
# have until SIGKILL (kill_delay, at least 10 s) to save. Do not stop a job with `qsig -s TERM`: it
# kills PBS's own shell, and with it everything at once.
# Torque: #PBS -l nodes=2:ppn=4:gpus=4 instead of select and place.
#PBS -N berth
#PBS -j oe
#PBS -l select=2:ncpus=2:mpiprocs=2
#PBS -l place=scatter
#PBS -l walltime=01:00:00

cd "$PBS_O_WORKDIR" || exit
berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
trap : TERM # PBS signals this shell, too, on qdel and at the walltime; it has to wait for berth
eval "'$berth' run --report 'berth-$PBS_JOBID.json' -- ${PROGRAM:?not set: submit with qsub -v PROGRAM=...}"
code=$?
[ $code -eq 0 ] || echo "exit code $code; cause and next step: berth-$PBS_JOBID.json" >&2
exit $code
