#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# A sweep: the program once per line of a file, with the line as further arguments, as many at once as fit.
#
#   sbatch --nodes=2 --gpus-per-node=4 --cpus-per-gpu=8 sweep.sh lines.txt python train.py
#
# lines.txt:   --lr 0.1 --seed 1
#              --lr 0.03 --seed 1
#
# Each run has one GPU (-n 1) and a directory: lines.txt.runs/1, 2 ... has its output and report. After a requeue
# the lines that have not ended well run again, so the program should resume from its own checkpoint.
#SBATCH --nodes=1
#SBATCH --time=01:00:00
#SBATCH --requeue --open-mode=append

lines=$1
shift
berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
trap : TERM # else the shell would end before the runs have saved
number=0
while read -r line || [ -n "$line" ]; do
	number=$((number + 1))
	[ -n "$line" ] || continue
	grep -qs '^  "code": 0,' "$lines.runs/$number/report.json" && continue
	# shellcheck disable=SC2086 # the line has several words
	"$berth" run -n 1 --wait --min-time 5m --requeue --log-dir "$lines.runs/$number" -- "$@" $line >/dev/null &
done <"$lines"
until wait; do :; done
"$berth" report "$lines.runs"/*
