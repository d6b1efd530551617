#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Build berth and run its tests. Installs what they need (Debian or Ubuntu, as root), builds in a
# separate directory, and prints "N passed, N failed" at the end.
#   tests/run.sh [--full] [--build DIR] [--slow N] [-- MESON OPTIONS]
#     --full       run the long tests as well
#     --build DIR  build directory (default: build-test)
#     --slow N     multiply every test's time limit by N (sanitizers)
# Exit codes: 0 all passed; 1 a test failed, none ran, or the build failed; 64 usage; 69 something missing.
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
	-h|--help) sed -n '3,9s/^# \{0,1\}//p' tests/run.sh; exit 0 ;;
	*) usage ;;
	esac
	shift
done

packages_need build test
packages_want extra data speed
[ "$suites" = quick ] || packages_want full

# configure [--reconfigure] MESON OPTIONS: print nothing unless it fails
configure() {
	said=$(meson setup "$build" -Dtests=enabled "$@" </dev/null 2>&1) &&
		printf '%s\n' "$options" >"$build/run.options" && return 0
	printf '%s\n' "$said" >&2
	return 1
}

# Configure a half-configured directory again; leave a directory that is not meson's alone.
echo "berth: note: building in $build" >&2
options=$*
if [ ! -f "$build/build.ninja" ]; then
	[ ! -d "$build/meson-private" ] || rm -rf "$build"
	configure "$@" || exit 1
elif [ "$options" != "$(cat "$build/run.options" 2>/dev/null)" ]; then
	configure --reconfigure "$@" || exit 1
fi
ninja --quiet -C "$build" </dev/null || { echo "berth: error: the build failed" >&2; exit 1; }

log=$build/meson-logs/testlog.json
rm -f "$log"
set --
for suite in $suites; do
	set -- "$@" --suite "$suite"
done
# Many tests wait for processes and deadlines: three for every two cores.
meson test -C "$build" --no-rebuild --timeout-multiplier "$slow" \
	--num-processes $((($(getconf _NPROCESSORS_ONLN) * 3 + 1) / 2)) "$@" </dev/null >"$build/meson-logs/run.txt" 2>&1
python3 tests/count.py "$log" "$suites"
