# SPDX-License-Identifier: BSD-3-Clause
# Stopping early with a checkpoint: the time limit, signals, the stop file. A run that resumes from it
# ends with the same bits as a run that was never stopped.

load support

STOPPED=75
MADE="--data synthetic:1x16x16,n=6400,classes=5"

# job DIRECTORY RANKS [OPTIONS]: 3 epochs of 200 steps; a few seconds
job() {
	local folder=$1 ranks=$2
	shift 2
	${EXEC:-timeout 120} "$BERTH" train convnet -n "$ranks" $MADE \
		--batch $((32 / ranks)) --epochs 3 --ckpt "$folder" --metrics "$folder" --log-every 50 "$@"
}

# whole RANKS: run it once without a stop, for comparison
whole() {
	WHOLE=$BATS_FILE_TMPDIR/whole$1
	[ -e "$WHOLE/latest" ] || job "$WHOLE" "$1" >/dev/null 2>&1
}

# same DIRECTORY: the same result as the last whole
same() {
	cmp "$WHOLE/step-00000600.safetensors" "$1/step-00000600.safetensors"
	cmp "$WHOLE/model.safetensors" "$1/model.safetensors"
	python3 - "$WHOLE" "$1" <<'PY'
import json, sys
def val(folder):
    rows = [json.loads(line) for line in open(f'{folder}/metrics.jsonl')]
    return [(row['step'], row['loss'], row['acc1']) for row in rows if row['split'] == 'val']
assert val(sys.argv[1]) == val(sys.argv[2]) and len(val(sys.argv[1])) == 3, val(sys.argv[2])
PY
}

# halfway: print the environment in which step 200 is not saved before stop_halfway wakes it. The training does
# not pass step 400.
halfway() { stalls stall-sync step-00000200; }
# stop_halfway COMMAND...: stop it with COMMAND
stop_halfway() {
	within 60 test -e flag.stalled
	"$@"
	# If it has come to step 400 by now, it stops after that.
	within 5 grep -q 'stopping after step' err || true
	wakes
	rm flag.stalled
}

# stopped DIRECTORY RANKS HOW: stop job with the command HOW in the middle of its run ($pid is berth)
stopped() {
	local pid
	mkfifo flag
	EXEC="exec env $(halfway)" job "$1" "$2" >out 2>err &
	pid=$!
	stop_halfway eval "$3"
	ends "$STOPPED" "$pid" err
}

@test "time limit: each run saves before it, until all steps are done, on 1 rank and on 2" {
	for n in 1 2; do
		whole $n
		for ((turn = 0; turn < 30; turn++)); do
			# The first run stops on any machine, because less time is left than the trainer's margin of 3 s.
			# Programs under sanitizers start slowly.
			first=3
			[ -z "$SANITIZED" ] || first=4
			end=$(($(date +%s) + (turn ? 12 : first))) code=0
			BERTH_END_TIME=$end job part$n $n >out 2>err || code=$?
			cat out err
			[ "$(date +%s)" -le $((end + 15)) ]
			[ "$code" -ne 0 ] || break
			[ "$code" -eq "$STOPPED" ]
			grep -q "stopping after step [0-9]*: the job's time limit is reached in" err
		done
		[ "$code" -eq 0 ]
		[ "$turn" -gt 0 ]
		same part$n
	done
}

