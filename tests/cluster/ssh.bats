# SPDX-License-Identifier: BSD-3-Clause
# --hosts and --hostfile over ssh, with a real sshd on each node of cluster.py.

load support.bash

SSHD=/usr/sbin/sshd

setup_file() {
	[ -x /usr/sbin/sshd ] || skip "no sshd (Debian: openssh-server)"
	ssh_begin
}

setup() {
	[ -x "$SSHD" ] || skip "no sshd (Debian: openssh-server)"
	unset SLURM_CONF
	export PATH="$CLUSTER/share/ssh/bin:$PATH"
	cd "$SHARE"
	rm -f ssh/lines
}

@test "ranks on named hosts; the secret is on no command line" {
	expect 0 timeout 60 "$BERTH" run --hosts n1,n2 --ranks-per-node 1 --env 'MINE=a  $b' -- \
		sh -c 'echo "rank $RANK of $WORLD_SIZE on $(hostname) at $MASTER_ADDR ${MINE-none}"; tr "\0" " " </proc/$PPID/cmdline; echo'
	has '^rank 0 of 2 on n1 at 10.9.0.11 a  \$b$'
	has '^rank 1 of 2 on n2 at 10.9.0.11 a  \$b$'
	cat ssh/lines
	[ "$(wc -l <ssh/lines)" = 2 ]
	! grep -qi secret ssh/lines || false
	hasnt '[0-9a-f]{64}'
	nothing_left n1 n2
}

@test "a host file with an unreachable host: the error names it, and nothing is left" {
	printf 'n1 slots=2\nn9.invalid\n' >nodes
	expect 76 timeout 60 "$BERTH" run --hostfile nodes -- sleep 77
	has 'n9.invalid.*ssh exited with code 255.*n9.invalid'
	nothing_left n1
}

@test "a host file with slots: one rank per slot" {
	printf 'n1 slots=2\nn2 slots=1\n' >nodes
	python3 -c "import sys; sys.path.insert(0, '$HERE'); import topology; topology.write('.', 'nogpu', gpus=False)"
	expect 0 timeout 60 env BERTH_TOPOLOGY="$SHARE/nogpu.xml" "$BERTH" run --hostfile nodes -- \
		sh -c 'echo "rank $RANK of $WORLD_SIZE on $(hostname)"'
	has '^rank 1 of 3 on n1$'
	has '^rank 2 of 3 on n2$'
}

@test "berth is missing on the hosts: the error has the shell's message" {
	cp "$BERTH" /tmp/berth-here # each node has its own /tmp
	run timeout 60 env BERTH_MODULE_PATH="$(dirname "$BERTH")" /tmp/berth-here run --hosts n1,n2 -- hostname
	rm -f /tmp/berth-here
	echo "$output"
	[ "$status" = 76 ]
	has 'ssh exited with code 127.*/tmp/berth-here'
}

@test "berth run is killed: nothing is left on the hosts" {
	"$BERTH" run --hosts n1,n2 --ranks-per-node 1 -- sh -c 'echo "up $RANK"; exec sleep 77' >up 2>&1 3>&- &
	until_seen up 'up 0'
	until_seen up 'up 1'
	kill -KILL $!
	nothing_left n1 n2
}

@test "BERTH_LOG: the agents' lines come back through ssh, without the secret" {
	BERTH_LOG=debug expect 0 timeout 60 "$BERTH" run --hosts n1,n2 --ranks-per-node 1 -- true
	for node in n1 n2; do
		has "^berth: [^ ]*Z $node info agent: rank [01] runs as process "
		has "^berth: [^ ]*Z $node debug overlay: received START, "
	done
	hasnt '[0-9a-f]{64}'
}
