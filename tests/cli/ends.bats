# SPDX-License-Identifier: BSD-3-Clause
# How jobs end, without a cluster: the time limit and its warning, the stop file, what the program reports
# as saved, and known failures. Requeueing is in requeue.bats.

load pbs

setup() { pbs_begin; }

@test "an end time that is past or malformed is rejected" {
	local message="--end-time is 'tomorrow': expected a time from now (+90m, +2h, +1d), or Unix seconds, "
	message+="as printed by date -d 'tomorrow 8:00' +%s"
	for wrong in 5 0 soon tomorrow +; do
		expect 64 "$BERTH" run -n 1 --end-time "$wrong" -- touch started
		[[ $output == *"--end-time"* ]]
		[[ $wrong != tomorrow || $output == *"$message" ]]
	done
	BERTH_END_TIME=1000000000 expect 64 "$BERTH" run -n 1 -- touch started
	[[ $output == *"BERTH_END_TIME 1000000000 was "*" s ago by this machine's clock"* ]]
	expect 64 "$BERTH" run -n 1 --warn-signal NOSUCH -- touch started
	[ ! -e started ]
}

@test "the warning: a signal and the stop file on all nodes, in time; the ranks see the end time" {
	# If the ranks were not up before the warning, try again with a later one.
	for wait in 3 12 40; do
		rm -f up.*
		end=$(($(date +%s) + wait + 6))
		run "$BERTH" run --launcher loopback -N 2 -n 2 --end-time $end --warn-before 6s --warn-signal USR1 --report report.json -- bash -c '
			trap "echo rank \$RANK \$(cat \$BERTH_STOP_FILE) \$((BERTH_END_TIME - $(date +%s) > 0)) \$BERTH_END_TIME; exit 75" USR1
			[ ! -e $BERTH_STOP_FILE ] && : >up.$RANK || echo soon
			while :; do sleep 0.05; done'
		[ ! -e up.0 ] || [ ! -e up.1 ] || break
	done
	printf '%s\n' "$output"
	[ "$status" -eq 75 ]
	[ "$(date +%s)" -lt $((end + 9)) ]
	[[ $output == *"rank 0 warning 1 $end"* && $output == *"rank 1 warning 1 $end"* && $output != *soon* ]]
	[[ $output == *"warned the ranks with SIGUSR1 and their stop file"* ]]
	[[ $output == *"berth: note: reason: the job's time limit is near, so berth asked the ranks to save"* ]]
	report 'report["kind"] == "stopped" and report["code"] == 75'
	expect 0 "$BERTH" run -n 1 --warn-before 6s -- true
	[[ $output == *"job end time unknown: no warning will be sent"* ]]
}

@test "SIGTERM: the stop file appears; a slow rank may finish saving; what it saved is reported" {
	"$BERTH" run -n 2 --report report.json -- bash -c 'trap "" TERM; echo up >up.$RANK
		while [ ! -e $BERTH_STOP_FILE ]; do sleep 0.05; done
		[ $RANK = 0 ] || exit 75
		sleep 6; echo "{\"saved\": \"step $(cat $BERTH_STOP_FILE)\", \"next\": \"once more\"}" >$BERTH_REPORT; exit 75' 2>err &
	pid=$!
	within 30 test -e up.0 -a -e up.1
	kill -TERM $pid
	ends 75 $pid err
	report 'report["saved"] == "step SIGTERM" and report["next"] == "once more" and report["by"] == "program"'
	grep -qx 'berth: note: saved: step SIGTERM' err
	grep -qx 'berth: note: next: once more' err
	report 'len(report["ranks"]) == 2 and not any(rank["stopped"] for rank in report["ranks"])'
}

# stop SIGNAL CODE RANK_0 RANK_1: send berth run SIGNAL once both ranks are up. Each rank runs its line first.
stop() {
	rm -f up.*
	setsid "$BERTH" run --launcher "$launcher" -N "$nodes" -n 2 --stop-grace "${grace-3s}" --report report.json -- \
		bash -c 'eval "${*:RANK + 1:1}"; : >up.$RANK; while :; do sleep 0.05; done' rank "$3" "$4" 2>err &
	pid=$!
	within 30 test -e up.0 -a -e up.1
	kill -"$1" $pid
	ends "$2" $pid err
}

