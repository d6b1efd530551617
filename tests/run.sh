#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Build berth and run its tests. Installs what they need (Debian or Ubuntu, as root), builds in a
# separate directory, and prints "N passed, N failed" at the end.
#   tests/run.sh [--full] [--suite NAME]... [--no-suite NAME]... [--test NAME]... [--since COMMIT]
#                [--build DIR] [--slow N] [--no-namespaces] [-- MESON OPTIONS]
#     --full           run the long tests as well, and print the line coverage of the quick ones
#     --suite NAME     run this suite instead of quick; for threads, build only what its tests need
#     --no-suite NAME  leave out the tests of this suite
#     --test NAME      of these suites, run this test only
#     --since COMMIT   run those quick tests only whose files changed since this commit
#     --build DIR      build directory (default: build-test)
#     --slow N         multiply every test's time limit by N, and its waits for events (BERTH_TEST_SLOW)
#     --no-namespaces  as root: do not run each test in namespaces of its own (tests/isolate.py)
# If at most three tests fail, they run once more, one at a time. One that then passes counts as passed, and a
# line "flaky: TEST: CASE" names it. Nothing runs again after a crash, a time-out or a sanitizer's report.
# Exit codes: 0 all passed; 1 a test failed, none ran, or the build failed; 64 usage; 69 something missing.
set -u
cd "$(dirname "$0")/.." || exit 66
# shellcheck source=jobscripts/local/packages.sh
. jobscripts/local/packages.sh

usage() {
	sed -n '3,17s/^# \{0,1\}//p' tests/run.sh >&2
	exit 64
}

suites='' without='' names='' since='' build='build-test' slow=1 namespaces=yes
while [ $# -gt 0 ]; do
	case $1 in
	--full) suites='quick full' ;;
	--suite) [ $# -gt 1 ] || usage; suites="${suites:+$suites }$2"; shift ;;
	--no-suite) [ $# -gt 1 ] || usage; without="$without $2"; shift ;;
	--test) [ $# -gt 1 ] || usage; names="$names $2"; shift ;;
	--since) [ $# -gt 1 ] || usage; since=$2; shift ;;
	--build) [ $# -gt 1 ] || usage; build=$2; shift ;;
	--slow) [ $# -gt 1 ] || usage; slow=$2; shift ;;
	--no-namespaces) namespaces= ;;
	--) shift; break ;;
	-h|--help) sed -n '3,17s/^# \{0,1\}//p' tests/run.sh; exit 0 ;;
	*) usage ;;
	esac
	shift
done

suites=${suites:-quick} partly=''
[ "$suites" != threads ] || partly=yes # other suites install or inspect the whole build

packages_need build test
packages_want extra data speed
case " $suites " in
*' full '*) packages_want full ;;
esac

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
[ -n "$partly" ] || ninja --quiet -C "$build" </dev/null || { echo "berth: error: the build failed" >&2; exit 1; }
if [ -n "$since" ]; then
	names="$names $(python3 tests/changed.py "$build" "$since")" || exit 1
	[ -n "${names# }" ] || { echo "berth: error: no test's files changed since $since" >&2; exit 1; }
fi

coverage=$build/meson-logs/coverage.txt measured=0
: >"$coverage"
case " $suites " in
*' full '*) python3 tests/coverage.py "$build-coverage" "$@" >"$coverage" 2>&1 || measured=1 ;;
esac
log=$build/meson-logs/testlog.json again=$build/meson-logs/rerun.json
rm -f "${log%.json}".* "$again" "$build/meson-logs/results.tsv"
# A sanitizer reports to a file, named after test, program and process: some programs' stderr is compared, and some
# exit codes are lost. Ranks of other users write there, too.
place=$(mktemp -d /var/tmp/berth-tests.XXXXXX) || exit 1
trap 'rm -rf "$place"' EXIT
reports=$place/reports
mkdir -m 1777 "$reports" && chmod 755 "$place" || exit 1
# LeakSanitizer misreads where a module's thread-local memory begins, and dies of it, unless told not to look.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}log_path=$reports/asan:log_exe_name=1:intercept_tls_get_addr=0"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:+$UBSAN_OPTIONS:}log_path=$reports/ubsan:log_exe_name=1"
export TSAN_OPTIONS="${TSAN_OPTIONS:+$TSAN_OPTIONS:}log_path=$reports/tsan:log_exe_name=1"
export BERTH_TEST_SLOW="$slow"   # multiplies how long a test waits for an event
export BERTH_TEST_PLACE="$place" # of the tests' own /tmp

