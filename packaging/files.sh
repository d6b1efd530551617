#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Print the names of the source's files, each followed by a NUL: in a clone those that git tracks, in an unpacked
# tarball all of them except build directories.
cd "$(dirname "$0")/.." || exit
if [ -e .git ]; then
	git ls-files -z
else
	find . -path './build*' -prune -o \( -type f -o -type l \) -print0
fi
