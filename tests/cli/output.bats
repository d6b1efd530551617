# SPDX-License-Identifier: BSD-3-Clause
# The ranks' output, and how their exits are reported. PROBE: the program agent-probe.

load ../support/berth

setup() {
	make_dir
	# Freed memory counts as used under ASan unless it is really freed.
	export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}quarantine_size_mb=1"
}

# check_lines FILE LETTER COUNT SIZE LABEL: lines "LABELo 17 xxx", all, whole, in order
check_lines() {
	grep -F "$5$2 " "$1" | awk -v letter="$2" -v count="$3" -v size="$4" -v label="$5" '
		{ sub(/^\[[0-9]+\] /, "") }
		$1 != letter || $2 != NR - 1 || length($3) != size || NF != 3 || $3 !~ /^x+$/ {
			print "line " NR " is: " substr($0, 1, 100); bad = 1; exit
		}
		END { if (!bad && NR != count) { print NR " lines of " count; bad = 1 }; exit bad }'
}

@test "2 ranks, 100,000 lines per stream: none missing, each whole, in order" {
	"$BERTH" run -n 2 --label -- "$PROBE" lines 100000 60 >"$DIR/out" 2>"$DIR/err"
	for rank in 0 1; do
		check_lines "$DIR/out" o 100000 60 "[$rank] "
		check_lines "$DIR/err" e 100000 60 "[$rank] "
	done
	[ "$(wc -l <"$DIR/out")" -eq 200000 ]
}

@test "a slow reader slows the ranks down; memory stays bounded" {
	mkfifo "$DIR/pipe"
	"$BERTH" run -n 2 --label -- "$PROBE" lines 300000 100 >"$DIR/pipe" 2>/dev/null 3>&- &
	run_pid=$!
	exec 9<"$DIR/pipe"
	sleep 3
	# 63 MB wait to be written, but no process holds them in memory.
	for pid in $run_pid $(ps -o pid= --ppid $run_pid); do
		peak=$(awk '/^VmHWM/ { print $2 }' "/proc/$pid/status")
		echo "process $pid: $peak KiB at the most"
		[ "$peak" -lt 100000 ]
	done
	cat <&9 >"$DIR/out"
	exec 9<&-
	wait $run_pid
	for rank in 0 1; do
		check_lines "$DIR/out" o 300000 100 "[$rank] "
	done
}

@test "the job ends if the reader of its output has gone, unless --log-dir keeps the output" {
	run bash -c 'timeout 60 "$BERTH" run -n 2 -- sh -c "while :; do echo x; sleep 0.1; done" 2>err | head -n 1; exit "${PIPESTATUS[0]}"'
	[[ "$status" -eq 74 && "${lines[0]}" = x ]]
	grep -q '^berth: error: the reader of the output has gone, so the job was ended; --log-dir' err
	# With --log-dir the ranks run to their end.
	run bash -c '"$BERTH" run -n 2 --log-dir log -- "$PROBE" lines 20000 60 2>/dev/null | head -n 1; exit "${PIPESTATUS[0]}"'
	[ "$status" -eq 74 ]
	for rank in 0 1; do
		check_lines log/rank-000$rank.log o 20000 60 ""
	done
}

@test "--log-dir: one complete file per rank with both streams; the next run appends" {
	"$BERTH" run -n 2 --log-dir "$DIR/log/deep" -- "$PROBE" lines 20000 60 >/dev/null 2>&1
	[ "$(ls "$DIR/log/deep")" = "$(printf 'rank-0000.log\nrank-0001.log\nreport.json')" ]
	for rank in 0 1; do
		check_lines "$DIR/log/deep/rank-000$rank.log" o 20000 60 ""
		check_lines "$DIR/log/deep/rank-000$rank.log" e 20000 60 ""
		head -n 1 "$DIR/log/deep/rank-000$rank.log" | grep "^==== berth: .* rank $rank host $HOST "
	done
	"$BERTH" run -n 2 --log-dir "$DIR/log/deep" -- sh -c 'echo again' >/dev/null
	[ "$(grep -c '^==== berth: ' "$DIR/log/deep/rank-0001.log")" -eq 2 ]
	[ "$(tail -n 1 "$DIR/log/deep/rank-0001.log")" = again ]
}

