# SPDX-License-Identifier: BSD-3-Clause
# How jobs end, without a cluster: the time limit and its warning, the stop file, what the program reports
# as saved, known failures, and the scheduler commands that --requeue runs.

load pbs

setup() { pbs_begin; }

@test "an end time that is past or malformed is rejected" {
	for wrong in 5 0 soon tomorrow +; do
		expect 64 "$BERTH" run -n 1 --end-time "$wrong" -- touch started
		[[ $output == *"--end-time"* ]]
		[[ $wrong != tomorrow || $output == *"--end-time is 'tomorrow': expected a time from now (+90m, +2h, +1d), or Unix seconds, as printed by date -d 'tomorrow 8:00' +%s" ]]
	done
	BERTH_END_TIME=1000000000 expect 64 "$BERTH" run -n 1 -- touch started
	[[ $output == *"BERTH_END_TIME 1000000000 was "*" s ago by this machine's clock"* ]]
	expect 64 "$BERTH" run -n 1 --warn-signal NOSUCH -- touch started
	[ ! -e started ]
}

@test "the warning: a signal and the stop file on all nodes, in time; the ranks see the end time" {
	# If the ranks were not up before the warning, try again with a later one.
	for wait in 3 12 40; do
		rm -f up.*
		end=$(($(date +%s) + wait + 6))
		run "$BERTH" run --launcher loopback -N 2 -n 2 --end-time $end --warn-before 6s --warn-signal USR1 --report report.json -- bash -c '
			trap "echo rank \$RANK \$(cat \$BERTH_STOP_FILE) \$((BERTH_END_TIME - $(date +%s) > 0)) \$BERTH_END_TIME; exit 75" USR1
			[ ! -e $BERTH_STOP_FILE ] && : >up.$RANK || echo soon
			while :; do sleep 0.05; done'
		[ ! -e up.0 ] || [ ! -e up.1 ] || break
	done
	printf '%s\n' "$output"
	[ "$status" -eq 75 ]
	[ "$(date +%s)" -lt $((end + 9)) ]
	[[ $output == *"rank 0 warning 1 $end"* && $output == *"rank 1 warning 1 $end"* && $output != *soon* ]]
	[[ $output == *"warned the ranks with SIGUSR1 and their stop file"* ]]
	[[ $output == *"berth: note: reason: the job's time limit is near, so berth asked the ranks to save"* ]]
	report 'report["kind"] == "stopped" and report["code"] == 75'
	expect 0 "$BERTH" run -n 1 --warn-before 6s -- true
	[[ $output == *"job end time unknown: no warning will be sent"* ]]
}

@test "SIGTERM: the stop file appears; a slow rank may finish saving; what it saved is reported" {
	"$BERTH" run -n 2 --report report.json -- bash -c 'trap "" TERM; echo up >up.$RANK
		while [ ! -e $BERTH_STOP_FILE ]; do sleep 0.05; done
		[ $RANK = 0 ] || exit 75
		sleep 6; echo "{\"saved\": \"step $(cat $BERTH_STOP_FILE)\", \"next\": \"once more\"}" >$BERTH_REPORT; exit 75' 2>err &
	pid=$!
	within 30 test -e up.0 -a -e up.1
	kill -TERM $pid
	ends 75 $pid err
	report 'report["saved"] == "step SIGTERM" and report["next"] == "once more" and report["by"] == "program"'
	grep -qx 'berth: note: saved: step SIGTERM' err
	grep -qx 'berth: note: next: once more' err
	report 'len(report["ranks"]) == 2 and not any(rank["stopped"] for rank in report["ranks"])'
}

# stop SIGNAL CODE RANK_0 RANK_1: send berth run SIGNAL once both ranks are up. Each rank runs its line first.
stop() {
	rm -f up.*
	setsid "$BERTH" run --launcher "$launcher" -N "$nodes" -n 2 --stop-grace "${grace-3s}" --report report.json -- \
		bash -c 'eval "${*:RANK + 1:1}"; : >up.$RANK; while :; do sleep 0.05; done' rank "$3" "$4" 2>err &
	pid=$!
	within 30 test -e up.0 -a -e up.1
	kill -"$1" $pid
	ends "$2" $pid err
}

