# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# A simulated PBS job: the variables of a batch script, and tools in $DIR/bin.

load ../support/berth

# pbs_begin: run make_dir, and hide the job and the tools of any real scheduler.
pbs_begin() {
	local folder path=
	make_dir
	unset "${!PBS_@}"
	while read -rd: folder; do
		[ -e "$folder/pbs_tmrsh" ] || path+=:$folder
	done <<<"$PATH:"
	export PATH="$DIR/bin$path" PBS_CONF_FILE=/nonexistent
	unset SLURM_JOB_ID SLURM_JOBID
}

# pbs_job ID LINE...: set the variables of a job whose node file has these lines.
pbs_job() {
	export PBS_JOBID=$1 PBS_NODEFILE=$DIR/$1 PBS_NODENUM=0 PBS_ENVIRONMENT=PBS_BATCH
	export PBS_O_WORKDIR=$PWD PBS_QUEUE=workq
	shift
	printf '%s\n' "$@" >"$PBS_NODEFILE"
}
