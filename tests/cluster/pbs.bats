# SPDX-License-Identifier: BSD-3-Clause
# berth run in jobs of a stand-in for PBS (pbs.py), on the nodes of cluster.py. The first tests compare the
# stand-in with captures of a real PBS.

load support.bash

setup_file() {
	python3 "$HERE/pbs.py" begin n1 n2 n3 3>&-
}

setup() {
	# A PBS job has no Slurm variables.
	unset SLURM_CONF
}

names() { sed 's/=.*//' | sort | tr '\n' ' '; }

@test "stand-in: a batch script and spawned tasks have the captured variables" {
	pbs_job names 2:mpiprocs=2 <<-S
	env -u BERTH -u PROBE -u MPI_SUM -u BERTH_TOPOLOGY -u OMPI_ALLOW_RUN_AS_ROOT -u OMPI_ALLOW_RUN_AS_ROOT_CONFIRM \\
		-u PRTE_ALLOW_RUN_AS_ROOT -u PRTE_ALLOW_RUN_AS_ROOT_CONFIRM -u _ -u SHLVL -u OLDPWD env >batch.names
	export MINE=1
	pbs_tmrsh n1.bed.test /usr/bin/env >in-out
	pbs_tmrsh n1.bed.test /bin/sh -c "/usr/bin/env >$SHARE/first.names"
	pbs_tmrsh n2.bed.test /bin/sh -c "/usr/bin/env >$SHARE/second.names"
	S
	[ "$status" = 0 ]
	captures=$SOURCE/tests/unit/alloc/pbs
	[ "$(names <"$SHARE/batch.names")" = "$(names <"$captures/two.env")" ]
	[ "$(names <"$SHARE/first.names")" = "$(grep -v ^TAG= "$captures/spawned-first.env" | names)" ]
	[ "$(names <"$SHARE/second.names")" = "$(grep -v ^TAG= "$captures/spawned.env" | names)" ]
	grep -q '^PATH=/bin:/usr/bin$' "$SHARE/second.names"
	[ ! -s "$SHARE/in-out" ] # a task's output goes to the job's output
	has '^PBS_TASKNUM='
}

@test "stand-in: exit codes, hosts and sessions match the captures" {
	pbs_job codes 2:mpiprocs=2 <<-'S'
	say() { echo "$1 $?"; }
	pbs_tmrsh n2 hostname; say short
	pbs_tmrsh n2.bed.test /bin/sh -c 'exit 9'; say nine
	pbs_tmrsh n2.bed.test /no/such; say none
	pbs_tmrsh n2.bed.test /bin/sh -c 'kill -TERM $$'; say signal
	pbsdsh -n 2 -- /bin/sh -c 'exit 7'; say dsh
	pbsdsh -h n2.bed.test -- /bin/hostname
	pbs_tmrsh n2.bed.test echo 'a   b' '$HOME' '*'
	pbs_tmrsh n2.bed.test sleep 71 &
	until pbs_tmrsh n2.bed.test pgrep -x sleep >/dev/null; do sleep 0.1; done
	kill $!; wait $! 2>/dev/null
	pbs_tmrsh n2.bed.test /bin/sh -c 'pgrep -x sleep >/dev/null && echo lives on'
	pbs_tmrsh n2.bed.test /bin/sh -c 'sleep 72 & sleep 0.1'
	pbs_tmrsh n2.bed.test pgrep -fx 'sleep 72'; say session
	S
	has '^pbs_tmrsh: host "n2" is not a node in job <[0-9]*.pbs-head>$'
	has '^short 255$' && has '^nine 9$' && has '^none 254$' && has '^signal 15$' && has '^dsh 0$'
	has '^pbsdsh: task 0x00000000 exit status 7$'
	has '^n2$'
	has '^a   b \$HOME \*$'
	has '^lives on$'
	has '^session 1$' # killed when the task's first process had exited
	nothing_left n2
}

