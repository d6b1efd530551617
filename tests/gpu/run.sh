#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# All tests and benchmarks that need a GPU, on a machine with the CUDA toolkit, cuDNN, NCCL and PyTorch
# (cuDNN, NCCL and cuBLASLt may come from Python packages).
#   tests/gpu/run.sh [--build DIR] [--out DIR] [--only PART,...] [--resume] [--time S] [--list] [--pack DIR]
#     --build DIR  use an existing build, for example one from --pack; by default a build is made in
#                  build-gpu, which requires meson, ninja, jansson, zlib and cmocka
#     --out DIR    directory for table.txt, results.json and cache (default: gpu-results). Several calls with
#                  one DIR share one table
#     --only PARTS run only these parts or groups: experiments, right, speed; --list shows the parts
#     --resume     skip parts that passed before, according to --out
#     --time S     end within S seconds: a part gets at most the time left, and is skipped if that is
#                  too little
#     --pack DIR   (needs no GPU) make a build and copy into DIR what --build needs of it (some 25 MiB,
#                  for machines with a libc at least as new as this one's)
# Each part has its own time limit, at most 10 minutes, and a result: passed, failed, or skipped with a
# reason. Both files are written after each figure. berth alone is measured without PyTorch, too.
#
# If commands may take 10 minutes and the GPU machine is available for 30, first run elsewhere
#   tests/gpu/run.sh --pack build-carried
# and then, on the GPU machine, three times
#   tests/gpu/run.sh --build build-carried --out gpu-results --resume --time 590
# The order is that of importance: does it train, berth's speed, PyTorch eager beside it, correctness, two
# ranks on one GPU; PyTorch compile last. The DIR of --out also holds the choices of layers that were tuned
# (cache); with it and --resume the next machine goes on where this one ended. A single figure:
#   tests/gpu/run.sh --build build-carried --out gpu-results --only own-resnet50-bf16 --time 590
# Exit code: 0 if something ran and nothing failed, 1 if something failed, 77 if nothing could run.
set -u
BERTH_GPU_FROM=$PWD # directories are relative to the caller's
export BERTH_GPU_FROM
cd "$(dirname "$0")/../.." || exit 66
exec "${PYTHON:-python3}" tests/gpu/parts.py "$@"
