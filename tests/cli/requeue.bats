# SPDX-License-Identifier: BSD-3-Clause
# berth run --requeue without a cluster: stand-ins for scontrol, qstat and qsub.

load requeue

setup() { pbs_begin; }

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
	fake scontrol '[ "$1" != requeue ] || {
			kill -TERM $PPID; kill -USR1 $PPID; sleep 0.2
			echo "$*" >>'"$DIR"'/told; echo "it is busy" >&2; exit 1
		}
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
	local warning="berth: warning: scontrol requeue: slurm_requeue error: "
	warning+="Unable to contact slurm controller (connect failure); trying again for up to "
	[[ $output == *"$warning"*" s"* ]]
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
	warning="berth: warning: qsub: the scheduler does not answer; trying again for up to [0-9]* s; "
	warning+="if the job ends before, run: cd $PWD && qsub SCRIPT"
	grep -q "$warning" hung
	[[ "$(tail -n 1 hung)" == "berth: warning: qsub: the scheduler does not answer; to continue, run: cd $PWD && qsub SCRIPT" ]]
	grep -q '"next": "qsub: the scheduler does not answer; to continue, run: cd ' hung.json
	# An unknown answer of qsub is no reason to submit twice.
	unset "${!SLURM_@}"
	pbs_requeue_job 2.pbs-head
	fake qsub 'echo "$*" >>"$DIR/words"; echo "qsub: Unauthorized Request" >&2; exit 159'
	expect 75 "$BERTH" run -n 1 --requeue -- sh -c 'exit 75'
	[ "$(wc -l <words)" = 1 ]
	[[ "${lines[-1]}" == *"qsub: qsub: Unauthorized Request; to continue, run: cd "*" && qsub "* ]]
	# A tool that cannot be started, as its file system may be away, is asked again.
	pbs_requeue_job 4.pbs-head
	rm -f noted
	(within 60 grep -qs "qsub: it cannot be started now; trying again" noted; mv away bin/qsub) 3>&- &
	noted 75 "$BERTH" run -n 1 --launcher fork --requeue -- sh -c "$AFTER; mv '$DIR/bin/qsub' '$DIR/away'; exit 75"
	[[ "${lines[-1]}" == "berth: note: requeued as 99.pbs-head" ]]
	wait $!
}

@test "--requeue under PBS: a server that is away from before the start until after the end is asked again" {
	pbs_requeue_job 2.pbs-head
	fake qstat 'echo "$*" >>"$DIR/asked"; [ "$(wc -l <"$DIR/asked")" -ge 7 ] ||
			{ echo "qstat: cannot connect to server pbs-head (errno=15010)" >&2; exit 255; }
		cat "$DIR/answer"'
	noted 75 "$BERTH" run -n 1 --requeue -- sh -c "$AFTER; exit 75"
	[[ $output == *"warning: --requeue: berth will ask again when the run ends: qstat failed: qstat: cannot connect"* ]]
	[[ $output == *"next: trying to requeue the job with qsub (1 of"* ]]
	local failure="cannot connect to server pbs-head (errno=15010); trying again for up to 1"
	[[ $output == *"$failure"*" s; if the job ends before, run: cd $PWD && qsub SCRIPT"* ]]
	[[ "${lines[-1]}" == "berth: note: requeued as 99.pbs-head" ]]
	grep -qx walltime=01:00:00 words
}

@test "--requeue warns at the start if it cannot work" {
	slurm_job 0 1
	noted 0 "$BERTH" run --launcher fork -n 1 --requeue -- sh -c "$AFTER"
	[[ $output == *"cannot requeue the job: requeueing is disabled for this job (--no-requeue"* ]]
	slurm_job 1 0
	noted 0 "$BERTH" run --launcher fork -n 1 --requeue -- sh -c "$AFTER"
	[[ $output == *"cannot requeue the job: it is not a batch job"* ]]
	unset SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_JOB_NUM_NODES SLURM_TASKS_PER_NODE SLURM_NNODES
	expect 75 "$BERTH" run -n 1 --requeue -- sh -c 'exit 75'
	[[ $output == *"no scheduler runs this job"*"next: cannot requeue, so submit the job again"* ]]
}

@test "--requeue under Slurm warns at the start if the requeue will truncate the job's output" {
	slurm_job 1 1
	fake scontrol 'case "$*" in
		"show config") printf "JobCompType = none\\nJobFileAppend           = $APPEND\\n" ;;
		*) echo "JobId=4711 Requeue=1 JobState=RUNNING BatchFlag=1 StdOut=/out/slurm-4711.out" ;;
		esac'
	local warning='berth: warning: --requeue: Slurm will truncate /out/slurm-4711.out when it requeues the job, '
	warning+='so this output will be lost. Add #SBATCH --open-mode=append to the job script'
	warns() { # warns COUNT: so many warnings
		noted 0 "$BERTH" run --launcher fork -n 1 --requeue -- sh -c "$AFTER"
		[ "$(grep -cx "$warning" <<<"$output")" = "$1" ]
	}
	export APPEND=0
	warns 1
	SLURM_OPEN_MODE=a warns 0 # what sbatch sets for --open-mode=append
	APPEND=1 warns 0
}

@test "--requeue under PBS: qsub gets a copy of the script and the options that qstat prints" {
	pbs_requeue_job 2.pbs-head
	export COMMAS='a,b "c" d' N=3
	noted 75 env 'BASH_FUNC_ml%%=() { :; }' "$BERTH" run -n 1 --requeue --report report.json -- \
		sh -c "$AFTER; echo changed >'$DIR/home/mom_priv/jobs/2.pbs-head.SC'; exit 75"
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
	local warning="warning: --requeue: the next job overwrites host:/home/u/out.txt (qsub -o); "
	warning+="to keep the output of each job, omit -o or give it a directory"
	[[ $output == *"$warning"* ]]
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
	state() {
		fake scontrol '[ "$1" != requeue ] || touch '"$DIR"'/told; [ ! -e up ] || { '"$1"'; }
			echo "JobId=4711 Requeue=1 JobState=RUNNING BatchFlag=1"'
	}
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
	noted 0 "$BERTH" run -n 1 --requeue -- sh -c "$AFTER"
	[[ $output == *"cannot requeue the job: cannot read its script: neither $DIR/home/mom_priv/jobs/2.pbs-head.SC nor /"* ]]
	sed 's/"Submit_arguments": *"[^"]*"/"Submit_arguments": "-V "/' answer >blank
	! cmp answer blank || false
	fake qstat 'cat "$DIR/blank"'
	noted 0 "$BERTH" run -n 1 --requeue -- sh -c "$AFTER"
	[[ $output$'\n' == *"cannot read its script: $DIR/home/mom_priv/jobs/2.pbs-head.SC"$'\n'* ]]
	PBS_ENVIRONMENT=PBS_INTERACTIVE noted 0 "$BERTH" run -n 1 --requeue -- sh -c "$AFTER"
	[[ $output == *"cannot requeue the job: it is an interactive job"* ]]
	rm "$DIR/bin/qsub"
	noted 0 "$BERTH" run -n 1 --requeue -- sh -c "$AFTER"
	[[ $output == *"cannot requeue the job: qsub not found on this node"* ]]
}
