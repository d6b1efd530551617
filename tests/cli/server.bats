# SPDX-License-Identifier: BSD-3-Clause
# The PMIx server has its own process: if it dies, the job continues.

load ../support/berth

# Print the PID of the PMIx server of the calling rank's agent: the agent's child of that name.
kill_server='agent=$(cut -d" " -f4 /proc/$$/stat)
for pid in $(cat /proc/"$agent"/task/"$agent"/children); do
	[ "$(cat /proc/"$pid"/comm)" != berth-pmix ] || kill -"$1" "$pid"
done'

@test "a program without PMIx succeeds even if the server is killed" {
	expect 0 --separate-stderr timeout 60 "$BERTH" run -n 2 -- sh -c '
		[ "$RANK" = 1 ] || { '"$kill_server"'; }
		sleep 0.3
		echo "rank $RANK ends"' sh KILL
	[ "$(printf '%s\n' "${lines[@]}" | sort | tr '\n' ' ')" = "rank 0 ends rank 1 ends " ]
	printf '%s' "$stderr" | grep -q 'PMIx server of .* was killed by signal 9'
}

@test "no server is left when the ranks have ended, and none starts unless requested" {
	expect 0 timeout 60 "$BERTH" run -n 2 -- sh -c 'sleep 0.1; cat /proc/*/comm 2>/dev/null | grep -c berth-pmix'
	"$BERTH" run -n 1 --pmix off -- sh -c '
		agent=$(cut -d" " -f4 /proc/$$/stat)
		sleep 0.2
		for pid in $(cat /proc/"$agent"/task/"$agent"/children); do cat /proc/"$pid"/comm; done
	' >"$DIR/out"
	! grep berth-pmix "$DIR/out" || false
}

# Start berth run in the background and stop its PMIx server before it has started: $run, $server.
start_with_a_stopped_server() { # ARGUMENTS
	for _ in $(seq 30); do
		"$BERTH" run "$@" >"$DIR/out" 2>"$DIR/err" &
		run=$! server=
		while [ -z "$server" ] && kill -0 "$run" 2>/dev/null; do
			for guard in $(cat /proc/$run/task/$run/children 2>/dev/null); do
				for agent in $(cat /proc/"$guard"/task/"$guard"/children 2>/dev/null); do
					for pid in $(cat /proc/"$agent"/task/"$agent"/children 2>/dev/null); do
						read -r name </proc/"$pid"/comm || continue
						[ "$name" != berth-pmix ] || server=$pid
					done
				done
			done
		done 2>/dev/null
		kill -STOP "$server" 2>/dev/null || continue
		sleep 0.5
		# Too late if ranks are running already.
		[ -e "$DIR/up" ] || return 0
		kill -CONT "$server" 2>/dev/null || true
		kill -KILL "$run" 2>/dev/null || true
		wait "$run" || true
		rm -f "$DIR/up"
	done
	echo "the server was never caught before its start"
	return 1
}

@test "a PMIx server that starts slowly delays no heartbeat, and the ranks start once it is ready" {
	start_with_a_stopped_server -n 2 --node-timeout 2 -- sh -c 'touch "$0"; echo well' "$DIR/up"
	sleep 5
	kill -0 "$run"
	[ ! -e "$DIR/up" ]
	kill -CONT "$server"
	wait "$run"
	[ "$(cat "$DIR/out")" = $'well\nwell' ]
	[ ! -s "$DIR/err" ]
}

@test "a signal before the ranks start reaches them; a second one ends the job before they start" {
	start_with_a_stopped_server -n 1 -- sh -c 'trap "echo term; exit 3" TERM; sleep 30 & wait' "$DIR/up"
	kill -TERM "$run"
	sleep 0.3
	kill -CONT "$server"
	code=0; wait "$run" || code=$?
	[ "$code" -eq 143 ] || { [ "$code" -eq 3 ] && grep -q term "$DIR/out"; }
	start_with_a_stopped_server -n 1 -- touch "$DIR/up"
	kill -INT "$run"; sleep 0.3; kill -INT "$run"
	ends 130 "$run"
	[ ! -e "$DIR/up" ]
	! kill -0 "$server" 2>/dev/null
}
