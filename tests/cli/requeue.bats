# SPDX-License-Identifier: BSD-3-Clause
# berth run --requeue without a cluster: stand-ins for scontrol, qstat and qsub.

load pbs

setup() { pbs_begin; }

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
	# In the background: qstat hangs from before the start until after the end.
	pbs_requeue_job 3.pbs-head
	fake qstat 'exec sleep 1000'
	{
		code=0
		"$BERTH" run -n 1 --requeue --report hung.json --end-time +15s -- sh -c 'exit 75' 2>hung 3>&- || code=$?
		echo "code $code" >hung.code
	} &
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
	wait_for hung.code 1
	cat hung
	grep -qx 'code 75' hung.code
	grep -q "berth: warning: qsub: the scheduler does not answer; trying again for up to [0-9]* s; if the job ends before, run: cd $PWD && qsub SCRIPT" hung
	[[ "$(tail -n 1 hung)" == "berth: warning: qsub: the scheduler does not answer; to continue, run: cd $PWD && qsub SCRIPT" ]]
	grep -q '"next": "qsub: the scheduler does not answer; to continue, run: cd ' hung.json
	# An unknown answer of qsub is no reason to submit twice.
	unset "${!SLURM_@}"
	pbs_requeue_job 2.pbs-head
	fake qsub 'echo "$*" >>"$DIR/words"; echo "qsub: Unauthorized Request" >&2; exit 159'
	expect 75 "$BERTH" run -n 1 --requeue -- sh -c 'exit 75'
	[ "$(wc -l <words)" = 1 ]
	[[ "${lines[-1]}" == *"qsub: qsub: Unauthorized Request; to continue, run: cd "*" && qsub "* ]]
}

@test "--requeue under PBS: a server that is away from before the start until after the end is asked again" {
	pbs_requeue_job 2.pbs-head
	fake qstat 'echo "$*" >>"$DIR/asked"; [ "$(wc -l <"$DIR/asked")" -ge 7 ] ||
			{ echo "qstat: cannot connect to server pbs-head (errno=15010)" >&2; exit 255; }
		cat "$DIR/answer"'
	expect 75 "$BERTH" run -n 1 --requeue -- sh -c 'exit 75'
	[[ $output == *"warning: --requeue: berth will ask again when the run ends: qstat failed: qstat: cannot connect"* ]]
	[[ $output == *"next: trying to requeue the job with qsub (1 of"* ]]
	[[ $output == *"cannot connect to server pbs-head (errno=15010); trying again for up to 1"*" s; if the job ends before, run: cd $PWD && qsub SCRIPT"* ]]
	[[ "${lines[-1]}" == "berth: note: requeued as 99.pbs-head" ]]
	grep -qx walltime=01:00:00 words
}

# running FILE [CODE]: a run in the background that ends with CODE (75) once FILE.go exists; its output goes to FILE.
running() {
	"$BERTH" run --launcher fork -n 1 --requeue -- sh -c ': >"$0.up"; until [ -e "$0.go" ]; do sleep 0.05; done; exit "$1"' "$DIR/$1" "${2-75}" >"$1" 2>&1 3>&- &
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
	report 'report["kind"] == "requeued" and report["next"] == "nothing to do: the scheduler will start the job again"'
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
