# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# Simulated jobs of Slurm and PBS that can be requeued.

load pbs

# A simulated Slurm job on this host, with a scontrol that records its arguments.
slurm_job() {
	unset PBS_JOBID PBS_NODEFILE
	export SLURM_JOB_ID=4711 SLURM_JOB_NODELIST=$(hostname) SLURM_JOB_NUM_NODES=1 SLURM_TASKS_PER_NODE=1
	export SLURM_JOB_END_TIME=$(($(date +%s) + 3600)) SLURM_JOB_CPUS_PER_NODE=1 SLURM_NNODES=1
	fake scontrol 'echo "$*" >>'"$DIR"'/told; [ "$1" != requeue ] || cp '"$DIR"'/report.json '"$DIR"'/report.then
		echo "JobId=4711 JobName=x Requeue='"$1"' JobState=RUNNING BatchFlag='"$2"'"'
}

# noted CODE COMMAND...: as expect. A rank whose script begins with $AFTER goes on once berth has printed whether it can
# requeue the job: a run that ends sooner does not know that yet.
# shellcheck disable=SC2034 # for the tests
AFTER='until grep -q -e --requeue noted; do sleep 0.05; done'
noted() {
	local code=$1
	shift
	rm -f noted
	# shellcheck disable=SC2016 # the inner bash expands it
	expect "$code" bash -c '"$@" >noted 2>&1; code=$?; cat noted; exit $code' bash "$@"
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
