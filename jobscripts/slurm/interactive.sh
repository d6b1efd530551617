#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Not for sbatch: allocate nodes and run on them from this terminal. It also works from the login
# node, where salloc may leave its shell: rank 0 still runs on the job's first node.
#
#   bash interactive.sh --nodes=2 --gpus-per-node=1 --cpus-per-gpu=8 -- python train.py
#
# By hand: salloc --nodes=2 --gpus-per-node=1 --cpus-per-gpu=8, then any number of times: berth run -- python train.py

wanted=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	wanted+=("$1")
	shift
done
[ $# -gt 1 ] || { echo "usage: interactive.sh [SALLOC OPTIONS] -- PROGRAM [ARGUMENTS]" >&2; exit 64; }
berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
exec salloc "${wanted[@]}" "$berth" run "$@"