@test "after a stop signal every rank has the same time; who has not ended then is killed" {
	save='trap "exit 75" TERM INT' ignore='trap "" TERM INT' late='trap "sleep 4; exit 75" TERM INT'
	for row in 'fork 1 exit_143 exit_1 kill exit_75 exit_0' 'loopback 2 exit_143'; do
		read -r launcher nodes others <<<"$row"
		# Rank 0 needs longer than the ranks of a failed job get, although rank 1 ends at once.
		for other in $others; do
			[[ $other = exit_75 || $other = exit_0 ]] && code=75 || code=143
			[[ $other = kill ]] && how='trap - TERM' || how="trap '${other/_/ }' TERM"
			grace=30s stop TERM $code "$late" "$how"
			report 'report["by"] == "program" and report["kind"] == "interrupted"'
			report 'report["ranks"][-1]["rank"] == 0 and report["ranks"][-1]["code"] == 75'
		done
		stop TERM 143 "$ignore" "$ignore"
		grep -q 'error: ranks 0-1 had not ended 3 s after SIGTERM, so berth killed them (--stop-grace)' err
		report 'report["by"] == "berth" and all(rank["stopped"] for rank in report["ranks"])'
		stop INT 130 "$ignore" "$save"
		grep -q 'error: rank 0 had not ended 3 s after SIGINT, so berth killed it (--stop-grace)' err
		report 'report["ranks"][0]["code"] == 75 and report["ranks"][1]["stopped"]'
	done
	grace=30s stop TERM 139 "$late" "trap 'kill -SEGV \$\$' TERM"
	grep -q 'error: rank 1 on .* was killed by signal 11' err
	report 'report["ranks"][-1]["code"] == 75'
}

@test "--stop-grace takes a time from 1s to 1d" {
	for wrong in 0s 0.5s 2d -1s soon 1x; do
		expect 64 "$BERTH" run --stop-grace "$wrong" -n 1 -- touch started
		[[ $output == *"--stop-grace"* ]]
	done
	[ ! -e started ]
}

@test "a signal from a process of the job is named as such, one from outside is not" {
	run sh -c 'echo $$ >pid; exec "$BERTH" run -n 2 -- sh -c "[ \$RANK = 1 ] || exec sleep 9; kill -TERM \$(cat pid); sleep 9"'
	[[ "$status" = 143 && "$output" == *"reason: berth received a signal from process "[0-9]*" (sh) of this job: Terminated"* ]]
	"$BERTH" run -n 1 -- sh -c 'touch up2; exec sleep 9' 2>err 3>&- &
	within 30 test -e up2
	kill -TERM $!
	wait $! || true
	grep -q 'reason: berth received a signal from the user or the scheduler: Terminated' err
}

@test "SIGUSR1 is forwarded: the reason is reported whether the rank stops or is killed by it" {
	for row in '75 trap "exit 75" USR1;' '138 :;'; do
		rm -f up
		"$BERTH" run -n 1 --report report.json -- bash -c "${row#* }"' echo >up; while :; do sleep 0.05; done' 2>err &
		pid=$!
		within 30 test -e up
		kill -USR1 $pid
		ends "${row%% *}" $pid err
		grep -q '^berth: note: reason: berth received SIGUSR1 (from the user, .*) and forwarded it to the ranks$' err
		report 'report["why"].startswith("berth received SIGUSR1")'
	done
}

@test "exit code 75: the ranks' last lines are not printed again" {
	expect 75 "$BERTH" run -n 2 --log-dir logs -- sh -c 'echo "step 7 of $RANK" >&2; exit 75'
	[ "$(grep -c 'step 7 of' <<<"$output")" = 2 ]
	[[ "$output" != *"last output"* && "$output" != *"full output"* && "$output" == *"berth: note: next: submit the job again"* ]]
}

