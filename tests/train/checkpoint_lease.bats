# SPDX-License-Identifier: BSD-3-Clause
# The lease of a checkpoint directory, and copies on several nodes.

load checkpoints.bash

is_released() { [[ "$(cat "$(lease "$1")")" == '{"held": 0,'* ]]; }

# claim DIRECTORY SCHEDULER JOB [BOOT]: write the next lease as that run would
claim() {
	local number=0 last
	mkdir -p "$1"
	last=$(lease "$1")
	[ ! -e "$last" ] || number=${last##*-}
	: >"$1/.claim"
	{
		printf '{"held": 1, "format":"berth.lease/1","scheduler":"%s","job":"%s","attempt":0,"host":"far",' "$2" "$3"
		printf '"boot":"%s","pid":7,"device":%s,"token":"feed"}' "${4-other}" "$(stat -c %d "$1/.claim")"
	} >>"$1/.claim"
	mv "$1/.claim" "$1/.lease-$(printf %06d $((10#$number + 1)))" # no run reads half a lease
}

# renew DIRECTORY: renew its lease until the file "released" exists
renew() { until [ -e released ]; do touch "$(lease "$1")"; sleep 1; done; }

# holder_of DIRECTORY ARGUMENTS: train in the background; $pid is its timeout, $inner has the lease
holder_of() {
	rm -f m/metrics.jsonl
	timeout 200 "$BUILD/bin/berth-train" linear --data "$DATA" --batch 8 --steps 100000000 --no-eval --ckpt "$1" \
		--metrics m --log-every 50 --save-every 200 "${@:2}" >/dev/null 2>&1 3>&- &
	pid=$!
	wait_for m/metrics.jsonl 8
	inner=$(holder "$1")
}

@test "a directory in use by another run: exit code 73, and the run is named; a killed run's is taken over at once" {
	holder_of c
	expect 73 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --ckpt c --steps 3
	[[ "$output" == *"--ckpt c is in use by process $inner on $(hostname): that process is running"*"--take-over"* ]]
	# Taken over: the first run notices and ends.
	timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --ckpt c --steps 3 --no-eval --take-over 2>out
	grep -q 'note: taking over --ckpt c from process' out
	ends 73 $pid
	is_released c
	# A stopped run is alive, although it does not renew its lease. Its death ends that.
	holder_of c --epochs 1000000
	kill -STOP $inner
	sleep 6
	expect 73 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --ckpt c --steps 3
	[[ "$output" == *"process $inner on $(hostname): that process is running"* ]]
	kill -KILL $inner
	ends 137 $pid
	begin=$SECONDS
	expect 0 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --batch 8 --ckpt c --steps 3 --no-eval
	[ $((SECONDS - begin)) -lt 15 ]
	[[ "$output" != *"waiting"* ]]
	claim c "" "" "$(cat /proc/sys/kernel/random/boot_id)"
	expect 0 job d --steps 3 --no-eval
	expect 0 timeout 15 "$BUILD/bin/berth-train" linear --data "$DATA" --ckpt c --steps 3 --no-eval
	is_released c
}

@test "a clock set back and ahead: checkpoints by time continue, and the directory stays owned" {
	export CLOCK_SET_FILE=$DIR/set
	LD_PRELOAD="$CLOCK_SET" ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0" \
		timeout 200 "$BUILD/bin/berth-train" linear --data "$DATA" --batch 8 --steps 100000000 --no-eval --ckpt c \
		--log-every 50 --keep 2 --save-every 1s >out 2>&1 3>&- &
	pid=$!
	saved() { # COUNT: wait for that many more checkpoints
		enough() { [ "$(grep -c '^saved step' out || true)" -ge "$1" ]; }
		within 60 enough $(($(grep -c '^saved step' out || true) + $1)) || { cat out; return 1; }
	}
	saved 1
	for seconds in -100000 100000 0; do
		begin=$(cut -d. -f1 /proc/uptime) before=$(grep -c '^saved step' out)
		echo $seconds >set
		saved 2
		# At most one per second that has passed.
		[ $(($(grep -c '^saved step' out) - before)) -le $(($(cut -d. -f1 /proc/uptime) - begin + 2)) ]
	done
	inner=$(holder c)
	expect 73 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --ckpt c --steps 3
	[[ "$output" == *"that process is running"* ]]
	kill -TERM $inner
	ends 75 $pid
	is_released c
	expect 0 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --batch 8 --no-eval --ckpt c --epochs 1
}

@test "a run whose directory was taken over stops at its next save: exit code 73" {
	timeout 200 "$BUILD/bin/berth-train" linear --data "$DATA" --batch 8 --steps 100000000 --no-eval --ckpt c \
		--metrics m --log-every 50 --save-every 100 >/dev/null 2>err 3>&- &
	pid=$!
	wait_for m/metrics.jsonl 4
	claim c slurm 4711
	ends 73 $pid err
	grep -q 'c was taken over by job 4711 of slurm, process 7 on far' err
	grep -q '"token":"feed"' "$(lease c)"
}

@test "takeover by the same job or its successor at once; by another one if the lease is not renewed for 20 s" {
	try() { # CODE PATTERN SCHEDULER JOB [NAME=VALUE..]
		claim c "$3" "$4"
		expect "$1" env "${@:5}" timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --ckpt c --steps 3 --no-eval
		echo "$3 $4: $output"
		[[ "$output" =~ $2 ]]
		[ "$1" = 0 ] || grep -q feed "$(lease c)"
	}
	begin=$SECONDS
	try 0 '' slurm 1 SLURM_JOB_ID=1 BERTH_ATTEMPT=1
	try 0 '' slurm 1 SLURM_JOB_ID=1 SLURM_RESTART_COUNT=1
	try 0 '' slurm 1 SLURM_JOB_ID=9 BERTH_JOB_BEFORE=5,1
	[ $((SECONDS - begin)) -lt 20 ]
	# The lease is renewed.
	claim c
	renew c 3>&- &
	renews=$!
	alive='is in use by job 1 of slurm, process 7 on far: its lease is being renewed, so that run is alive'
	try 73 "$alive" slurm 1 SLURM_JOB_ID=1
	try 73 "$alive" slurm 1 SLURM_JOB_ID=9 BERTH_JOB_BEFORE=11
	try 73 'is in use by job hand-1, process 7 on far: its lease is being renewed.*--take-over' '' hand-1
	expect 64 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --steps 3 --take-over
	: >released
	wait $renews
	# It is not. Ranks wait for the watch longer than for each other.
	claim c slurm 2
	touch -d '3 hours' "$(lease c)"
	begin=$SECONDS
	expect 0 train linear -n 2 --data "$DATA" --ckpt c --steps 3 --no-eval --comm-timeout 5s
	[ $((SECONDS - begin)) -ge 19 ]
	[[ "$output" == *"waiting 20 s to see whether job 2 of slurm, process 7 on far still renews its lease"* ]]
	[[ "$output" == *"taking over --ckpt c from job 2 of slurm, process 7 on far: its lease was not renewed"* ]]
	echo '{"torn' >"$(lease c)"
	expect 0 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --ckpt c --steps 3 --take-over
	[[ "$output" == *"from an unknown run"* ]]
}

@test "a file system without locks: a live run's lease is seen renewed, a killed run's is watched for 20 s" {
	export LD_PRELOAD="$BAD_FS" BERTH_BAD_FS=no-locks BERTH_BAD_FS_FOLDER=c/ ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0"
	holder_of c
	expect 73 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --ckpt c --steps 3
	[[ "$output" == *"process $inner on $(hostname): its lease is being renewed, so that run is alive"* ]]
	kill -KILL $inner
	ends 137 $pid
	expect 0 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --batch 8 --ckpt c --steps 3 --no-eval
	[[ "$output" == *"taking over --ckpt c from process $inner on $(hostname): its lease was not renewed"* ]]
}

# nodes ARGUMENTS: two ranks, each as if alone on a node with its own directory
nodes() {
	train_nodes=(--data "$DATA" --batch 16 --epochs 2 --save-every 5 --log-every 1000 --ckpt c)
	timeout 120 "$BERTH" run -n 2 -- sh -c 'mkdir -p "$0/node$RANK" && cd "$0/node$RANK" && export LOCAL_RANK=0 && exec "$@"' \
		"$DIR" "$BUILD/bin/berth-train" convnet "${train_nodes[@]}" "$@"
}

@test "without a shared directory each node keeps a copy, and all resume from the newest of any node" {
	[[ " $MODULES " == *" comm-mpi "* ]] || skip "built without MPI"
	nodes --steps 25 2>out
	grep -q 'is not a directory that all nodes share: 2 copies of each checkpoint are kept' out
	[ "$(steps node0/c)" = "5 10 15 20 25 " ]
	for step in 05 10 25; do cmp node0/c/step-000000$step.safetensors node1/c/step-000000$step.safetensors; done
	cmp node0/c/latest node1/c/latest
	! grep -q 'which not all nodes have' out || false
	# The newest copy is damaged on one node.
	printf x >>node1/c/step-00000025.safetensors
	nodes --steps 30 2>out
	grep -q 'rank 1: skipped: .*step-00000025' out
	grep -q 'note: resuming from step 25, which not all nodes have' out
	grep -q 'resuming from c/step-00000025' out
	cmp node0/c/step-00000030.safetensors node1/c/step-00000030.safetensors
	# The first node lacks the newest one.
	printf x >>node0/c/step-00000030.safetensors
	nodes --steps 32 2>out
	grep -q 'note: resuming from step 30, which not all nodes have' out
	grep -q 'resuming from c/step-00000030' out
	cmp node0/c/step-00000032.safetensors node1/c/step-00000032.safetensors
	# A replaced node has no checkpoints; the first node may be replaced, too.
	for lost in 1 0; do
		rm -r node$lost
		nodes --steps $((36 - 2 * lost)) 2>out
		grep -q "note: resuming from step $((34 - 2 * lost)), which not all nodes have" out
		grep -q "resuming from c/step-000000$((34 - 2 * lost))" out
		cmp node0/c/latest node1/c/latest
		cmp node0/c/step-000000$((36 - 2 * lost)).safetensors node1/c/step-000000$((36 - 2 * lost)).safetensors
	done
	# With the same newest step on both nodes there is no note.
	nodes --steps 40 2>out
	grep -q 'resuming from c/step-00000036' out
	! grep -q 'which not all nodes have' out || false
	# The same bits as with one directory and no interruption.
	train convnet -n 2 --data "$DATA" --batch 16 --epochs 2 --ckpt one
	for c in node?/c; do cmp one/step-00000040.safetensors $c/step-00000040.safetensors; done
	for c in node?/c; do is_released $c; done
}

@test "a writer that stalls in fsync, is taken over and wakes up: it changes nothing and exits with code 73" {
	stalling stall-sync c/step- --batch 8 --steps 100000000 --save-every 100 --keep 2 >out 2>err 3>&- &
	pid=$!
	within 30 test -e c/latest
	mkfifo flag
	within 30 test -e flag.stalled
	stalled=$(printf '%s\n' c/step-*.safetensors.*)
	end=$(sed 's/.*step-0*\([0-9]*\).*/\1/' c/latest)
	# It passes the step that the other run was writing.
	expect 0 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --batch 8 --no-eval --ckpt c --keep 2 \
		--save-every 100 --steps $((end + 200)) --take-over
	[[ "$output" == *"saved step $((end + 100))"* ]]
	sum() { (cd c && sha256sum latest model.safetensors step-*.safetensors "$(lease .)"; stat -c '%n %i %y' -- *); }
	sum >before
	wakes
	ends 73 $pid err
	grep -q 'c was taken over by process' err
	! grep -q "saved step $((end + 100))" out || false
	sum >after
	diff before after
	[ "$(cat c/latest)" = "$(printf 'step-%08d.safetensors' $((end + 200)))" ]
	# The next run removes what the stalled one was writing.
	[ -e "$stalled" ]
	expect 0 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --batch 8 --no-eval --ckpt c --steps $((end + 201))
	[ ! -e "$stalled" ]
}

@test "a checkpoint directory that does not answer: Ctrl-C ends the run at once" {
	job c --steps 3 --no-eval
	for signal in INT TERM; do
		mkfifo flag
		rm -f flag.stalled
		stalling stall-open c/latest >/dev/null 2>err 3>&- &
		pid=$!
		within 30 test -e flag.stalled
		begin=$SECONDS
		kill -$signal "$(holder c)"
		ends 75 $pid err
		[ $((SECONDS - begin)) -le 9 ]
		grep -q "received SIG$signal before the training began" err
		rm flag
	done
	expect 0 job c --steps 6 --no-eval
}

@test "latest is a FIFO: it is reported, and the run resumes from the newest checkpoint" {
	job c --steps 3 --no-eval
	rm c/latest
	mkfifo c/latest
	expect 0 job c --steps 6 --no-eval
	[[ "$output" == *"c/latest: not a regular file"*"resuming from c/step-00000003.safetensors"* ]]
	[ -f c/latest ]
}
