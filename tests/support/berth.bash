# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2034,SC2154 # variables of the tests and of bats
# What the .bats files of tests/cli, tests/train and tests/cluster share.

bats_require_minimum_version 1.5.0
HOST=$(uname -n)

# make_dir: give the test an empty directory, $DIR, and nothing of what the caller's own job has set.
make_dir() {
	DIR=$(mktemp -d)
	export DIR TMPDIR="$DIR"
	unset BERTH_PLAN_FILE BERTH_TOPOLOGY CUDA_VISIBLE_DEVICES OMP_NUM_THREADS NCCL_SOCKET_IFNAME
	unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
	cd "$DIR" || return
}

# case_failed: in a teardown, succeed and print the load average if the case has failed.
case_failed() {
	[ -z "${BATS_TEST_COMPLETED-}${BATS_TEST_SKIPPED-}" ] && echo "load average: $(cut -d' ' -f1-3 /proc/loadavg)"
}

# remove_dir: remove $DIR.
remove_dir() {
	case_failed || true
	cd / || return
	rm -rf "$DIR"
}

# setup, teardown: for files that need nothing more.
setup() { make_dir; }
teardown() { remove_dir; }

# allow_leaks: Open MPI keeps memory in plug-ins that it has unloaded, so ASan has no name to suppress.
allow_leaks() { export ASAN_OPTIONS="${ASAN_OPTIONS-}:detect_leaks=0"; }

# install_build DIR [FILE]: install the build below DIR, and copy the list of what was installed to FILE. Tests run
# at once, and meson writes one list.
install_build() {
	local log
	# shellcheck disable=SC2016 # the inner shell expands them
	log=$(DESTDIR=$1 flock "$BUILD/install.lock" sh -ec 'meson install -C "$BUILD" --no-rebuild --quiet 2>&1
		[ -z "$1" ] || cp "$BUILD/meson-logs/install-log.txt" "$1"' sh "${2-}") || { echo "$log"; return 1; }
}

# need COMMAND [PACKAGE]: skip the test if COMMAND is missing.
need() { command -v "$1" >/dev/null || skip "no $1 here${2:+ (Debian: $2)}"; }

# fake NAME [SCRIPT]: write $DIR/bin/NAME, a shell script; without SCRIPT from standard input.
fake() {
	mkdir -p "$DIR/bin"
	printf '#!/bin/sh\n%s\n' "${2-$(cat)}" >"$DIR/bin/$1"
	chmod +x "$DIR/bin/$1"
}

# expect CODE [OPTIONS OF RUN] COMMAND...: run COMMAND as bats does, print what it wrote, and fail
# unless it exits with CODE.
expect() {
	local code=$1
	shift
	stderr=
	run "$@"
	printf '%s\n' "$output" ${stderr:+"# $stderr"}
	[ "$status" -eq "$code" ] || { echo "exit code $status, expected $code"; return 1; }
}

# ends CODE PID [FILE]: wait for a command in the background, which must exit with CODE; print FILE.
ends() {
	local code=0
	wait "$2" || code=$?
	[ -z "${3-}" ] || cat "$3"
	[ "$code" -eq "$1" ] || { echo "exit code $code, expected $1"; return 1; }
}

# within SECONDS COMMAND...: repeat COMMAND until it succeeds; fail after SECONDS, which BERTH_TEST_SLOW
# multiplies. A documented deadline is asserted by time, not with this.
within() {
	local last=$((SECONDS + $1 * ${BERTH_TEST_SLOW:-1}))
	shift
	until "$@"; do
		[ "$SECONDS" -le "$last" ] || { echo "still not true: $*"; return 1; }
		sleep 0.05
	done
}

# wait_for FILE LINES: until FILE has that many lines (30 s times BERTH_TEST_SLOW).
wait_for() { within 30 has_lines "$@" || { cat "$1"; return 1; }; }
has_lines() { [ -e "$1" ] && [ "$(wc -l <"$1")" -ge "$2" ]; }

# until_seen FILE PATTERN: until a line of FILE matches (30 s times BERTH_TEST_SLOW).
until_seen() { within 30 grep -qs -- "$2" "$1" || { cat "$1"; return 1; }; }

# received PID NAME: true unless this signal is pending for the process. A second one would merge with it.
received() {
	local pending
	pending=$(sed -n 's/^ShdPnd:[[:space:]]*//p' "/proc/$1/status") && [ $((0x$pending >> ($(kill -l "$2") - 1) & 1)) = 0 ]
}

# holds FILE EXPRESSION: a Python expression is true of the JSON in FILE, which it calls r, or by the
# file's name: report in report.json.
holds() {
	python3 - "$@" <<'PY'
import json, os, sys
value = json.load(open(sys.argv[1]))
if not eval(sys.argv[2], {'r': value, os.path.basename(sys.argv[1]).split('.')[0]: value}):
    sys.exit(f'not true: {sys.argv[2]}\n{json.dumps(value, indent=1)}')
PY
}

# report EXPRESSION: the same of the report of `berth run --report report.json`.
report() { holds "$DIR/report.json" "$1"; }
