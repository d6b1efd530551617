# SPDX-License-Identifier: BSD-3-Clause
# berth report: a berth.run/1 document as an HTML page. BERTH: the program.

load ../support/berth

# draw PAGE: set $output to what a browser makes of it, as HTML.
draw() {
	need node nodejs
	output=$(node "$SOURCE/tests/cli/page.js" "$1")
}

# page REPORT [OPTIONS]: draw the page of a report.
page() {
	expect 0 "$BERTH" report "$@" -o "$DIR/drawn.html"
	draw "$DIR/drawn.html"
}

@test "the report of a failed run becomes a page with its cause, attempts and ranks" {
	run "$BERTH" run -n 2 --report "$DIR/r.json" -- sh -c '[ $RANK = 1 ] && { echo "</pre><script>x</script>"; exit 3; }; sleep 20'
	[ "$status" = 3 ]
	expect 0 "$BERTH" report "$DIR/r.json"
	[ "$output" = "$DIR/r.html" ]
	! grep -q '</pre><script' "$DIR/r.html" || false
	page "$DIR/r.json"
	[[ $output == *'Exit code</th><td>3<'* ]]
	[[ $output == *'<pre>&lt;/pre&gt;&lt;script&gt;x'* ]]
	[[ $output == *"<h1 class=\"bad\">Failed: rank 1 on $HOST exited with code 3"* ]]
	[[ $output != *'Kind<'* && $output != *'Document<'* && $output != *'see last_lines'* ]]
	[[ $output == *'<h2>Ranks by node</h2>'* ]]
	[[ $output == *"<b>$HOST, network lo</b>"* ]]
	[[ $output == *'Command</th><td><code>sh -c '* ]]
	grep -qE 'Started</th><td>20[0-9-]+ [0-9:]+ UTC<' <<<"$output"
	[[ $output == *"berth</th><td>$("$BERTH" --version | grep -oE '[0-9]+\.[0-9.]+' | head -n 1)<"* ]]
	[[ $output == *'<p>1 of 2 ranks failed by themselves'* ]] # berth stopped the other one
}

@test "the headline of an exception names its place, its rank and its node; ranks stand in their node's box" {
	cat >"$DIR/r.json" <<-'J'
	{"schema": "berth.run/1", "code": 1, "rank": 1, "node": "n1", "first_cause": "rank 1 on n1 exited with code 1",
	 "exception": {"text": "ValueError: bad <label>", "file": "/home/u/train.py", "line": 54},
	 "stacks": "rank 0:\n  <b>wait", "next": "see last_lines",
	 "ranks": [{"rank": 2, "node": "n<2", "code": 143, "stopped": true, "network": "e<0"},
	  {"rank": 1, "node": "n1", "code": 1, "signal": 0}, {"rank": 0, "node": "n1", "code": 0}]}
	J
	page "$DIR/r.json"
	[[ $output == *'<h1 class="bad">Failed: ValueError: bad &lt;label&gt; (train.py:54), rank 1 of 3 on n1</h1>'* ]]
	[[ $output == *'First cause</th><td>rank 1 on n1 exited with code 1<'* ]]
	local node1='<b>n1</b>' node2='<b>n&lt;2, network e&lt;0</b>'
	local rank0='"rank good">Rank 0<small>code 0<' rank1='"rank bad">Rank 1<small>code 1<'
	local rank2='"rank ">Rank 2<small>stopped by berth<'
	[[ $output == *"$node1"*"$rank0"*"$rank1"*"$node2"*"$rank2"* ]]
	[ "$(grep -c 'class="node"' <<<"$output")" = 2 ]
	[[ $output == *$'<pre>rank 0:\n  &lt;b&gt;wait</pre>'* ]]
	[[ $output != *'see last_lines'* ]]
}

