# SPDX-License-Identifier: BSD-3-Clause
# berth run in jobs of a stand-in for PBS (pbs.py), on the nodes of cluster.py. First the stand-in
# itself, against the captures.

load support.bash

setup_file() {
	export TOOLS=$CLUSTER/share/pbs/bin
	python3 "$HERE/pbs.py" begin n1 n2 n3 3>&-
}

setup() {
	# A job of PBS's knows nothing of a Slurm.
	unset SLURM_CONF
}

# job NAME SELECT [QSUB OPTIONS] <<SCRIPT: submit, and wait for the end; $output and $status.
job() {
	start "$@"
	finish "$1"
}

start() {
	local name=$1 select=$2
	shift 2
	rm -f "$SHARE/$name".*
	{
		echo "cd $SHARE; export BERTH=$BERTH PROBE=$PROBE MPI_SUM=${MPI_SUM-}"
		# The cluster's machine is pretended; and everything runs as root here.
		echo "export BERTH_TOPOLOGY=$BERTH_TOPOLOGY OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
		echo "trap 'echo \$? >$SHARE/$name.code.tmp; mv $SHARE/$name.code.tmp $SHARE/$name.code' EXIT"
		cat
	} >"$SHARE/$name.sh"
	: >"$SHARE/$name.out"
	job=$("$TOOLS/qsub" -N "$name" -o "$SHARE/$name.out" -l "select=$select" -l walltime=01:00:00 "$@" "$SHARE/$name.sh")
	# shellcheck disable=SC2034
	status=
}

names() { sed 's/=.*//' | sort | tr '\n' ' '; }

@test "stand-in: the variables of a batch script and of spawned tasks are the captured ones" {
	job names 2:mpiprocs=2 <<-S
	env -u BERTH -u PROBE -u MPI_SUM -u BERTH_TOPOLOGY -u OMPI_ALLOW_RUN_AS_ROOT -u OMPI_ALLOW_RUN_AS_ROOT_CONFIRM -u _ -u SHLVL -u OLDPWD env >batch.names
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
	[ ! -s "$SHARE/in-out" ] # a task's output is the job's
	has '^PBS_TASKNUM='
}

@test "stand-in: exit codes, hosts and sessions are the captured ones" {
	job codes 2:mpiprocs=2 <<-'S'
	say() { echo "$1 $?"; }
	pbs_tmrsh n2 hostname; say short
	pbs_tmrsh n2.bed.test /bin/sh -c 'exit 9'; say nine
	pbs_tmrsh n2.bed.test /no/such; say none
	pbs_tmrsh n2.bed.test /bin/sh -c 'kill -TERM $$'; say signal
	pbsdsh -n 2 -- /bin/sh -c 'exit 7'; say dsh
	pbsdsh -h n2.bed.test -- /bin/hostname
	pbs_tmrsh n2.bed.test echo 'a   b' '$HOME' '*'
	pbs_tmrsh n2.bed.test sleep 71 & sleep 0.5; kill $!; wait $! 2>/dev/null
	pbs_tmrsh n2.bed.test /bin/sh -c 'pgrep -x sleep >/dev/null && echo lives on'
	S
	has '^pbs_tmrsh: host "n2" is not a node in job <[0-9]*.pbs-head>$'
	has '^short 255$' && has '^nine 9$' && has '^none 254$' && has '^signal 15$' && has '^dsh 0$'
	has '^pbsdsh: task 0x00000000 exit status 7$'
	has '^n2$'
	has '^a   b \$HOME \*$'
	has '^lives on$'
	nothing_left n2
}

MEET='echo "rank $RANK of $WORLD_SIZE on $(hostname) local $LOCAL_RANK node $NODE_RANK at $MASTER_ADDR nccl $NCCL_SOCKET_IFNAME job $BERTH_JOB_ID user ${MINE-none}"'

meet() {
	[ "$status" = 0 ]
	has "^rank 0 of 4 on n1 local 0 node 0 at 10.9.0.11 nccl hsn0 job $job user a  b$"
	has "^rank 1 of 4 on n1 local 1 node 0 at 10.9.0.11 nccl hsn0 job $job user a  b$"
	has "^rank 2 of 4 on n2 local 0 node 1 at 10.9.0.11 nccl hsn0 job $job user a  b$"
	has "^rank 3 of 4 on n2 local 1 node 1 at 10.9.0.11 nccl hsn0 job $job user a  b$"
	nothing_left n1 n2
}

@test "pbs_tmrsh: ranks on both nodes meet at the fast NIC, with the script's environment" {
	job tm 2:ncpus=4:mpiprocs=2 <<-S
	export MINE='a  b'
	"\$BERTH" run --engine tm --ranks-per-node 2 -- sh -c '$MEET'
	S
	meet
}

@test "pbsdsh where there is no pbs_tmrsh" {
	job dsh 2:ncpus=4:mpiprocs=2 <<-S
	export MINE='a  b'; mkdir -p nobin; cp $TOOLS/pbsdsh $TOOLS/qstat nobin
	PATH=\$PWD/nobin:/usr/bin:/bin
	"\$BERTH" run --engine tm --ranks-per-node 2 -- sh -c '$MEET'
	S
	meet
}

