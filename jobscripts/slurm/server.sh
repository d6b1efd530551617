#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# A server on the first node beside a program on the others, which starts when the server is ready. SERVER is the
# server's command line, in a shell's syntax; it listens on the port {port} and answers /health. The program
# finds it at BERTH_ROLE_SERVE_ADDR and BERTH_ROLE_SERVE_PORT.
#
#   SERVER='vllm serve MODEL --port {port} -tp {gpus}' sbatch --nodes=3 --gpus-per-node=4 --cpus-per-gpu=8 \
#       server.sh python train.py
#
# More in docs/guides/serving.md.
#SBATCH --nodes=2
#SBATCH --no-kill
#SBATCH --time=01:00:00

berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
"$berth" run --report "berth-$SLURM_JOB_ID.json" \
	--role serve --service --nodes 1 --ready http:/health -- \
	sh -c "exec ${SERVER:?not set: the command line of the server}" : --role train -- "$@"
