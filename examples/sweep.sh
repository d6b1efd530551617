#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# One run per learning rate. Each run waits for a free GPU (without GPUs, for a free slot); a table shows their ends.
#
#   sbatch --nodes=2 --gpus-per-node=4 --cpus-per-gpu=8 --time=1:00:00 examples/sweep.sh
#   qsub -l select=2:ncpus=32:ngpus=4 -l place=scatter -l walltime=1:00:00 examples/sweep.sh
#   sh examples/sweep.sh                                                        on this machine
#
# For a file with one configuration per line, and time limits, see jobscripts/slurm/sweep.sh and jobscripts/pbs/sweep.sh.
cd "${PBS_O_WORKDIR:-.}" || exit
for lr in 0.1 0.05 0.02; do
	berth run --wait -n 1 --log-dir runs/$lr -- python examples/ddp.py --lr $lr >/dev/null &
done
wait
berth report runs/*