@test "mpirun, by pbs_tmrsh" {
	command -v mpirun && command -v ompi_info || skip "no mpirun of Open MPI"
	job mpirun 2:ncpus=4:mpiprocs=2 <<-S
	export MINE='a  b'
	"\$BERTH" run --dry-run --ranks-per-node 2 -- true
	"\$BERTH" run --ranks-per-node 2 -- sh -c '$MEET'
	S
	has 'mpirun --map-by ppr:1:node --bind-to none --host n1.bed.test:1,n2.bed.test:1'
	meet
}

@test "the secret is on no command line and in no output" {
	start secret 2:ncpus=4:mpiprocs=2 <<-S
	"\$BERTH" run --engine tm --ranks-per-node 1 -- sleep 3
	S
	for ((i = 0; i < 200; i++)); do
		on n2 ps -eo args | grep -q '[s]leep 3' && break
		sleep 0.05
	done
	seen=$(on n1 ps -eo args; on n2 ps -eo args)
	grep -q 'BERTH_AGENT_SECRET_FROM=cookie:' <<<"$seen"
	cookie=$(python3 -c "import json, sys; print(json.load(open(sys.argv[1]))['cookie'])" "$SHARE/pbs/jobs/$job.json")
	[ ${#cookie} = 32 ]
	! grep -q "$cookie" <<<"$seen" || false
	! grep -qE 'BERTH_AGENT_SECRET=' <<<"$seen" || false
	finish secret
	[ "$status" = 0 ]
	hasnt "$cookie"
}

@test "qdel: SIGTERM on the first node alone reaches the ranks of the others" {
	start term 2:ncpus=4:mpiprocs=1 <<-'S'
	trap : TERM # bash goes on to its trap of EXIT
	"$BERTH" run --engine tm --ranks-per-node 1 -- sh -c 'trap "echo rank $RANK on $(hostname) got TERM; exit 3" TERM; echo rank $RANK up; while :; do sleep 0.1; done'
	S
	until_seen "$SHARE/term.out" 'rank 1 up'
	until_seen "$SHARE/term.out" 'rank 0 up'
	"$TOOLS/qdel" "$job" &
	finish term
	wait
	has '^rank 1 on n2 got TERM$'
	has '^rank 0 on n1 got TERM$'
	nothing_left n1 n2
}

@test "SIGKILL to everything of the job's first node: nothing is left on the others" {
	start kill 2:ncpus=4:mpiprocs=1 <<-'S'
	"$BERTH" run --engine tm --ranks-per-node 1 -- sh -c 'echo rank $RANK up; exec sleep 77' &
	until grep -q 'rank 1 up' kill.out; do sleep 0.1; done
	kill -KILL $!
	exit 4
	S
	finish kill
	[ "$status" = 4 ]
	nothing_left n1 n2
}

@test "an agent that cannot be started: the node and the tool's words, nothing left" {
	job fail 2:ncpus=4:mpiprocs=1 <<-'S'
	cp "$BERTH" /tmp/berth-here # on this node alone: each has a /tmp of its own
	BERTH_MODULE_PATH=$(dirname "$BERTH") /tmp/berth-here run --engine tm --ranks-per-node 1 -- hostname
	S
	[ "$status" = 76 ]
	has 'n2.bed.test.*tm ended with code 127'
	nothing_left n1 n2
}

@test "jobscripts/pbs, submitted as they are" {
	scripts=$SOURCE/jobscripts/pbs
	! command -v shellcheck >/dev/null || shellcheck "$scripts"/*.sh
	printf '#!/bin/sh\n%s\n' "$MEET" >"$SHARE/say"
	mkdir -p "$SHARE/fake"
	printf '#!/bin/sh\necho "torchrun $* on $(hostname): $PET_NNODES nodes, node $PET_NODE_RANK, $PET_MASTER_ADDR"\n' >"$SHARE/fake/torchrun"
	chmod +x "$SHARE/say" "$SHARE/fake/torchrun"
	cd "$SHARE"
	for name in one-node several-nodes torchrun mpi; do
		program=./say expected='^rank 3 of 4 on n2 .* at 10.9.0.11'
		case $name in
		one-node) expected='^rank 1 of [24] on n1 .* at 127.0.0.1' ;;
		several-nodes) expected='^rank 7 of 8 on n2 .* at 10.9.0.11' ;;
		torchrun) program=train.py expected='^torchrun train.py on n2: 2 nodes, node 1, 10.9.0.11' ;;
		esac
		job=$("$TOOLS/qsub" -o "$SHARE/$name.out" -v "PROGRAM=$program,BERTH_TOPOLOGY,PATH=$(dirname "$BERTH"):$SHARE/fake:$TOOLS:/usr/bin:/bin,OMPI_ALLOW_RUN_AS_ROOT=1,OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1,LD_LIBRARY_PATH" "$scripts/$name.sh")
		for ((i = 0; i < 1200; i++)); do
			grep -q '"code"' "$SHARE/pbs/jobs/$job.json" && break
			sleep 0.05
		done
		output=$(cat "$name.out")
		echo "# $name: $output"
		grep -q '"code": 0' "$SHARE/pbs/jobs/$job.json"
		has "$expected"
	done
}
