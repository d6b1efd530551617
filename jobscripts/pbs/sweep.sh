#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# A sweep: PROGRAM once per line of FILE, with the line as further arguments, as many at once as fit.
#
#   qsub -l select=2:ncpus=64:ngpus=4 -l place=scatter -v FILE=lines.txt,PROGRAM="python train.py" sweep.sh
#
# lines.txt:   --lr 0.1 --seed 1
#              --lr 0.03 --seed 1
#
# Each run has one GPU (-n 1), or without GPUs the cores of one mpiproc, and a directory: lines.txt.runs/1, 2 ... has
# its output and report. After a requeue the lines that have not ended well run again, so the program should resume
# from its own checkpoint. The shell parses PROGRAM and the lines (see one-node.sh).
#PBS -N sweep
#PBS -j oe
#PBS -l select=1:ncpus=2:mpiprocs=2
#PBS -l walltime=01:00:00

cd "$PBS_O_WORKDIR" || exit
berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
trap : TERM # PBS signals this shell, too, on qdel and at the walltime; it has to wait for berth
number=0
while read -r line || [ -n "$line" ]; do
	number=$((number + 1))
	[ -n "$line" ] || continue
	grep -qs '^  "code": 0,' "$FILE.runs/$number/report.json" && continue
	eval "'$berth' run -n 1 --wait --min-time 5m --requeue --log-dir '$FILE.runs/$number' -- ${PROGRAM:?not set: submit with qsub -v FILE=...,PROGRAM=...} $line" >/dev/null &
done <"${FILE:?not set: submit with qsub -v FILE=...,PROGRAM=...}"
until wait; do :; done
"$berth" report "$FILE.runs"/*