@test "roles: ranks stand by role and node, and the headline has that of the first cause" {
	run "$BERTH" run --report "$DIR/r.json" --role serve --service -n 1 --ready "file:$DIR/up" -- sh -c "touch $DIR/up; sleep 20" : \
		--role train -n 2 -- python3 -c 'import os; assert os.environ["RANK"] != "1", "no"; import time; time.sleep(20)'
	[ "$status" = 1 ]
	page "$DIR/r.json"
	[[ $output == *"AssertionError: no (&lt;string&gt;:1), rank 1 of 2 of role train on $HOST</h1>"* ]]
	[[ $output == *'Command of serve</th><td><code>sh -c '* && $output == *'Command of train</th><td><code>python3 -c '* ]]
	[[ $output != *'Command<'* ]]
	[[ $output == *"<b>serve on $HOST, "*'>Rank 0<small>stopped'*"<b>train on $HOST, "*'>Rank 0<small>stopped'*'>Rank 1<small>code 1,'* ]]
	[ "$(grep -c 'class="node"' <<<"$output")" = 2 ]
}

@test "a directory with logs/: the headline is green, with the date, the duration and the attempts" {
	mkdir -p run/logs
	cat >run/logs/report.json <<-'J'
	{"schema": "berth.run/1", "code": 0,
	 "attempts": [{"seconds": 3731, "started": 1795831653, "first_cause": "n<1 was lost"}, {"seconds": 60}]}
	J
	expect 0 "$BERTH" report run
	[ "$output" = run/logs/report.html ]
	page run
	[[ $output == *'<h1 class="good">Finished</h1>'* ]]
	grep -q 'Started</th><td>2026-11-28 [0-9:]* UTC<' <<<"$output"
	[[ $output == *'Duration</th><td>1:03:11<'* ]]
	[[ $output == *'Attempt 0, 3731 s</th><td>n&lt;1 was lost<'* ]]
	sed -i 's/"code": 0/"code": 75/; s/"attempts"/"first_cause": "a signal", &/' run/logs/report.json
	page run/logs
	[[ $output == *'<h1 class="good">Stopped: a signal</h1>'* ]]
	expect 0 "$BERTH" report run -o -
	[[ $output == '<!DOCTYPE html>'* ]]
}

@test "the curves of a training: at most 300 points each, with their extremes as text" {
	echo '{"schema": "berth.run/1", "code": 0}' >"$DIR/r.json"
	python3 -c 'import json
for step in range(1, 10001):
    print(json.dumps({"split": "train", "step": step, "loss": 3 - step / 5000, "lr": 0.1, "time": step}))
print(json.dumps({"split": "val", "step": 10000, "loss": 1.5, "acc1": 75}))
print("{\"split\": \"train\", \"step\": 10", end="")' >"$DIR/metrics.jsonl" # a run was killed at the last line
	for bad in '' '[1]' '{"split": "train"}' '{' $'{"split": "train", "step": 1, "loss": 1}\n\xff'; do
		printf '%s\n' "$bad" >"$DIR/bad.jsonl"
		expect 65 "$BERTH" report "$DIR/r.json" --metrics "$DIR/bad.jsonl"
		[[ "$output" == *"bad.jsonl"* ]]
	done
	expect 66 "$BERTH" report "$DIR/r.json" --metrics "$DIR/none.jsonl"
	expect 66 "$BERTH" report "$DIR/r.json" --metrics "$DIR"
	page "$DIR/r.json" --metrics "$DIR/metrics.jsonl"
	[[ $output == *'Training loss: lowest 1, highest 2.9998, last 1; steps 1 to 10000<'* ]]
	[[ $output == *'Validation accuracy, percent: lowest 75, highest 75, last 75; steps 10000 to 10000<'* ]]
	[[ $output == *$'<span>3</span>\n<span>1</span>'* ]]
	[[ $output == *$'<span>1</span>\n<span>step</span>\n<span>10000</span>'* ]]
	[[ $output != *'Images per second'* ]]
	python3 - "$output" <<-'P'
	import re, sys
	curves = re.findall(r'points="([^"]*)"', sys.argv[1])
	assert [len(curve.split()) for curve in curves] == [295, 1, 1, 295], [len(curve.split()) for curve in curves]
	loss = [tuple(map(float, point.split(','))) for point in curves[0].split()]
	assert loss == sorted(loss) and loss[-1][0] == 600 and loss[0][1] < 5 and loss[-1][1] > 135, loss
	P
}