@test "stand-in: qdel ends shells, other processes live until SIGKILL, a script with a trap continues; qsig ends all" {
	# Cases d1, d9 and 16 of the captures. A trap on EXIT would keep the script's shell alive.
	cd "$SHARE"
	rm -f ends.* ends-go
	cat >ends.py <<-'E'
	import signal, time
	signal.signal(signal.SIGTERM, lambda *a: print("child got TERM", flush=True))
	print("child up", flush=True)
	for i in range(2000):
	    time.sleep(0.05)
	E
	printf '#!/bin/sh\npython3 %s/ends.py\necho shell goes on\n' "$SHARE" >ends.sh
	job=$("$TOOLS/qsub" -o "$SHARE/ends.out" -l select=1 ends.sh)
	until_seen ends.out 'child up'
	begin=$EPOCHREALTIME
	"$TOOLS/qdel" "$job"
	until_seen ends.out 'child got TERM'
	until_code "$job" 271
	awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { exit !(b - a > 9) }' # the stand-in waits 10 s
	! grep 'goes on' ends.out || false
	nothing_left n1
	cat >ends.sh <<-'E'
	#!/bin/sh
	trap : TERM
	(trap "exit 7" TERM; echo child up; while :; do sleep 0.1; done)
	code=$?
	until [ -e ../ends-go ]; do sleep 0.1; done # in the home directory share/pbs
	echo "shell goes on: $code"
	E
	job=$("$TOOLS/qsub" -o "$SHARE/ends2.out" -l select=1 ends.sh)
	until_seen ends2.out 'child up'
	touch ends-go
	"$TOOLS/qdel" "$job"
	until_seen ends2.out 'shell goes on: 7'
	until_code "$job" 271
	rm ends-go # the script can go on no more
	job=$("$TOOLS/qsub" -o "$SHARE/ends3.out" -l select=1 ends.sh)
	until_seen ends3.out 'child up'
	"$TOOLS/qsig" -s TERM "$job"
	until_code "$job" -15
	! grep 'goes on' ends3.out || false
	nothing_left n1
}

# until_code JOB CODE: wait until the server has recorded this exit code.
until_code() {
	until_seen "$SHARE/pbs/jobs/$1.json" "\"code\": $2[,}]"
}

MEET='echo "rank $RANK of $WORLD_SIZE on $(hostname) local $LOCAL_RANK node $NODE_RANK at $MASTER_ADDR '
MEET+='nccl $NCCL_SOCKET_IFNAME job $BERTH_JOB_ID user ${MINE-none}"'

meet() {
	[ "$status" = 0 ]
	has "^rank 0 of 4 on n1 local 0 node 0 at 10.9.0.11 nccl hsn0 job $job user a  b$"
	has "^rank 1 of 4 on n1 local 1 node 0 at 10.9.0.11 nccl hsn0 job $job user a  b$"
	has "^rank 2 of 4 on n2 local 0 node 1 at 10.9.0.11 nccl hsn0 job $job user a  b$"
	has "^rank 3 of 4 on n2 local 1 node 1 at 10.9.0.11 nccl hsn0 job $job user a  b$"
	nothing_left n1 n2
}

@test "pbs_tmrsh: the ranks of both nodes use the fast NIC and have the script's environment" {
	pbs_job tm 2:ncpus=4:mpiprocs=2 <<-S
	export MINE='a  b'
	"\$BERTH" run --launcher tm --ranks-per-node 2 -- sh -c '$MEET'
	S
	meet
}

@test "the ranks of all nodes have the script's umask and soft limits, with each launcher" {
	pbs_job shell 2:ncpus=4:mpiprocs=2 <<-'S'
	umask 027; ulimit -S -n 333; ulimit -S -s 4096
	for launcher in tm mpirun; do
		"$BERTH" run -q --launcher $launcher --ranks-per-node 1 -- sh -c 'echo "$RANK: $(umask) $(ulimit -n) $(ulimit -s)"'
	done
	S
	[ "$status" = 0 ]
	[ "$(grep -cx '[01]: 0027 333 4096' <<<"$output")" = 4 ]
}

@test "a node file of the user's, in another order or with a part of the nodes: each agent is on its node, or an error" {
	pbs_job own 2:ncpus=4:mpiprocs=1 <<-'S'
	unset BERTH_TOPOLOGY
	export PBS_CONF_FILE=$PWD/pbs/pbs.conf
	cp "$PBS_NODEFILE" all; tac all >turned; tail -n 1 all >second
	for launcher in tm mpirun; do
		for file in turned second; do
			PBS_NODEFILE=$PWD/$file "$BERTH" run -q --launcher $launcher --ranks-per-node 1 -- sh -c \
				"echo \"$launcher $file \$RANK of \$WORLD_SIZE: \$(hostname)\""
		done
	done
	sed '/PBS_HOME/d' "$PBS_CONF_FILE" >conf
	PBS_CONF_FILE=$PWD/conf PBS_NODEFILE=$PWD/turned "$BERTH" run -q --launcher tm -- true
	echo "code $?"
	S
	[ "$status" = 0 ]
	for launcher in tm mpirun; do
		has "^$launcher turned 0 of 2: n2$"
		has "^$launcher turned 1 of 2: n1$"
		has "^$launcher second 0 of 1: n2$"
	done
	has 'berth: error: the agent for n[12][.]bed[.]test was started on n[12]: launcher tm takes nodes by their place in a list'
	has '^code 65$'
	nothing_left n1 n2
}

