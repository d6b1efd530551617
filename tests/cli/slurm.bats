# SPDX-License-Identifier: BSD-3-Clause
# Slurm's tools when they misbehave. The tests use stand-ins, so no Slurm is needed; tests/cluster uses the real tools.

load ../support/berth

setup() {
	make_dir
	export PATH="$DIR/bin:$PATH"
	export SLURM_JOB_ID=77 SLURM_JOB_NODELIST='n[1-2]' SLURM_JOB_NUM_NODES=2 SLURM_TASKS_PER_NODE='2(x2)'
	export SLURM_GPUS_PER_NODE=0 SLURM_JOB_END_TIME=4102444800
}

teardown() {
	[ ! -s pid ] || kill -9 "$(cat pid)" 2>/dev/null || true
	remove_dir
}

# Within 5 s the process is dead, or a zombie.
is_gone() { within 5 is_dead "$1"; }
is_dead() { ! grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status"; }

@test "run: warn when granted GPUs are invisible, since the job would run without them" {
	export SLURM_JOB_NODELIST=$(hostname) SLURM_JOB_NUM_NODES=1 SLURM_TASKS_PER_NODE=2 SLURM_GPUS_ON_NODE=4
	export SLURM_NODEID=0 SLURMD_NODENAME=$(hostname) SLURM_NNODES=1 SLURM_JOB_CPUS_PER_NODE=2
	unset SLURM_GPUS_PER_NODE
	export BERTH_TOPOLOGY=$FIXTURES/topo/no-gpu.xml
	expect 0 "$BERTH" run --launcher fork --dry-run -n 2 -- true
	[[ "$output" == *"4 GPUs granted on $(hostname), but none is visible there"* ]]
	SLURM_GPUS_ON_NODE=0 expect 0 "$BERTH" run --launcher fork --dry-run -n 2 -- true
	[[ "$output" != *"none is visible there"* ]]
}

@test "srun hangs: the error shows its output without control characters, and its child processes end with it" {
	fake srun <<-'S'
	printf 'srun: Requested nodes are busy, \033[2Jretrying\a\n' >&2
	sleep 75 &
	echo $! >pid.new
	mv pid.new "$HERE/pid"
	wait
	S
	# berth passes --chdir to srun for its tasks; the stand-in stays in the directory where it was started.
	HERE=$DIR expect 76 "$BERTH" run --start-timeout 4s -- true
	[[ "${lines[-1]}" == "berth: error: no agent or no inventory from n1, n2 within 4 s; srun: Requested nodes are busy,  [2Jretrying"* ]]
	[[ "$output" != *$'\033'* && "$output" != *$'\a'* ]]
	is_gone "$(cat pid)"
}

@test "srun hangs and ignores SIGTERM, and so does its child process" {
	fake srun <<-'S'
	trap '' TERM INT HUP
	sleep 75 &
	echo $! >pid.new
	mv pid.new "$HERE/pid"
	wait
	S
	HERE=$DIR expect 76 "$BERTH" run --start-timeout 4s -- true
	is_gone "$(cat pid)"
}

@test "--hosts inside a Slurm job uses ssh: berth warns, and names hosts that are not in the job" {
	fake ssh <<<'echo no way >&2; exit 255'
	expect 76 "$BERTH" run --hosts n2,far1,far2 -- true
	local warning='warning: --hosts in the Slurm job 77: berth reaches these hosts through ssh, .*; '
	warning+='not among its nodes: far1 and 1 more; omit --hosts'
	[ "$(grep -c "$warning" <<<"$output")" = 1 ]
	printf 'n2\n' >hosts
	expect 0 "$BERTH" run --dry-run --hostfile hosts -- true
	warning="--hostfile in the Slurm job 77: berth reaches these hosts through ssh, "
	warning+="so the job's limits, GPUs and end time do not apply to the ranks; omit"
	[[ "$output" == *"$warning"* ]]
	# No warning with --launcher ssh, with --quiet, or outside a job.
	for options in '--launcher ssh' --quiet; do
		run "$BERTH" run --dry-run --hosts n2 $options -- true
		[[ "$output" != *"reaches these hosts through ssh"* ]]
	done
	expect 0 env -u SLURM_JOB_ID "$BERTH" run --dry-run --hosts n2 -- true
	[[ "$output" != *"reaches these hosts through ssh"* ]]
}

@test "srun prints a lot of output and exits with code 0 without starting an agent" {
	fake srun <<-'S'
	head -c 3000000 /dev/zero | tr '\0' x
	printf '\nthe last line\n'
	S
	run "$BERTH" run -- true
	echo "${lines[-1]}"
	[ "$status" = 76 ]
	local error="berth: error: no agent on n1: srun exited with code 0 before all agents connected; its last output: the last line; "
	error+="its environment sets SLURM_JOB_ID '77', SLURM_JOB_NODELIST 'n[1-2]', SLURM_GPUS_PER_NODE '0'"
	[[ "${lines[-1]}" == "$error" ]]
}

@test "srun cannot start the agent of one node and ends the others: that node is named and left out" {
	# The lines of Slurm 22.05 when a slurmd is dead; those of its second task come from the other nodes.
	fake srun <<-'S'
	case $* in *--nodes=1*) lone=yes ;; esac
	while [ "$1" != sh ]; do shift; done
	SLURMD_NODENAME=n1 "$@" & agent=$!
	[ -n "${lone-}" ] && { wait; exit; }
	until grep -q 'the agent of node 0 (n1) connected' err; do sleep 0.05; done
	printf 'srun: error: %s\n' 'Task launch for StepId=77.0 failed on node n2: Communication connection failure' \
		'Application launch failed: Communication connection failure' >&2
	echo 'srun: Job step aborted: Waiting up to 32 seconds for job step to finish.' >&2
	echo 'slurmstepd-n1: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-11-30T09:15:20 ***' >&2
	kill -KILL -- $(pgrep -P $agent) $agent
	exit 143
	S
	BERTH_LOG=controller "$BERTH" run --iface lo --max-restarts 1 --min-nodes 1 --report r.json -- sh -c 'echo "up $RANK of $WORLD_SIZE"' 2>err
	grep -q 'berth: warning: no agent on n2: srun could not start it: Communication connection failure$' err
	grep -q 'berth: warning: n2 is excluded (lost): the job continues on 1 node$' err
	! grep -E 'scancel|n1 is excluded|n1 was lost, but' err || false
	holds r.json "[e['node'] for e in r['left_out']] == ['n2'] and r['code'] == 0"
	# No agent has connected: srun's words about the node are no reason to try again.
	export SLURM_JOB_NODELIST=n2 SLURM_JOB_NUM_NODES=1 SLURM_TASKS_PER_NODE=2
	fake srun <<-'S'
	echo 'srun: error: Task launch for StepId=77.0 failed on node n2: Socket timed out on send/recv operation' >&2
	exit 1
	S
	expect 76 "$BERTH" run --report r.json -- true
	[[ "${lines[-1]}" == 'berth: error: no agent on n2: srun could not start it: Socket timed out on send/recv operation' ]]
	holds r.json "r['kind'] == 'node' and r['node'] == 'n2'" # --requeue requeues the job
}