@test "if one rank stops with its work saved and another fails, the failure is the cause" {
	expect 3 "$BERTH" run -n 2 --report report.json -- sh -c '[ $RANK = 0 ] && exit 75; sleep 1; exit 3'
	report 'report["rank"] == 1 and report["kind"] == "code"'
}

@test "the user's own stop file: creating it causes no message, an old one is removed" {
	touch -d '-1000 seconds' mine
	export BERTH_STOP_FILE=$DIR/mine
	run "$BERTH" run --dry-run -n 1 -- true
	[[ "$output" == *"the stop file $DIR/mine already existed"*"it will be removed"* ]] && [ -e mine ]
	expect 0 --separate-stderr "$BERTH" run -n 1 -- sh -c '[ ! -e $BERTH_STOP_FILE ] && echo $BERTH_STOP_FILE'
	[ "$output" = "$DIR/mine" ]
	[[ "$stderr" =~ ^"berth: warning: the stop file $DIR/mine already existed, created 1"[0-9]{3}" s ago: it is removed, because this run would otherwise stop at once; create it again to stop the run"$ ]]
	run --separate-stderr "$BERTH" run -n 1 -- true
	[ -z "$stderr" ]
}

@test "a known failure is explained at the end and in the report; berth explain finds it in a log" {
	line='nid1:1:1 [0] init.cc:795 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3b000'
	expect 3 "$BERTH" run -n 1 --report report.json -- sh -c "echo fine; echo '$line' >&2; exit 3"
	[[ $output == *"berth: note: known failure: two ranks use the same GPU"* ]]
	[[ "${lines[-1]}" == "berth: error: rank 0 on "*" exited with code 3" ]]
	report '"same GPU" in report["known"]["cause"] and report["known"]["fix"] and report["known"]["source"].startswith("https://")'
	{ echo fine; head -c 100000 /dev/zero; echo; echo "$line"; echo "$line"; } >log
	expect 0 "$BERTH" explain log
	[[ $output == "log:3: $line (2 times)"*"cause:  two ranks use the same GPU"*"fix: "*"source: https"* ]]
	mkdir -p logs/attempt-0 logs/attempt-1
	cp log logs/attempt-0/rank-0001.log; echo fine >logs/attempt-1/rank-0000.log; cp log logs/other.dat; mkfifo logs/pipe.log
	expect 0 "$BERTH" explain logs
	[[ $output == "logs/attempt-0/rank-0001.log:3: "*"same GPU"* && $output != *other* ]]
	expect 0 "$BERTH" explain logs/attempt-1
	[ "$output" = "logs/attempt-1: no known failure in 1 log" ]
	mkdir none
	expect 66 "$BERTH" explain none
	[[ $output == *"none is a directory without"*"name the files" ]]
	"$BERTH" explain --json - <log | python3 -c 'import json, sys
found, = json.load(sys.stdin)["known"]
assert found["line"] == 3 and found["count"] == 2 and found["log"] == "-" and found["fix"] and "mend" not in found, found'
	echo "all is well" | "$BERTH" explain - | grep -qx -- '-: no known failure'
	expect 66 "$BERTH" explain absent
	expect 64 "$BERTH" explain
}

@test "a program that starts processes itself and finds its port taken: --per-node is the fix" {
	cat >traceback <<-'E'
	torch.multiprocessing.spawn.ProcessRaisedException:
	  File "/opt/torch/multiprocessing/spawn.py", line 69, in _wrap
	RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:55359 (errno: 98 - Address already in use).
	E
	expect 1 "$BERTH" run -n 1 -- sh -c 'cat traceback >&2; exit 1'
	[[ $output == *"known failure: the program starts processes itself (torch.multiprocessing.spawn)"*"fix: start the program once per node: berth run --per-node -- python train.py"* ]]
	expect 0 "$BERTH" explain traceback
	[[ $output == *"starts processes itself"* ]]
	expect 0 "$BERTH" explain - < <(tail -n 1 traceback)
	[[ $output == *"another program uses MASTER_PORT"* ]]
}