@test "--log-dir: logs of an earlier, larger run are reported once and left unchanged" {
	"$BERTH" run -n 4 --log-dir "$DIR/log" -- sh -c 'echo old' >/dev/null 2>&1
	touch "$DIR/log/rank-0009.log.gz" "$DIR/log/rank-x.log"
	expect 0 --separate-stderr "$BERTH" run -n 2 --log-dir "$DIR/log" -- sh -c 'echo new'
	[ "$(grep -c "an earlier run with more than 2 ranks left 2 logs in $DIR/log, from rank-0002.log on" <<<"$stderr")" -eq 1 ]
	[ "$(tail -n 1 "$DIR/log/rank-0003.log")" = old ]
	run --separate-stderr "$BERTH" run -n 4 --log-dir "$DIR/log" -- true
	[[ $stderr != *"earlier run"* ]]
}

@test "a log directory that cannot be written: exit code 73, nothing is started" {
	touch "$DIR/file"
	expect 73 "$BERTH" run -n 2 --log-dir "$DIR/file/log" -- touch "$DIR/started"
	[[ $output == *"$DIR/file"* ]]
	[ ! -e "$DIR/started" ]
}

@test "a full disk under the logs is reported once; the job continues" {
	[ -w /dev/full ] || skip "/dev/full is not there"
	mkdir "$DIR/log"
	ln -s /dev/full "$DIR/log/rank-0000.log"
	expect 0 "$BERTH" run -n 2 --log-dir "$DIR/log" -- "$PROBE" lines 100 20
	[ "$(grep -c 'No space left on device' <<<"$output")" -eq 1 ]
	check_lines "$DIR/log/rank-0001.log" o 100 20 ""
}

@test "the first failure is reported with rank, host, code and last lines; later ones are not" {
	cat >"$DIR/rank.sh" <<'SH'
if [ "$RANK" = 1 ]; then
	echo "loading"
	echo "the reason of it all" >&2
	sleep 0.5
	exit 3
fi
trap 'echo "cascade on $RANK"; exit 9' TERM
sleep 60 &
wait
SH
	expect 3 --separate-stderr "$BERTH" run -n 3 --report "$DIR/report.json" -- sh "$DIR/rank.sh"
	[[ $stderr == *"rank 1 on $HOST exited with code 3"* ]]
	[[ $stderr == *"the reason of it all"*"rank 1 on"* || $stderr == *"rank 1 on"*"the reason of it all"* ]]
	[[ $stderr != *"rank 0 on"* && $stderr != *"rank 2 on"* ]]
	[[ $(tail -n 1 <<<"$stderr") == "berth: error: "* ]]
	report "report['by'] == 'program' and report['code'] == 3 and report['signal'] == 0"
	report "report['rank'] == 1 and report['node'] == '$HOST'"
	report "'rank 1' in report['first_cause']"
	report "'the reason of it all' in report['last_lines']"
	report "not any('cascade' in line for line in report['last_lines'])"
}

@test "a rank killed by a signal: 128 + signal, and the signal is named" {
	expect 138 --separate-stderr "$BERTH" run -n 2 --report "$DIR/report.json" -- \
		sh -c '[ "$RANK" = 0 ] && kill -USR1 $$; sleep 60'
	[[ $stderr == *"rank 0 on $HOST was killed by signal 10"* ]]
	report "report['signal'] == 10 and report['rank'] == 0 and report['code'] == 138"
}