@test "one of two agents never comes: its node is lost, so that --requeue requeues the job; if none comes, no node is to blame" {
	fake srun <<-'S'
	while [ "$1" != sh ]; do shift; done
	[ ! -e none ] || exec sleep 60
	SLURMD_NODENAME=n1 "$@" & wait
	S
	expect 76 "$BERTH" run --iface lo --start-timeout 2s --report r.json -- true
	[[ "${lines[-1]}" == 'berth: error: no agent or no inventory from n2 within 2 s' ]]
	holds r.json "r['kind'] == 'node' and r['node'] == 'n2'"
	touch none
	expect 76 "$BERTH" run --iface lo --start-timeout 2s --report r.json -- true
	holds r.json "r['kind'] == 'berth' and r['node'] is None"
}

@test "GPUs without enough cores: a warning with the line that requests the node's share" {
	export SLURM_JOB_ID=7 SLURM_JOB_NODELIST=$(hostname) SLURM_JOB_NUM_NODES=1 SLURM_TASKS_PER_NODE=1 SLURM_NNODES=1
	# The job may use 5 of the node's 8 cores; the node has 3 GPUs.
	export BERTH_TOPOLOGY=$FIXTURES/topo/cpus-restricted.xml
	expect 0 "$BERTH" run --dry-run --launcher fork -- true
	local slow=" for 3 processes with GPUs, although the node has 8: data loaders will be slow. "
	slow+="Request more cores with #SBATCH --cpus-per-gpu=2"
	[[ "$(echo $output)" == *"the job has 5 cores on "*"$slow"* ]]
	expect 0 "$BERTH" run --dry-run --launcher fork -n 2 -- true
	[[ "$output" != *"data loaders"* ]]
}
