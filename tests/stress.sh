#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Run tests again and again beside two busy loops per core, and a loop that syncs files. A new or changed
# test proves itself so before it lands:
#   tests/stress.sh --since COMMIT
#   tests/stress.sh [PASSES] [OPTIONS OF tests/run.sh]
#     PASSES   how often (default: 10)
# A test that passes in its second run only has failed here. In the end: the passes without a failure, and how
# often each case failed.
# Exit codes: 0 all passed; 1 a test failed or none ran; 64 usage.
set -u
cd "$(dirname "$0")/.." || exit 66

passes=10
case ${1-} in
-h|--help) sed -n '3,10s/^# \{0,1\}//p' tests/stress.sh; exit 0 ;;
-*|'') ;;
*[!0-9]*|0*) sed -n '3,10s/^# \{0,1\}//p' tests/stress.sh >&2; exit 64 ;;
*) passes=$1; shift ;;
esac
for word in "$@"; do
	case $word in -h|--help) exec sh tests/run.sh --help ;; esac
done

place=$(mktemp -d) || exit 1
loops=''
leave() {
	# shellcheck disable=SC2086 # process ids are words
	[ -z "$loops" ] || kill $loops 2>/dev/null
	wait 2>/dev/null
	rm -rf "$place"
}
trap leave EXIT
trap 'exit 130' INT TERM HUP

left=$(($(getconf _NPROCESSORS_ONLN) * 2))
while [ "$left" -gt 0 ]; do
	while :; do :; done &
	loops="$loops $!"
	left=$((left - 1))
done
while :; do dd if=/dev/zero of="$place/synced" bs=64k count=16 conv=fsync 2>/dev/null; done &
loops="$loops $!"

pass=0 good=0
while [ "$pass" -lt "$passes" ]; do
	pass=$((pass + 1))
	echo "==== pass $pass of $passes, load $(cut -d' ' -f1-3 /proc/loadavg)"
	rc=0
	sh tests/run.sh "$@" >"$place/out" 2>&1 || rc=$?
	[ "$rc" -ne 64 ] || { cat "$place/out" >&2; exit 64; }
	if [ "$rc" -eq 0 ] && ! grep -q '^flaky: ' "$place/out"; then
		good=$((good + 1))
	else
		cat "$place/out"
		grep -E '^(flaky|failed): ' "$place/out" | sed 's/^[a-z]*: //' >>"$place/cases"
		# Nothing was run: that will not change.
		tail -n 1 "$place/out" | grep -q '^[0-9]* passed, [0-9]* failed' || exit 1
	fi
	tail -n 1 "$place/out"
done
[ ! -f "$place/cases" ] || sort "$place/cases" | uniq -c
echo "$good of $passes passes without a failure"
[ "$good" -eq "$passes" ]