@test "a rank that fails because another died is not the reported cause, even if it exits first" {
	# The agent is stopped until both have exited.
	cat >"$DIR/rank.sh" <<'SH'
is() { until grep -qs "^State:.$2" "/proc/$1/status"; do sleep 0.01; done; }
if [ "$RANK" = 0 ]; then
	echo $$ >"$1/first"
	until [ -e "$1/stopped" ]; do sleep 0.01; done
	exit 1
fi
until [ -s "$1/first" ]; do sleep 0.01; done
kill -STOP $PPID
is $PPID T
touch "$1/stopped"
is "$(cat "$1/first")" Z
(is $$ Z; kill -CONT $PPID) &
kill -KILL $$
SH
	expect 137 --separate-stderr "$BERTH" run -n 2 --report "$DIR/report.json" -- sh "$DIR/rank.sh" "$DIR"
	[[ $stderr == *"rank 1 on $HOST was killed by signal 9"* && $stderr != *"rank 0 on"* ]]
	report "report['rank'] == 1 and report['signal'] == 9 and report['code'] == 137"
}

@test "the other ranks are killed within 5 s (asserted: 15 s) although they ignore SIGTERM" {
	begun=$SECONDS
	expect 4 "$BERTH" run -n 3 -- sh -c \
		"[ \"\$RANK\" = 2 ] && { sleep 0.5; exit 4; }; exec '$PROBE' stubborn"
	[ $((SECONDS - begun)) -lt 15 ]
}

@test "processes that ranks leave behind are killed when berth run exits" {
	"$BERTH" run -n 2 -- "$PROBE" daemon 0 >"$DIR/out"
	[ "$(grep -c '^daemon ' "$DIR/out")" -eq 2 ]
	while read -r _ pid; do
		[ ! -e "/proc/$pid" ]
	done <"$DIR/out"
}

@test "signals reach the ranks" {
	"$BERTH" run -n 2 -- "$PROBE" signals >"$DIR/out" 3>&- &
	run_pid=$!
	twice() { [ "$(grep -c "$1" "$DIR/out")" -eq 2 ]; }
	within 20 twice ready
	kill -USR1 $run_pid
	within 20 twice 'signal 10'
	kill -USR2 $run_pid
	within 20 twice 'signal 12'
	kill -TERM $run_pid
	ends 143 $run_pid # 128 + SIGTERM, although the ranks exit with 7
	twice 'signal 15'
}

@test "the kernel's out-of-memory killer is named" {
	group=/sys/fs/cgroup/memory
	[ -d $group ] || group=/sys/fs/cgroup
	group=$group/berth-test-$$
	limit=memory.limit_in_bytes
	mkdir $group 2>/dev/null || skip "no memory cgroup can be made here"
	[ -e $group/$limit ] || limit=memory.max
	if ! echo $((300 << 20)) 2>/dev/null >$group/$limit; then
		rmdir $group
		skip "no memory limit can be set here"
	fi
	cat >"$DIR/rank.sh" <<'SH'
[ "$RANK" = 1 ] && exec python3 -c 'x = bytearray(800 << 20); print(len(x))'
exec sleep 60
SH
	run sh -c "echo \$\$ >$group/cgroup.procs && exec '$BERTH' run -n 2 -- sh '$DIR/rank.sh'"
	within 20 rmdir $group
	[ "$status" -eq 137 ]
	[[ $output == *"rank 1 on $HOST was killed by signal 9"*"out-of-memory"* ]]
}

@test "a cgroup that allows less CPU time than ranks is reported" {
	group=/sys/fs/cgroup/cpu
	[ -d $group ] || group=/sys/fs/cgroup
	group=$group/berth-cpu-$$
	mkdir $group 2>/dev/null || skip "no CPU cgroup can be made here"
	if ! echo 150000 2>/dev/null >$group/cpu.cfs_quota_us && ! echo 150000 100000 2>/dev/null >$group/cpu.max; then
		rmdir $group
		skip "no CPU limit can be set here"
	fi
	run sh -c "echo \$\$ >$group/cgroup.procs && '$BERTH' run -n 2 -- sh -c 'echo threads=\$OMP_NUM_THREADS'"
	within 20 rmdir $group
	[ "$status" -eq 0 ]
	[[ $output == *"warning: $HOST: the cgroup allows 1.5 CPUs of time for 2 ranks"*"start fewer ranks"* ]]
	[ "$(grep -c threads=1 <<<"$output")" -eq 2 ]
}