@test "after a stop signal every rank has the same time; who has not ended then is killed" {
	save='trap "exit 75" TERM INT' ignore='trap "" TERM INT' late='trap "sleep 4; exit 75" TERM INT'
	for row in 'fork 1 exit_143 exit_1 kill exit_75 exit_0' 'loopback 2 exit_143'; do
		read -r launcher nodes others <<<"$row"
		# Rank 0 needs longer than the ranks of a failed job get, although rank 1 ends at once.
		for other in $others; do
			[[ $other = exit_75 || $other = exit_0 ]] && code=75 || code=143
			[[ $other = kill ]] && how='trap - TERM' || how="trap '${other/_/ }' TERM"
			grace=30s stop TERM $code "$late" "$how"
			report 'report["by"] == "program" and report["kind"] == "interrupted"'
			report 'report["ranks"][-1]["rank"] == 0 and report["ranks"][-1]["code"] == 75'
		done
		stop TERM 143 "$ignore" "$ignore"
		grep -q 'error: ranks 0-1 had not ended 3 s after SIGTERM, so berth killed them (--stop-grace)' err
		report 'report["by"] == "berth" and all(rank["stopped"] for rank in report["ranks"])'
		stop INT 130 "$ignore" "$save"
		grep -q 'error: rank 0 had not ended 3 s after SIGINT, so berth killed it (--stop-grace)' err
		report 'report["ranks"][0]["code"] == 75 and report["ranks"][1]["stopped"]'
	done
	grace=30s stop TERM 139 "$late" "trap 'kill -SEGV \$\$' TERM"
	grep -q 'error: rank 1 on .* was killed by signal 11' err
	report 'report["ranks"][-1]["code"] == 75'
}

@test "--stop-grace takes a time from 1s to 1d" {
	for wrong in 0s 0.5s 2d -1s soon 1x; do
		expect 64 "$BERTH" run --stop-grace "$wrong" -n 1 -- touch started
		[[ $output == *"--stop-grace"* ]]
	done
	[ ! -e started ]
}

@test "a signal from a process of the job is named as such, one from outside is not" {
	run sh -c 'echo $$ >pid; exec "$BERTH" run -n 2 -- sh -c "[ \$RANK = 1 ] || exec sleep 9; kill -TERM \$(cat pid); sleep 9"'
	[[ "$status" = 143 && "$output" == *"reason: berth received a signal from process "[0-9]*" (sh) of this job: Terminated"* ]]
	"$BERTH" run -n 1 -- sh -c 'touch up2; exec sleep 9' 2>err 3>&- &
	within 30 test -e up2
	kill -TERM $!
	wait $! || true
	grep -q 'reason: berth received a signal from the user or the scheduler: Terminated' err
}

@test "SIGINT: the last line is that Ctrl-C stopped the job, however the ranks end" {
	for row in '130 :;' '130 trap "exit 1" INT;' '75 trap "exit 75" INT;'; do
		rm -f up
		"$BERTH" run -n 1 -- bash -c "${row#* }"' echo >up; while :; do sleep 0.05; done' 2>err 3>&- &
		pid=$!
		within 30 test -s up
		kill -INT $pid
		ends "${row%% *}" $pid err
		grep -qE '^berth: (error|note): stopped by Ctrl-C \(SIGINT\)$' <(tail -n 1 err)
		! grep -q 'received a signal' err || false
	done
	grep -q 'note: rank 0 on .* saved its work and stopped early' err
}

