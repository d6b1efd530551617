#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# A virtual environment with the frameworks of frameworks/requirements.txt, several gigabytes, below DIR.
#   frameworks.sh DIR COMMAND...   runs COMMAND with FRAMEWORKS set to its Python; makes it once; exits
#                                  with code 77 if that is impossible
set -u
dir=$1
shift
say() { echo "frameworks: skipped: $1" >&2; exit 77; }

if [ -z "${FRAMEWORKS-}" ]; then
	FRAMEWORKS=$dir/frameworks/bin/python
	if [ ! -e "$dir/frameworks/complete" ]; then
		rm -rf "$dir/frameworks"
		python3 -m venv "$dir/frameworks" </dev/null >&2 || say 'no venv (Debian: python3-venv)'
		timeout 1200 env DS_BUILD_OPS=0 "$FRAMEWORKS" -m pip install --quiet -r "$(dirname "$0")/frameworks/requirements.txt" </dev/null >&2 ||
			say 'the packages of frameworks/requirements.txt cannot be had'
		touch "$dir/frameworks/complete"
	fi
fi
"$FRAMEWORKS" -c 'import torch' || say "$FRAMEWORKS has no PyTorch"
export FRAMEWORKS
exec "$@"
