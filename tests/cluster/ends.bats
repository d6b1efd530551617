# SPDX-License-Identifier: BSD-3-Clause
# Ends by the scheduler, under a real Slurm: the job's time, requeues, preemption. What was trained ends
# with the bits of a run that nothing disturbed.

load support.bash

setup() {
	cd "$SHARE"
	export BERTH_MODULE_PATH=${BERTH_MODULE_PATH-$BUILD/lib/modules} OMPI_ALLOW_RUN_AS_ROOT=1
	# One thread a rank: the pretended machine has more CPUs than this one.
	export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
	# Open MPI keeps memory in plug-ins that it has unloaded.
	export ASAN_OPTIONS="${ASAN_OPTIONS-}:detect_leaks=0"
}

# train NAME EPOCHS: the command line of a training of 200 steps an epoch
train() { echo "train convnet -n 2 --data synthetic:1x16x16,n=6400,classes=5 --batch 16 --epochs $2 --ckpt $1.ckpt --metrics $1.ckpt --log-every 20"; }

# whole EPOCHS
whole() {
	rm -rf whole.ckpt
	"$BERTH" $(train whole "$1") --engine fork >whole.log 2>&1 || { cat whole.log; return 1; }
}

# same NAME
same() { cmp "whole.ckpt/$(cat whole.ckpt/latest)" "$1.ckpt/$(cat "$1.ckpt/latest")"; }

# free_until FILE JOB: a requeued job is held for two minutes, which is Slurm's matter and not waited for;
# but for the second in which its old credentials are revoked, which would be the new ones', too.
free_until() {
	local i
	for ((i = 0; i < 900; i++)); do
		[ ! -e "$1" ] || return 0
		if [ "$(squeue -h -j "$2" -o %T 2>/dev/null)" = PENDING ]; then
			sleep 3
			scontrol update JobId="$2" StartTime=now 2>/dev/null || true
		fi
		sleep 0.2
	done
	echo "no $1 after 180 s"; squeue; cat "$SHARE"/*.out; return 1
}

# report FILE EXPRESSION
report() { python3 -c 'import json, sys
r = json.load(open(sys.argv[1]))
assert eval(sys.argv[2]), r' "$1" "$2"; }

# until_done NAME EPOCHS SECONDS [SBATCH OPTIONS]: each turn but the third and later has that many seconds
until_done() {
	local name=$1 epochs=$2 seconds=$3
	shift 3
	whole "$epochs"
	rm -rf "$name".*
	submit "$name" --requeue --open-mode=append -N 1 -n 2 "$@" <<-S
	turn=\${SLURM_RESTART_COUNT:-0}
	[ $seconds = 0 ] || [ \$turn -ge 2 ] || export BERTH_END_TIME=\$((\$(date +%s) + $seconds))
	"\$BERTH" $(train "$name" "$epochs") --requeue --report $name.report.\$turn
	code=\$?
	echo "turn \$turn: code \$code" >>$name.codes
	[ \$code != 0 ] || touch $name.done
	S
	free_until "$name.done" "$job"
	cat "$name.out"
	same "$name"
	report "$name.report.0" 'r["code"] == 75 and r["kind"] == "stopped" and "queued again by scontrol" in r["next"]'
	report "$name.report.0" 'r["saved"].endswith(".safetensors") and r["attempt"] == 0'
	report "$name.report.1" 'r["attempt"] == 1'
	grep -q -- '--requeue: the job is queued again by scontrol requeue' "$name.out"
	# Slurm ended the first script for the requeue: what it wrote before is whole.
	grep -q 'next: the job is queued again by scontrol requeue (1 of at most 100 times)' "$name.out"
	tail -n 1 "$name.codes" | grep -q 'code 0$'
}

@test "its time is near: saved, and queued again until all is done" {
	until_done short 12 5
}

@test "20 s, again and again: saved, and queued again until all is done" {
	until_done long 60 20
}

@test "a real limit of one minute: it stops in time, and none is killed" {
	until_done minute 150 0 -t 1
	! grep -q 'DUE TO TIME LIMIT' minute.out || false
}

@test "preempted by a job of higher priority: saved, queued again, goes on" {
	whole 40
	rm -rf low.*
	submit low -p low --requeue --open-mode=append -w n2 --exclusive -n 2 <<-S
	"\$BERTH" $(train low 40) --requeue --report low.report.\${SLURM_RESTART_COUNT:-0}
	[ \$? != 0 ] || touch low.done
	S
	low=$job
	until_seen low.ckpt/metrics.jsonl train
	submit urgent -p urgent -w n2 --exclusive <<-S
	sleep 1
	S
	finish urgent
	free_until low.done "$low"
	cat low.out
	report low.report.0 'r["code"] == 75 and r["kind"] == "preempted" and r["saved"]'
	grep -q '^berth: why: Slurm preempted the job' low.out
	grep -q 'resuming from' low.out
	same low
}

@test "a task of an array is queued again, and the others are not" {
	rm -f array.*
	submit array -N 1 -n 1 --array=1-2 --requeue --open-mode=append <<-S
	trap - EXIT
	turn=\${SLURM_RESTART_COUNT:-0}; task=\$SLURM_ARRAY_TASK_ID
	"\$BERTH" run -n 1 --requeue -- sh -c "exit \$([ \$turn = 0 ] && [ \$task = 2 ] && echo 75 || echo 0)"
	echo "task \$task turn \$turn code \$?" >>array.turns
	[ \$task = 1 ] || touch array.done
	S
	free_until array.done "${job}_2"
	cat array.out array.turns
	grep -qx 'task 1 turn 0 code 0' array.turns
	grep -qx 'task 2 turn 1 code 0' array.turns
	! grep -q 'task 1 turn 1' array.turns || false
}

@test "the program failed: not queued again; may not be queued again: said at the start" {
	batch failed -N 1 -n 1 --requeue <<-S
	"\$BERTH" run -n 1 --requeue -- sh -c 'exit 3'
	S
	[ "$status" = 3 ]
	hasnt 'queued again by scontrol requeue \(1'
	batch never -N 1 -n 1 --no-requeue <<-S
	"\$BERTH" run -n 1 --requeue -- sh -c 'exit 75'
	S
	[ "$status" = 75 ]
	has 'warning: --requeue: the job cannot be queued again: the job may not be requeued'
	has 'next: submit it again by hand'
	batch often -N 1 -n 1 --requeue <<-S
	SLURM_RESTART_COUNT=5 "\$BERTH" run -n 1 --requeue --max-requeues 5 -- sh -c 'exit 75'
	S
	[ "$status" = 75 ]
	has 'as often as --max-requeues lets'
}
