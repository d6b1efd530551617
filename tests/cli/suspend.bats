#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# A suspended berth run: its ranks stop with it, and the job continues afterwards.

load ../support/berth.bash

setup() { make_dir; }

teardown() {
	# A failed case leaves a stopped job.
	for pid in $(jobs -p); do
		kill -KILL "$pid" 2>/dev/null || true
	done
	remove_dir
}

# Each rank writes its own process id and that of a child in a session of its own, as torchrun's workers are. It runs
# in bash: dash starts a command with vfork, and is in state D instead of T if the child is stopped before its exec.
# shellcheck disable=SC2016 # the ranks expand it
PROGRAM='setsid sleep 300 & echo $$ $! >>up; until [ -e finish ]; do sleep 0.1; done; kill $!; echo "rank $RANK ends"'

# state PID LETTERS: is the process in one of these states?
state() {
	local now
	now=$(sed 's/.*) \(.\).*/\1/' "/proc/$1/stat" 2>/dev/null) && [[ $2 == *"$now"* ]]
}

# all STATES FILE: are all processes that FILE lists?
all() {
	local pid
	for pid in $(<"$2"); do
		state "$pid" "$1" || return 1
	done
}

@test "SIGTSTP (Ctrl-Z) stops berth run and all processes of its ranks; SIGCONT continues them" {
	"$BERTH" run -n 2 -- bash -c "$PROGRAM" >out 2>&1 &
	pid=$!
	wait_for up 2
	for _ in 1 2; do
		kill -TSTP $pid
		within 30 state $pid T
		within 30 all T up
		kill -CONT $pid
		within 30 all SR up
		state $pid SR
	done
	touch finish
	ends 0 $pid out
	[ "$(sort out)" = $'rank 0 ends\nrank 1 ends' ]
}

@test "SIGSTOP for longer than --node-timeout: the agents stop the ranks and wait, the job continues" {
	"$BERTH" run --launcher loopback -N 3 -n 3 --fan-out 1 --node-timeout 4s --hang-timeout 5s \
		-- bash -c "$PROGRAM" >out 2>&1 &
	pid=$!
	wait_for up 3
	kill -STOP $pid
	within 30 all T up
	sleep 5 # longer than --node-timeout again: no agent gives up
	all T up
	kill -CONT $pid
	within 30 all SR up
	touch finish
	ends 0 $pid out
	grep -q '^berth: note: berth run was suspended for [0-9]* s; the ranks continue$' out
	[ "$(grep -c ends out)" = 3 ]
}

@test "a suspended berth run that is killed leaves no rank" {
	"$BERTH" run --launcher loopback -N 2 -n 2 --node-timeout 4s -- bash -c "$PROGRAM" >out 2>&1 &
	pid=$!
	wait_for up 2
	kill -TSTP $pid
	within 30 all T up
	kill -KILL $pid
	ends 137 $pid
	for rank in $(<up); do
		within 30 eval "! kill -0 $rank 2>/dev/null"
	done
}

@test "SIGTERM ends a job whose ranks are stopped" {
	"$BERTH" run -n 2 -- sh -c 'echo $$ >>up; kill -STOP $$; sleep 300' >out 2>&1 &
	pid=$!
	wait_for up 2
	within 30 all T up
	kill -TERM $pid
	within 30 eval "! kill -0 $pid 2>/dev/null"
	ends 143 $pid out
}
