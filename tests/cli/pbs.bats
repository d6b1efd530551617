# SPDX-License-Identifier: BSD-3-Clause
# A PBS job as berth sees it: variables, a node file and a stand-in for qstat. No PBS is needed.

load pbs

setup() { pbs_begin; }

has() { grep -qE -- "$1" <<<"$output" || { echo "missing: $1"; echo "$output"; return 1; }; }

@test "info shows the nodes, the time left and the GPUs per node" {
	pbs_job 2.pbs-head n1.x n1.x n2.x n2.x
	fake qstat 'cat "$DIR/answer"'
	{
		echo "Job Id: 2.pbs-head"
		echo "    Resource_List.walltime = 02:00:00"
		echo "    stime = $(LC_ALL=C date '+%a %b %d %H:%M:%S %Y')"
		echo "    run_count = 3"
		echo "    exec_host = n1/0+n2/0"
		echo "    exec_vnode = (n1:ngpus=2)+(n2:ngpus=1)"
	} >"$DIR/answer"
	expect 0 "$BERTH" info --json
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

@test "if the PBS server does not answer, berth reports it and the job runs" {
	pbs_job 2.pbs-head "$(hostname)"
	fake qstat 'echo "Communication failure." >&2; exit 1'
	expect 0 "$BERTH" info
	grep -q 'Communication failure' <<<"$output"
	expect 0 "$BERTH" run -n 2 -- sh -c 'echo "$RANK/$WORLD_SIZE ${BERTH_END_TIME-none} $BERTH_JOB_ID"'
	grep -q '^1/2 none 2.pbs-head$' <<<"$output"
}

@test "a job array: brackets of the job ID in paths, and the end time for the ranks" {
	pbs_job '64[0].pbs-head' "$(hostname)"
	export PBS_WALLTIME=600 PBS_ARRAY_INDEX=0
	expect 0 "$BERTH" run -n 1 -- sh -c 'echo "$BERTH_JOB_ID $((BERTH_END_TIME - $(date +%s) > 500))"'
	[ "$output" = '64[0].pbs-head 1' ]
}

@test "no GPU was granted: berth shows the select line that requests them" {
	pbs_job 2.pbs-head n1.x n2.x
	export CUDA_VISIBLE_DEVICES='' NCPUS=32 BERTH_TOPOLOGY=$FIXTURES/topo/pci-order-not-numa-order.xml
	expect 0 "$BERTH" info --json
	grep -qE 'PBS granted no GPU.* -l select=2:ncpus=32:ngpus=([0-9]+):mpiprocs=\1' <<<"$output"
}

@test "launchers: PALS, TM, Open MPI, ssh, in this order; --launcher overrides the choice" {
	pbs_job 2.pbs-head n1.x n2.x
	unset PBS_NODENUM
	export PBS_JOBCOOKIE=0123456789ABCDEF0123456789ABCDEF
	launcher() { # EXPECTED LINE [OPTIONS]
		local expected=$1 line=$2
		shift 2
		run env PATH="$DIR/bin:/no" "$BERTH" run --dry-run --json "$@" -- /bin/true
		[[ "$output" == *"\"launcher\": \"$expected\""* ]] || { echo "$output"; return 1; }
		run env PATH="$DIR/bin:/no" "$BERTH" run --dry-run "$@" -- /bin/true
		[[ "$output" == *"$line"* ]] || { echo "$output"; return 1; }
	}
	launcher ssh 'ssh -T'
	fake pbsdsh true
	launcher tm "$DIR/bin/pbsdsh -h n1.x --"
	fake pbs_tmrsh true
	launcher tm "$DIR/bin/pbs_tmrsh n1.x /usr/bin/env "
	fake mpiexec true # may belong to any MPI
	launcher tm pbs_tmrsh
	fake palstat true
	launcher pals "$DIR/bin/mpiexec -n 2 --ppn 1 --hosts n1.x,n2.x --cpu-bind none --envall"
	fake mpirun true # of another MPI than Open MPI
	launcher pals mpiexec
	fake ompi_info true
	launcher pals mpiexec
	launcher tm pbs_tmrsh --launcher tm
	rm "$DIR/bin/palstat"
	launcher tm pbs_tmrsh
	rm "$DIR/bin/pbs_tmrsh" "$DIR/bin/pbsdsh"
	launcher mpirun "$DIR/bin/mpirun --map-by ppr:1:node --bind-to none --host n1.x:1,n2.x:1"
	fake prterun true
	fake prte_info true
	launcher prterun "$DIR/bin/prterun --map-by ppr:1:node --bind-to none --host n1.x:1,n2.x:1"
	fake pbs_tmrsh true
	fake palstat true
	for other in mpirun pals tm ssh; do
		launcher "$other" '' --launcher "$other"
	done
	rm "$DIR/bin/prterun"
	expect 69 env PATH="$DIR/bin:/no" "$BERTH" run --launcher prterun -- /bin/true
	[[ "$output" == *'prterun is not in PATH'* ]]
}

@test "a launcher that starts no agent: it is ended, the next one is tried once, and its late agents are refused" {
	pbs_job 2.pbs-head "$(hostname)" localhost
	# The tool hangs; when the ranks run, in a session of its own, the agent starts after all.
	fake pbs_tmrsh 'shift; echo "tm hangs" >&2
		setsid sh -c "until [ -e \"$DIR/up\" ] || [ ! -e \"$DIR\" ]; do sleep 0.1; done; \"\$@\"; echo ended \$? >>\"$DIR/late\"" \
			sh "$@" >/dev/null 2>&1 &
		echo $$ >>"$DIR/tools"; exec sleep 77'
	PATH="$DIR/bin:$PATH" expect 0 "$BERTH" run --launch-timeout 3s --master-addr 127.0.0.1 -- sh -c \
		'echo rank $RANK of $WORLD_SIZE; touch "$DIR/up"; until [ "$(grep -cs ended "$DIR/late")" = 2 ]; do sleep 0.1; done'
	[[ "$output" == *"berth: warning: tm has started no agent within 3 s; its last output: tm hangs; tm hangs; trying launcher ssh"* ]]
	[ "$(grep -c '^rank [01] of 2$' <<<"$output")" = 2 ]
	within 20 sh -c "[ \"\$(grep -c 'ended [1-9]' '$DIR/late')\" = 2 ]"
	while read -r pid; do
		! kill -0 "$pid" 2>/dev/null || false
	done <tools
	# Not with a launcher that the user chose, and only once.
	fake pbs_tmrsh 'exec sleep 77'
	PATH="$DIR/bin:$PATH" expect 76 "$BERTH" run --launcher tm --launch-timeout 1s --start-timeout 2s -- true
	[[ "$output" == *"no agent or no inventory from "*" within 2 s"* ]]
	fake palstat true
	fake mpiexec 'exec sleep 77'
	PATH="$DIR/bin:$PATH" expect 76 "$BERTH" run --launch-timeout 1s --start-timeout 2s -- true
	[[ "$output" == *"pals has started no agent within 1 s"*"trying launcher tm"*"no agent or no inventory from "*" within 2 s"* ]]
	for bad in -1s 5x '' 1e3; do
		expect 64 "$BERTH" run --launch-timeout "$bad" -- true
	done
}

@test "pbs_comm is away for a moment: the node's tool is started again; one whose pbs_mom was restarted is not" {
	pbs_job 77.server n1 n2
	# The words of OpenPBS 23.06.
	fake pbs_tmrsh <<-'S'
	host=$1; shift
	[ $host = n1 ] || [ -e "$DIR/second" ] || {
		touch "$DIR/second"
		echo "/opt/pbs/bin/pbs_tmrsh: tm_poll(spawn): host \"$host\" err not connected (17002) 0" >&2
		exit 255
	}
	exec "$@"
	S
	expect 0 "$BERTH" run --iface lo --launcher tm -- sh -c 'echo "rank $RANK"'
	has 'berth: note: tm exited with code 255; .*host "n2" err not connected \(17002\) 0; trying again$'
	has '^rank 0$'
	has '^rank 1$'
	fake pbs_tmrsh <<-'S'
	host=$1; shift
	[ $host = n1 ] || { echo "pbs_tmrsh: tm_poll(obit): host \"$host\" err not connected (17002) 15010" >&2; exit 255; }
	exec "$@"
	S
	expect 76 "$BERTH" run --iface lo --launcher tm -- true
	[[ $output != *'trying again'* ]]
	[[ "${lines[-1]}" == *'no agent on n2: tm exited with code 255; its last output: pbs_tmrsh: tm_poll(obit): '* ]]
}

@test "PALS: mpiexec gets the expected arguments and environment, and no secret in its arguments" {
	pbs_job 2.pbs-head n1.x n2.x
	unset PBS_NODENUM
	fake palstat true
	fake mpiexec 'printf "%s\\n" "$*" >"$DIR/line"; env >"$DIR/env"; exit 3'
	PATH="$DIR/bin:$PATH" expect 76 "$BERTH" run --launcher pals --start-timeout 5s -- true
	[[ "$output" == *"pals exited with code 3 before all agents connected"* ]]
	grep -q '^-n 2 --ppn 1 --hosts n1.x,n2.x --cpu-bind none --envall sh -c .* '"$BERTH" "$DIR/line"
	secret=$(sed -n 's/^BERTH_AGENT_SECRET=//p' "$DIR/env")
	[ ${#secret} = 64 ]
	! grep -q "$secret" "$DIR/line" || false
	[[ "$output" != *"$secret"* ]]
}

@test "bad input: the error names it, and nothing is started" {
	pbs_job 2.pbs-head "$(hostname)"
	rm "$PBS_NODEFILE"
	expect 66 "$BERTH" run -- touch "$DIR/started"
	grep -qF "PBS_NODEFILE: cannot open $PBS_NODEFILE: " <<<"$output"
	: >"$PBS_NODEFILE"
	expect 65 "$BERTH" run -- touch "$DIR/started"
	unset PBS_NODEFILE
	expect 65 "$BERTH" run -- touch "$DIR/started"
	grep -q 'unset PBS_JOBID' <<<"$output"
	pbs_job 2.pbs-head "$(hostname)"
	PBS_WALLTIME=soon expect 65 "$BERTH" run -- touch "$DIR/started"
	grep -q "PBS_WALLTIME is 'soon', expected a time such as 3600 or 01:00:00" <<<"$output"
	truncate -s 1G "$PBS_NODEFILE" # a sparse file
	expect 65 "$BERTH" run -- touch "$DIR/started"
	grep -qF "PBS_NODEFILE: $PBS_NODEFILE" <<<"$output"
	[ ! -e "$DIR/started" ]
}

@test "qstat reports an invalid walltime: berth reports it, and the job runs without an end time" {
	pbs_job 2.pbs-head "$(hostname)"
	fake qstat 'printf "Job Id: 2.pbs-head\n    Resource_List.walltime = soon\n    stime = Sat Nov 21 02:02:31 2026\n"'
	expect 0 "$BERTH" info
	tr -s ' \n' ' ' <<<"$output" | grep -q "the job's walltime is 'soon', expected a time"
	expect 0 "$BERTH" run -n 1 -- sh -c 'echo "end ${BERTH_END_TIME-none}"'
	[[ "$output" == *'end none'* ]]
}

@test "a slow qstat: the ranks start without its answer, which takes effect when it comes" {
	local start
	pbs_job 2.pbs-head "$(hostname)"
	start=$(date +%s)
	printf 'Job Id: 2.pbs-head\n    queue = workq\n    Resource_List.walltime = 01:00:00\n    stime = %s\n' \
		"$(LC_ALL=C date -d "@$start" '+%a %b %d %H:%M:%S %Y')" >answer
	fake qstat 'echo "$*" >>"$DIR/asked"
		until [ -e "$DIR/up" ] || [ ! -e "$DIR" ]; do sleep 0.05; done
		[ "$3" != json ] || exit 1
		cat "$DIR/answer"'
	cat >rank.sh <<-'S'
	[ "$RANK" != 0 ] || touch "$DIR/up"
	echo "rank $RANK: end ${BERTH_END_TIME-unknown}"
	until [ -s "$BERTH_END_TIME_FILE" ] && [ -s "$BERTH_STOP_FILE" ]; do sleep 0.05; done
	echo "rank $RANK: end $(cat "$BERTH_END_TIME_FILE") $(cat "$BERTH_STOP_FILE")"
	S
	expect 0 timeout 100 "$BERTH" run -n 2 --launcher loopback --nodes 2 --warn-before 2h -- sh rank.sh
	for rank in 0 1; do
		has "^rank $rank: end unknown$"
		has "^rank $rank: end $((start + 3600)) warning$"
	done
	has '^berth: note: .* limit is reached in 3[0-9]{3} s: warned the ranks'
	# If the second node starts after the answer, berth asks once more before it warns.
	[[ $(tr '\n' , <asked) == '-f -F json 2.pbs-head,-f 2.pbs-head,-Q -f workq,'* ]]
	# Torque reports the limit of the start; no warning, because it was extended meanwhile.
	rm up
	sed -i s/01:00:00/05:00:00/ answer
	export PBS_WALLTIME=01:00:00
	cat >rank.sh <<-'S'
	touch "$DIR/up"
	until [ "$(cat "$BERTH_END_TIME_FILE" 2>/dev/null)" = "$1" ]; do sleep 0.05; done
	[ ! -e "$BERTH_STOP_FILE" ] && echo "end $((BERTH_END_TIME < $1)) $(cat "$BERTH_END_TIME_FILE")"
	S
	expect 0 timeout 100 "$BERTH" run -n 1 --warn-before 2h -- sh rank.sh $((start + 18000))
	has "^end 1 $((start + 18000))$"
	has "^berth: note: the job's time limit is 1[0-9]{4} s later than before$"
}

@test "earlier starts of the job count in BERTH_ATTEMPT if qstat answers before the ranks start; else berth warns" {
	pbs_job 2.pbs-head "$(hostname)" localhost
	printf 'Job Id: 2.pbs-head\n    Resource_List.walltime = 01:00:00\n    run_count = 3\n' >answer
	fake qstat 'cat "$DIR/answer"; (exec >/dev/null; sleep 0.3; touch "$DIR/answered") &'
	fake pbs_tmrsh 'shift; until [ -e "$DIR/answered" ] || [ ! -e "$DIR" ]; do sleep 0.05; done; exec "$@"'
	PATH="$DIR/bin:$PATH" expect 0 "$BERTH" run --launcher tm --master-addr 127.0.0.1 --log-dir logs --max-restarts 1 -n 2 \
		-- sh -c 'echo "rank $RANK attempt $BERTH_ATTEMPT"'
	has '^rank 0 attempt 4$'
	has '^rank 1 attempt 4$'
	[ -e logs/attempt-4/rank-0000.log ]
	fake qstat 'until [ -e "$DIR/up" ] || [ ! -e "$DIR" ]; do sleep 0.05; done; cat "$DIR/answer"'
	timeout 100 "$BERTH" run -n 1 --launcher loopback -N 1 -- sh -c 'echo attempt $BERTH_ATTEMPT; touch "$DIR/up"
		until [ -s warned ]; do sleep 0.05; grep "was started" err >warned; done' 2>err
	local warning='berth: warning: the job was started 2 times before, which BERTH_ATTEMPT of these ranks does not count: '
	warning+='pbs reported it too late'
	grep -q "^$warning\$" err
}

@test "a qstat that never answers: the job ends as if there were none, and qstat with it" {
	pbs_job 2.pbs-head "$(hostname)"
	fake qstat 'echo $$ >>"$DIR/pids"; exec sleep 500'
	expect 3 "$BERTH" run -n 1 --warn-before 2h -- sh -c 'exit 3'
	[ "$(wc -l <pids)" = 1 ]
	! kill -0 "$(cat pids)" 2>/dev/null || false
}

@test "a node file with a thousand repeats: a thousand slots, and the ranks run on the cores" {
	pbs_job 2.pbs-head $(yes "$(hostname)" | head -1000)
	expect 0 "$BERTH" info --json
	grep -q '"slots": 1000' <<<"$output"
	expect 0 "$BERTH" run -n 1 -- echo ran
	[[ "$output" == *ran* ]]
}
