#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# A file system hangs (tests/support/faulty_fs.py), and processes that use it are in state D: SIGKILL does not end them.

load ../support/berth.bash

setup_file() {
	PYTHON=$(for python in /usr/bin/python3 python3; do
		$python -c 'import fuse' 2>/dev/null || $python -c 'import fusepy' 2>/dev/null && echo $python && break
	done) || skip "no Python module for FUSE (Debian: python3-fusepy)"
	[ -w /dev/fuse ] || skip "/dev/fuse is missing or not writable"
	export PYTHON
}

setup() {
	make_dir
	mkdir backing hung
	touch backing/file
	"$PYTHON" "$SOURCE/tests/support/faulty_fs.py" backing hung rules 3>&- &
	within 20 mountpoint -q hung
	echo 'stall open /file' >rules
}

teardown() {
	cd "$DIR" || return
	rm -f rules
	within 20 unmounted
	wait
	remove_dir
}

# No process uses it any more.
unmounted() { umount hung 2>/dev/null || fusermount -u hung 2>/dev/null; }

# A job of Slurm on this host, whose tools hang.
hung_slurm() {
	unset PBS_JOBID PBS_NODEFILE
	export SLURM_JOB_ID=4711 SLURM_JOB_NODELIST="$HOST" SLURM_JOB_NUM_NODES=1 SLURM_TASKS_PER_NODE=1
	export SLURM_JOB_END_TIME=$(($(date +%s) + 3600)) SLURM_JOB_CPUS_PER_NODE=1 SLURM_NNODES=1 SLURM_GPUS_ON_NODE=0
	export PATH="$DIR/bin:$PATH"
	fake scontrol "exec cat $DIR/hung/file"
	fake squeue "echo >$DIR/asked; exec cat $DIR/hung/file"
}

@test "the scheduler's tools hang in state D: a job ends all the same" {
	hung_slurm
	expect 0 timeout -s KILL 60 "$BERTH" run --launcher fork -n 1 -- echo finished
	[[ "$output" == *finished* ]]
}

@test "the scheduler's tools hang in state D: a silent agent is found" {
	hung_slurm
	# shellcheck disable=SC2016 # the rank expands it
	# The rank stops its agent. berth asks squeue whether the job is suspended, for 2 s.
	expect 76 timeout -s KILL 60 "$BERTH" run --launcher fork -n 1 --node-timeout 2s -- sh -c 'kill -STOP $PPID; sleep 75'
	[ -e asked ]
	[[ "${lines[-1]}" == "berth: error: node $HOST was lost: no heartbeat from its agent for 2 s" ]]
	[[ "$output" == *"warning: cannot kill pid "*" (cat) in state D"* ]]
}

@test "the report's file system hangs: the job ends all the same, with a warning" {
	rm rules
	# The ranks run already when it begins to hang.
	expect 0 timeout -s KILL 60 "$BERTH" run --log-dir hung -n 1 -- sh -c 'echo "stall any /report*" >rules; echo done'
	[[ "$output" == *done* ]]
	[[ "${lines[-1]}" == "berth: warning: cannot write hung/report.json: the file system has not answered for 5 s" ]]
	rm rules
	expect 74 timeout -s KILL 60 "$BERTH" run --report hung/report.json -n 1 -- sh -c 'echo "stall any /report*" >rules'
	[[ "${lines[-1]}" == "berth: error: cannot write hung/report.json: the file system has not answered for 5 s" ]]
}

@test "the log directory or the report hangs before the start: refused after 5 s" {
	echo 'stall any /new*' >rules
	for option in --log-dir=hung/new --report=hung/new.json; do
		expect 74 timeout -s KILL 60 "$BERTH" run "$option" -n 1 -- echo started
		[ "$output" = "berth: error: cannot write ${option#*=}: the file system has not answered for 5 s" ]
	done
}

@test "a log directory that is full or gone at the end: a warning, because the ranks succeeded" {
	echo 'error write /report* ENOSPC' >rules
	expect 0 "$BERTH" run --log-dir hung -n 1 -- true
	[[ "${lines[-1]}" == "berth: warning: cannot write hung/report.json"*"No space left on device" ]]
	expect 0 "$BERTH" run --log-dir gone -n 1 -- rm -r "$DIR/gone"
	[[ "${lines[-1]}" == "berth: warning: cannot create gone/report.json"*": No such file or directory" ]]
	# A report that was asked for is worth a failure.
	echo 'error write /report* ENOSPC' >rules
	expect 74 "$BERTH" run --report hung/report.json -n 1 -- true
}

@test "the home directory hangs: ranks that do not use it run, with PMIx and without" {
	echo 'stall any /.pmix*' >rules
	for pmix in auto off; do
		HOME="$DIR/hung" expect 0 timeout -s KILL 60 "$BERTH" run --pmix $pmix -n 1 -- echo done
		[[ "$output" == done ]]
	done
}

@test "the PMIx server hangs in state D: a job without PMIx ends all the same" {
	cp "${BERTH%/*}/../lib/modules/ranks-pmix.so" backing
	echo 'stall open /ranks-pmix.so' >rules
	# Its stderr stays open, so no pipe here.
	BERTH_MODULE_PATH="$DIR/hung" expect 0 sh -c 'timeout -s KILL 60 "$BERTH" run --pmix off -n 1 -- echo done >out 2>&1'
	grep -qx done out
	grep -q 'warning: .* cannot kill pid .* (berth-pmix) in state D' out
}
