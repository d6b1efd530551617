# SPDX-License-Identifier: BSD-3-Clause
# Slurm's tools where they do not do what they should, by stand-ins for them: no Slurm is needed.
# (tests/cluster has the true ones.)

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

# Dead, or a zombie that nobody has waited for: within 5 s.
is_gone() { within 5 is_dead "$1"; }
is_dead() { ! grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status"; }

@test "GPUs that are granted and not seen are told, where all would go on without" {
	export SLURM_JOB_NODELIST=$(hostname) SLURM_JOB_NUM_NODES=1 SLURM_TASKS_PER_NODE=2 SLURM_GPUS_ON_NODE=4
	export SLURM_NODEID=0 SLURMD_NODENAME=$(hostname) SLURM_NNODES=1 SLURM_JOB_CPUS_PER_NODE=2
	unset SLURM_GPUS_PER_NODE
	export BERTH_TOPOLOGY=$FIXTURES/topo/no-gpu.xml
	expect 0 "$BERTH" run --launcher fork --dry-run -n 2 -- true
	[[ "$output" == *"4 GPUs are granted on $(hostname), and none is seen there"* ]]
	SLURM_GPUS_ON_NODE=0 expect 0 "$BERTH" run --launcher fork --dry-run -n 2 -- true
	[[ "$output" != *"none is seen there"* ]]
}

@test "an srun that hangs: what it said, without what moves the cursor; its own children end with it" {
	fake srun <<-'S'
	printf 'srun: Requested nodes are busy, \033[2Jretrying\a\n' >&2
	sleep 75 &
	echo $! >pid.new
	mv pid.new "$HERE/pid"
	wait
	S
	# (srun is given --chdir for its tasks; the stand-in stays where it was started.)
	HERE=$DIR expect 76 "$BERTH" run --start-timeout 4s -- true
	[[ "${lines[-1]}" == "berth: error: no agent or no inventory from n1, n2 within 4 s; srun: Requested nodes are busy,  [2Jretrying"* ]]
	[[ "$output" != *$'\033'* && "$output" != *$'\a'* ]]
	is_gone "$(cat pid)"
}

@test "an srun that hangs and does not listen to SIGTERM, nor does what it started" {
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

@test "--hosts inside a job goes by ssh, past Slurm: that is said, and which hosts are not the job's" {
	fake ssh <<<'echo no way >&2; exit 255'
	expect 76 "$BERTH" run --hosts n2,far1,far2 -- true
	[ "$(grep -c 'warning: --hosts in the Slurm job 77: berth reaches these hosts through ssh, .*; not among its nodes: far1 and 1 more; omit --hosts' <<<"$output")" = 1 ]
	printf 'n2\n' >hosts
	expect 0 "$BERTH" run --dry-run --hostfile hosts -- true
	[[ "$output" == *"--hostfile in the Slurm job 77: berth reaches these hosts through ssh, so the job's limits, GPUs and end time do not apply to the ranks; omit"* ]]
	# Who asks for ssh, is no job's, or wants silence is not told.
	for options in '--launcher ssh' --quiet; do
		run "$BERTH" run --dry-run --hosts n2 $options -- true
		[[ "$output" != *"reaches these hosts through ssh"* ]]
	done
	expect 0 env -u SLURM_JOB_ID "$BERTH" run --dry-run --hosts n2 -- true
	[[ "$output" != *"reaches these hosts through ssh"* ]]
}

@test "an srun that says a lot and ends well without an agent" {
	fake srun <<-'S'
	head -c 3000000 /dev/zero | tr '\0' x
	printf '\nthe last line\n'
	S
	run "$BERTH" run -- true
	echo "${lines[-1]}"
	[ "$status" = 76 ]
	[[ "${lines[-1]}" == "berth: error: no agent on n1: srun exited with code 0 before all agents connected; its last output: the last line; its environment sets SLURM_JOB_ID '77', SLURM_JOB_NODELIST 'n[1-2]', SLURM_GPUS_PER_NODE '0'" ]]
}
