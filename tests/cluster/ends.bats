# SPDX-License-Identifier: BSD-3-Clause
# Jobs that the scheduler ends, under a real Slurm: time limit, requeues, preemption. Training ends with
# the same bits as an undisturbed run.

load support.bash

teardown() {
	cancel_jobs
	for node in n1 n2; do revive "$node"; done
}

setup() {
	cd "$SHARE"
	export BERTH_MODULE_PATH=${BERTH_MODULE_PATH-$BUILD/lib/modules} OMPI_ALLOW_RUN_AS_ROOT=1
	# One thread per rank: the simulated machine has more CPUs than this one.
	export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
	# Open MPI keeps memory in plug-ins that it has unloaded.
	allow_leaks
}

# train NAME EPOCHS: print the command line of a training with 200 steps per epoch
train() {
	echo "train convnet -n 2 --data synthetic:1x16x16,n=6400,classes=5 --batch 16 --epochs $2" \
		"--ckpt $1.ckpt --metrics $1.ckpt --log-every 20"
}

# whole EPOCHS [OPTIONS]
whole() {
	rm -rf whole.ckpt
	"$BERTH" $(train whole "$1") "${@:2}" --launcher fork >whole.log 2>&1 || { cat whole.log; return 1; }
}

# same NAME
same() { cmp "whole.ckpt/$(cat whole.ckpt/latest)" "$1.ckpt/$(cat "$1.ckpt/latest")"; }