@test "berth explain knows each message in the table of the troubleshooting guide" {
	sed -n 's/^| `\([^`]*\)` |.*/\1/p' "$SOURCE/docs/guides/troubleshooting.md" | grep -vE '^(full output|known failure|reason|saved):|^berth ' >messages
	[ "$(wc -l <messages)" = 20 ]
	while read -r line; do
		run "$BERTH" explain - <<<"$line"
		[[ "$output" == *"cause:"*"fix:"* ]] || { echo "unknown: $line"; return 1; }
	done <messages
	# All causes in a log are named, the first one first.
	run -0 "$BERTH" explain messages
	[ "$(grep -c 'cause:' <<<"$output")" -ge 18 ]
	[[ "$output" == "messages:1: "* ]]
}

# A simulated Slurm job on this host, with a scontrol that records its arguments.
slurm_job() {
	unset PBS_JOBID PBS_NODEFILE
	export SLURM_JOB_ID=4711 SLURM_JOB_NODELIST=$(hostname) SLURM_JOB_NUM_NODES=1 SLURM_TASKS_PER_NODE=1
	export SLURM_JOB_END_TIME=$(($(date +%s) + 3600)) SLURM_JOB_CPUS_PER_NODE=1 SLURM_NNODES=1
	fake scontrol 'echo "$*" >>'"$DIR"'/told; [ "$1" != requeue ] || cp '"$DIR"'/report.json '"$DIR"'/report.then
		echo "JobId=4711 JobName=x Requeue='"$1"' JobState=RUNNING BatchFlag='"$2"'"'
}

@test "--requeue under Slurm: requested only if it should be, and after the report is written" {
	slurm_job 1 1
	expect 75 "$BERTH" run --launcher fork -n 1 --requeue --report report.json -- sh -c 'exit 75'
	grep -qx 'requeue 4711' told
	[[ $output == *"trying to requeue the job with scontrol requeue"* ]]
	cmp report.json report.then
	export SLURM_ARRAY_JOB_ID=4700 SLURM_ARRAY_TASK_ID=7
	: >told
	run "$BERTH" run --launcher fork -n 1 --requeue -- sh -c 'exit 75'
	grep -qx 'requeue 4700_7' told
	unset SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID
	# no requeue: the program failed, it succeeded, the limit is reached
	: >told
	expect 3 "$BERTH" run --launcher fork -n 1 --requeue -- sh -c 'exit 3'
	expect 0 "$BERTH" run --launcher fork -n 1 --requeue -- true
	SLURM_RESTART_COUNT=4 run "$BERTH" run --launcher fork -n 1 --requeue --max-requeues 4 -- sh -c 'exit 75'
	[[ $output == *"reached the limit of --max-requeues"* ]]
	! grep requeue told || false
}

@test "--requeue: a signal during the requeue changes nothing; the report holds a rejection" {
	slurm_job 1 1
	fake scontrol '[ "$1" != requeue ] || { kill -TERM $PPID; kill -USR1 $PPID; sleep 0.2; echo "$*" >>'"$DIR"'/told; echo "it is busy" >&2; exit 1; }
		echo "JobId=4711 Requeue=1 JobState=RUNNING BatchFlag=1"'
	expect 75 "$BERTH" run --launcher fork -n 1 --requeue --report report.json -- sh -c 'exit 75'
	grep -qx 'requeue 4711' told
	[[ "${lines[-1]}" == "berth: warning: scontrol requeue: it is busy; to continue, run: scontrol requeue 4711" ]]
	report 'report["code"] == 75 and report["next"] == "scontrol requeue: it is busy; to continue, run: scontrol requeue 4711"'
}