@test "a missing or non-executable program is reported; nothing is left behind" {
	expect 66 "$BERTH" run -n 2 -- /no/such/program
	[[ $output == *"/no/such/program"* ]]
	run "$BERTH" run -n 2 -- /etc/passwd
	[ "$status" -ge 64 ] && [ "$status" -le 78 ]
	[[ $output == *"/etc/passwd"* ]]
}

@test "stdin goes to rank 0" {
	expect 0 bash -c "echo hello | '$BERTH' run -n 2 --label -- cat"
	[[ $output == *"[0] hello"* ]]
	[[ $output != *"[1]"* ]]
}

@test "every message of berth has a level" {
	run "$BERTH" run -v --launcher loopback --nodes 2 -n 5 --log-dir log --max-restarts 1 -- sh -c '[ $RANK = 1 ] && exit 7; sleep 60'
	[ "$status" -eq 7 ]
	grep '^berth' <<<"$output" >words
	[ "$(wc -l <words)" -ge 4 ]
	! grep -vE '^berth: ((error|warning|note|debug): |  \| )' words || false
	[[ "${lines[-1]}" == "berth: error: rank 1 on loop0 exited with code 7" ]]
	run "$BERTH" nosuch
	[[ "$status" -eq 64 && "$output" == "berth: error: unknown verb 'nosuch'"* ]]
}

@test "the last line and the report name the exception of the first rank that failed, with file and line" {
	cat >fails.py <<-'P'
	import os, time

	def divide(by):
	    return [][by]

	if os.environ["RANK"] == "1":
	    divide(0)
	time.sleep(60)
	P
	run "$BERTH" run -n 2 --report report.json -- python3 fails.py
	[ "$status" = 1 ]
	[[ ${lines[-1]} == "berth: error: rank 1 on "*" exited with code 1: IndexError: list index out of range ("*"fails.py:4)" ]]
	python3 -c 'import json
seen = json.load(open("report.json"))["exception"]
assert seen["text"].startswith("IndexError") and seen["file"].endswith("fails.py") and seen["line"] == 4, seen'
	# A program that exits with a code of its own has none.
	run "$BERTH" run --report report.json -- python3 -c 'import sys; sys.exit(3)'
	[ "$status" = 3 ]
	[[ ${lines[-1]} == *"exited with code 3" ]]
	python3 -c 'import json; assert json.load(open("report.json"))["exception"] is None'
}

@test "all ranks failed for the same reason: the last line counts them; for different reasons it names the first" {
	cat >same.py <<-'P'
	import os, time

	rank = os.environ["RANK"]
	open("up." + rank, "w")
	while not os.path.exists("up.0") or not os.path.exists("up.1"):
	    time.sleep(0.01)
	if os.environ["HOW"] == "differ":
	    raise ValueError("of rank " + rank)
	import no_such_module
	P
	HOW=same run "$BERTH" run -n 2 --report report.json -- python3 same.py
	[ "$status" = 1 ]
	[[ ${lines[-1]} == "berth: error: 2 of 2 ranks exited with code 1: ModuleNotFoundError: No module named 'no_such_module' ("*"same.py:9)" ]]
	report 'report["first_cause"] == "2 of 2 ranks exited with code 1" and report["rank"] in (0, 1)'
	rm up.*
	HOW=differ run "$BERTH" run -n 2 -- python3 same.py
	[[ "$status" = 1 && ${lines[-1]} == "berth: error: rank "[01]" on $HOST exited with code 1: ValueError: of rank "[01]" "* ]]
	# One of three fails otherwise.
	run "$BERTH" run -n 3 -- sh -c '[ $RANK = 2 ] && exec sleep 60; exit 4'
	[[ "$status" = 4 && ${lines[-1]} == "berth: error: rank "[01]" on $HOST exited with code 4" ]]
}

