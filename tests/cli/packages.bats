# SPDX-License-Identifier: BSD-3-Clause
# The list of packages, and how the two commands exit if something is missing. SOURCE: the source tree.

load ../support/berth

@test "not root: lists what to provide, installs nothing, exits with code 69" {
	fake id 'echo 1000'
	fake pkg-config 'exit 1'
	fake apt-get "touch $DIR/called"
	for script in tests/run.sh jobscripts/local/quickstart.sh; do
		expect 69 env PATH="$DIR/bin:$PATH" sh "$SOURCE/$script"
		[[ $output == *"hwloc 2.3 or newer"* ]]
		[[ $output == *"apt-get install"*"libhwloc-dev"*"zlib1g-dev"* ]]
		[[ $output == *"dnf install"*"hwloc-devel"* ]]
		[[ $output == *"module load hwloc"* ]]
		[ ! -e "$DIR/called" ]
	done
}

@test "root, but apt-get fails: prints its output, then what to provide, and exits with code 69" {
	fake id 'echo 0'
	fake pkg-config 'exit 1'
	fake apt-get 'echo "E: no network"; exit 100'
	expect 69 env PATH="$DIR/bin:$PATH" sh "$SOURCE/tests/run.sh"
	[[ $output == *"E: no network"* ]]
	[[ $output == *"could not install everything"* ]]
}

@test "an old meson counts as missing, a new one does not" {
	fake meson 'echo 0.61.2'
	run env PATH="$DIR/bin:$PATH" sh -c '. "$SOURCE/jobscripts/local/packages.sh"; packages_missing build'
	[[ $output == *"cmd:meson"* ]]
	fake meson 'echo 1.10.0'
	run env PATH="$DIR/bin:$PATH" sh -c '. "$SOURCE/jobscripts/local/packages.sh"; packages_missing build'
	[[ $output != *"cmd:meson"* ]]
}

@test "each row of the list has five columns and a Debian name" {
	expect 0 sh -c '. "$SOURCE/jobscripts/local/packages.sh"; packages_table | awk -F"|" "NF != 5 || \$3 == \"\""'
	[ -z "$output" ]
}

count() { # RESULT...: run count.py on tests with these results
	mkdir -p "$DIR/reports"
	for result in "$@"; do
		printf '{"name": "t-%s", "result": "%s", "stdout": "all\\nthe reason\\n", "returncode": 1, "command": ["t"]}\n' "$result" "$result"
	done >"$DIR/testlog.json"
	run python3 "$SOURCE/tests/count.py" "$DIR/testlog.json" quick "$DIR/reports"
	echo "$output"
}

@test "the last line has the counts; a failed test means failure" {
	count OK OK
	[ "$status" -eq 0 ] && [ "${lines[-1]}" = "2 passed, 0 failed" ]
	count OK SKIP
	[ "$status" -eq 0 ] && [ "${lines[-1]}" = "1 passed, 0 failed, 1 skipped" ]
	[[ $output == *"skipped: t-SKIP: the reason"* ]]
	count OK FAIL TIMEOUT ERROR UNEXPECTEDPASS
	[ "$status" -eq 1 ] && [ "${lines[-1]}" = "1 passed, 4 failed" ]
	[[ $output == *"---- t-TIMEOUT: TIMEOUT"*"the reason"* ]]
	count SKIP
	[ "$status" -eq 1 ]
	count
	[ "$status" -eq 1 ] && [ "${lines[-1]}" = "0 passed, 0 failed" ]
}

@test "all shell scripts pass shellcheck" {
	need shellcheck
	cd "$SOURCE"
	# Without .bats files, whose grammar this shellcheck does not fully support.
	expect 0 sh -c 'find .ci bin jobscripts packaging tests modulefiles -type f \( -name "*.sh" -o -name run \) -print | xargs shellcheck -x'
}