@test "out of memory: the hint names options of berth train only if that ran" {
	unshare --map-root-user --mount true 2>/dev/null || skip "no namespaces for mounts here"
	killed() {
		echo 'oom_kill 0' >vmstat
		# shellcheck disable=SC2016 # the inner shell expands them
		run unshare --map-root-user --mount sh -c 'mount --bind vmstat /proc/vmstat && exec "$@"' sh "$@"
		echo "$output"
		[[ "$status" = 137 && $output == *"out-of-memory killer"* ]]
	}
	killed "$BERTH" run -n 1 -- sh -c 'echo "oom_kill 1" >vmstat; kill -KILL $$'
	local reason="reason: the job ran out of memory: request more, "
	reason+="or use less (smaller batches, fewer data loader workers, fewer ranks per node)"
	[[ $output == *"$reason"* ]]
	# A program below a shell.
	killed "$BERTH" run -n 1 -- sh -c 'sh -c '"'"'echo "oom_kill 1" >vmstat; kill -KILL $$'"'"'; exit $?'
	[[ $output == *"$reason"* ]]
	[[ ${lines[-1]} == *"exited with code 137, and the kernel's out-of-memory killer has probably ended a process of it" ]]
	# shellcheck disable=SC2016
	killed sh -c '"$BERTH" train linear --data synthetic:8,n=32 --batch 8 --steps 1000000000 --device cpu-reference -n 1 \
			--ckpt "$DIR/ckpt" --log-dir logs >steps &
		until grep -q "step" steps logs/* 2>/dev/null; do sleep 0.05; done
		echo "oom_kill 1" >vmstat; pkill -KILL -f "berth-train linear .*--ckpt=$DIR/ckpt"; wait $!'
	[[ $output == *"or use less (smaller --batch, fewer --workers, fewer ranks per node)"* ]]
}

@test "SIGUSR1 is forwarded: the reason is reported whether the rank stops or is killed by it" {
	for row in '75 trap "exit 75" USR1;' '138 :;'; do
		rm -f up
		"$BERTH" run -n 1 --report report.json -- bash -c "${row#* }"' echo >up; while :; do sleep 0.05; done' 2>err &
		pid=$!
		within 30 test -e up
		kill -USR1 $pid
		ends "${row%% *}" $pid err
		grep -q '^berth: note: reason: berth received SIGUSR1 (from the user, .*) and forwarded it to the ranks$' err
		report 'report["why"].startswith("berth received SIGUSR1")'
	done
}

@test "exit code 75: the ranks' last lines are not printed again" {
	expect 75 "$BERTH" run -n 2 --log-dir logs -- sh -c 'echo "step 7 of $RANK" >&2; exit 75'
	[ "$(grep -c 'step 7 of' <<<"$output")" = 2 ]
	[[ "$output" != *"last output"* && "$output" != *"full output"* && "$output" == *"berth: note: next: submit the job again"* ]]
}

@test "if one rank stops with its work saved and another fails, the failure is the cause" {
	expect 3 "$BERTH" run -n 2 --report report.json -- sh -c '[ $RANK = 0 ] && exit 75; sleep 1; exit 3'
	report 'report["rank"] == 1 and report["kind"] == "code"'
}

@test "the user's own stop file: creating it causes no message, an old one is removed" {
	touch -d '-1000 seconds' mine
	export BERTH_STOP_FILE=$DIR/mine
	run "$BERTH" run --dry-run -n 1 -- true
	[[ "$output" == *"the stop file $DIR/mine already existed"*"it will be removed"* ]] && [ -e mine ]
	expect 0 --separate-stderr "$BERTH" run -n 1 -- sh -c '[ ! -e $BERTH_STOP_FILE ] && echo $BERTH_STOP_FILE'
	[ "$output" = "$DIR/mine" ]
	local before="berth: warning: the stop file $DIR/mine already existed, created 1"
	local after=" s ago: it is removed, because this run would otherwise stop at once; create it again to stop the run"
	[[ "$stderr" =~ ^"$before"[0-9]{3}"$after"$ ]]
	run --separate-stderr "$BERTH" run -n 1 -- true
	[ -z "$stderr" ]
}

@test "a known failure is explained at the end and in the report; berth explain finds it in a log" {
	line='nid1:1:1 [0] init.cc:795 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3b000'
	expect 3 "$BERTH" run -n 1 --report report.json -- sh -c "echo fine; echo '$line' >&2; exit 3"
	[[ $output == *"berth: note: known failure: two ranks use the same GPU"* ]]
	[[ "${lines[-1]}" == "berth: error: rank 0 on "*" exited with code 3" ]]
	report '"same GPU" in report["known"]["cause"] and report["known"]["fix"] and report["known"]["source"].startswith("https://")'
	{ echo fine; head -c 100000 /dev/zero; echo; echo "$line"; echo "$line"; } >log
	expect 0 "$BERTH" explain log
	[[ $output == "log:3: $line (2 times)"*"cause:  two ranks use the same GPU"*"fix: "*"source: https"* ]]
	mkdir -p logs/attempt-0 logs/attempt-1
	cp log logs/attempt-0/rank-0001.log; echo fine >logs/attempt-1/rank-0000.log; cp log logs/other.dat; mkfifo logs/pipe.log
	expect 0 "$BERTH" explain logs
	[[ $output == "logs/attempt-0/rank-0001.log:3: "*"same GPU"* && $output != *other* ]]
	expect 0 "$BERTH" explain logs/attempt-1
	[ "$output" = "logs/attempt-1: no known failure in 1 log" ]
	# The report says what happened first; a later failure in another log does not.
	echo '{"schema": "berth.run/1", "first_cause": "rank 1 on n1 exited with code 3",
		"exception": {"text": "ValueError: x"}}' >logs/report.json
	expect 0 "$BERTH" explain logs
	[[ $output == "logs/report.json: rank 1 on n1 exited with code 3: ValueError: x"$'\n'"logs/attempt-0/"* ]]
	mkdir none
	expect 66 "$BERTH" explain none
	[[ $output == *"none is a directory without"*"name the files" ]]
	"$BERTH" explain --json - <log | python3 -c 'import json, sys
found, = json.load(sys.stdin)["known"]
assert found["line"] == 3 and found["count"] == 2 and found["log"] == "-" and found["fix"] and "mend" not in found, found'
	# berth's last line repeats what a rank says of another one; the reason is in a line before.
	printf '%s\n' 'berth: note: reason: rank 0 on n1 had ended before, with code 0' \
		'berth: error: rank 1 on n2 exited with code 1: RuntimeError: gloo/transport/tcp/pair.cc:5 Connection closed by peer' >own
	expect 0 "$BERTH" explain own
	[[ $output == "own:1: "*"cause:  that rank ended without a failure"* && $output != *own:2* ]]
	echo "all is well" | "$BERTH" explain - | grep -qx -- '-: no known failure'
	expect 66 "$BERTH" explain absent
	expect 64 "$BERTH" explain
}

@test "a program that starts processes itself and finds its port taken: --per-node is the fix" {
	local second='The server socket has failed to bind to [::]:55359 (errno: 98 - Address already in use).'
	cat >traceback <<-E
	torch.multiprocessing.spawn.ProcessRaisedException:
	  File "/opt/torch/multiprocessing/spawn.py", line 69, in _wrap
	RuntimeError: The server socket has failed to listen on any local network address. $second
	E
	expect 1 "$BERTH" run -n 1 -- sh -c 'cat traceback >&2; exit 1'
	local failure="known failure: the program starts processes itself (torch.multiprocessing.spawn)"
	local fix="fix: start the program once per node: berth run --per-node -- python train.py"
	[[ $output == *"$failure"*"$fix"* ]]
	expect 0 "$BERTH" explain traceback
	[[ $output == *"starts processes itself"* ]]
	expect 0 "$BERTH" explain - < <(tail -n 1 traceback)
	[[ $output == *"another program uses MASTER_PORT"* ]]
}

@test "berth explain knows each message in the table of the troubleshooting guide" {
	sed -n 's/^| `\([^`]*\)` |.*/\1/p' "$SOURCE/docs/guides/troubleshooting.md" |
		grep -vE '^(full output|known failure|reason|saved):|^berth ' >messages
	[ "$(wc -l <messages)" = 20 ]
	while read -r line; do
		run "$BERTH" explain - <<<"$line"
		[[ "$output" == *"cause:"*"fix:"* ]] || { echo "unknown: $line"; return 1; }
	done <messages
	# All causes in a log are named, the first one first.
	run -0 "$BERTH" explain messages
	[ "$(grep -c 'cause:' <<<"$output")" -ge 18 ]
	[[ "$output" == "messages:1: "* ]]
}

@test "an agent that notices late that its rank was killed: that rank is still the first cause" {
	# Rank 1 is killed while its agent is stopped for a second. Rank 0 fails once rank 1 is dead.
	timeout 120 "$BERTH" run --launcher loopback -N 2 -n 2 --report report.json -- bash -c '
		echo $$ $PPID >pids.$RANK.part
		mv pids.$RANK.part pids.$RANK
		until read -r other _ <pids.$((1 - RANK)); do sleep 0.05; done 2>/dev/null
		[ $RANK = 0 ] || { kill -STOP $PPID; kill -SEGV $$; }
		until grep -qs "^State:.Z" /proc/$other/status; do sleep 0.05; done
		exit 3' 2>err &
	run_pid=$!
	wait_for pids.1 1
	read -r rank agent <pids.1
	within 30 grep -q '^State:.Z' "/proc/$rank/status"
	sleep 1 # how late the agent is
	kill -CONT "$agent"
	ends 139 $run_pid err
	report 'report["rank"] == 1 and report["signal"] == 11'
}
