#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Not for qsub alone: ask for nodes, and get a terminal on the first of them.
#
#   sh interactive.sh -l select=2:ncpus=16:ngpus=4 -l place=scatter -l walltime=01:00:00
#
# There, in your folder ($PBS_O_WORKDIR), as often as you like: berth run -- python train.py
# Closing the terminal ends what runs on the other nodes without a warning: leave by exit.

exec qsub -I "$@"
