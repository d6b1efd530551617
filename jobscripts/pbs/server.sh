#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# A server on the first node beside a program on the others, which starts when the server is ready. SERVER is the
# server's command line; it listens on the port {port} and answers /health. The program finds it at
# BERTH_ROLE_SERVE_ADDR and BERTH_ROLE_SERVE_PORT.
#
#   SERVER='vllm serve MODEL --port {port} -tp {gpus}' PROGRAM='python train.py' \
#       qsub -l select=3:ncpus=64:ngpus=4 -l place=scatter -v SERVER,PROGRAM server.sh
#
# The shell parses SERVER and PROGRAM as command lines. More in docs/guides/serving.md.
#PBS -N berth
#PBS -j oe
#PBS -l select=2:ncpus=2
#PBS -l place=scatter
#PBS -l walltime=01:00:00

cd "$PBS_O_WORKDIR" || exit
berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
trap : TERM # PBS signals this shell, too, on qdel and at the walltime; it has to wait for berth
export SERVER="${SERVER:?not set: submit with qsub -v SERVER,PROGRAM}"
eval "'$berth' run --report 'berth-$PBS_JOBID.json' \
	--role serve --service --nodes 1 --ready http:/health -- \
	sh -c \"exec \$SERVER\" : --role train -- ${PROGRAM:?not set: submit with qsub -v SERVER,PROGRAM}"