@test "--requeue: a server that is away is asked again, a refusal is not; the last message has the line to type" {
	slurm_job 1 1
	fake scontrol 'case $1 in requeue) echo "$*" >>"$DIR/told"; [ "$(wc -l <"$DIR/told")" -ge 3 ] ||
			{ echo "slurm_requeue error: Unable to contact slurm controller (connect failure)" >&2; exit 1; } ;;
		esac
		echo "JobId=4711 Requeue=1 JobState=RUNNING BatchFlag=1"'
	expect 75 "$BERTH" run --launcher fork -n 1 --requeue -- sh -c 'exit 75'
	[ "$(wc -l <told)" = 3 ]
	[[ $output == *"berth: warning: scontrol requeue: slurm_requeue error: Unable to contact slurm controller (connect failure); trying again for up to "*" s"* ]]
	[[ $output != *"to continue, run"* ]]
	# It does not come back before the time limit.
	rm told
	fake scontrol '[ "$1" != requeue ] || { echo "$*" >>"$DIR/told"; echo "Unable to contact slurm controller" >&2; exit 1; }
		echo "JobId=4711 Requeue=1 JobState=RUNNING BatchFlag=1"'
	begin=$SECONDS
	expect 75 "$BERTH" run --launcher fork -n 1 --requeue --end-time +20s -- sh -c 'exit 75'
	[ "$((SECONDS - begin))" -lt 75 ] # documented: at least 20 s, else until 5 s before the end
	[ "$(wc -l <told)" -ge 4 ]
	[[ "${lines[-1]}" == "berth: warning: scontrol requeue: Unable to contact slurm controller; to continue, run: scontrol requeue 4711" ]]
	# An unknown answer of qsub is no reason to submit twice.
	unset "${!SLURM_@}"
	pbs_requeue_job 2.pbs-head
	fake qsub 'echo "$*" >>"$DIR/words"; echo "qsub: Unauthorized Request" >&2; exit 159'
	expect 75 "$BERTH" run -n 1 --requeue -- sh -c 'exit 75'
	[ "$(wc -l <words)" = 1 ]
	[[ "${lines[-1]}" == *"qsub: qsub: Unauthorized Request; to continue, run: cd "*" && qsub "* ]]
}

# A run in the background that wants its job requeued once FILE.go exists; its output goes to FILE.
wanting() {
	"$BERTH" run --launcher fork -n 1 --requeue -- sh -c ': >"$0.up"; until [ -e "$0.go" ]; do sleep 0.05; done; exit 75' "$1" >"$1" 2>&1 3>&- &
	pid=$!
	within 30 test -e "$1.up"
}

@test "--requeue in two runs of a job: only the last to end requeues it; one that is killed blocks no other" {
	slurm_job 1 1
	wanting a
	first=$pid
	wanting b
	touch a.go
	ends 75 $first a
	grep -q "next: the job's last run with --requeue to end will requeue it" a
	! grep requeue told || false
	# A run that succeeds requeues the job for the other.
	"$BERTH" run --launcher fork -n 1 --requeue -- true
	! grep requeue told || false
	touch b.go
	ends 75 $pid b
	[ "$(grep -c '^requeue 4711$' told)" = 1 ]
	: >told
	rm a.go
	wanting a
	first=$pid
	wanting c
	touch a.go
	ends 75 $first a
	"$BERTH" run --launcher fork -n 1 -- true # without --requeue: it does not count
	! grep requeue told || false
	kill -KILL $pid
	expect 0 "$BERTH" run --launcher fork -n 1 --requeue -- true
	[[ $output == *"note: another run of this job stopped before its end: trying to requeue the job with scontrol requeue (1 of"* ]]
	[ "$(grep -c '^requeue 4711$' told)" = 1 ]
	: >told
	rm a.go
	wanting c
	kill -KILL $pid
	expect 75 "$BERTH" run --launcher fork -n 1 --requeue -- sh -c 'exit 75'
	[ "$(grep -c '^requeue 4711$' told)" = 1 ]
	[ -z "$(ls berth-runs-*)" ]
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
}

