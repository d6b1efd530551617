#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Not for qsub: allocate nodes and get a terminal on the first one.
#
#   sh interactive.sh -l select=2:ncpus=16:ngpus=4 -l place=scatter -l walltime=01:00:00
#
# There, in your directory ($PBS_O_WORKDIR), any number of times: berth run -- python train.py
# Leave with exit: closing the terminal kills what runs on the other nodes without a warning.

exec qsub -I "$@"