@test "no computing thread takes a signal: oneDNN's code leaves no stack for a handler" {
	OMP_NUM_THREADS=2 "$BUILD/bin/berth-train" convnet $MADE --batch 32 --epochs 50 --no-eval --ckpt c --metrics m \
		--log-every 20 >out 2>&1 &
	pid=$!
	wait_for m/metrics.jsonl 1
	# TERM, INT and USR1 in SigBlk of each thread.
	open=0
	for task in /proc/$pid/task/*; do
		mask=$(sed -n 's/^SigBlk:[[:space:]]*//p' "$task/status")
		(((16#$mask & 16#4202) == 16#4202)) || open=$((open + 1))
		[ "${task##*/}" != "$pid" ] || (((16#$mask & 16#4202) == 16#4202))
	done
	[ "$open" -eq 1 ]
	kill -USR1 "$pid"
	ends "$STOPPED" "$pid" out
}

@test "a time limit that has passed: one step, saved" {
	BERTH_END_TIME=1000000000 expect "$STOPPED" "$BUILD/bin/berth-train" linear --data "$DATA" --batch 32 --steps 20 --ckpt c
	[ "$(cat c/latest)" = step-00000001.safetensors ]
	BERTH_END_TIME=soon expect 65 "$BUILD/bin/berth-train" linear --data "$DATA" --batch 32 --steps 20 --ckpt c
	[[ $output == *BERTH_END_TIME* ]]
}

@test "SIGTERM, SIGINT and SIGUSR1: a checkpoint at the next step, and nothing is lost" {
	whole 2
	for signal in TERM INT USR1; do
		stopped part$signal 2 "kill -$signal \$pid"
		grep -q "stopping after step [0-9]*: received SIG$signal" err
		# The newest checkpoint is of the step after which it stopped.
		step=$(sed -n 's/.*stopping after step \([0-9]*\):.*/\1/p' err)
		[ "$(cat part$signal/latest)" = "$(printf 'step-%08d.safetensors' "$step")" ]
		job part$signal 2 >/dev/null 2>out
		grep -q "resuming from .*: step $step," out
		same part$signal
	done
}

@test "SIGTERM to one rank alone stops all" {
	whole 2
	mkfifo flag
	# shellcheck disable=SC2046 # words
	env $(halfway) "$BERTH" run -n 2 -- sh -c "echo \$\$ >pid.\$RANK; exec '$BUILD/bin/berth-train' convnet $MADE --batch 16 \
		--epochs 3 --ckpt one --metrics one --log-every 50" >out 2>err &
	pid=$!
	stop_halfway eval 'kill -TERM "$(cat pid.1)"'
	ends "$STOPPED" "$pid" err
	job one 2 >/dev/null
	same one
}

@test "the stop file stops the run, also within an evaluation" {
	# One step, then an evaluation of several seconds. All ranks have the same stop file.
	"$BERTH" train convnet -n 2 --data synthetic:1x16x16,n=8000000,classes=5 --batch 16 --steps 1 --ckpt c \
		--env BERTH_STOP_FILE="$DIR/stop" --metrics c --log-every 1 >out 2>err &
	pid=$!
	wait_for c/metrics.jsonl 1
	sleep 0.3; touch stop
	ends "$STOPPED" $pid err
	grep -q 'stopping after step 1: the stop file appeared' err
	! grep -q 'val loss' err || false
	[ "$(cat c/latest)" = step-00000001.safetensors ]
}

@test "a stop file that already exists: berth run removes it; berth-train alone stops and reports why" {
	touch stop
	run "$BERTH" train linear -n 1 --data synthetic:20,n=64 --batch 8 --epochs 1 --ckpt c --env BERTH_STOP_FILE="$DIR/stop"
	echo "$output"
	[ "$status" -eq 0 ] && [ ! -e stop ]
	[[ "$output" == *"berth: warning: the stop file $DIR/stop already existed"* ]]
	touch stop
	run env BERTH_STOP_FILE="$DIR/stop" "$BUILD/bin/berth-train" linear --data synthetic:20,n=64 --batch 8 --epochs 1 --ckpt d
	echo "$output"
	[ "$status" -eq "$STOPPED" ] && [ -e stop ]
	[[ "$output" == *"stopping after step 1: the stop file $DIR/stop already existed when training started"* ]]
}

@test "without --ckpt a signal ends the process" {
	"$BUILD/bin/berth-train" linear --data synthetic:1x16x16,n=6400,classes=5 --batch 1 --epochs 1000 --metrics m --log-every 10 2>err &
	pid=$!
	wait_for m/metrics.jsonl 2
	kill -TERM $pid
	ends 143 $pid
}