wrapper=''
if [ -n "$namespaces" ]; then
	if why=$(python3 tests/isolate.py --check 2>&1); then
		wrapper=$(printf "python3 '%s/tests/isolate.py'" "$PWD") # meson splits it into words
	else
		echo "berth: note: tests share /tmp, network and processes: $why" >&2
	fi
fi

# run_tests LOG PROCESSES MESON'S OPTIONS: run tests. The results go to meson-logs/LOG.json and LOG.txt, and what meson
# prints to meson-logs/run.txt.
run_tests() {
	name=$1 processes=$2
	shift 2
	meson test -C "$build" --logbase "$name" ${wrapper:+--wrapper "$wrapper"} --timeout-multiplier "$slow" \
		--num-processes "$processes" "$@" </dev/null >>"$build/meson-logs/run.txt" 2>&1
	[ -z "$wrapper" ] || for kind in json txt; do # meson adds the wrapper's name
		mv "$build/meson-logs/$name-python3.$kind" "$build/meson-logs/$name.$kind" 2>/dev/null
	done
}

set --
for suite in $suites; do
	set -- "$@" --suite "$suite"
done
for suite in $without; do
	set -- "$@" --no-suite "$suite"
done
[ -n "$partly" ] || set -- "$@" --no-rebuild # meson itself builds what the tests of a suite need
: >"$build/meson-logs/run.txt"
# shellcheck disable=SC2086 # names are words
meson test -C "$build" --list "$@" $names 2>>"$build/meson-logs/run.txt" | sed 's/.* //; s/.*://' >"$place/names"
# Tests have no network, so what this one needs is fetched before.
! grep -q '^cluster-container' "$place/names" ||
	sh tests/cluster/apptainer.sh "$(cd "$build" && pwd)/tests/cluster" true >/dev/null 2>&1
# Training and compilers get a core per test. The others mostly wait: two per core after that, and clusters beside both.
cores=$(getconf _NPROCESSORS_ONLN) heavy='^(parity|train|style-tidy)'
for part in cluster heavy light; do
	processes=$cores
	case $part in
	cluster) names=$(grep '^cluster' "$place/names") ;;
	heavy) names=$(grep -E "$heavy" "$place/names") ;;
	light) processes=$((cores * 2)) names=$(grep -vE "$heavy|^cluster" "$place/names") ;;
	esac
	# shellcheck disable=SC2086
	{ [ -z "$names" ] || run_tests $part "$processes" "$@" $names; } &
	[ $part != heavy ] || wait $!
done
wait
for part in cluster heavy light; do
	for kind in json txt; do
		cat "$build/meson-logs/$part.$kind" >>"$build/meson-logs/testlog.$kind" 2>/dev/null
		rm -f "$build/meson-logs/$part.$kind"
	done
done
if [ -s "$log" ]; then
	names=$(python3 tests/count.py --rerun "$log" "$reports")
	# shellcheck disable=SC2086
	[ -z "$names" ] || run_tests rerun 1 --no-rebuild $names
else
	tail -n 40 "$build/meson-logs/run.txt" >&2
fi
cat "$coverage"
[ -f "$again" ] || again=
python3 tests/count.py "$log" "$suites" "$reports" ${again:+"$again"} || exit 1
exit $measured
