#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Build berth and run its tests: installs what they need (Debian or Ubuntu, as root), builds in a
# folder of its own, and ends with "N passed, N failed".
#   tests/run.sh [--full] [--build DIR] [--slow N] [-- MESON OPTIONS]
#     --full       the long tests as well
#     --build DIR  the build folder (default: build-test)
#     --slow N     multiply every test's time limit by N (sanitizers)
# Exit: 0 all passed; 1 a test failed, none ran, or the build failed; 64 usage; 69 something missing.
set -u
cd "$(dirname "$0")/.." || exit 66
# shellcheck source=jobscripts/local/packages.sh
. jobscripts/local/packages.sh

usage() {
	sed -n '3,9s/^# \{0,1\}//p' tests/run.sh >&2
	exit 64
}

suites='quick' build='build-test' slow=1
while [ $# -gt 0 ]; do
	case $1 in
	--full) suites='quick full' ;;
	--build) [ $# -gt 1 ] || usage; build=$2; shift ;;
	--slow) [ $# -gt 1 ] || usage; slow=$2; shift ;;
	--) shift; break ;;
	*) usage ;;
	esac
	shift
done

packages_need build test
packages_want extra data

# A folder left half configured is started again; one that is not meson's is left alone.
if ! { [ -f "$build/build.ninja" ] && meson configure "$build" -Dtests=enabled "$@" >/dev/null; }; then
	[ ! -d "$build/meson-private" ] || rm -rf "$build"
	meson setup "$build" -Dtests=enabled "$@" </dev/null || exit 1
fi
ninja -C "$build" </dev/null || { echo "berth: the build failed" >&2; exit 1; }

log=$build/meson-logs/testlog.json
rm -f "$log"
set --
for suite in $suites; do
	set -- "$@" --suite "$suite"
done
meson test -C "$build" --no-rebuild --timeout-multiplier "$slow" "$@" </dev/null >"$build/meson-logs/run.txt" 2>&1
python3 tests/count.py "$log" "$suites"
