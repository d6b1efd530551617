# SPDX-License-Identifier: BSD-3-Clause
# berth run --requeue in several runs of one job.

load requeue

setup() { pbs_begin; }

# running FILE [CODE]: a run in the background that ends with CODE (75) once FILE.go exists; its output goes to FILE.
running() {
	"$BERTH" run --launcher fork -n 1 --requeue -- \
		sh -c ': >"$0.up"; until [ -e "$0.go" ]; do sleep 0.05; done; exit "$1"' "$DIR/$1" "${2-75}" >"$1" 2>&1 3>&- &
	pid=$!
	within 30 test -e "$1.up"
}

# over FILE: no process of that run is left.
over() { ! pgrep -f "$DIR/$1 75\$" >/dev/null; }

@test "--requeue in two runs of a job: only the last to end requeues it; one that is killed blocks no other" {
	slurm_job 1 1
	running a
	first=$pid
	running b
	touch a.go
	ends 75 $first a
	grep -q "next: the job's last run with --requeue to end will requeue it" a
	"$BERTH" run --launcher fork -n 1 --requeue -- true
	"$BERTH" run --launcher fork -n 1 -- true # without --requeue: it does not count
	! grep requeue told || false
	touch b.go
	ends 75 $pid b
	[ "$(grep -c '^requeue 4711$' told)" = 1 ]
	: >told
	# A run that succeeds requeues the job for the other.
	rm ./*.go ./*.up
	running a
	first=$pid
	running b 0
	touch a.go
	ends 75 $first a
	touch b.go
	ends 0 $pid b
	grep -q 'note: another run of this job stopped before its end: trying to requeue the job with scontrol requeue (1 of' b
	within 30 over a
	[ "$(grep -c '^requeue 4711$' told)" = 1 ]
	: >told
	running c
	kill -KILL $pid
	expect 75 "$BERTH" run --launcher fork -n 1 --requeue -- sh -c 'exit 75'
	[ "$(grep -c '^requeue 4711$' told)" = 1 ]
	[ -z "$(ls berth-runs-*)" ]
}

@test "--requeue where the job cannot be requeued, or is refused: no file stays, also of two runs" {
	slurm_job 0 1
	running a
	first=$pid
	running b
	touch a.go
	ends 75 $first a
	touch b.go
	ends 75 $pid b
	grep -q 'berth: warning: --requeue: cannot requeue the job' a
	[ -z "$(ls berth-runs-*)" ]
	slurm_job 1 1
	sed -i '2s/.*/[ "$1" != requeue ] || { echo refused >\&2; exit 1; }/' "$DIR/bin/scontrol"
	expect 75 "$BERTH" run --launcher fork -n 1 --requeue -- sh -c 'exit 75'
	[[ $output == *'scontrol requeue: '*refused* ]]
	[ -z "$(ls berth-runs-*)" ]
}

@test "--requeue in several runs of a job: if the last one is killed, one that has announced the requeue carries it out" {
	slurm_job 1 1
	running last
	last=$pid
	running a
	touch a.go
	ends 75 $pid a
	# Whoever reads the output of the other does not wait.
	"$BERTH" run --launcher fork -n 1 --requeue -- sh -c 'exit "$1"' "$DIR/b" 75 2>&1 | cat >b
	grep -q "next: the job's last run with --requeue to end will requeue it" b
	! grep requeue told || false
	kill -KILL $last
	within 30 over a
	within 30 over b
	[ "$(grep -c '^requeue 4711$' told)" = 1 ]
	[ -z "$(ls berth-runs-*)" ]
}

@test "--requeue in several runs of a job: one of them prints the note; after scancel they read cancelled" {
	slurm_job 1 1
	for i in 1 2 3; do
		"$BERTH" run --launcher fork -n 1 --requeue --log-dir runs/$i -- \
			sh -c "until [ -e go ]; do grep -q -e --requeue: err.* && echo >up.$i; sleep 0.05; done" 2>err.$i 3>&- &
		pids[i]=$!
	done
	within 30 test -e up.1 -a -e up.2 -a -e up.3
	fake scontrol 'echo "JobId=4711 JobState=CANCELLED Restarts=0"'
	for i in 1 2 3; do
		kill -TERM "${pids[i]}"
		ends 143 "${pids[i]}" err.$i
	done
	[ "$(cat err.* | grep -c 'note: --requeue: scontrol requeue will requeue the job')" = 1 ]
	expect 0 "$BERTH" report runs/*
	[ "$(grep -c '  cancelled$' <<<"$output")" = 3 ]
	[[ $output == *"3 runs: 3 cancelled" ]]
}

# The last run is killed, and then qstat or scontrol answers with this line. No requeue.
killed_by() {
	rm -f ./*.go ./*.up asked words berth-runs-*
	running last
	last=$pid
	running a
	touch a.go
	ends 75 $pid a
	fake "$1" 'echo "$*" >>"$DIR/asked"; '"$2"
	kill -KILL $last
	within 30 over a
	[ -e asked ]
	! grep '^requeue' asked || false
	[ ! -e words ]
}

@test "--requeue in two runs of a job: a job that is cancelled, or requeued by the scheduler, is not requeued" {
	slurm_job 1 1
	killed_by scontrol 'echo "JobId=4711 JobState=CANCELLED Restarts=0"'
	slurm_job 1 1
	killed_by scontrol 'echo "JobId=4711 JobState=COMPLETING Restarts=1"'
	unset "${!SLURM_@}"
	for answer in 's/"comment": "[^"]*/& and terminated by u@h/' 's/"substate": [0-9]*/"substate": 60/'; do
		pbs_requeue_job 2.pbs-head
		sed "$answer" answer >other
		cmp answer other && false
		killed_by qstat 'cat "$DIR/other"'
	done
	pbs_requeue_job 2.pbs-head
	killed_by qstat 'echo "qstat: Unknown Job Id 2.pbs-head" >&2; exit 35'
}

@test "--requeue: a file of the runs that cannot be trusted is a warning" {
	slurm_job 1 1
	local name
	name=berth-runs-$(id -u)-4711.0
	for bad in 'ln -s elsewhere' 'mkdir' 'mkfifo' 'touch other; ln other' 'cp -p /etc/passwd'; do
		[ "$bad" != 'cp -p /etc/passwd' ] || [ "$(id -u)" = 0 ] || continue
		eval "$bad $name"
		[ "$bad" != 'cp -p /etc/passwd' ] || chown 12345 "$name"
		expect 75 "$BERTH" run --launcher fork -n 1 --requeue -- sh -c 'exit 75'
		[[ $output == *"warning: --requeue: if several runs of this job want it, each requeues it: "*"$name"* ]]
		[ ! -e elsewhere ]
		rm -r "$name"
	done
	[ "$(grep -c '^requeue 4711$' told)" -ge 4 ]
	# Another user's file is not waited for, even if that user keeps it locked.
	[ "$(id -u)" = 0 ] || return 0
	install -m 666 -o 12345 /dev/null "$name"
	python3 -c 'import fcntl, sys, time
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
open("locked", "w").close()
time.sleep(60)' "$name" 3>&- &
	local holder=$!
	within 10 test -e locked
	SECONDS=0
	expect 75 "$BERTH" run --launcher fork -n 1 --requeue -- sh -c 'exit 75'
	kill $holder
	[ "$SECONDS" -lt 10 ]
	[[ $output == *"$name is not a file of this user alone"* ]]
}
