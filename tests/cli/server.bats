# SPDX-License-Identifier: BSD-3-Clause
# The PMIx server has its own process: if it dies, the job continues.

load ../support/berth
load ../support/users

# Print the PID of the PMIx server of the calling rank's agent: the agent's child of that name.
kill_server='agent=$(cut -d" " -f4 /proc/$$/stat)
for pid in $(cat /proc/"$agent"/task/"$agent"/children); do
	[ "$(cat /proc/"$pid"/comm)" != berth-pmix ] || kill -"$1" "$pid"
done'

@test "a program without PMIx succeeds even if the server is killed" {
	# The ranks end once berth has reported that the server is dead.
	expect 0 timeout 60 sh -c '"$BERTH" run -n 2 -- sh -c "$@" 2>"$DIR/err"' sh '
		[ "$RANK" = 1 ] || { '"$kill_server"'; }
		until grep -q "PMIx server of .* was killed by signal 9" "$DIR/err"; do sleep 0.05; done
		echo "rank $RANK ends"' sh KILL
	[ "$(printf '%s\n' "${lines[@]}" | sort | tr '\n' ' ')" = "rank 0 ends rank 1 ends " ]
}

@test "no server is left when the ranks have ended, and none starts unless requested" {
	expect 0 timeout 60 "$BERTH" run -n 2 -- sh -c 'cat /proc/*/comm 2>/dev/null | grep -c berth-pmix'
	"$BERTH" run -n 1 --pmix off -- sh -c '
		agent=$(cut -d" " -f4 /proc/$$/stat) # it starts ranks after the server
		for pid in $(cat /proc/"$agent"/task/"$agent"/children); do cat /proc/"$pid"/comm || true; done
	' >"$DIR/out"
	! grep berth-pmix "$DIR/out" || false
}

# Start berth run in the background and stop its PMIx server before it has started: $run, $server. The server
# reads PMIx's parameters while it starts; they are a pipe here, so its start waits for this function.
start_with_a_stopped_server() { # ARGUMENTS
	[ -n "${PMIX_SIZE-}" ] || skip "built without PMIx"
	rm -f "$DIR/params"; mkfifo "$DIR/params"
	PMIX_MCA_mca_base_param_files=$DIR/params "$BERTH" run "$@" >"$DIR/out" 2>"$DIR/err" 3>&- &
	run=$! server=
	exec 8>"$DIR/params" # returns once the server has opened it
	server_reads
	kill -STOP "$server"
	within 30 grep -q '^State:.T' /proc/"$server"/status
	rm "$DIR/params" # and none when its start goes on
	exec 8>&-
}
# server_reads: set $server to the server of $run. Its parents are the agent, the guardian and $run.
server_reads() {
	local agent guardian
	server=$(for guardian in $(pgrep -P "$run"); do for agent in $(pgrep -P "$guardian"); do pgrep -x -P "$agent" berth-pmix; done; done)
	[ -n "$server" ]
}

@test "a PMIx server that starts slowly delays no heartbeat, and the ranks start once it is ready" {
	start_with_a_stopped_server -n 2 --node-timeout 5 -- sh -c 'touch "$0"; echo well' "$DIR/up"
	sleep 8
	kill -0 "$run"
	[ ! -e "$DIR/up" ]
	kill -CONT "$server"
	wait "$run"
	[ "$(cat "$DIR/out")" = $'well\nwell' ]
	[ ! -s "$DIR/err" ]
}

@test "PMIx: a rank that gets no CPU for three seconds after it has connected still takes part" {
	[ -n "${PMIX_SIZE-}" ] || skip "built without PMIx"
	"$BERTH" run -q -n 2 -- sh -c '[ $RANK = 0 ] || export LD_PRELOAD=$1; exec "$0"' "$PMIX_SIZE" "$SLOW_GREETING" >"$DIR/out"
	[ "$(grep -c '^PMIx rank [01] of 2' "$DIR/out")" = 2 ]
}

