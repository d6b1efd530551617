# SPDX-License-Identifier: BSD-3-Clause
# berth run --ray on several nodes of a real Slurm, and of the PBS stand-in. RAY names the bin directory of a virtual
# environment with Ray; without it a stand-in for Ray runs (fixtures/ray).

load support.bash

setup_file() {
	# The driver: Ray's own list of nodes, then what the test asks for.
	cat >"$SHARE/driver.sh" <<-'S'
	ray status | grep ' node_'
	echo "driving at $RAY_ADDRESS, vLLM at $VLLM_HOST_IP"
	eval "$1"
	S
}

setup() {
	export PATH=${RAY-$FIXTURES/ray}:$PATH
	[ -n "${RAY-}" ] || export PYTHONPATH=$FIXTURES/ray
}

teardown() {
	cancel_jobs
	for node in n1 n2 n3; do revive "$node"; done
}

no_ray() {
	local node
	for node in "$@"; do
		within 30 eval "! on $node pgrep -f 'raylet|gcs_server|ray start|ray::|sleep 777'" || return 1
	done
	nothing_left "$@"
}

# drives NAME NODES ACTION: submit a driver, and wait until it runs.
drives() {
	submit "$1" -N"$2" --no-kill <<-S
	"\$BERTH" run --report $1.json --ray -- sh driver.sh '$3' 2>&1
	S
	until_seen "$SHARE/$1.out" '^driving at '
}

@test "Slurm: Ray on all nodes, on the fast network; the driver's code is the job's" {
	drives all 3 'exit 7'
	finish all
	[ "$status" = 7 ]
	[ "$(grep -c ' node_' "$SHARE/all.out")" -eq 3 ]
	has '^driving at 10.9.0.11:[0-9]*, vLLM at 10.9.0.11$'
	[ -n "${RAY-}" ] || has '1 node_10.9.0.13'
	no_ray n1 n2 n3
}

@test "Slurm: two jobs on the same nodes at once" {
	local job
	for job in a b; do
		submit $job -N2 -w n1,n2 <<-S
		"\$BERTH" run --ray -- sh driver.sh 'touch up.$job; until [ -e up.a -a -e up.b ]; do sleep 0.1; done' 2>&1
		S
	done
	for job in a b; do
		finish $job
		[ "$status" = 0 ]
		[ "$(grep -c ' node_' "$SHARE/$job.out")" -eq 2 ]
	done
	[ "$(grep -h '^driving' "$SHARE"/[ab].out | sort -u | wc -l)" -eq 2 ]
	no_ray n1 n2
}

@test "Slurm: Ray on another node is killed: named, and everything ends" {
	drives worker 2 'sleep 1000'
	on n2 pkill -KILL -f 'ray start'
	finish worker
	[ "$status" = 137 ]
	has 'role ray: rank 1 on n2 exited with code 137'
	no_ray n1 n2
}

@test "Slurm: a node is lost: named within the node timeout" {
	drives cut 3 'sleep 1000'
	lose n3
	finish cut
	[ "$status" = 76 ]
	has 'role ray: node n3 was lost: no heartbeat from its agent for 8 s'
	no_ray n1 n2
}

@test "Slurm: berth is killed: nothing is left" {
	drives killed 2 'sleep 1000'
	on n1 pkill -KILL -f '^[^ ]*berth run --report'
	no_ray n1 n2
}

@test "Slurm: another version of Ray on one node: one line, and code 64" {
	[ -z "${RAY-}" ] || skip 'needs the stand-in'
	sed 's/2.60.0/2.59.1/' "$FIXTURES/ray/ray-2.60.0.dist-info/METADATA" >"$SHARE/metadata"
	hide n2 "$SHARE/metadata" "$FIXTURES/ray/ray-2.60.0.dist-info/METADATA"
	submit version -N2 <<-'S'
	"$BERTH" run --ray -- touch started 2>&1
	S
	finish version
	on n2 umount "$FIXTURES/ray/ray-2.60.0.dist-info/METADATA"
	rm "$SHARE/hidden"
	[ "$status" = 64 ]
	has '^\[ray 1\] Ray is 2.59.1 with Python .* on n2, and 2.60.0 with Python .* where berth run was started'
	[ ! -e "$SHARE/started" ]
}

@test "PBS: the same line" {
	python3 "$HERE/pbs.py" begin n1 n2 3>&-
	pbs_job ray 2:mpiprocs=1 <<-S
	export PATH=${RAY-$FIXTURES/ray}:\$PATH PYTHONPATH=${PYTHONPATH-}
	"\$BERTH" run --dry-run --launcher tm --ray -- sh driver.sh >dry
	"\$BERTH" run --dry-run -v --launcher tm --ray -- sh driver.sh >all
	env -u BERTH_TOPOLOGY "\$BERTH" run --ray -- sh driver.sh 'exit 3' 2>&1
	S
	grep -q 'BERTH_AGENT_JOB=' "$SHARE/all"
	! grep -q 'BERTH_ROLE_SECRET=\|BERTH_RAY=' "$SHARE/all" || false # all users can read a command line
	[ "$(wc -l <"$SHARE/dry")" -le 30 ]
	[ "$status" = 3 ]
	[ "$(grep -c ' node_' "$SHARE/ray.out")" -eq 2 ]
	has '^driving at 10.9.0.11:'
}
