#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Everything that needs a GPU, in one go, on a machine with the CUDA toolkit, cuDNN, NCCL and PyTorch.
#   tests/gpu/run.sh [--build DIR] [--out DIR] [--only PART,PART...] [--list]
#     --build DIR  a build that is there already, of this machine or of another with the same
#                  libraries (meson setup -Dtrainer_only=true -Dprefer_static=true -Djpeg=disabled
#                  -Dmpi=disabled -Dpmix=disabled DIR: then berth-train needs libc alone); without
#                  --build one is made in build-gpu, which takes meson, jansson and zlib
#     --out DIR    where table.txt and results.json go (default: gpu-results)
#     --only PARTS these parts alone; --list shows them
# Each part has its own time limit and a result: passed, failed, or skipped with its reason.
# Exit: 0 something ran and all that ran passed; 1 something failed; 77 nothing could be run.
set -u
cd "$(dirname "$0")/../.." || exit 66
exec "${PYTHON:-python3}" tests/gpu/parts.py "$@"
