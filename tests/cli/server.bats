#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# The PMIx server has a process of its own: when it ends, the job does not.

bats_require_minimum_version 1.5.0

setup() {
	folder=$(mktemp -d)
}

teardown() {
	rm -rf "$folder"
}

# The server of the agent whose rank asks: the agent's child of that name.
kill_server='agent=$(cut -d" " -f4 /proc/$$/stat)
for pid in $(cat /proc/"$agent"/task/"$agent"/children); do
	[ "$(cat /proc/"$pid"/comm)" != berth-pmix ] || kill -"$1" "$pid"
done'

@test "a program without PMIx ends well though the server was killed" {
	run --separate-stderr timeout 60 "$BERTH" run -n 2 -- sh -c '
		[ "$RANK" = 1 ] || { '"$kill_server"'; }
		sleep 0.3
		echo "rank $RANK ends"' sh KILL
	[ "$status" -eq 0 ]
	[ "$(printf '%s\n' "${lines[@]}" | sort | tr '\n' ' ')" = "rank 0 ends rank 1 ends " ]
	printf '%s' "$stderr" | grep -q 'PMIx server of .* ended by signal 9'
}

@test "no server is left when the ranks have ended, nor one that was not asked for" {
	run timeout 60 "$BERTH" run -n 2 -- sh -c 'sleep 0.1; cat /proc/*/comm 2>/dev/null | grep -c berth-pmix'
	[ "$status" -eq 0 ]
	"$BERTH" run -n 1 --pmix off -- sh -c '
		agent=$(cut -d" " -f4 /proc/$$/stat)
		sleep 0.2
		for pid in $(cat /proc/"$agent"/task/"$agent"/children); do cat /proc/"$pid"/comm; done
	' >"$folder/out"
	! grep berth-pmix "$folder/out" || false
}