@test "--requeue warns at the start if it cannot work" {
	slurm_job 0 1
	expect 0 "$BERTH" run --launcher fork -n 1 --requeue -- true
	[[ $output == *"cannot requeue the job: requeueing is disabled for this job (--no-requeue"* ]]
	slurm_job 1 0
	run "$BERTH" run --launcher fork -n 1 --requeue -- true
	[[ $output == *"cannot requeue the job: it is not a batch job"* ]]
	unset SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_JOB_NUM_NODES SLURM_TASKS_PER_NODE SLURM_NNODES
	expect 75 "$BERTH" run -n 1 --requeue -- sh -c 'exit 75'
	[[ $output == *"no scheduler runs this job"*"next: cannot requeue, so submit the job again"* ]]
}

# A simulated PBS job with a qstat that knows it and a qsub that records its arguments.
pbs_requeue_job() {
	pbs_job "$1" "$(hostname)"
	mkdir -p "$DIR/home/mom_priv/jobs"
	printf '#!/bin/bash\n#PBS -l select=9\necho the script\n' >"$DIR/home/mom_priv/jobs/$1.SC"
	echo "PBS_HOME=$DIR/home" >"$DIR/pbs.conf"
	export PBS_CONF_FILE=$DIR/pbs.conf
	python3 - "$1" >"$DIR/answer" <<'PY'
import json, sys, time
job = json.load(open(__import__('os').environ['SOURCE'] + '/tests/unit/alloc/pbs/qstat-2.json'))
(_, it), = job['Jobs'].items()
it['stime'] = time.ctime()
it['Resource_List'] = {'walltime': '01:00:00', 'ncpus': 8, 'nodect': 2, 'mpiprocs': 4, 'ngpus': 4, 'place': 'scatter',
                       'select': '2:ncpus=4:ngpus=2:mpiprocs=2', 'filesystems': 'home:eagle'}
it['Variable_List'] = {'PBS_O_WORKDIR': '/', 'COMMAS': 'a,b "c" d', 'BASH_FUNC_ml%%': '() { :; }', 'N': 3}
it['depend'] = 'afterok:1.pbs-head@pbs-head,beforeok:8.pbs-head@pbs-head,beforeany:9.pbs-head@pbs-head'
it.update(queue='prod', project='p42', Output_Path='host:/home/u/out.txt', Error_Path='host:/home/u/envjob.e2')
job['Jobs'] = {sys.argv[1]: it}
print(json.dumps(job))
PY
	fake qstat 'cat "$DIR/answer"'
	fake qsub 'for word; do echo "$word"; done >"$DIR/words"; pwd >>"$DIR/words"
		echo "$COMMAS|$N|$BERTH_REQUEUES|$BERTH_REQUEUE_OF" >>"$DIR/words"
		for last; do :; done; cp "$last" "$DIR/script"; echo 99.pbs-head'
}