# until_done NAME TURNS SECONDS [SBATCH OPTIONS]: a training without an end is stopped TURNS times after SECONDS
# (0: at Slurm's time limit); the last turn makes 200 more steps. This works on a machine of any speed.
until_done() {
	local name=$1 turns=$2 seconds=$3 steps
	shift 3
	rm -rf "$name".*
	submit "$name" --requeue --open-mode=append -N 1 -n 2 "$@" <<-S
	turn=\${SLURM_RESTART_COUNT:-0}
	[ $seconds = 0 ] || export BERTH_END_TIME=\$((\$(date +%s) + $seconds))
	[ \$turn -lt $turns ] || { steps=\$((10#\$(tr -cd 0-9 <$name.ckpt/latest) + 200)); echo \$steps >$name.steps; }
	"\$BERTH" $(train "$name" 10000) \${steps:+--steps \$steps} --log-every 1000 --requeue --report $name.report.\$turn
	code=\$?
	echo "turn \$turn: code \$code" >>$name.codes
	[ \$code != 0 ] || touch $name.done
	S
	free_until "$name.done" "$job" $((180 * turns))
	cat "$name.out"
	steps=$(cat "$name.steps")
	whole 10000 --steps "$steps"
	same "$name"
	for ((turn = 0; turn < turns; turn++)); do
		holds "$name.report.$turn" "r['code'] == 75 and r['kind'] == 'stopped' and r['attempt'] == $turn"
		holds "$name.report.$turn" "r['saved'].endswith('.safetensors') and 'trying to requeue the job with scontrol' in r['next']"
	done
	grep -q -- '--requeue: scontrol requeue will requeue the job' "$name.out"
	# Slurm ended the first script for the requeue, but its output is complete.
	grep -q 'next: trying to requeue the job with scontrol requeue (1 of at most 100 times)' "$name.out"
	tail -n 1 "$name.codes" | grep -q 'code 0$'
	echo "# $steps steps in $((turns + 1)) turns" >&3
}

@test "an end every 20 s: saved and requeued until the training is done" {
	until_done long 3 20
}

@test "a real time limit of one minute: the training stops in time and is not killed" {
	until_done minute 1 0 -t 1
	! grep -q 'DUE TO TIME LIMIT' minute.out || false
}

# A program that saves when warned, TIMES times; the turn after that has nothing left to do.
SAVES='n=$(cat "$NAME.saved" 2>/dev/null | wc -l); [ $n -lt ${TIMES:-1} ] || { echo "done after $n"; exit 0; }
save() { [ $RANK != 0 ] || echo $1 >>"$NAME.saved"; echo "{\"saved\": \"part $n\"}" >"$BERTH_REPORT"; exit 75; }
trap "save USR1" USR1; trap "save TERM" TERM; echo "up $n $RANK"
while [ ! -e "$BERTH_STOP_FILE" ]; do sleep 0.05; done; save "$(cat "$BERTH_STOP_FILE")"'

# saves NAME OPTIONS -- [SBATCH OPTIONS]: submit a job that runs it
saves() {
	export NAME=$1 SAVES
	local options=()
	rm -f "$NAME".*
	shift
	while [ "$1" != -- ]; do options+=("$1"); shift; done
	shift
	submit "$NAME" --requeue --open-mode=append "$@" <<-S
	"\$BERTH" run ${options[*]} --requeue --report $NAME.report.\${SLURM_RESTART_COUNT:-0} -- sh -c "\$SAVES"
	code=\$?
	echo "\$code" >>$NAME.codes
	[ \$code != 0 ] || touch $NAME.done
	S
}

@test "the time limit is near: a program saves and is requeued until it is done" {
	TIMES=2 saves near -n 2 --end-time +5s --warn-before 3s -- -N 1 -n 2
	free_until near.done "$job"
	cat near.out
	[ "$(cat near.saved)" = "$(printf 'warning\nwarning')" ]
	grep -qx 'done after 2' near.out
	for turn in 0 1; do
		holds near.report.$turn "r['code'] == 75 and r['kind'] == 'stopped' and r['saved'] == 'part $turn'"
		holds near.report.$turn "'trying to requeue the job with scontrol requeue ($((turn + 1)) of' in r['next']"
	done
	[ "$(tail -n 1 near.codes)" = 0 ]
}

@test "preempted on its only node: warned in time, requeued, and continued" {
	saves low -n 2 -- -p low -w n2 --exclusive -n 2
	until_seen low.out 'up 0 1'
	low=$job
	submit urgent -p urgent -w n2 --exclusive <<-S
	squeue -h -t all -j $low -o %T >urgent.saw
	S
	finish urgent
	free_until low.done "$low"
	cat low.out urgent.saw
	[ "$(cat low.saved)" = TERM ] || [ "$(cat low.saved)" = SIGTERM ]
	holds low.report.0 'r["code"] == 75 and r["kind"] == "preempted" and r["saved"] == "part 0"'
	grep -q '^berth: note: reason: Slurm preempted the job' low.out
	grep -qx 'done after 1' low.out
}

@test "SIGUSR1 through scancel --signal, as #SBATCH --signal sends it: saved and requeued" {
	saves usr1 -n 2 -- -N 1 -n 2
	until_seen usr1.out 'up 0 1'
	scancel --signal=USR1 "$job"
	free_until usr1.done "$job"
	cat usr1.out
	[ "$(cat usr1.saved)" = USR1 ]
	holds usr1.report.0 'r["code"] == 75 and r["kind"] == "stopped" and "trying to requeue the job" in r["next"]'
	grep -qx 'done after 1' usr1.out
}

@test "preempted with --signal on two nodes: preemption sends the user's signal" {
	saves two --ranks-per-node 1 -- -p low -N 2 -w n1,n2 --exclusive --signal=USR1@60
	until_seen two.out 'up 0 1'
	low=$job
	submit urgent -p urgent -w n2 --exclusive <<-S
	sleep 1
	S
	finish urgent
	free_until two.done "$low"
	cat two.out
	[ "$(cat two.saved)" = USR1 ]
	holds two.report.0 'r["code"] == 75 and "trying to requeue the job" in r["next"]'
	grep -qx 'done after 1' two.out
}

@test "a node is lost: exit code 76, requeued, and continued once the node is back" {
	export NAME=gone
	rm -f gone.*
	submit gone -N 2 -w n1,n2 --no-kill --requeue --open-mode=append <<-'S'
	"$BERTH" run --ranks-per-node 1 --node-timeout 6s --requeue --report gone.report.${SLURM_RESTART_COUNT:-0} -- \
		sh -c 'echo "up $SLURM_RESTART_COUNT $RANK"; [ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0; sleep 60'
	[ $? != 0 ] || touch gone.done
	S
	until_seen gone.out 'up  1'
	lose n2
	within 60 test -e gone.report.0
	revive n2
	free_until gone.done "$job"
	cat gone.out
	holds gone.report.0 'r["code"] == 76 and r["kind"] == "node" and r["node"] == "n2" and "trying to requeue the job" in r["next"]'
	grep -q 'up 1 1' gone.out
}

@test "a preempted training ends with the same bits as one that was not" {
	rm -rf low.*
	# Without an end until it is preempted; then 200 more steps.
	submit low -p low --requeue --open-mode=append -w n2 --exclusive -n 2 <<-S
	turn=\${SLURM_RESTART_COUNT:-0}
	[ \$turn = 0 ] || { steps=\$((10#\$(tr -cd 0-9 <low.ckpt/latest) + 200)); echo \$steps >low.steps; }
	"\$BERTH" $(train low 10000) \${steps:+--steps \$steps} --log-every 1000 --requeue --report low.report.\$turn
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
	holds low.report.0 'r["code"] == 75 and r["kind"] == "preempted" and r["saved"]'
	grep -q 'resuming from' low.out
	whole 10000 --steps "$(cat low.steps)"
	same low
}

@test "one task of an array is requeued, the others are not" {
	rm -f array.*
	submit array -N 1 -n 1 --array=1-2 --requeue --open-mode=append <<-S
	trap - EXIT
	turn=\${SLURM_RESTART_COUNT:-0}; task=\$SLURM_ARRAY_TASK_ID
	"\$BERTH" run -n 1 --requeue -- sh -c "exit \$([ \$turn = 0 ] && [ \$task = 2 ] && echo 75 || echo 0)"
	echo "task \$task turn \$turn code \$?" >>array.turns
	[ \$task\$turn != 21 ] || touch array.done
	S
	free_until array.done "${job}_2"
	cat array.out array.turns
	grep -qx 'task 1 turn 0 code 0' array.turns
	grep -qx 'task 2 turn 1 code 0' array.turns
	! grep -q 'task 1 turn 1' array.turns || false
}

@test "two runs in a job: the one that stops first does not end the other; the last one requeues the job" {
	submit pair -N 1 -n 2 --requeue --open-mode=append <<-'S'
	"$BERTH" run -n 1 --requeue -- sh -c ': >pair.up; until [ -e pair.stopped ]; do sleep 0.1; done; : >pair.whole' &
	until [ -e pair.up ]; do sleep 0.1; done
	"$BERTH" run -n 1 --requeue -- sh -c 'exit 75'
	: >pair.stopped
	wait
	S
	restarted() { scontrol -o show job "$job" | grep -q 'Restarts=1 '; }
	within 60 restarted || { cat "$SHARE/pair.out"; return 1; }
	scancel "$job"
	cat "$SHARE/pair.out"
	[ -e "$SHARE/pair.whole" ]
	grep -q "next: the job's last run with --requeue to end will requeue it" "$SHARE/pair.out"
	[ "$(grep -c 'trying to requeue the job with scontrol requeue (1 of' "$SHARE/pair.out")" = 1 ]
}

@test "two runs in a job: one announces a requeue, and the last one is killed" {
	submit killed -N 1 -n 2 --requeue --open-mode=append <<-'S'
	[ -z "$SLURM_RESTART_COUNT" ] || exec sleep 60
	"$BERTH" run -n 1 --requeue -- sh -c ': >killed.up; exec sleep 1000' &
	until [ -e killed.up ]; do sleep 0.1; done
	"$BERTH" run -n 1 --requeue -- sh -c 'exit 75'
	kill -KILL $!
	sleep 60 # Slurm kills what is left of the script once it ends
	S
	restarted() { scontrol -o show job "$job" | grep -q 'Restarts=1 '; }
	within 60 restarted || { cat "$SHARE/killed.out"; return 1; }
	scancel "$job"
	cat "$SHARE/killed.out"
	grep -q "next: the job's last run with --requeue to end will requeue it" "$SHARE/killed.out"
}

@test "runs that wait: none starts near the time limit, and the job is requeued once" {
	rm -f "$SHARE/queue.started"
	submit queue -N 1 --gpus-per-node=4 --requeue --open-mode=append <<-'S'
	[ -z "$SLURM_RESTART_COUNT" ] || exec sleep 70
	end=$(($(date +%s) + 60)) # one for all, as the job's own
	for i in 1 2 3; do
		"$BERTH" run --wait -n 4 --requeue --end-time "$end" --warn-before 45s -- sh -c '[ $RANK != 0 ] || echo "$RANK" >>queue.started
			until [ -e "$BERTH_STOP_FILE" ]; do sleep 0.1; done; exit 75' &
	done
	wait
	S
	restarted() { scontrol -o show job "$job" | grep -q 'Restarts=1 '; }
	within 60 restarted || { cat "$SHARE/queue.out"; return 1; }
	scancel "$job"
	cat "$SHARE/queue.out"
	[ "$(wc -l <"$SHARE/queue.started")" = 1 ]
	[ "$(grep -c "not started: the job's time limit is reached in .* (--warn-before)" "$SHARE/queue.out")" = 2 ]
	[ "$(grep -c 'trying to requeue the job with scontrol requeue (1 of' "$SHARE/queue.out")" = 1 ]
}

@test "a failed program is not requeued; a job that cannot be requeued is reported at the start" {
	batch failed -N 1 -n 1 --requeue <<-S
	"\$BERTH" run -n 1 --requeue -- sh -c 'exit 3'
	S
	[ "$status" = 3 ]
	hasnt 'trying to requeue the job with scontrol requeue \(1'
	batch never -N 1 -n 1 --no-requeue <<-S
	"\$BERTH" run -n 1 --requeue -- sh -c 'exit 75'
	S
	[ "$status" = 75 ]
	has 'warning: --requeue: cannot requeue the job: requeueing is disabled for this job'
	has 'next: cannot requeue, so submit the job again'
	batch short -N 1 -n 1 --requeue <<-S
	"\$BERTH" run -n 1 --requeue --min-time 3h -- true
	S
	[ "$status" = 75 ]
	has 'not started: the job.s time limit is reached in .* needs 10800 s'
	hasnt 'trying to requeue the job'
	batch often -N 1 -n 1 --requeue <<-S
	SLURM_RESTART_COUNT=5 "\$BERTH" run -n 1 --requeue --max-requeues 5 -- sh -c 'exit 75'
	S
	[ "$status" = 75 ]
	has 'reached the limit of --max-requeues'
}

# block PAGE FIRST: the indented block of a page that begins with this line
block() { awk -v first="    $2" '$0 == first { on = 1 } on && /^[^ ]/ { exit } on { sub(/^    /, ""); print }' "$SOURCE/docs/guides/$1"; }

@test "the example in long-jobs.md: resumed as the same job, and the output of both parts is kept" {
	/usr/bin/python3 -c 'import torch.distributed' 2>/dev/null || skip 'no PyTorch (Debian: python3-torch)'
	rm -rf example && mkdir -p example/bin && cd example
	block long-jobs.md '#!/bin/sh' | sed 's/berth run/& -n 2/' >job.sh
	cp "$SOURCE/examples/ddp_resume.py" .
	# A machine of any speed: the number of epochs is chosen once the first part has stopped.
	echo 1000000 >epochs
	printf '#!/bin/sh\nexec /usr/bin/python3 "$1" "$(cat epochs)"\n' >bin/python
	chmod +x bin/python
	export PATH="$PWD/bin:$(dirname "$BERTH"):$PATH" PYTHONPATH=$SOURCE/lib/python/src
	export USE_LIBUV=0 # Debian 13's PyTorch has no libuv
	job=$(sbatch --parsable -w n1 --time=5 --gpus-per-node=2 --cpus-per-gpu=1 job.sh)
	within 60 grep -q 'rank 0 begins epoch 1 ' "slurm-$job.out" || { cat "slurm-$job.out"; return 1; }
	scancel --signal=USR1 "$job"
	within 60 eval '[ "$(squeue -h -j "$job" -o %T)" = PENDING ]'
	last=$(sed -n 's/^rank 0 begins epoch \([0-9]*\) .*/\1/p' "slurm-$job.out" | tail -n 1)
	echo $((last + 2)) >epochs
	within 120 eval '! squeue -h -j "$job" | grep -q . || start_requeued "$job"'
	cat "slurm-$job.out"
	scontrol -o show job "$job" | tee state
	grep -q 'JobState=COMPLETED .*Restarts=1 ' state
	# Both parts are there; the second one continues in the epoch in which the first one stopped.
	grep -qx "rank 0 begins epoch 0 after step 0" "slurm-$job.out"
	grep -q '^berth: note: saved: ckpt.pt$' "slurm-$job.out"
	grep -q '^berth: note: next: ' "slurm-$job.out"
	[ "$(grep -c "^rank [01] begins epoch $last after step [1-9]" "slurm-$job.out")" = 4 ]
	grep -q "^rank 1 begins epoch $((last + 1)) " "slurm-$job.out"
	! grep -q 'Slurm will truncate' "slurm-$job.out" || false
}

@test "a requeue that would truncate the output: warned of at the start, by Slurm's own rules" {
	export SHARE
	cat >mode.sh <<-'S'
	#!/bin/sh
	"$BERTH" run --requeue -n 1 -- sh -c "until grep -q -e --requeue: $SHARE/mode.out; do sleep 0.1; done; sleep 1"
	S
	while read -r warnings options; do
		rm -f mode.out
		# shellcheck disable=SC2086 # none or several
		sbatch --wait -o mode.out $options mode.sh || { cat mode.out; return 1; }
		cat mode.out
		[ "$(grep -c "^berth: warning: --requeue: Slurm will truncate $SHARE/mode.out when" mode.out)" = "$warnings" ]
	done <<-'ROWS'
	1
	1 --open-mode=truncate
	0 --open-mode=append
	0 --open-mode=append --export=BERTH,SHARE
	ROWS
}
