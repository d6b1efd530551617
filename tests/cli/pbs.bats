# SPDX-License-Identifier: BSD-3-Clause
# A job of PBS's as berth sees it, without a PBS: its variables, a node file, a qstat.

load pbs.bash

setup() { pbs_begin; }
teardown() { pbs_end; }

@test "info names the nodes, the time left and the GPUs a node" {
	pbs_job 2.pbs-head n1.x n1.x n2.x n2.x
	pbs_tool qstat 'cat "$DIR/answer"'
	{
		echo "Job Id: 2.pbs-head"
		echo "    Resource_List.walltime = 02:00:00"
		echo "    stime = $(LC_ALL=C date '+%a %b %d %H:%M:%S %Y')"
		echo "    run_count = 3"
		echo "    exec_host = n1/0+n2/0"
		echo "    exec_vnode = (n1:ngpus=2)+(n2:ngpus=1)"
	} >"$DIR/answer"
	run "$BERTH" info --json
	[ "$status" = 0 ]
	echo "$output" >"$DIR/info.json"
	python3 - "$DIR/info.json" <<-'P'
	import json, sys, time
	alloc = json.load(open(sys.argv[1]))['alloc']
	assert alloc['source'] == 'pbs' and alloc['job_id'] == '2.pbs-head', alloc
	assert alloc['nodes'] == [{'name': 'n1.x', 'slots': 2, 'gpus': 2},
	                          {'name': 'n2.x', 'slots': 2, 'gpus': 1}], alloc
	assert 7000 < alloc['end_time'] - time.time() <= 7200, alloc
	assert alloc['restarts'] == 2, alloc
	P
}

@test "a server that does not answer is said, and the rest goes on" {
	pbs_job 2.pbs-head "$(hostname)"
	pbs_tool qstat 'echo "Communication failure." >&2; exit 1'
	run "$BERTH" info
	echo "$output"
	[ "$status" = 0 ]
	grep -q 'Communication failure' <<<"$output"
	run "$BERTH" run -n 2 -- sh -c 'echo "$RANK/$WORLD_SIZE ${BERTH_END_TIME-none} $BERTH_JOB_ID"'
	echo "$output"
	[ "$status" = 0 ]
	grep -q '^1/2 none 2.pbs-head$' <<<"$output"
}

@test "brackets of an array in paths, and its end time for the ranks" {
	pbs_job '64[0].pbs-head' "$(hostname)"
	export PBS_WALLTIME=600 PBS_ARRAY_INDEX=0
	run "$BERTH" run -n 1 -- sh -c 'echo "$BERTH_JOB_ID $((BERTH_END_TIME - $(date +%s) > 500))"'
	echo "$output"
	[ "$status" = 0 ]
	[ "$output" = '64[0].pbs-head 1' ]
}

@test "no GPU was granted: the select line to ask for" {
	pbs_job 2.pbs-head n1.x n2.x
	export CUDA_VISIBLE_DEVICES='' NCPUS=32 BERTH_TOPOLOGY=$FIXTURES/topo/pci-order-not-numa-order.xml
	run "$BERTH" info --json
	echo "$output"
	[ "$status" = 0 ]
	grep -qE 'PBS granted no GPU.* -l select=2:ncpus=32:ngpus=([0-9]+):mpiprocs=\1' <<<"$output"
}

@test "bad input is named, and nothing is started" {
	pbs_job 2.pbs-head "$(hostname)"
	rm "$PBS_NODEFILE"
	run "$BERTH" run -- touch "$DIR/started"
	echo "$output"
	[ "$status" = 66 ]
	grep -qF "PBS_NODEFILE: $PBS_NODEFILE" <<<"$output"
	: >"$PBS_NODEFILE"
	run "$BERTH" run -- touch "$DIR/started"
	echo "$output"
	[ "$status" = 65 ]
	unset PBS_NODEFILE
	run "$BERTH" run -- touch "$DIR/started"
	[ "$status" = 65 ]
	grep -q 'unset PBS_JOBID' <<<"$output"
	[ ! -e "$DIR/started" ]
}
