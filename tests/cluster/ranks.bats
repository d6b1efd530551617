# SPDX-License-Identifier: BSD-3-Clause
# berth run --launcher srun-ranks: the ranks are tasks of a step of Slurm's, under its PMIx.

load support.bash

teardown() {
	scancel --state=RUNNING --state=PENDING --user=root --quiet || true
}

@test "ranks are Slurm's tasks, with the plan's places, cores, GPUs and head" {
	batch meet -N2 --gpus-per-node=4 -n2 <<-'S'
	SLURM_PMIX_FENCE=mixed "$BERTH" run -q --launcher srun-ranks --ranks-per-node 1 -- sh -c 'echo "asked $SLURM_PMIX_FENCE"'
	"$BERTH" run --launcher srun-ranks --label --ranks-per-node 2 -- sh -c 'echo "rank $RANK of $WORLD_SIZE local $LOCAL_RANK node $NODE_RANK at $MASTER_ADDR nccl $NCCL_SOCKET_IFNAME slurm $SLURM_PROCID/$SLURM_NTASKS $SLURM_LOCALID $SLURM_NODEID gpus $CUDA_VISIBLE_DEVICES step $SLURM_STEP_ID $SLURM_STEP_TASKS_PER_NODE fence $SLURM_PMIX_FENCE on $(hostname) in $(basename $PWD) token ${BERTH_AGENT_TASKS-none}"'
	S
	[ "$status" = 0 ]
	has '^\[0\] rank 0 of 4 local 0 node 0 at 10.9.0.11 nccl hsn0 slurm 0/4 0 0 gpus 0,2,1,3 step 3 2\(x2\) fence ring on n1 in share token none$'
	has '^\[1\] rank 1 of 4 local 1 node 0 at 10.9.0.11 nccl hsn0 slurm 1/4 1 0 gpus 0,2,1,3 step 3 2\(x2\) fence ring on n1 '
	has '^\[2\] rank 2 of 4 local 0 node 1 at 10.9.0.11 nccl hsn0 slurm 2/4 0 1 gpus 0,2,1,3 step 3 2\(x2\) fence ring on n2 '
	has '^\[3\] rank 3 of 4 local 1 node 1 '
	[ "$(grep -c '^asked mixed$' <<<"$output")" = 2 ]
	nothing_left n1 n2
}

@test "uneven nodes: the tasks are where the plan has the ranks" {
	export BERTH_TOPOLOGY=
	batch uneven -n5 -N2 -w n1,n2 <<-'S'
	"$BERTH" run --launcher srun-ranks -n 3 -- sh -c 'echo "rank $RANK=$SLURM_PROCID local $LOCAL_RANK=$SLURM_LOCALID on $(hostname) node $NODE_RANK=$SLURM_NODEID"'
	S
	[ "$status" = 0 ]
	has '^rank 0=0 local 0=0 on n1 node 0=0$'
	has '^rank 1=1 local 1=1 on n1 node 0=0$'
	has '^rank 2=2 local 0=0 on n2 node 1=1$'
}

@test "MPI and PMIx programs are clients of Slurm's PMIx" {
	[ -n "$MPI_SUM" ] || skip "no MPI"
	srun --mpi=list 2>&1 | grep -q pmix || skip "this Slurm has no mpi/pmix"
	batch mpi -N2 <<-'S'
	"$BERTH" run --launcher srun-ranks --ranks-per-node 2 -- "$MPI_SUM"; echo "code $?"
	"$BERTH" run --launcher srun-ranks --ranks-per-node 1 -- "$BUILD/tests/cli/pmix-size"
	"$BERTH" run --launcher srun-ranks --ranks-per-node 1 -- sh -c 'echo "namespace $PMIX_NAMESPACE"'
	S
	has '^code 0$'
	has '^MPI rank 0 of 4, sum 10, before me 3$'
	has '^MPI rank 3 of 4, sum 10, before me 2$'
	has '^PMIx rank 1 of 2$'
	[ "$(grep -cE "^namespace slurm.pmix.$job.[0-9]+$" <<<"$output")" = 2 ]
}

@test "berth train" {
	[ -n "$MPI_SUM" ] || skip "no MPI"
	batch train -N2 <<-'S'
	export ASAN_OPTIONS="${ASAN_OPTIONS-}:detect_leaks=0"
	"$BERTH" train convnet --launcher srun-ranks --ranks-per-node 1 --data synthetic:1x28x28,n=256 --steps 8
	S
	[ "$status" = 0 ]
	has 'trained convnet .* 8 steps, 2 ranks'
}

@test "a rank that fails ends the job with its code, named, with its last lines and log" {
	batch fail -N2 <<-'S'
	"$BERTH" run --launcher srun-ranks --ranks-per-node 1 --report fail.json --log-dir logs-fail -- sh -c '[ $RANK = 1 ] && { echo out of disk >&2; exit 3; }; sleep 75'
	S
	[ "$status" = 3 ]
	has '^berth: rank 1 on n2 ended with code 3$'
	has '^berth:   \| out of disk$'
	grep -q '"by": "program"' "$SHARE/fail.json"
	grep -q 'out of disk' "$SHARE/logs-fail/rank-0001.log"
	nothing_left n1 n2
	batch killed -N2 <<-'S'
	"$BERTH" run --launcher srun-ranks --ranks-per-node 1 -- sh -c '[ $RANK = 0 ] && kill -SEGV $$; sleep 75'
	S
	[ "$status" = 139 ]
	has '^berth: rank 0 on n1 was killed by signal 11 '
	batch norun -N2 <<-'S'
	cp /bin/true here; "$BERTH" run --launcher srun-ranks --ranks-per-node 1 -- sh -c 'exec /nonexistent/program'
	S
	[ "$status" = 127 ]
	nothing_left n1 n2
}

