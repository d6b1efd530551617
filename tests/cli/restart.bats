# SPDX-License-Identifier: BSD-3-Clause
# berth run --max-restarts: what is restarted, on which nodes, and what is not.

load ../support/berth

# rank FILE: create the ranks' program from standard input, after a line that all of them print
rank() {
	{ echo 'echo "$RANK $WORLD_SIZE $MASTER_PORT" >"$BERTH_ATTEMPT.$RANK"'; cat; } >"$1"
}

# In a rank: until TEXT PATTERN RANK...: print, which counts as progress, until the status of these ranks'
# processes matches. The hang that a case waits for cannot begin before.
export UNTIL='until_status() {
	pattern=$1; shift
	for r; do until grep -qs "$pattern" "/proc/$(cat "pid.$r")/status"; do echo; sleep 0.1; done; done
}
echo $$ >"pid.$RANK"'

# attempts: the number of attempts, counted from what the ranks have written
attempts() {
	find . -maxdepth 1 -name '*.0' | wc -l
}

@test "a killed rank: all ranks restart, and each attempt has its own number, port and logs" {
	rank rank.sh <<-'SH'
		[ "$BERTH_ATTEMPT" = 2 ] && exit 0
		beat=beat-$BERTH_ATTEMPT
		[ "$RANK" = 1 ] && { until [ -e $beat ]; do sleep 0.05; done; echo "at $BERTH_ATTEMPT"; kill -KILL $$; }
		echo 1 >"$BERTH_HEARTBEAT_FILE"
		touch $beat
		sleep 60
	SH
	expect 0 "$BERTH" run -n 2 --max-restarts 5 --log-dir logs --report report.json -- sh rank.sh
	[ "$(attempts)" = 3 ]
	[ "$(cut -d' ' -f3 0.0 1.0 2.0 | sort -u | wc -l)" = 3 ]
	[ "$(cut -d' ' -f3 1.0)" = "$(cut -d' ' -f3 1.1)" ]
	for attempt in 0 1; do
		grep -qx "at $attempt" "logs/attempt-$attempt/rank-0001.log"
		[ "$(grep -c '^at ' "logs/attempt-$attempt/rank-0001.log")" = 1 ]
	done
	[ -e logs/attempt-2/rank-0000.log ]
	[[ "$output" == *"rank 1 on $HOST was killed by signal 9"*"restarting, 1 of at most 5 times"* ]]
	report 'report["code"] == 0 and report["attempt"] == 2 and report["left_out"] == []'
	report '[a["code"] for a in report["attempts"]] == [137, 137, 0]'
	report 'report["attempts"][1]["rank"] == 1 and "signal 9" in report["attempts"][1]["first_cause"]'
}

@test "repeated failures: after R restarts the job exits with the code of the last attempt" {
	rank rank.sh <<-'SH'
		echo 3 >"$BERTH_HEARTBEAT_FILE"
		exit $((20 + BERTH_ATTEMPT))
	SH
	expect 22 "$BERTH" run -n 1 --max-restarts 2 --report report.json -- sh rank.sh
	[ "$(attempts)" = 3 ]
	[[ "$output" == *"not restarting: the limit of 2 restarts (--max-restarts) is reached"* ]]
	report 'report["by"] == "program" and len(report["attempts"]) == 3 and "limit of 2 restarts" in report["not_restarted"]'
}

@test "the warning before a restart names the exception" {
	expect 1 "$BERTH" run -n 2 --max-restarts 1 -- python3 -c 'raise ValueError("bad value")'
	[[ $output == *"warning: "*" exited with code 1: ValueError: bad value ("*"warning: restarting"* ]]
}

