# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# A pretended job of PBS's: the variables of a batch script, and tools in $DIR/bin.

pbs_begin() {
	local folder path=
	DIR=$(mktemp -d)
	mkdir "$DIR/bin"
	# The job and the tools of a real PBS stay outside.
	unset "${!PBS_@}"
	while read -rd: folder; do
		[ -e "$folder/pbs_tmrsh" ] || path+=:$folder
	done <<<"$PATH:"
	export DIR PATH="$DIR/bin$path" PBS_CONF_FILE=/nonexistent
	unset BERTH_PLAN_FILE BERTH_TOPOLOGY CUDA_VISIBLE_DEVICES OMP_NUM_THREADS SLURM_JOB_ID SLURM_JOBID
}

pbs_end() { rm -rf "$DIR"; }

# pbs_job ID LINE...: the node file has these lines.
pbs_job() {
	export PBS_JOBID=$1 PBS_NODEFILE=$DIR/$1 PBS_NODENUM=0 PBS_ENVIRONMENT=PBS_BATCH
	export PBS_O_WORKDIR=$PWD PBS_QUEUE=workq
	shift
	printf '%s\n' "$@" >"$PBS_NODEFILE"
}

# pbs_tool NAME SCRIPT
pbs_tool() {
	printf '#!/bin/sh\n%s\n' "$2" >"$DIR/bin/$1"
	chmod +x "$DIR/bin/$1"
}