@test "a signal before the ranks start reaches them; a second one ends the job before they start" {
	start_with_a_stopped_server -n 1 -- sh -c 'trap "echo term; exit 3" TERM; sleep 30 & wait' "$DIR/up"
	kill -TERM "$run"
	within 30 received "$run" TERM
	kill -CONT "$server"
	code=0; wait "$run" || code=$?
	[ "$code" -eq 143 ] || { [ "$code" -eq 3 ] && grep -q term "$DIR/out"; }
	start_with_a_stopped_server -n 1 -- touch "$DIR/up"
	kill -INT "$run"
	within 30 received "$run" INT
	kill -INT "$run"
	ends 130 "$run"
	[ ! -e "$DIR/up" ]
	! kill -0 "$server" 2>/dev/null
}

@test "PMIx: another user who claims to be ours, with a rank's own variables, is refused" {
	[ -n "${PMIX_SIZE-}" ] || skip "built without PMIx"
	two_users
	as 12345 "$BERTH" run -n 2 -- sh -c 'env | grep "^PMIX" >"$1/pmix.$RANK.tmp"; mv "$1/pmix.$RANK.tmp" "$1/pmix.$RANK"
		while [ ! -e "$1/tried" ]; do sleep 0.05; done; exec "$2"' sh "$DIR" "$PMIX_SIZE" >"$DIR/out" 2>&1 3>&- &
	job=$!
	within 10 test -e "$DIR/pmix.1"
	mapfile -t variables <"$DIR/pmix.1"
	# 128 bits that neither ps nor /proc/net/tcp show
	grep -qE '^PMIX_NAMESPACE=.*\.0\.[0-9a-f]{32}$' "$DIR/pmix.1"
	run as 12346 "${variables[@]}" timeout 20 env LD_PRELOAD="$FORGED_USER" "$PMIX_SIZE"
	echo "$status: $output"
	[ "$status" = 1 ]
	[[ "$output" == *PMIx_Init* ]]
	# Greetings that announce a credential of 2 GB, and a byte now and then, as often as that user can.
	port=$(sed -n 's/^PMIX_SERVER_URI2=.*:\([0-9]*\)$/\1/p' "$DIR/pmix.1")
	as 12346 python3 - "$port" <<-'PY' &
	import socket, sys, time
	end = time.monotonic() + 3
	while time.monotonic() < end:
	    try:
	        with socket.create_connection(('127.0.0.1', int(sys.argv[1])), 1) as link:
	            link.sendall(b'\0' * 8 + b'\x7f\xff\xff\xff' * 8 if time.monotonic() % 1 < 0.5 else b'x')
	    except OSError:
	        pass
	PY
	flood=$!
	touch "$DIR/tried"
	ends 0 $job "$DIR/out"
	[ "$(grep -c '^PMIx rank [01] of 2' "$DIR/out")" = 2 ]
	wait $flood || true
}

@test "MASTER_PORT: another user who listens on it before rank 0 ends the job; with a job of root nothing is checked" {
	two_users
	as 12345 "$BERTH" run -n 1 -- \
		sh -c 'echo "$MASTER_PORT" >"$1/port.tmp"; mv "$1/port.tmp" "$1/port"; exec sleep 30' sh "$DIR" >"$DIR/out" 2>&1 3>&- &
	job=$!
	within 10 test -e "$DIR/port"
	EXEC=exec as 12346 python3 -c 'import socket, sys, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1])))
s.listen()
time.sleep(20)' "$(cat "$DIR/port")" 3>&- &
	stranger=$!
	ends 76 $job "$DIR/out"
	kill $stranger
	grep -q "another user (uid 12346) listens on port $(cat "$DIR/port"), the ranks' MASTER_PORT" "$DIR/out"
	# Without a stranger, rank 0 itself may listen.
	run as 12345 "$BERTH" run -n 1 -- python3 -c 'import os, socket, time
s = socket.create_server(("", int(os.environ["MASTER_PORT"])))
time.sleep(2.5)'
	echo "$output"
	[ "$status" = 0 ]
}