@test "signals reach the ranks once; what does not end is ended" {
	submit told -N2 <<-'S'
	"$BERTH" run --launcher srun-ranks --ranks-per-node 1 -- python3 "$SOURCE/tests/cluster/told.py"
	S
	until_seen "$SHARE/told.out" 'up 0'
	until_seen "$SHARE/told.out" 'up 1'
	scancel --signal=USR1 "$job"
	until_seen "$SHARE/told.out" '1 was told'
	until_seen "$SHARE/told.out" '0 was told'
	scancel --signal=TERM "$job"
	finish told
	[ "$(grep -c '^0 was told$' <<<"$output")" = 1 ]
	[ "$(grep -c '^1 was told$' <<<"$output")" = 1 ]
	has '^0 ends$'
	has '^1 ends$'
	nothing_left n1 n2
	submit deaf -N2 <<-'S'
	"$BERTH" run --launcher srun-ranks --ranks-per-node 1 -- sh -c '[ $RANK = 1 ] && sleep 1 && exit 4; trap "" TERM; echo up; sleep 75 & wait; wait'
	S
	finish deaf
	[ "$status" = 4 ]
	nothing_left n1 n2
}

@test "a step that is cancelled alone, a node that is lost" {
	submit step -N2 <<-'S'
	"$BERTH" run --launcher srun-ranks --ranks-per-node 1 -- sh -c 'echo up; sleep 75'
	S
	until_seen "$SHARE/step.out" up
	scancel "$job.1"
	finish step
	[ "$status" -ne 0 ]
	has 'was killed by signal|ended with code'
	nothing_left n1 n2
	submit silent -N2 --no-kill -w n2,n3 <<-'S'
	"$BERTH" run --launcher srun-ranks --ranks-per-node 1 --node-timeout 2s -- sh -c 'echo up $RANK; exec sleep 75'
	S
	until_seen "$SHARE/silent.out" 'up 1'
	on n3 ip link set eth0 down
	finish silent
	on n3 ip link set eth0 up
	[ "$status" = 76 ]
	has '^berth: node n3 was lost: its agent was silent for 2 s$'
	nothing_left n2 n3
}

@test "what cannot be: unlike GPUs, no mpi/pmix, no job" {
	batch unlike -N2 -w n1,n2 -G 5 <<-'S'
	"$BERTH" run --launcher srun-ranks --ranks-per-node 1 -- hostname
	S
	[ "$status" = 69 ]
	has '^berth: the launcher srun-ranks: n1 has 4 GPUs of the job, n2 has 1, .*use --launcher srun'
	nothing_left n1 n2
	run "$BERTH" run --launcher srun-ranks -- hostname
	[ "$status" = 64 ]
	has 'starts agents in a job of Slurm'
}

# conf NAME SED: a copy of the cluster's configuration for srun, changed; its name.
conf() {
	sed "$2" "$SLURM_CONF" >"$SHARE/$1.conf"
	cp "$(dirname "$SLURM_CONF")"/{gres,cgroup}.conf "$SHARE/"
	echo "$SHARE/$1.conf"
}

@test "both launchers where Slurm starts everything under PMIx, and where it has none" {
	[ -n "$MPI_SUM" ] || skip "no MPI"
	export WITH WITHOUT
	WITH=$(conf with s/MpiDefault=none/MpiDefault=pmix/)
	mkdir -p "$SHARE/plugins"
	ln -sf "$(dirname "$(find /usr/lib* -name mpi_none.so | head -1)")"/*.so "$SHARE/plugins/"
	rm "$SHARE"/plugins/mpi_pmix*
	WITHOUT=$(conf without "\$aPluginDir=$SHARE/plugins")
	batch both -N2 <<-'S'
	for conf in "$WITH" "$WITHOUT"; do
		export SLURM_CONF=$conf
		"$BERTH" run -q --ranks-per-node 1 -- sh -c 'echo "${SLURM_CONF##*/} $RANK in ${PMIX_NAMESPACE-none}"'
		"$BERTH" run -q --ranks-per-node 2 -- "$MPI_SUM"
		echo "code $?"
	done
	"$BERTH" run --launcher srun-ranks --ranks-per-node 1 -- hostname
	echo "native $?"
	"$BERTH" run -q --launcher srun-ranks --pmix off --ranks-per-node 1 -- sh -c 'echo "$RANK without ${PMIX_NAMESPACE-none}"'
	SLURM_CONF=$WITH "$BERTH" run -q --launcher srun-ranks --ranks-per-node 2 -- "$MPI_SUM"
	S
	[ "$status" = 0 ]
	# The agents are the ranks' PMIx servers, whatever Slurm has.
	[ "$(grep -cE '^with(out)?\.conf [01] in ' <<<"$output")" = 4 ]
	hasnt '^with.*in (none|slurm)'
	[ "$(grep -c '^code 0$' <<<"$output")" = 2 ]
	[ "$(grep -c '^MPI rank 3 of 4, sum 10' <<<"$output")" = 3 ]
	has '^berth: .*srun said: .*; this Slurm has no mpi/pmix \(srun --mpi=list\): use --launcher srun'
	has '^native 69$'
	has '^1 without none$'
}