@test "a file as standard input reaches rank 0 through pbs_tmrsh and mpirun" {
	head -c 20000000 /dev/urandom >"$SHARE/big"
	pbs_job stdin 2:ncpus=4:mpiprocs=2 <<-'S'
	for launcher in tm mpirun; do
		"$BERTH" run -q --launcher $launcher -n 2 -- sh -c '[ $RANK = 1 ] || md5sum' <big
	done
	S
	[ "$status" = 0 ]
	[ "$(grep -cF "$(md5sum <"$SHARE/big")" <<<"$output")" = 2 ]
}

@test "pbsdsh if pbs_tmrsh is missing" {
	pbs_job dsh 2:ncpus=4:mpiprocs=2 <<-S
	export MINE='a  b'; mkdir -p nobin; cp $TOOLS/pbsdsh $TOOLS/qstat nobin
	PATH=\$PWD/nobin:/usr/bin:/bin
	"\$BERTH" run --launcher tm --ranks-per-node 2 -- sh -c '$MEET'
	S
	meet
}

@test "mpirun through pbs_tmrsh" {
	command -v mpirun && command -v ompi_info || skip "no mpirun of Open MPI"
	pbs_job mpirun 2:ncpus=4:mpiprocs=2 <<-S
	export MINE='a  b'
	"\$BERTH" run --dry-run --ranks-per-node 2 -- true
	"\$BERTH" run --dry-run --launcher mpirun --ranks-per-node 2 -- true
	"\$BERTH" run --launcher mpirun --ranks-per-node 2 -- sh -c '$MEET'
	S
	has 'one agent per node with tm:' # the default
	has 'mpirun --map-by ppr:1:node --bind-to none --host n1.bed.test:1,n2.bed.test:1'
	meet
}

@test "Open MPI's remote shell: a daemon survives the end of the task that started it" {
	pbs_job daemon 2:ncpus=4:mpiprocs=2 <<-'S'
	"$BERTH" agent --tmrsh n2.bed.test 'sleep 73 & until pgrep -fx "sleep 73" >/dev/null; do sleep 0.1; done; exit 9'; echo "code $?"
	pbs_tmrsh n2.bed.test pkill -fx 'sleep 73'; echo "found $?"
	S
	has '^code 9$' && has '^found 0$'
	nothing_left n2
}

