# SPDX-License-Identifier: BSD-3-Clause
# berth hosts: host lists as Slurm writes them, node files as PBS does. BERTH: the program.

load ../support/berth
HERE=$SOURCE/tests/cli

@test "every row of the table" {
	python3 "$HERE/hosts.py" table "$BERTH"
}

@test "rows that Slurm accepts match scontrol's output" {
	need scontrol slurm-client
	python3 "$HERE/hosts.py" scontrol "$BERTH"
}

@test "random lists match scontrol's output" {
	need scontrol slurm-client
	python3 "$HERE/hosts.py" random "$BERTH" 100
}

@test "a compressed list gives the same hosts again" {
	python3 "$HERE/hosts.py" compress "$BERTH" 60
}

@test "node files: repeats, CR, blank and unterminated lines" {
	printf 'n2\r\nn1\n\n  n2  # twice\nn3' >"$DIR/nodes"
	expect 0 "$BERTH" hosts --nodefile "$DIR/nodes" --slots
	[ "$output" = $'n2 2\nn1 1\nn3 1' ]
	run "$BERTH" hosts --nodefile "$DIR/nodes" --count
	[ "$output" = 3 ]
}

@test "a node file from a pipe" {
	expect 0 bash -c "printf 'a\nb\na\n' | '$BERTH' hosts --nodefile /dev/stdin --slots"
	[ "$output" = $'a 2\nb 1' ]
}

@test "errors name what was read and exit with the right code" {
	expect 65 "$BERTH" hosts 'n[3-1]'
	[[ "$output" == "berth: error: "*"3-1"* ]]
	expect 66 "$BERTH" hosts --nodefile "$DIR/absent"
	[[ "$output" == *"$DIR/absent"* ]]
	printf 'n1\nn2 n3\n' >"$DIR/nodes"
	expect 65 "$BERTH" hosts --nodefile "$DIR/nodes"
	[[ "$output" == *"$DIR/nodes"*"line 2"* ]]
	expect 64 "$BERTH" hosts
	expect 64 "$BERTH" hosts a b
	expect 64 "$BERTH" hosts a --nodefile "$DIR/nodes"
	expect 74 bash -c "'$BERTH' hosts 'n[1-9]' >/dev/full"
}

@test "a host file with a duplicate host: names the host and both lines, and starts nothing" {
	fake ssh "touch $DIR/started"
	printf 'n1\n# another\nn2 slots=2\nn1 slots=2\n' >"$DIR/nodes"
	for verb in 'run -- touch started' check info 'run --dry-run -- true'; do
		# shellcheck disable=SC2086 # words
		set -- $verb
		run env -C "$DIR" PATH="$DIR/bin:$PATH" "$BERTH" "$1" --hostfile nodes "${@:2}"
		echo "$verb: $status $output"
		[ "$status" -eq 65 ]
		[[ "$output" == *"nodes: line 4: host 'n1' is already listed on line 1. List each host once"* ]]
	done
	[ ! -e "$DIR/started" ]
	# In PBS's own node file repeated hosts do mean slots.
	run "$BERTH" hosts --nodefile <(printf 'n1\nn2\nn1\n') --slots
	[ "$output" = $'n1 2\nn2 1' ]
}

@test "agents try the controller on the fastest network first" {
	ip tuntap add slow mode tap 2>/dev/null || skip "cannot make an interface here"
	ip address add 198.51.100.1/24 dev slow
	ip link set slow up
	fake ssh "cat >>$DIR/told; exit 255"
	for speed in 1000 20000; do
		rm -f told
		python3 - $speed <<-'P' || skip "cannot set an interface's speed here"
		import array, fcntl, socket, struct, sys

		command = bytearray(struct.pack("I40x", 1)) # ETHTOOL_GSET, then ETHTOOL_SSET
		for number in 1, 2:
		    command[:4] = struct.pack("I", number)
		    if number == 2:
		        command[12:14] = struct.pack("H", int(sys.argv[1]))
		    memory = array.array("B", command)
		    fcntl.ioctl(socket.socket(), 0x8946, struct.pack("16sQ", b"slow", memory.buffer_info()[0]))
		    command = bytearray(memory)
		P
		PATH=$DIR/bin:$PATH expect 76 "$BERTH" run --hosts a,b --launcher ssh -- true
		cp told told.$speed
	done
	grep -q '^BERTH_AGENT_CONTROLLER=192.0.2.10:[0-9]*,198.51.100.1:' told.1000
	grep -q '^BERTH_AGENT_CONTROLLER=198.51.100.1:[0-9]*,192.0.2.10:' told.20000
}

@test "hostile lists are rejected cheaply" {
	# 64 MB of address space and 10 s of CPU: exceeding one ends berth by a signal or with code 69.
	small() { (ulimit -t 10 && { [ -n "$SANITIZED" ] || ulimit -v 65536; } && "$BERTH" hosts "$@"); }
	for list in 'n[0-999999999]' 'n[1-9][1-9][1-9][1-9][1-9][1-9][1-9]' 'n[0-18446744073709551615]' \
		"$(printf '[%.0s' {1..100000})" "$(printf 'n[1],%.0s' {1..20000})n[0-262143]" \
		"$(printf '[1]%.0s' {1..40000})" "$(printf 'a%.0s' {1..100000})"; do
		expect 65 small "$list"
		[ "${#output}" -lt 1100 ]
	done
	head -c 1048576 /dev/zero | tr '\0' '[' >"$DIR/nodes"
	expect 65 small --nodefile "$DIR/nodes"
	head -c 20000000 /dev/zero | tr '\0' 'a' >"$DIR/nodes"
	expect 65 "$BERTH" hosts --nodefile "$DIR/nodes"
}
