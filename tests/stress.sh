#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Run tests again and again beside two busy loops per core, and a loop that syncs files:
#   tests/stress.sh --since COMMIT                   changed tests, before they land
#   tests/stress.sh [PASSES] OPTIONS OF tests/run.sh
#   tests/stress.sh [PASSES] [plain] [asan] [tsan]   the quick suite in these builds (default: all three)
#     PASSES   how often (default: 10)
# The last form appends the result of each test to build-stress.tsv and resumes: it runs what PASSES lacks there.
# A test that passes in its second run only is flaky, which is a failure here. In the end: a table of build, test,
# runs, failures and flaky runs of the tests that ever failed.
# Exit codes: 0 all passed; 1 a test failed or none ran; 64 usage.
# shellcheck disable=SC2154 # builds.bash sets some variables
set -u
cd "$(dirname "$0")/.." || exit 66
# shellcheck source=tests/builds.bash
. tests/builds.bash

usage() { sed -n '3,11s/^# \{0,1\}//p' tests/stress.sh; }
passes=10 only=() place='' table=build-stress.tsv loops=()
case ${1-} in
-h|--help) usage; exit 0 ;;
-*|'') ;;
*[!0-9]*|0*) case " ${builds[*]} " in *" $1 "*) ;; *) usage >&2; exit 64 ;; esac ;;
*) passes=$1; shift ;;
esac
for word in "$@"; do
	case $word in
	-h|--help) exec sh tests/run.sh --help ;;
	-*) break ;;
	*) case " ${builds[*]} " in *" $word "*) only+=("$word") ;; *) usage >&2; exit 64 ;; esac ;;
	esac
done
[ "${#only[@]}" -eq 0 ] || shift "${#only[@]}"
[ "${#only[@]}" -eq 0 ] || [ $# -eq 0 ] || { usage >&2; exit 64; }

leave() {
	[ "${#loops[@]}" -eq 0 ] || kill "${loops[@]}" 2>/dev/null
	wait 2>/dev/null
	rm -rf "$place"
}
trap leave EXIT
trap 'exit 130' INT TERM HUP
place=$(mktemp -d) || exit 1

if [ $# -gt 0 ]; then
	table=$place/table
	only=(chosen)
elif [ "${#only[@]}" -eq 0 ]; then
	only=("${builds[@]}")
fi
touch "$table"

for ((i = 0; i < $(getconf _NPROCESSORS_ONLN) * 2; i++)); do
	while :; do :; done &
	loops+=($!)
done
while :; do dd if=/dev/zero of="$place/synced" bs=64k count=16 conv=fsync 2>/dev/null; done &
loops+=($!)

# once NAME OPTIONS: one pass of this build, into $place/out; its results become $place/results
once() {
	local rc build
	if [ "$1" = chosen ]; then
		shift
		sh tests/run.sh "$@" >"$place/out" 2>&1
	else
		use_build "$1"
		"${prefix[@]}" sh tests/run.sh "${options[@]}" -- "${meson[@]}" >"$place/out" 2>&1
	fi
	rc=$?
	build=$(sed -n 's/^berth: note: building in //p' "$place/out" | head -n 1)
	cp "$build/meson-logs/results.tsv" "$place/results" 2>/dev/null
	return $rc
}

for ((pass = 1; pass <= passes; pass++)); do
	for build in "${only[@]}"; do
		! grep -q "^$build	$pass	" "$table" || continue
		echo "==== $build, pass $pass of $passes, load $(cut -d' ' -f1-3 /proc/loadavg)"
		rm -f "$place/results"
		(once "$build" "$@")
		rc=$?
		[ "$rc" -ne 64 ] || { cat "$place/out" >&2; exit 64; }
		# Nothing was run: that will not change.
		[ -s "$place/results" ] || { cat "$place/out"; exit 1; }
		sed "s/^/$build	$pass	/" "$place/results" >>"$table"
		! grep -qE '	(failed|flaky)	' "$place/results" || cat "$place/out"
		tail -n 1 "$place/out"
	done
done
awk -F '\t' -v OFS='\t' '
	{ runs[$1 "\t" $3]++; tests[$1, $2] = 1 }
	$4 == "failed" || $4 == "flaky" { count[$1 "\t" $3, $4]++; bad[$1 "\t" $3] = 1; wrong[$1, $2] = 1 }
	END {
		for (test in bad) {
			if (!header++) print "build", "test", "runs", "failed", "flaky"
			print test, runs[test], count[test, "failed"] + 0, count[test, "flaky"] + 0
		}
		for (pass in tests) all++
		for (pass in wrong) worse++
		print all - worse " of " all " passes without a failure"
		exit worse > 0
	}' "$table"