@test "several reports become a table; a directory stands for the report in it" {
	cd "$DIR"
	for code in 0 3 75; do
		run "$BERTH" run -n 1 --log-dir runs/code-$code -- sh -c "exit $code"
		[ "$status" = $code ]
	done
	mkdir runs/killed
	echo '{}' >runs/bad.json
	printf '{"schema":"berth.run/1","code":"x","attempts":7}' >runs/odd.json
	printf '{"schema":"berth.run/1","code":0,"attempts":7,"first_cause":"a\\u001bb"}' >runs/escape.json
	expect 0 "$BERTH" report runs/*
	[[ $output == *"runs/code-0 "*"0     0:0"*" ended"$'\n'* ]]
	[[ $output == *"runs/code-3 "*"3     0:0"*" rank 0 on $HOST exited with code 3"$'\n'* ]]
	[[ $output == *"runs/bad.json "*"the schema is '', not"* ]]
	[[ $output == *"runs/killed "*"no report: it still runs, or was killed"* ]]
	[[ $output != *$'\e'* ]]
	[[ $output == *"runs/odd.json "*"\"code\" is \"x\"; expected a whole number"* ]]
	[[ $output == *"7 runs: 2 ended with code 0, 1 stopped with code 75, 1 failed, 3 without a report" ]]
	# One directory: the page.
	expect 0 "$BERTH" report runs/code-3
	draw runs/code-3/report.html
	[[ $output == *'Exit code</th><td>3<'* ]]
}

@test "a sweep: each message names its run, and the table shows in which arguments the runs differ" {
	cd "$DIR"
	for lr in 0.1 0.02; do
		run "$BERTH" run --wait -n 1 --log-dir runs/$lr -- sh -c '[ $2 != 0.02 ]' train.py --lr $lr --seed=1
		[ "$status" = "$([ $lr = 0.02 ]; echo $((1 - $?)))" ]
		! grep '^berth: [a-z]*: ' <<<"$output" | grep -v "^berth: [a-z]*: runs/$lr: " || false
		grep -q "^berth: [a-z]*: runs/$lr: " <<<"$output"
	done
	"$BERTH" run --wait -n 1 --log-dir runs/amp -- sh -c true train.py --lr 0.1 --seed=1 --amp
	expect 0 "$BERTH" report runs/0*
	grep -qE '^runs/0.1 .*--lr 0\.1 +0 ' <<<"$output"
	grep -qE '^runs/0.02 .*--lr 0\.02 +1 ' <<<"$output"
	[[ $output != *--seed* && $output != *train.py* ]]
	expect 0 "$BERTH" report runs/*
	grep -qE '^runs/amp .*--amp +0 ' <<<"$output"
	# Reports of an older berth have no arguments.
	printf '{"schema":"berth.run/1","code":0}' >old.json
	expect 0 "$BERTH" report old.json runs/0.1
	grep -qE '^old.json +- +0 ' <<<"$output"
}

@test "a cancelled job: the runs that did not finish, with or without a report, read cancelled" {
	mkdir none
	printf '{"schema":"berth.run/1","code":0,"kind":"ended"}' >done.json
	printf '{"schema":"berth.run/1","code":143,"kind":"cancelled","first_cause":"rank 0","why":"the job"}' >a.json
	printf '{"schema":"berth.run/1","code":143,"kind":"cancelled","first_cause":"rank 0","why":null}' >step.json
	expect 0 "$BERTH" report done.json a.json none
	[ "$(grep -c '  cancelled$' <<<"$output")" = 2 ]
	[[ $output == *"3 runs: 1 ended with code 0, 2 cancelled" ]]
	# A cancelled job step says nothing about other runs.
	expect 0 "$BERTH" report step.json none
	[ "$(grep -c '  cancelled$' <<<"$output")" = 1 ]
	[[ $output == *"no report: it still runs, or was killed"* ]]
}

@test "two runs with the same --log-dir: the second one is refused, and changes nothing there" {
	cd "$DIR"
	"$BERTH" run -n 1 --log-dir logs -- sh -c 'echo first; until [ -e go ]; do sleep 0.05; done' 3>&- >out &
	within 30 grep -qx first out
	expect 73 "$BERTH" run -n 1 --log-dir "$DIR/logs" -- echo second
	[[ $output == *"--log-dir $DIR/logs: another run (process $!) writes there"* ]]
	[ ! -e logs/report.json ]
	expect 73 "$BERTH" run -n 1 --log-dir logs --report r.json -- echo second
	grep -q '"code": 73' r.json
	touch go
	wait $!
	! grep -q second logs/rank-0000.log || false
	grep -q '"code": 0' logs/report.json
	# A run that is killed leaves no report, not that of an earlier run.
	expect 0 "$BERTH" run -n 1 --log-dir logs -- sh -c '[ ! -e logs/report.json ]'
}

@test "control characters and members of another type do no harm" {
	printf '{"schema":"berth.run/1","kind":7,"ranks":{},"attempts":[1,{"nodes":2,"seconds":"x"}],"first_cause":"a\\u001bb"}' >"$DIR/r.json"
	page "$DIR/r.json"
	[[ $output == *$'a\xef\xbf\xbdb'* ]]
	[[ $output == *'Failed: a'* ]]
	[[ $output != *'<h2>Ranks by node</h2>'* ]]
}

@test "1,000 nodes with 8 ranks each fit into 1 MB, and all are drawn" {
	python3 -c 'import json; print(json.dumps({"schema": "berth.run/1", "code": 1, "ranks": [
		{"rank": i, "node": "n%d" % (i // 8), "code": int(i == 7999), "signal": 0, "peak_memory_bytes": i << 20}
		for i in range(8000)], "attempts": [{"attempt": 0, "nodes": ["n%d" % i for i in range(1000)], "seconds": 9.5}]}))' >"$DIR/big.json"
	expect 0 "$BERTH" report "$DIR/big.json"
	[ "$(stat -c %s "$DIR/big.html")" -lt 1000000 ]
	draw "$DIR/big.html"
	[[ $output == *'Failed: cause unknown<'* && $output == *'title="Rank 7999: code 1, 7999 MiB"'* ]]
	[ "$(grep -c 'class="rank good' <<<"$output")" = 7999 ]
	[ "$(grep -c 'class="rank bad' <<<"$output")" = 1 ]
}

@test "bad inputs end with a message and their exit code" {
	expect 64 "$BERTH" report
	[[ $output == *'no REPORT.json given'* ]]
	expect 64 "$BERTH" report a b -o c
	[[ $output == *'--output: only one REPORT.json is possible'* ]]
	expect 64 "$BERTH" report a b --metrics c
	expect 66 "$BERTH" report "$DIR/missing.json"
	[[ $output == *missing.json* ]]
	expect 66 "$BERTH" report "$DIR"
	mkfifo "$DIR/fifo"
	expect 66 timeout 10 "$BERTH" report "$DIR/fifo"
	printf '[]' >"$DIR/array.json"
	expect 65 "$BERTH" report "$DIR/array.json"
	printf '{"schema":"berth.run/1","code":' >"$DIR/cut.json"
	expect 65 "$BERTH" report "$DIR/cut.json"
	printf '{"schema":"berth.info/1"}' >"$DIR/other.json"
	expect 65 "$BERTH" report "$DIR/other.json"
	[[ $output == *"'berth.info/1', not 'berth.run/1'"* ]]
	head -c 1000 /dev/urandom >"$DIR/binary.json"
	expect 65 "$BERTH" report "$DIR/binary.json"
	printf '{"schema":"berth.run/1"}' >"$DIR/ok.json"
	expect 73 "$BERTH" report "$DIR/ok.json" -o "$DIR/none/x.html"
	expect 74 sh -c '"$BERTH" report ok.json >/dev/full'
	[ ! -e "$DIR/array.html" ] && [ ! -e "$DIR/other.html" ]
}
