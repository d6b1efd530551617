# SPDX-License-Identifier: BSD-3-Clause
# What berth shows: to other users of the node in names, memory and core files, and on its own user's terminal.

load ../support/berth
load ../support/users

# What a rank prints: a C1 control in UTF-8, one as a byte, a right-to-left override, and letters that berth keeps.
HOSTILE='\302\2332J \2332J \342\200\256gpj \303\251'

# controls FILE: does it hold any of these?
controls() { LC_ALL=C grep -qP '\xc2[\x80-\x9f]|\x9b|\xe2\x80\xae' "$1"; }

@test "text of ranks in berth's messages moves no cursor and reverses no text; their output stays as it is" {
	expect 3 "$BERTH" run -n 1 --log-dir "$DIR/logs" -- sh -c '
		printf "Traceback (most recent call last):\n  File \"x.py\", line 1, in <module>\nValueError: $0\n" >&2; exit 3' "$HOSTILE"
	controls "$DIR/logs/rank-0000.log" # control: byte by byte
	grep '^berth: ' <<<"$output" >"$DIR/shown"
	grep -q 'ValueError: .*2J' "$DIR/shown"
	! controls "$DIR/shown" || false
	run "$BERTH" explain "$DIR/logs"
	printf '%s\n' "$output" >"$DIR/shown"
	grep -q 'ValueError: .*2J' "$DIR/shown"
	! controls "$DIR/shown" || false
}

@test "the page of a report loads nothing, runs its own script only, and shows no control characters" {
	printf '{"schema": "berth.run/1", "code": 1, "first_cause": "%b"}' '\0302\02332J \0342\0200\0256gpj \0303\0251' >"$DIR/r.json"
	controls "$DIR/r.json" # control
	expect 0 "$BERTH" report "$DIR/r.json"
	! controls "$DIR/r.html" || false
	grep -q "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" "$DIR/r.html"
	# It comes before everything that it is meant for.
	[ "$(grep -n Content-Security "$DIR/r.html" | cut -d: -f1)" -lt "$(grep -n '<style' "$DIR/r.html" | cut -d: -f1)" ]
	need node nodejs
	node "$SOURCE/tests/cli/page.js" "$DIR/r.html" >"$DIR/shown"
	grep -q $'gpj \xc3\xa9' "$DIR/shown"
	! controls "$DIR/shown" || false
}

@test "another user takes the name of the claims' lock: GPUs are not used twice, and the error names the owner" {
	two_users
	local lock=$DIR/berth-claims-$VICTIM kind
	run_on() { # TOPOLOGY OPTIONS...
		as $VICTIM TMPDIR="$DIR" BERTH_TOPOLOGY="$FIXTURES/topo/$1" timeout 30 "$BERTH" run -n 1 "${@:2}" -- echo started
	}
	expect 0 run_on locality-machine.xml # control: four GPUs
	for kind in "install -m 666 /dev/null" mkdir mkfifo "ln -s /dev/null"; do
		as $ATTACKER $kind "$lock"
		[[ $kind != install* ]] || { EXEC=exec as $ATTACKER sh -c 'exec 9<>"$0"; flock 9; exec sleep 20' "$lock" 3>&- & holder=$!; }
		SECONDS=0
		expect 65 run_on locality-machine.xml
		[[ $output == *"GPU 0 cannot be claimed: cannot lock $lock: it belongs to user $ATTACKER. Ask the administrator"*"set TMPDIR"* ]]
		[[ $output != *started* ]]
		[ "$SECONDS" -lt 5 ]
		# The runs of a sweep would share their slots.
		expect 65 run_on no-gpu.xml --wait=9
		[[ $output == *"CPU"*" cannot be claimed: cannot lock $lock: it belongs to user $ATTACKER. "* ]]
		expect 0 run_on no-gpu.xml # claims nothing that others could take
		rm -rf "$lock"
	done
	kill "$holder"
	expect 0 run_on locality-machine.xml
}

# variables PID: the environment that the kernel keeps for it.
variables() { tr '\0' '\n' <"/proc/$1/environ"; }
parent() { cut -d' ' -f4 "/proc/$1/stat"; }

# look_at_job: print the PIDs of a job's agents and their guardians, once its two ranks have written to pids.
look_at_job() {
	local rank
	wait_for pids 2
	for rank in $(cat pids); do parent "$rank"; parent "$(parent "$rank")"; done | sort -u
}

@test "the job's secret is in the environment of neither agent nor guardian while the job runs" {
	[ "$(id -u)" = 0 ] || skip "needs root to read the agents' environment"
	local pid
	"$BERTH" run --launcher loopback -N 2 -n 2 -- sh -c 'echo $$ >>pids; until [ -e end ]; do sleep 0.05; done' 3>&- & run=$!
	look_at_job >agents
	for pid in $(cat agents); do
		variables "$pid" | grep '^BERTH_AGENT_CONTROLLER=.' # control
		! variables "$pid" | grep -a '^BERTH_AGENT_SECRET=.' || false
		! grep -aqE '[0-9a-f]{64}' "/proc/$pid/environ" || false
	done
	[ "$(wc -l <agents)" = 4 ]
	touch end
	wait "$run"
}

@test "ranks cannot read the memory of controller, agent and guardian, which are their own user's" {
	two_users
	[ -z "$SANITIZED" ] || skip "processes with LeakSanitizer stay traceable"
	local pid
	EXEC=exec as $VICTIM TMPDIR="$DIR" "$BERTH" run --launcher loopback -N 2 -n 2 -- \
		sh -c 'echo $$ >>pids; ulimit -c unlimited; until [ -e end ]; do sleep 0.05; done' 3>&- & run=$!
	look_at_job >agents
	for pid in $(cat agents) $run; do
		! as $VICTIM cat "/proc/$pid/environ" >/dev/null || false
		! as $VICTIM dd if="/proc/$pid/mem" of=/dev/null count=0 || false
	done
	for pid in $(cat pids); do # control, and ranks can still be traced
		as $VICTIM cat "/proc/$pid/environ" >environ
		as $VICTIM dd if="/proc/$pid/mem" of=/dev/null count=0
	done
	touch end
	wait "$run"
}