# What record_exception in torch/distributed/elastic/multiprocessing/errors/error_handler.py writes.
@test "the exception is named even if the program has closed its stderr, but recorded it with @record" {
	cat >records.py <<-'P'
	import json, os, sys, traceback

	os.close(2)
	try:
	    open("/nonexistent/column")
	except OSError as e:
	    content = {"message": {"message": f"{type(e).__name__}: {e}", "extraInfo": {
	        "py_callstack": traceback.format_exc(), "timestamp": "1700000000"}}}
	with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
	    file.write({"whole": json.dumps(content), "cut": json.dumps(content)[:40], "array": "[1]",
	        "empty": "", "other": '{"message": {"extraInfo": {"py_callstack": 7}}}'}[sys.argv[1]])
	os._exit(1)
	P
	run "$BERTH" run -- python3 records.py whole
	[ "$status" = 1 ]
	[[ ${lines[-1]} == *"exited with code 1: FileNotFoundError: "*"records.py:5)" ]]
	for bad in cut array empty other; do
		run "$BERTH" run -- python3 records.py $bad
		[[ "$status" = 1 && ${lines[-1]} == *"exited with code 1" ]]
	done
	# A file that the user has chosen stays the user's.
	TORCHELASTIC_ERROR_FILE=$PWD/mine run "$BERTH" run -- python3 records.py whole
	[[ "$status" = 1 && -s mine ]]
}

# Lines "[RANKS] TEXT" as "TEXT: RANKS", sorted, one line per text: copies more than 1 s apart are not joined.
each_text() {
	python3 /dev/fd/4 4<<-'P' <<<"$1"
	import re, sys
	ranks = {}
	for found in re.finditer(r"^\[([\d,-]+)\] (.*)$", sys.stdin.read(), re.MULTILINE):
	    for part in found[1].split(","):
	        first, _, last = part.partition("-")
	        ranks.setdefault(found[2], []).extend(range(int(first), int(last or first) + 1))
	for text in sorted(ranks):
	    print(text + ":", *sorted(ranks[text]))
	P
}

@test "--collapse joins identical lines of several ranks, and loses none if a rank is killed" {
	# All start to print at once.
	cat >lines.sh <<-'S'
	: >started-$RANK
	until [ "$(ls started-* | wc -l)" = "$WORLD_SIZE" ]; do sleep 0.05; done
	S
	run -0 --separate-stderr "$BERTH" run -n 4 --collapse on -- sh -c '. ./lines.sh
		echo same; [ $RANK != 2 ] || echo odd; echo "$((RANK % 2))"; echo end'
	diff - <(each_text "$output") <<-'E'
	0: 0 2
	1: 1 3
	end: 0 1 2 3
	odd: 2
	same: 0 1 2 3
	E
	[ "${#lines[@]}" -lt 13 ] # some were joined: 13 were printed
	rm started-*
	run "$BERTH" run -n 3 --collapse on -- sh -c '. ./lines.sh
		for i in 1 2 3; do echo $i; done; : >printed-$RANK
		[ $RANK = 1 ] || exec sleep 60
		until [ -e printed-0 ] && [ -e printed-2 ]; do sleep 0.05; done; kill -9 $$'
	[ "$status" = 137 ]
	for i in 1 2 3; do
		each_text "$output" | grep -qx "$i: 0 1 2"
	done
	# Off, and automatic without a terminal: each rank's line, without a label.
	for mode in off auto; do
		run -0 --separate-stderr "$BERTH" run -n 20 --collapse $mode -- echo same
		[ "$(grep -cx same <<<"$output")" = 20 ]
	done
	# Automatic on a terminal: with more than 16 ranks.
	run -0 script -qec "'$BERTH' run -n 17 -- echo same" /dev/null
	each_text "$(tr -d '\r' <<<"$output")" | grep -qx "same: $(seq -s ' ' 0 16)"
	[ "${#lines[@]}" -lt 17 ]
	run -0 script -qec "'$BERTH' run -n 16 -- echo same" /dev/null
	[ "$(tr -d '\r' <<<"$output" | grep -cx same)" = 16 ]
	for bad in maybe "" ON 1 on,off; do
		run "$BERTH" run --collapse "$bad" -- true
		[[ "$status" = 64 && "$output" == *"--collapse"* ]]
	done
}