@test "--requeue under PBS: qsub gets a copy of the script and the options that qstat prints" {
	pbs_requeue_job 2.pbs-head
	export COMMAS='a,b "c" d' N=3
	expect 75 env 'BASH_FUNC_ml%%=() { :; }' "$BERTH" run -n 1 --requeue --report report.json -- sh -c "echo changed >'$DIR/home/mom_priv/jobs/2.pbs-head.SC'; exit 75"
	[[ $output == *"requeued as 99.pbs-head"* ]]
	cat words
	# What qsub would change is in the script.
	diff <(sed '3,4{w set
		d}' script) - <<-'E'
	#!/bin/bash
	# berth run --requeue: variables of the job that qsub would change
	#PBS -l select=9
	echo the script
	E
	grep -qxF "export COMMAS='a,b \"c\" d'" set
	grep -qxF '[ -z "${BASH_VERSION-}" ] || { eval '"'ml () { :; }'"'; export -f -- ml; }' set
	after() { grep -A1 -x -- "$1" words | grep -qxF -- "$2"; }
	after -l select=2:ncpus=4:ngpus=2:mpiprocs=2
	after -l place=scatter
	after -l walltime=01:00:00
	after -l filesystems=home:eagle
	! grep -qE '^(ncpus|ngpus|mpiprocs|nodect)=' words || false
	after -q prod
	after -P p42
	after -o host:/home/u/out.txt
	[[ $output == *"warning: --requeue: the next job overwrites host:/home/u/out.txt (qsub -o); to keep the output of each job, omit -o or give it a directory"* ]]
	[[ $output != *"(qsub -e)"* ]]
	[[ $output == *"warning: --requeue: jobs wait for this one (beforeok:8.pbs-head@pbs-head,beforeany:9.pbs-head@pbs-head): "* ]]
	! grep -q 'envjob.e2' words || false
	after -W depend=afterany:2.pbs-head
	after -v BERTH_REQUEUES,BERTH_REQUEUE_OF,N
	grep -qxF 'a,b "c" d|3|1|2.pbs-head' words
	after -C '#no-directives'
	grep -qx "$PBS_O_WORKDIR" words
	report '"trying to requeue the job with qsub (1 of at most 100 times)" in report["next"]'
	# Once per job, also if the script's next run wants it.
	rm words
	expect 75 "$BERTH" run -n 1 --requeue -- sh -c 'exit 75'
	[[ $output == *"next: another run of this job has requeued it"* ]]
	[ ! -e words ]
	# Another language than sh: qsub gets all variables.
	rm berth-runs-*
	printf '#!/bin/csh\necho the script\n' >"$DIR/home/mom_priv/jobs/2.pbs-head.SC"
	expect 75 "$BERTH" run -n 1 --requeue -- sh -c 'exit 75'
	[[ $output == *"warning: --requeue: qsub may change the values of COMMAS in the next job"* ]]
	grep -qxE 'BERTH_REQUEUES,BERTH_REQUEUE_OF,(COMMAS,N|N,COMMAS)' words
	grep -qxF 'echo the script' script
	# The count of requeues is passed from job to job.
	rm berth-runs-* words
	BERTH_REQUEUES=5 run "$BERTH" run -n 1 --requeue --max-requeues 5 -- sh -c 'exit 75'
	[[ $output == *"reached the limit of --max-requeues"* ]]
	BERTH_REQUEUES=x run "$BERTH" run -n 1 --requeue -- sh -c 'exit 75'
	[ ! -e words ]
}

# stopped_by_term: berth run with --requeue gets SIGTERM, and its rank saves.
stopped_by_term() {
	rm -f up told words
	"$BERTH" run --launcher fork -n 1 --requeue "$@" --report report.json -- bash -c 'trap "" TERM; echo >up
		while [ ! -e $BERTH_STOP_FILE ]; do sleep 0.05; done; exit 75' 2>err &
	pid=$!
	within 30 test -e up
	kill -TERM $pid
	ends 75 $pid err
}