@test "the secret is on no command line and in no output" {
	pbs_start secret 2:ncpus=4:mpiprocs=2 <<-S
	"\$BERTH" run --launcher tm --ranks-per-node 1 -- sh -c 'echo rank \$RANK up; until [ -e secret.go ]; do sleep 0.1; done'
	S
	until_seen "$SHARE/secret.out" 'rank 1 up'
	seen=$(on n1 ps -eo args; on n2 ps -eo args)
	grep -q 'BERTH_AGENT_SECRET_FROM=cookie:' <<<"$seen"
	cookie=$(python3 -c "import json, sys; print(json.load(open(sys.argv[1]))['cookie'])" "$SHARE/pbs/jobs/$job.json")
	[ ${#cookie} = 32 ]
	! grep -q "$cookie" <<<"$seen" || false
	! grep -qE 'BERTH_AGENT_SECRET=' <<<"$seen" || false
	touch "$SHARE/secret.go"
	finish secret
	[ "$status" = 0 ]
	hasnt "$cookie"
}

@test "no PBS_JOBCOOKIE: the secret is in a file in the shared home until all agents have connected" {
	# n2's agent starts late, so that the test can see the file.
	mkdir -p "$SHARE/late"
	printf '#!/bin/sh\n[ "$1" != n2.bed.test ] || until [ -e %s/late/go ]; do sleep 0.1; done\nexec %s/pbs_tmrsh "$@"\n' \
		"$SHARE" "$TOOLS" >"$SHARE/late/pbs_tmrsh"
	chmod +x "$SHARE/late/pbs_tmrsh"
	pbs_start file 2:ncpus=4:mpiprocs=2 <<-S
	unset PBS_JOBCOOKIE; export MINE='a  b' PATH=$SHARE/late:\$PATH
	"\$BERTH" run --launcher tm --ranks-per-node 2 -- sh -c '$MEET'
	S
	home=$SHARE/pbs # the home directory of the stand-in's jobs
	secret_file() {
		secret=$(find "$home/.config/berth" -type f -name '.secret-*' -size +0 2>/dev/null)
		on n1 ps -eo args | grep -q '[B]ERTH_AGENT_SECRET_FROM' && [ -n "$secret" ]
	}
	within 30 secret_file
	[ "$(stat -c %a "$secret" "$home/.config/berth")" = $'600\n700' ]
	words=$(cat "$secret")
	[[ $words =~ ^[0-9a-f]{64}$ ]]
	seen=$(on n1 ps -eo args)
	grep -q "BERTH_AGENT_SECRET_FROM=file:$secret" <<<"$seen"
	! grep -q "$words" <<<"$seen" || false
	touch "$SHARE/late/go"
	finish file
	meet
	hasnt "$words"
	[ -z "$(find "$home/.config/berth" -name '.secret-*')" ]
}

@test "no PBS_JOBCOOKIE and no shared home: berth reports it, and nothing is left" {
	pbs_job unshared 2:ncpus=4:mpiprocs=1 <<-'S'
	unset PBS_JOBCOOKIE
	mkdir -p /tmp/home # each node has its own /tmp
	HOME=/tmp/home "$BERTH" run --launcher tm --ranks-per-node 1 -- hostname
	code=$?
	find /tmp/home -type f
	exit $code
	S
	[ "$status" = 76 ]
	has 'n2.bed.test.*tm exited with code 66'
	has '/tmp/home/.config/berth/.secret-.*, which berth run created for this run, is missing on this node. If the nodes do not share'
	hasnt '^/tmp/home/'
	nothing_left n1 n2
}

@test "qdel: SIGTERM on the first node also reaches the ranks of the other nodes" {
	pbs_start term 2:ncpus=4:mpiprocs=1 <<-'S'
	"$BERTH" run --launcher tm --ranks-per-node 1 -- sh -c \
		'trap "echo rank $RANK on $(hostname) got TERM; exit 3" TERM; echo rank $RANK up; while :; do sleep 0.1; done'
	S
	until_seen "$SHARE/term.out" 'rank 1 up'
	until_seen "$SHARE/term.out" 'rank 0 up'
	"$TOOLS/qdel" "$job"
	until_code "$job" 271
	output=$(cat "$SHARE/term.out")
	has '^rank 1 on n2 got TERM$'
	has '^rank 0 on n1 got TERM$'
	nothing_left n1 n2
}

@test "SIGKILL to all of the job's processes on the first node: nothing is left on the others" {
	pbs_start kill 2:ncpus=4:mpiprocs=1 <<-'S'
	"$BERTH" run --launcher tm --ranks-per-node 1 -- sh -c 'echo rank $RANK up; exec sleep 77' &
	until grep -q 'rank 1 up' kill.out; do sleep 0.1; done
	kill -KILL $!
	exit 4
	S
	finish kill
	[ "$status" = 4 ]
	nothing_left n1 n2
}

@test "berth in a directory with a space; its libraries are missing on one node" {
	mkdir -p "$SHARE/a b"
	cp -r "${BERTH%/*}/." "$SHARE/a b"
	pbs_job space 2:ncpus=4:mpiprocs=2 <<-'S'
	"a b/berth" run -q --ranks-per-node 1 -- sh -c 'echo "rank $RANK"'
	S
	[ "$status" = 0 ]
	[ "$(grep -c '^rank [01]$' <<<"$output")" = 2 ]
	own_berth
	pbs_job broken 2:ncpus=4:mpiprocs=2 <<-'S'
	for launcher in tm mpirun; do
		/tmp/own/berth run --launcher $launcher --ranks-per-node 1 -- hostname
	done
	S
	[ "$status" = 76 ]
	has 'no agent on n2.bed.test: tm exited with code 127'
	has 'no agent on n2.bed.test: /tmp/own/berth cannot run there: berth: error while loading shared libraries: libx.so'
}

@test "ranks cannot start in a working directory that was removed, or that is missing on a node" {
	pbs_job gone 2:ncpus=4:mpiprocs=1 <<-S
	$GONE
	S
	gone n2.bed.test
}

@test "an agent that cannot be started: the error has the node and the tool's exit code, and nothing is left" {
	pbs_job fail 2:ncpus=4:mpiprocs=1 <<-'S'
	cp "$BERTH" /tmp/berth-here # only on this node, since each has its own /tmp
	BERTH_MODULE_PATH=$(dirname "$BERTH") /tmp/berth-here run --launcher tm --ranks-per-node 1 -- hostname
	S
	[ "$status" = 76 ]
	has 'n2.bed.test.*tm exited with code 127'
	nothing_left n1 n2
}

@test "the tools that started the agents are killed, as when pbs_mom restarts: the job goes on" {
	rm -f "$SHARE/go"
	pbs_job healthy 2:ncpus=4:mpiprocs=1 <<-'S'
	"$BERTH" run --launcher tm --ranks-per-node 1 -- sh -c 'echo "up $RANK"; until [ -e go ]; do sleep 0.1; done; echo "end $RANK"' >up 2>&1 &
	until [ "$(grep -c ^up up)" = 2 ]; do sleep 0.1; done
	tools=$(pgrep -P $! -f pbs_tmrsh)
	kill -KILL $tools
	# berth run has reaped them, and then some: a node is not lost for their end.
	while kill -0 $tools 2>/dev/null; do sleep 0.1; done
	sleep 1
	touch go
	wait $!
	code=$?
	echo "killed $(wc -w <<<"$tools")"
	cat up
	exit $code
	S
	[ "$status" = 0 ]
	has '^killed 2$'
	[ "$(grep -c '^end [01]$' <<<"$output")" = 2 ]
	nothing_left n1 n2
}

# For qsub -v: variables that a user's modules would set.
variables() {
	local own
	own="PATH=$(dirname "$BERTH"):$SHARE/fake:$FIXTURES/ray:$TOOLS:/usr/bin:/bin"
	echo "BERTH_TOPOLOGY,LD_LIBRARY_PATH,OMPI_ALLOW_RUN_AS_ROOT=1,OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1,$own"
}

@test "jobscripts/pbs, submitted unchanged" {
	scripts=$SOURCE/jobscripts/pbs
	! command -v shellcheck >/dev/null || shellcheck "$scripts"/*.sh
	printf '#!/bin/sh\n%s "arguments$(printf " <%%s>" "$@")"\n' "${MEET%\"} \"" >"$SHARE/say"
	mkdir -p "$SHARE/fake"
	cat >"$SHARE/fake/torchrun" <<-'S'
	#!/bin/sh
	echo "torchrun$(printf " <%s>" "$@") on $(hostname): $PET_NNODES nodes, node $PET_NODE_RANK, $PET_MASTER_ADDR"
	S
	chmod +x "$SHARE/say" "$SHARE/fake/torchrun"
	cd "$SHARE"
	mkdir -p www && touch www/health
	export SERVER="python3 -m http.server --directory $SHARE/www {port}" PYTHONPATH=$FIXTURES/ray
	for name in one-node several-nodes torchrun mpi server ray; do
		# In shell syntax; qsub -v cannot pass a value with a comma.
		more="'a  b' x,y"
		export PROGRAM="./say $more"
		case $name in
		one-node) expected='^rank 1 of [24] on n1 .* at 127.0.0.1' ;;
		several-nodes) expected='^rank 7 of 8 on n2 .* at 10.9.0.11' ;;
		server) expected='^.train 0. rank 0 of 4 on n2 .* at 127.0.0.1' ;;
		ray) expected='^rank 0 of 1 on n1 .* at 127.0.0.1' ;;
		mpi) expected='^rank 3 of 4 on n2 .* at 10.9.0.11' ;;
		torchrun)
			PROGRAM="train.py $more"
			expected='^torchrun <train.py> <a  b> <x,y> on n2: 2 nodes, node 1, 10.9.0.11'
			;;
		esac
		job=$("$TOOLS/qsub" -o "$SHARE/$name.out" -v "PROGRAM,SERVER,PYTHONPATH,$(variables)" "$scripts/$name.sh")
		within 60 grep -q '"code"' "$SHARE/pbs/jobs/$job.json" || true
		output=$(cat "$name.out")
		echo "# $name: $output"
		grep -q '"code": 0' "$SHARE/pbs/jobs/$job.json"
		has "$expected"
		has ' <a  b> <x,y>'
	done
	printf "%s\n" "'a  b' x,y" z >lines.txt
	job=$(PROGRAM=./say "$TOOLS/qsub" -o "$SHARE/sweep.out" -v "FILE=lines.txt,PROGRAM,$(variables)" "$scripts/sweep.sh")
	within 60 grep -q '"code"' "$SHARE/pbs/jobs/$job.json" || true
	output=$(cat sweep.out)
	echo "# sweep: $output"
	has '^2 runs: 2 ended with code 0$'
	grep -q '^rank 0 of 1 on n1 .* <a  b> <x,y>$' lines.txt.runs/1/rank-0000.log
}

@test "walltime: the job stops before it; a new job continues with the same script, resources and variables" {
	rm -rf "$SHARE"/again.* "$SHARE"/turns
	pbs_start again 2:mpiprocs=1 -q long -v 'COLOUR=a b' -l walltime=00:00:40 <<-S
	export PBS_CONF_FILE=$CLUSTER/share/pbs/pbs.conf
	turn=\${BERTH_REQUEUES:-0}
	echo "\$PBS_JOBID \$PBS_QUEUE \$COLOUR \$PBS_O_WORKDIR \$(wc -l <\$PBS_NODEFILE)" >>turns
	[ \$turn = 0 ] || until [ -e again.go ]; do sleep 0.1; done # again.code is read before
	# berth's own timer: PBS would send its signal only after 40 s, which is too late.
	"\$BERTH" run -n 2 --requeue --report again.report.\$turn --end-time +6s --warn-before 3s -- sh -c '
		[ '\$turn' = 0 ] || exit 0
		while [ ! -e "\$BERTH_STOP_FILE" ]; do sleep 0.1; done
		echo "{\"saved\": \"step 7\"}" >"\$BERTH_REPORT"; exit 75'
	S
	# The submitted script has changed in the meantime; berth must use its copy.
	echo 'touch wrong' >"$SHARE/again.sh"
	first=$job
	finish again
	[ "$status" = 75 ]
	touch "$SHARE/again.go"
	has 'qsub with the job.s script will requeue the job'
	holds "$SHARE/again.report.0" 'r["saved"] == "step 7" and r["kind"] == "stopped" and "qsub" in r["next"]'
	within 60 test -e "$SHARE/again.report.1"
	cat "$SHARE/again.out"
	holds "$SHARE/again.report.1" 'r["code"] == 0'
	[ "$(wc -l <"$SHARE/turns")" = 2 ]
	[ "$(cut -d' ' -f3- "$SHARE/turns" | sort -u | wc -l)" = 1 ]
	[ "$(cut -d' ' -f1 "$SHARE/turns" | sort -u | wc -l)" = 2 ]
	grep -q 'a b' "$SHARE/turns"
	[ ! -e "$SHARE/wrong" ]
}

@test "requeued ten times: the job's variables stay equal byte by byte, also functions; its options stay" {
	rm -f "$SHARE"/same.*
	cat >"$SHARE/same.py" <<-'E'
	import os
	with open('same.' + os.environ.get('BERTH_REQUEUES', '0'), 'w') as file:
	    print(sorted(x for x in os.environb.items() if x[0].startswith((b'V_', b'BASH_FUNC'))), file=file)
	E
	f() { echo "it's a \\ \"f\""; }
	export -f f
	export V_A='my run' V_B='it'\''s "q"' V_C='a\b\\c' V_D=$'x\ny' V_E='--name "my run" $HOME `id`' V_F=$'\xff\xfe' V_G='' \
		V_H=plain V_J='end\' V_K=kept V_L=too
	V_I=$(head -c 100000 /dev/zero | tr '\0' x)
	export V_I
	cd "$SHARE"
	cat >same.sh <<-S
	#!/bin/bash
	#PBS -v V_H=changed
	cd $SHARE
	export PBS_CONF_FILE=$CLUSTER/share/pbs/pbs.conf
	python3 same.py
	"$BERTH" run -n 1 --requeue -- sh -c 'exit \$((\${BERTH_REQUEUES:-0} < 10 ? 75 : 0))'
	echo "code \$?"
	S
	# sh, which the stand-in uses, drops functions.
	job=$("$TOOLS/qsub" -o "$SHARE/same.out" -p 7 -S /bin/sh -l select=1 \
		-v "V_A,V_B,V_C,V_D,V_E,V_F,V_G,V_H,V_J,V_K,V_L,V_I,BASH_FUNC_f%%=$(printenv 'BASH_FUNC_f%%')" same.sh)
	until_seen same.out '^code 0$' || within 120 grep -q '^code 0$' same.out
	cut -c1-300 same.out
	for turn in $(seq 10); do
		cmp same.0 same.$turn || { cut -c1-700 same.0 same.$turn; false; }
	done
	grep -q 'BASH_FUNC_f' same.10
	python3 - "$SHARE/pbs/jobs" <<-'E'
	import json, os, sys
	last = max((os.path.join(sys.argv[1], name) for name in os.listdir(sys.argv[1])), key=os.path.getctime)
	options = json.load(open(last))['options']
	assert options['-p'] == '7' and options['-S'] == '/bin/sh', options
	E
}

@test "two runs that want a requeue: one new job per generation" {
	rm -f "$SHARE"/twice.*
	pbs_start twice 1:mpiprocs=2 <<-S
	export PBS_CONF_FILE=$CLUSTER/share/pbs/pbs.conf
	turn=\${BERTH_REQUEUES:-0}
	echo "\$turn" >>twice.turns
	for run in 1 2; do
		"\$BERTH" run -n 1 --requeue -- sh -c ": >twice.up.\$turn.\$run; until [ -e twice.up.\$turn.\$((3 - run)) ]; do sleep 0.1; done
			exit \$((turn < 4 ? 75 : 0))" &
	done
	wait
	echo "\$turn" >>twice.ended
	S
	last() { grep -qx 4 "$SHARE/twice.ended"; }
	within 120 last
	cat "$SHARE/twice.out"
	# A sixth job would have been submitted by now.
	[ "$(cat "$SHARE/twice.turns")" = "$(seq 0 4)" ]
	[ "$(grep -c 'requeued as' "$SHARE/twice.out")" = 4 ]
}

@test "a run announces a requeue, and the last run is killed: one new job, although the script ends at once" {
	rm -f "$SHARE"/left.*
	pbs_start left 1:mpiprocs=2 <<-S
	export PBS_CONF_FILE=$CLUSTER/share/pbs/pbs.conf
	echo "\${BERTH_REQUEUES:-0}" >>left.turns
	[ -z "\$BERTH_REQUEUES" ] || exit
	"\$BERTH" run -n 1 --requeue -- sh -c ': >left.up; exec sleep 1000' &
	until [ -e left.up ]; do sleep 0.1; done
	"\$BERTH" run -n 1 --requeue -- sh -c 'exit 75'
	kill -KILL \$!
	S
	within 60 grep -qsx 1 "$SHARE/left.turns" || { cat "$SHARE/left.out"; return 1; }
	until_seen "$SHARE/left.out" 'requeued as'
	cat "$SHARE/left.out"
	grep -q "next: the job's last run with --requeue to end will requeue it" "$SHARE/left.out"
	[ "$(grep -c 'requeued as' "$SHARE/left.out")" = 1 ]
	nothing_left n1
	[ "$(cat "$SHARE/left.turns")" = "$(seq 0 1)" ]
}

@test "walltime without a warning: SIGTERM comes late, the ranks get their stop file, and berth reports it" {
	# If the ranks were not up in time, try again with a longer walltime.
	for seconds in 4 15 40; do
		rm -f "$SHARE"/up.late.*
		pbs_job late 2:mpiprocs=1 -l walltime=00:00:$seconds <<-S
		export PBS_CONF_FILE=$CLUSTER/share/pbs/pbs.conf
		"\$BERTH" run -n 2 --report late.report -- sh -c 'trap "" TERM; [ -e "\$BERTH_STOP_FILE" ] || : >up.late.\$RANK
			while [ ! -e "\$BERTH_STOP_FILE" ]; do sleep 0.1; done
			echo "stop: \$(cat "\$BERTH_STOP_FILE")"; exit 75'
		S
		[ ! -e "$SHARE/up.late.0" ] || [ ! -e "$SHARE/up.late.1" ] || break
	done
	within 30 test -e "$SHARE/late.report"
	cat "$SHARE/late.out"
	grep -q '=>> PBS: job killed: walltime' "$SHARE/late.out"
	grep -q 'stop: SIGTERM' "$SHARE/late.out"
	holds "$SHARE/late.report" 'r["code"] == 75 and r["kind"] == "walltime"'
	nothing_left n1 n2
}

@test "qsig -s suspend for longer than --node-timeout: the ranks of all nodes stop; after resume the job continues" {
	rm -f "$SHARE"/pause.*
	pbs_start pause 2:mpiprocs=1 <<-S
	export PBS_CONF_FILE=$CLUSTER/share/pbs/pbs.conf
	"\$BERTH" run -n 2 --node-timeout 4s -- bash -c \\
		'echo \$\$ >pause.\$RANK; until [ -e pause.go ]; do sleep 0.1; done; echo "rank \$RANK ends"'
	echo "code \$?"
	S
	until_seen "$SHARE/pause.0" .; until_seen "$SHARE/pause.1" .
	state() { on $1 grep -q "^State:[[:space:]]*[$2]" "/proc/$(cat "$SHARE/pause.$3")/status"; }
	"$TOOLS/qsig" -s suspend "$job"
	within 30 state n1 T 0
	within 30 state n2 T 1
	sleep 5 # no agent gives up
	"$TOOLS/qsig" -s resume "$job"
	within 30 state n1 SR 0
	within 30 state n2 SR 1
	touch "$SHARE/pause.go"
	until_seen "$SHARE/pause.out" '^code '
	cat "$SHARE/pause.out"
	grep -q '^code 0$' "$SHARE/pause.out"
	[ "$(grep -c ends "$SHARE/pause.out")" = 2 ]
	grep -q 'note: berth run was suspended for' "$SHARE/pause.out"
}

@test "qdel shortly before the walltime: the ranks of all nodes get it, and the job is not requeued" {
	pbs_start gone 2:mpiprocs=1 -l walltime=00:00:30 <<-S
	export PBS_CONF_FILE=$CLUSTER/share/pbs/pbs.conf
	"\$BERTH" run -n 2 --requeue --report gone.report -- sh -c 'trap "" TERM; echo up >up.gone.\$RANK
		while [ ! -e "\$BERTH_STOP_FILE" ]; do sleep 0.1; done; exit 75'
	S
	until_seen "$SHARE/up.gone.0" up; until_seen "$SHARE/up.gone.1" up
	"$TOOLS/qdel" "$job"
	within 30 test -e "$SHARE/gone.report"
	cat "$SHARE/gone.out"
	holds "$SHARE/gone.report" 'r["code"] == 75 and r["kind"] == "cancelled"'
	nothing_left n1 n2
}

@test "qdel of a training: it writes a checkpoint and exits with code 75; another job resumes from it" {
	[ -n "${MPI_SUM-}" ] || skip "no MPI: the trainer has one rank"
	cd "$SHARE"
	rm -rf ck train.*
	export HOME=$SHARE/submitter
	mkdir -p "$HOME/.config/berth"
	echo '{"berth": "berth"}' >"$HOME/.config/berth/submit.json"
	"$BERTH" submit --dry-run --pbs --nodes 2 --ranks-per-node 1 --time 10m -- \
		berth train --report train.report convnet --ckpt ck --data synthetic:1x28x28,n=2000 --epochs 500 --seed 3 >train.sh
	# Submit, wait and delete; then the same again.
	for turn in first second; do
		job=$("$TOOLS/qsub" -o "$SHARE/train.$turn" -v "$(variables),ASAN_OPTIONS=${ASAN_OPTIONS-}:detect_leaks=0" train.sh)
		until_seen "train.$turn" 'epoch [0-9]*/500  val'
		[ $turn = first ] || [ "$(grep -c "${at%.safetensors}" "train.$turn")" -ge 1 ]
		"$TOOLS/qdel" "$job"
		until_code "$job" 271
		cat "train.$turn"
		holds train.report 'r["code"] == 75 and r["saved"] and r["kind"] == "cancelled"'
		at=$(cat ck/latest)
		[[ $at =~ ^step-0*[1-9] ]]
		[ -s "ck/$at" ]
		nothing_left n1 n2
	done
}

@test "qdel of jobscripts/pbs/several-nodes.sh: its last line names the exit code and the report" {
	cd "$SHARE"
	rm -f stops.* "$SHARE"/up.stops
	cat >stops.say <<-'S'
	#!/bin/sh
	trap "" TERM
	[ $RANK = 0 ] && echo up >up.stops
	while [ ! -e "$BERTH_STOP_FILE" ]; do sleep 0.1; done
	exit 75
	S
	chmod +x stops.say
	export PROGRAM=./stops.say
	job=$("$TOOLS/qsub" -o "$SHARE/stops.out" -v "PROGRAM,$(variables)" "$SOURCE/jobscripts/pbs/several-nodes.sh")
	until_seen up.stops up
	"$TOOLS/qdel" "$job"
	until_code "$job" 271
	cat stops.out
	grep -q "^exit code 75; cause and next step: berth-$job.json" stops.out
	holds "berth-$job.json" 'r["code"] == 75'
	nothing_left n1 n2
}

@test "qrerun: the same job runs again, and qstat reports that" {
	rm -f "$SHARE"/up.rerun "$SHARE"/again.rerun "$SHARE"/rerun.*
	pbs_start rerun 1:mpiprocs=1 <<-S
	"\$BERTH" run -n 1 -- sh -c '[ -e again.rerun ] || first=1; touch again.rerun; echo "attempt \$BERTH_ATTEMPT" >>up.rerun
		[ -z "\$first" ] || sleep 70
		until [ \$BERTH_ATTEMPT = 1 ] ||
			grep "was started 1 time before, which BERTH_ATTEMPT of these ranks does not count" rerun.out; do sleep 0.1; done
		echo known >>up.rerun' & wait; wait
	S
	until_seen "$SHARE/up.rerun" 'attempt 0'
	"$TOOLS/qrerun" "$job"
	# The stand-in's qstat is as slow as a start: either the ranks know, or berth says that they do not.
	until_seen "$SHARE/up.rerun" known || { cat "$SHARE/rerun.out"; return 1; }
	nothing_left n1
}