@test "no step since the last start: the job ends, whether heartbeats or the run time show it" {
	rank beats.sh <<-'SH'
		echo 0 >"$BERTH_HEARTBEAT_FILE"
		exit 3
	SH
	expect 3 "$BERTH" run -n 2 --max-restarts 9 -- sh beats.sh
	[ "$(attempts)" = 2 ]
	[[ "$output" == *"not restarting: no step was completed since the last start"* ]]
	rm -f ./*.[01]
	rank silent.sh <<<'exit 3'
	expect 3 "$BERTH" run -n 2 --max-restarts 9 -- sh silent.sh
	[ "$(attempts)" = 2 ]
	[[ "$output" == *"without reporting steps (BERTH_HEARTBEAT_FILE)"* ]]
}

@test "not restarted: exit code 75, a signal from outside, a missing program, wrong options" {
	rank rank.sh <<<'exit 75'
	expect 75 "$BERTH" run -n 1 --max-restarts 3 -- sh rank.sh
	[ "$(attempts)" = 1 ]
	expect 66 "$BERTH" run -n 1 --max-restarts 3 -- ./nothing
	# The exit code of berth-train for wrong options.
	expect 66 "$BERTH" train -n 1 --max-restarts 3 linear --data imagefolder:/nowhere
	[[ "$output" != *"restarting, "* && "$output" == *"not restarting: exit code 66 means wrong"* ]]
	rm -f ./*.0
	rank long.sh <<<'exec sleep 60'
	"$BERTH" run -n 1 --max-restarts 3 -- sh long.sh 2>err &
	pid=$!
	within 30 test -e 0.0
	kill -TERM "$pid"
	ends 143 "$pid" err
	[ "$(attempts)" = 1 ]
	! grep -q "restarting, " err || false
}

@test "a node is lost: a spare replaces it" {
	rank rank.sh <<-'SH'
		echo "$(basename "$(dirname "$BERTH_PLAN_FILE")")" >/dev/null
		[ "$BERTH_ATTEMPT" = 1 ] && exit 0
		[ "$RANK" = 1 ] && { sleep 0.3; kill -KILL "$PPID"; }
		sleep 60
	SH
	expect 0 "$BERTH" run --launcher loopback -N 4 --spares 2 --ranks-per-node 1 --max-restarts 1 \
		--report report.json -- sh rank.sh
	[[ "$output" == *"loop1 is excluded (lost): spare node loop2 replaces it"* ]]
	report 'report["attempts"][0]["nodes"] == ["loop0", "loop1"]'
	report 'report["attempts"][1]["nodes"] == ["loop0", "loop2"]'
	report '[(o["node"], o["why"]) for o in report["left_out"]] == [("loop1", "lost")]'
	[ "$(cut -d' ' -f2 1.1)" = 2 ]
}

@test "a node is lost without a spare: the job continues on fewer nodes or on the same ones" {
	rank rank.sh <<-'SH'
		[ "$BERTH_ATTEMPT" = 1 ] && exit 0
		[ "$RANK" = 0 ] && { sleep 0.3; kill -KILL "$PPID"; }
		sleep 60
	SH
	expect 0 "$BERTH" run --launcher loopback -N 3 -n 6 --min-nodes 2 --max-restarts 1 \
		--report report.json -- sh rank.sh
	[[ "$output" == *"loop0 is excluded (lost): the job continues on 2 nodes"* ]]
	report 'report["attempts"][1]["nodes"] == ["loop1", "loop2"]'
	[ "$(cut -d' ' -f2 1.0)" = 4 ]
	expect 0 "$BERTH" run --launcher loopback -N 2 -n 2 --max-restarts 1 --report report.json -- sh rank.sh
	[[ "$output" == *"loop0 was lost, but the job will try it again: there is no spare, and 2 nodes are required"* ]]
	report 'report["attempts"][1]["nodes"] == ["loop0", "loop1"] and report["left_out"] == []'
}

@test "a node on which two failures began is excluded; losing a spare does not end the job" {
	rank rank.sh <<-'SH'
		echo 9 >"$BERTH_HEARTBEAT_FILE"
		[ "$BERTH_ATTEMPT" = 2 ] && exit 0
		sleep 0.2
		[ "$RANK" = 1 ] && exit 7
		sleep 60
	SH
	expect 0 "$BERTH" run --launcher loopback -N 3 --spares 1 --ranks-per-node 1 --max-restarts 3 \
		--report report.json -- sh rank.sh
	[[ "$output" == *"loop1 is excluded (it failed twice): spare node loop2 replaces it"* ]]
	report '[a["nodes"][1] for a in report["attempts"]] == ["loop1", "loop1", "loop2"]'
	rm -f [0-9].[0-9]
	# The agent without ranks is the spare's.
	rank spare.sh <<-'SH'
		while [ ! -e go ]; do sleep 0.1; done
	SH
	"$BERTH" run --launcher loopback -N 2 --spares 1 --ranks-per-node 1 --max-restarts 1 -- sh spare.sh 2>err &
	pid=$!
	within 30 test -e 0.0
	for agent in $(pgrep -P "$pid"); do
		child=$(pgrep -P "$agent")
		pgrep -P "$child" -x sh >/dev/null || kill -KILL "$agent" "$child"
	done
	until_seen err "was lost"
	touch go
	wait "$pid"
	cat err
	grep -q "spare node loop1 was lost" err
	! grep -q "restarting, " err || false
}

@test "a hang: the rank that is behind in steps is named, and the next attempt continues" {
	rank rank.sh <<-'SH'
		[ "$BERTH_ATTEMPT" = 1 ] && exit 0
		for i in 1 2 3; do
			echo "$i.5 epoch 7" >"$BERTH_HEARTBEAT_FILE"
			[ "$RANK$i" = 12 ] && break
		done
		eval "$UNTIL"
		[ "$RANK" = 0 ] && until_status Name:.sleep 1 2
		exec sleep 61
	SH
	expect 0 "$BERTH" run -n 3 --hang-timeout 2 --max-restarts 1 --report report.json -- sh rank.sh
	report '"rank 1 on" in report["attempts"][0]["first_cause"]'
	report '"is behind at 2.5 (epoch 7), others at 3.5" in report["attempts"][0]["first_cause"]'
	report 'report["attempts"][0]["code"] == 76 and report["attempts"][0]["rank"] == 1'
	report 'repr(report["attempts"][0]["steps"]) == "3"'
	if command -v gdb >/dev/null || command -v eu-stack >/dev/null; then
		[[ "$output" == *"rank 1, process "*"(sleep 61 )"*"#0 "* ]]
	fi
	[[ "$output" == *"rank 1, process"*"rank 0, process"* ]] # that of the rank that is behind comes first
}

@test "a stopped rank is named even if no rank reports steps; output counts as progress" {
	rank rank.sh <<-'SH'
		eval "$UNTIL"
		[ "$RANK" = 2 ] && kill -STOP $$
		[ "$RANK" = 0 ] && until_status State:.T 2
		sleep 62
	SH
	expect 76 "$BERTH" run --launcher loopback -N 2 --ranks-per-node 2 --hang-timeout 2 \
		--report report.json -- sh rank.sh
	report 'report["rank"] == 2 and report["node"] is None and report["by"] == "berth"'
	[[ "$output" == *"rank 2 on loop1 is behind; its process is stopped (by SIGSTOP or a debugger)" ]]
	! pgrep -x sleep -a | grep -w 62 || false
	# Printing does not make the other ranks count as behind; a progress bar prints no whole line.
	rank prints.sh <<<'[ "$RANK" = 0 ] || exec sleep 8; for i in 1 2 3 4 5 6 7 8; do printf "\r%s" $i; sleep 1; done'
	expect 0 "$BERTH" run -n 2 --hang-timeout 5 -- sh prints.sh
}

@test "the stacks of all ranks: with py-spy, eu-stack or gdb, the first that is installed" {
	rank rank.sh <<-'SH'
		echo "$((3 - (RANK == 1))) reads" >"$BERTH_HEARTBEAT_FILE"
		eval "$UNTIL"
		[ "$RANK" = 0 ] && until_status Name:.sleep 1 2
		exec sleep 61
	SH
	export PATH="$DIR/bin:$PATH"
	# An installed eu-stack would be used first.
	mkdir bin
	for program in bash sh sed sleep timeout grep tr cut cat date uname mktemp; do
		ln -s "$(command -v $program)" "bin/$program"
	done
	for name in gdb eu-stack; do
		fake $name "echo \"\$0 \$*\" >>$DIR/asked; echo '#0 stand_in_of_$name ()'"
		rm -f asked pid.*
		expect 76 env PATH="$DIR/bin" "$BERTH" run -n 3 --hang-timeout 2 --report report.json -- sh rank.sh
		for rank in 0 1 2; do
			grep -q "^$DIR/bin/$name .*-p $(cat pid.$rank) " asked
			report '"rank '$rank', process '$(cat pid.$rank)' (sleep 61 )" in report["stacks"]'
		done
		[[ "$output" != *"rank 2, process"* ]] # as rank 0's
		[[ "$output" == *"rank 1, process $(cat pid.1) (sleep 61 )"*"#0 stand_in_of_$name"* ]]
		[[ "$output" == *"rank 1 on $HOST is behind at 2 (reads), others at 3"* ]]
		report '"stand_in_of_'$name'" in report["stacks"] and report["rank"] == 1'
	done
	# A Python program: py-spy, also from its own directory, which is not in PATH.
	mkdir venv
	ln -s "$(python3 -c 'import sys; print(sys.executable)')" venv/python3
	ln -s "$(readlink venv/python3)" bin/python3
	for dir in venv bin; do
		fake py-spy "echo \"\$0 \$*\" >>$DIR/asked; echo '    step (train.py:3)'"
		[ $dir = bin ] || mv bin/py-spy venv/
		rm -f asked
		expect 76 env PATH="$DIR/bin" "$BERTH" run -n 2 --hang-timeout 2 -- \
			"$DIR/$dir/python3" -c 'import time; time.sleep(61)'
		[[ "$(tail -n 1 asked)" == "$DIR/$dir/py-spy dump --full-filenames --pid "* ]]
		[[ "$output" == *"| rank 0, "*"step (train.py:3)"* ]]
		[[ "$output" != *"#0 stand_in"* ]]
		rm $dir/py-spy
	done
	fake eu-stack 'printf "TID 1:\n#0 main_here\nTID 2:\n#0 other_thread\n" | sed "s/ 1:/ $2:/"'
	expect 76 env PATH="$DIR/bin" "$BERTH" run --hang-timeout 1 -- "$DIR/bin/python3" -c 'import time; time.sleep(61)'
	[[ "$output" == *"| to see lines of Python, run: pip install py-spy"*"#0 main_here"* ]]
	[[ "$output" != *other_thread* ]]
	# A tool that fails, and one that is too slow: by this clock, 19 s pass between two looks at it.
	fake eu-stack 'exit 1'
	expect 76 env PATH="$DIR/bin" "$BERTH" run --hang-timeout 1 -- sleep 61
	[[ "$output" == *"| no stack: this user may not trace the process"* ]]
	fake eu-stack 'sleep 60'
	rm bin/date
	fake date "echo x >>$DIR/looks; echo \$((19 * \$(grep -c x $DIR/looks)))"
	expect 76 env PATH="$DIR/bin" "$BERTH" run -n 2 --hang-timeout 1 -- sleep 61
	[[ "$output" == *"| no stack: eu-stack did not end within 1 s"*"| no stack: no time was left for this rank"* ]]
}

@test "a clock that is set ahead and back does not move the job's end, within an attempt or between two" {
	export CLOCK_SET_FILE=$DIR/set
	rank rank.sh <<-'SH'
		echo "$((BERTH_END_TIME - $(date +%s)))" >"left.$BERTH_ATTEMPT"
		echo 1 >"$BERTH_HEARTBEAT_FILE"
		[ "$BERTH_ATTEMPT" = 0 ] && { echo 100000 >"$CLOCK_SET_FILE"; exit 3; }
		[ "$BERTH_ATTEMPT" = 1 ] && { echo -100000 >"$CLOCK_SET_FILE"; sleep 0.2; exit 3; }
		# The warning is due 10 s after the start.
		early() { [ -e "$BERTH_STOP_FILE" ] && [ $(($(cut -d. -f1 /proc/uptime) - begin)) -lt 9 ]; }
		early && exit 4
		echo 50000 >"$CLOCK_SET_FILE"
		sleep 1
		early && exit 5
		echo -50000 >"$CLOCK_SET_FILE"
		for i in $(seq 600); do [ -e "$BERTH_STOP_FILE" ] && exit 75; sleep 0.1; done
	SH
	export begin=$(cut -d. -f1 /proc/uptime)
	expect 75 env LD_PRELOAD="$CLOCK_SET" ASAN_OPTIONS="${ASAN_OPTIONS-}:verify_asan_link_order=0" timeout 100 \
		"$BERTH" run -n 1 --max-restarts 3 --end-time +300s --warn-before 290s --report report.json -- sh rank.sh
	head left.*
	for attempt in 0 1 2; do
		[ "$(cat left.$attempt)" -gt 200 ]
		[ "$(cat left.$attempt)" -le 301 ]
	done
	[ $(($(cut -d. -f1 /proc/uptime) - begin)) -ge 9 ]
	[[ "$output" == *"clock was set "*" s ahead since the start"*"clock was set "*" s back since the start"* ]]
	report '[a["code"] for a in report["attempts"]] == [3, 3, 75]'
}

@test "a rank that reported no step is behind those that did" {
	rank rank.sh <<-'SH'
		[ "$RANK" = 1 ] || echo 3 >"$BERTH_HEARTBEAT_FILE"
		eval "$UNTIL"
		[ "$RANK" = 1 ] && until_status Name:.sleep 0
		exec sleep 62
	SH
	expect 76 "$BERTH" run -n 2 --hang-timeout 2 --report report.json -- sh rank.sh
	[[ "$output" == *"rank 1 on $HOST is behind: it has reported no step, others are at 3"* ]]
	report 'report["rank"] == 1'
}

@test "no rank is behind: the message says so" {
	rank rank.sh <<<'exec sleep 60'
	expect 76 "$BERTH" run -n 2 --hang-timeout 1 --report report.json -- sh rank.sh
	[[ "$output" == *"no step and no output for 1 s, and no rank is behind the others"* ]]
	report 'report["rank"] is None and report["next"] == "see first_cause, and stacks for where each rank was"'
}

@test "--spares and --min-nodes that conflict with the allocation" {
	expect 64 "$BERTH" run --launcher loopback -N 2 --spares 2 --max-restarts 1 -- true
	[[ "$output" == *"--spares 2 leaves no node for the ranks: there are 2"* ]]
	expect 64 "$BERTH" run --launcher loopback -N 3 --spares 1 --min-nodes 3 --max-restarts 1 -- true
	[[ "$output" == *"--min-nodes 3: the ranks start on 2 nodes, not counting spares; use at most that number"* ]]
	expect 64 "$BERTH" run --launcher loopback -N 3 --min-nodes 4 --max-restarts 1 -- true
	[[ "$output" == *"--min-nodes 4: the ranks start on 3 nodes"* ]]
	expect 64 "$BERTH" run --launcher loopback -N 3 --spares 1 -- true
	[[ "$output" == *"--spares requires --max-restarts R"* ]]
	expect 64 "$BERTH" run --max-restarts -1 -- true
	expect 64 "$BERTH" run --max-restarts 1 --min-nodes 0 -- true
}