@test "SIGTERM shortly before the time limit: Slurm and PBS are asked, and a job that was deleted is not requeued" {
	slurm_job 1 1
	export SLURM_JOB_END_TIME=$(($(date +%s) + 60))
	stopped_by_term
	report 'report["kind"] == "walltime" and "trying to requeue" in report["next"]'
	state() { fake scontrol '[ "$1" != requeue ] || touch '"$DIR"'/told; [ ! -e up ] || { '"$1"'; }; echo "JobId=4711 Requeue=1 JobState=RUNNING BatchFlag=1"'; }
	state 'echo "JobId=4711 JobState=CANCELLED PreemptTime=2026-01-01T00:00:00"; exit'
	stopped_by_term
	report 'report["kind"] == "cancelled" and "not requeued, because it was cancelled" in report["next"]'
	[ ! -e told ]
	state 'echo "JobId=4711 JobState=COMPLETING PreemptTime=None"; exit'
	stopped_by_term
	report 'report["kind"] == "cancelled"'
	[ ! -e told ]
	# The limit was shortened, or the job has none.
	export SLURM_JOB_END_TIME=$(($(date +%s) + 600))
	state 'echo "JobId=4711 JobState=COMPLETING Restarts=0 RunTime=00:01:28 TimeLimit=00:01:00 PreemptTime=None"; exit'
	stopped_by_term
	report 'report["kind"] == "walltime" and "trying to requeue" in report["next"] and " 28 s after the end time" in report["why"]'
	unset SLURM_JOB_END_TIME
	rm -f told
	state 'echo "JobId=4711 JobState=COMPLETING Restarts=0 RunTime=00:01:28 TimeLimit=UNLIMITED PreemptTime=None"; exit'
	stopped_by_term
	report 'report["kind"] == "cancelled"'
	state 'echo "JobId=4711 JobState=COMPLETING Restarts=1 RunTime=00:00:00 TimeLimit=00:01:00"; exit'
	stopped_by_term
	report 'report["kind"] == "requeued" and report["next"] == "nothing to do: Slurm will start the job again"'
	[ ! -e told ]
	export SLURM_JOB_END_TIME=$(($(date +%s) + 60))
	state 'echo "Unable to contact slurm controller" >&2; exit 1'
	stopped_by_term
	report 'report["kind"] == "interrupted" and report["next"].startswith("not requeued")'
	[ ! -e told ]
	unset "${!SLURM_@}"
	pbs_requeue_job 2.pbs-head
	stopped_by_term --end-time +60s
	report 'report["kind"] == "interrupted"'
	sed 's/"comment": *"[^"]*/& and terminated by u@h/' answer >deleted
	cmp answer deleted && false
	fake qstat 'if [ -e up ]; then cat "$DIR/deleted"; else cat "$DIR/answer"; fi'
	stopped_by_term --end-time +2s
	report 'report["kind"] == "cancelled"'
	[ ! -e words ]
	fake qstat 'cat "$DIR/answer"'
	stopped_by_term --end-time +2s
	report 'report["kind"] == "walltime"'
	[ -e words ]
}

@test "--requeue under PBS warns at the start if it cannot work" {
	pbs_requeue_job 2.pbs-head
	rm "$DIR/home/mom_priv/jobs/2.pbs-head.SC"
	expect 0 "$BERTH" run -n 1 --requeue -- true
	[[ $output == *"cannot requeue the job: cannot read its script: neither $DIR/home/mom_priv/jobs/2.pbs-head.SC nor /"* ]]
	sed 's/"Submit_arguments": *"[^"]*"/"Submit_arguments": "-V "/' answer >blank
	! cmp answer blank || false
	fake qstat 'cat "$DIR/blank"'
	expect 0 "$BERTH" run -n 1 --requeue -- true
	[[ $output$'\n' == *"cannot read its script: $DIR/home/mom_priv/jobs/2.pbs-head.SC"$'\n'* ]]
	PBS_ENVIRONMENT=PBS_INTERACTIVE run "$BERTH" run -n 1 --requeue -- true
	[[ $output == *"cannot requeue the job: it is an interactive job"* ]]
	rm "$DIR/bin/qsub"
	run "$BERTH" run -n 1 --requeue -- true
	[[ $output == *"cannot requeue the job: qsub not found on this node"* ]]
}

@test "an agent that notices late that its rank was killed: that rank is still the first cause" {
	# Rank 1 is killed while its agent is stopped for a second. Rank 0 fails once rank 1 is dead.
	timeout 120 "$BERTH" run --launcher loopback -N 2 -n 2 --report report.json -- bash -c '
		echo $$ $PPID >pids.$RANK.part
		mv pids.$RANK.part pids.$RANK
		until read -r other _ <pids.$((1 - RANK)); do sleep 0.05; done 2>/dev/null
		[ $RANK = 0 ] || { kill -STOP $PPID; kill -SEGV $$; }
		until grep -qs "^State:.Z" /proc/$other/status; do sleep 0.05; done
		exit 3' 2>err &
	run_pid=$!
	wait_for pids.1 1
	read -r rank agent <pids.1
	within 30 grep -q '^State:.Z' "/proc/$rank/status"
	sleep 1 # how late the agent is
	kill -CONT "$agent"
	ends 139 $run_pid err
	report 'report["rank"] == 1 and report["signal"] == 11'
}