@test "an error is printed once: the last lines of a rank are repeated only if others have followed" {
	run "$BERTH" run -n 2 -- sh -c '[ $RANK = 1 ] || sleep 60; printf "Traceback\n  in f\nValueError: 3\n" >&2; exit 1'
	[[ "$status" -eq 1 && "$(grep -c ValueError <<<"$output")" -eq 1 && "$output" != *"last output"* ]]
	# Rank 0 prints once berth has printed the error, and rank 1 exits once berth has printed that.
	run sh -c '"$BERTH" run -n 2 -- sh -c "$1" >out 2>&1' sh 'printed() { until grep -qsx "$1" out; do sleep 0.05; done; }
		[ $RANK = 0 ] && { printed "ValueError: 3"; seq 200; sleep 60; }
		echo "ValueError: 3" >&2; printed 200; exit 1'
	output=$(<out)
	[[ "$status" -eq 1 && "$(grep -c ValueError <<<"$output")" -eq 2 ]]
	[[ "$output" == *"berth: note: last output of rank 1:"*"berth:   | ValueError: 3"*"berth: error: rank 1 on"* ]]
	# Lines that went to another file than the message are repeated; the terminal of both is one.
	job=(sh -c 'for i in $(seq 40); do echo e$i >&2; done
		until grep -qsx e40 err; do sleep 0.05; done; echo "the last words"; exit 3')
	expect 3 sh -c '"$@" >out 2>err' sh "$BERTH" run -n 1 -- "${job[@]}"
	[[ "$(<err)" == *"berth: note: last output of rank 0:"*"berth:   | the last words"* ]]
	expect 3 sh -c '"$@" >err 2>&1' sh "$BERTH" run -n 1 -- "${job[@]}"
	[[ "$(grep -c "the last words" err)" -eq 1 && "$(<err)" != *"last output"* ]]
	run ! sh -c '"$BERTH" run -n 1 -- sh -c "echo dying words; exit 3" 2>&1 >out'
	[[ "$output" == *"berth:   | dying words"* ]]
}

@test "the same warning about several nodes is one line" {
	run "$BERTH" run --launcher loopback --nodes 4 -n 256 -- true
	[ "$status" -eq 0 ]
	[ "$(grep -c 'more ranks (64) than cores' <<<"$output")" -eq 1 ]
	grep -q '^berth: warning: 4 nodes: more ranks (64) than cores' <<<"$output"
	run "$BERTH" run --launcher loopback --nodes 4 -n 254 -- true
	grep -q '^berth: warning: 2 of 4 nodes (loop\[0-1\]): more ranks (64) than cores' <<<"$output"
	grep -q '^berth: warning: 2 of 4 nodes (loop\[2-3\]): more ranks (63) than cores' <<<"$output"
}

@test "a log file that stalls does not end the job: code 0, and a warning about the missing bytes" {
	mkdir log
	mkfifo log/rank-0000.log
	exec 9<>log/rank-0000.log # a reader that never reads
	run -0 timeout 60 "$BERTH" run -n 2 --log-dir log -- sh -c 'seq 150000; sleep 1; echo end'
	exec 9>&-
	[ "$(grep -c '^end$' <<<"$output")" -eq 2 ]
	[ "$(grep -c 'the log files in .*log accept no more output: their last [0-9]* bytes are missing' <<<"$output")" -eq 1 ]
}

@test "an unfinished line, such as a prompt, is shown while its rank waits" {
	"$BERTH" run -n 2 --label -- sh -c 'printf "rank $RANK asks: "; until [ -e go ]; do sleep 0.05; done; echo done' >out 3>&- &
	pid=$!
	until_seen out 'rank 0 asks: $'
	until_seen out 'rank 1 asks: $'
	touch go
	ends 0 $pid out
	[ "$(grep -c 'asks: ' out)" = 2 ] && [ "$(grep -c 'done$' out)" = 2 ]
}
