#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Everything that needs a GPU, on a machine with the CUDA toolkit, cuDNN, NCCL and PyTorch (of which
# cuDNN, NCCL and cuBLASLt may be inside Python's packages).
#   tests/gpu/run.sh [--build DIR] [--out DIR] [--only PART,...] [--resume] [--time S] [--list] [--pack DIR]
#     --build DIR  a build that is there already, as --pack makes one; without it one is made in
#                  build-gpu, which takes meson, ninja, jansson, zlib and cmocka
#     --out DIR    where table.txt and results.json go (default: gpu-results). Several calls with one DIR
#                  come together in one table
#     --only PARTS these parts alone, or groups: experiments, right, speed; --list shows the parts
#     --resume     not those again that passed before, by what is in --out
#     --time S     end within S seconds: each part has what is left at the most, and is not begun where
#                  that is too little
#     --pack DIR   needs no GPU: make a build and put into DIR what --build needs of it (some 10 MiB, for
#                  machines with a libc as new as this one's), to be carried elsewhere
# Each part has its own time limit, at most 9 minutes, and a result: passed, failed, or skipped with its
# reason; what it found until then stays. Both files are written after each part.
#
# Where commands may take 10 minutes, and the machine is there for 30: elsewhere, before,
#   tests/gpu/run.sh --pack build-carried
# and there three times the same,
#   tests/gpu/run.sh --build build-carried --out gpu-results --resume --time 560
# The first call is the first device experiments (--only experiments) and some conformance at the most, the
# second conformance and the benchmark of ResNet-50, the third the other benchmarks; what finds no time left
# is said. PyTorch's baselines that were not measured in the first are left out then, too: --only
# torch-baselines asks for them again. One figure alone:
#   tests/gpu/run.sh --build build-carried --out gpu-results --only bench-resnet50-bf16 --time 560
# Exit: 0 something ran and all that ran passed; 1 something failed; 77 nothing could be run.
set -u
BERTH_GPU_FROM=$PWD # folders are the caller's
export BERTH_GPU_FROM
cd "$(dirname "$0")/../.." || exit 66
exec "${PYTHON:-python3}" tests/gpu/parts.py "$@"
