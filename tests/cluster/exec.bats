# SPDX-License-Identifier: BSD-3-Clause
# berth exec in ranks that other launchers started on two nodes: srun, torchrun, Open MPI's mpirun, MPICH's
# hydra. (tests/cli/exec.bats covers one node, and openmpi5.bats covers prterun.)

load support.bash

SAY='echo "is $RANK of $WORLD_SIZE local $LOCAL_RANK of $LOCAL_WORLD_SIZE node ${NODE_RANK-?} on $(hostname) at $MASTER_ADDR:$MASTER_PORT"'

setup() {
	cd "$SHARE" || return
	export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
	unset BERTH_TOPOLOGY
}

teardown() { cancel_jobs; }

# everybody ADDRESS: two ranks on each node, one rendezvous address
everybody() {
	[ "$status" = 0 ]
	for row in '0 of 4 local 0 of 2 node [0?] on n1' '1 of 4 local 1 of 2 node [0?] on n1' \
		'2 of 4 local 0 of 2 node [1?] on n2' '3 of 4 local 1 of 2 node [1?] on n2'; do
		has "^is $row at $1:[0-9]+$"
	done
	[ "$(grep -o ' at .*' <<<"$output" | sort -u | wc -l)" = 1 ]
}

# steps NAME <<SCRIPT: in a batch job of two nodes, two tasks each
steps() { batch "$1" -N2 -w n1,n2 --ntasks-per-node=2 --mem-per-cpu=10; }

@test "srun, without and with PMIx" {
	for mpi in none pmix; do
		[ $mpi = none ] || need_slurm_pmix
		steps "srun-$mpi" <<-S
		unset BERTH_TOPOLOGY
		srun --mpi=$mpi "\$BERTH" exec -- sh -c '$SAY'
		S
		everybody n1
		has '4 ranks started by srun: .*no supervision'
	done
}

@test "srun --mpi=pmix: an MPI program is still one job" {
	[ -n "${MPI_SUM-}" ] || skip "no MPI"
	need_slurm_pmix
	steps srun-mpi <<-'S'
	unset BERTH_TOPOLOGY
	# ring: the tree of Slurm 22.05's mpi/pmix ends a barrier too early (docs/decisions/0003-srun-ranks.md).
	export PMIX_MCA_gds=hash OMPI_MCA_btl_tcp_if_include=10.9.0.0/24 SLURM_PMIX_FENCE=ring
	srun --mpi=pmix "$BERTH" exec --master-addr none -- "$MPI_SUM"
	S
	[ "$status" = 0 ]
	[ "$(grep -c '^MPI rank [0-3] of 4, sum 10,' <<<"$output")" = 4 ]
}

@test "srun: the program is Slurm's own task, with its PID, task prolog, PMIx and signals" {
	need_slurm_pmix
	[ -x "$BUILD/tests/cli/pmix-size" ] || skip "built without PMIx"
	steps srun-task <<-'S'
	unset BERTH_TOPOLOGY
	printf '#!/bin/sh\necho export FROM_PROLOG=$SLURM_PROCID\n' >prolog
	chmod +x prolog
	srun --overcommit -n 8 --mpi=pmix --task-prolog="$PWD/prolog" "$BERTH" exec -- sh -c \
		'echo "task $RANK of $WORLD_SIZE is $SLURM_PROCID prolog $FROM_PROLOG PID $(($$ - SLURM_TASK_PID))" \
		"below $(cat /proc/$PPID/comm) in $PMIX_NAMESPACE"'
	SLURM_PMIX_FENCE=ring srun --mpi=pmix "$BERTH" exec --master-addr none -- "$BUILD/tests/cli/pmix-size"
	srun "$BERTH" exec --master-addr none -- sh -c 'exit $((RANK == 1 ? 3 : 0))'
	S
	[ "$status" = 3 ]
	for rank in {0..7}; do
		has "^task $rank of 8 is $rank prolog $rank PID 0 below slurmstepd in slurm.pmix.$job.0$"
	done
	[ "$(grep -c '^PMIx rank [0-3] of 4$' <<<"$output")" = 4 ]
	has 'srun: error: n1: task 1: Exited with exit code 3'
	submit srun-signalled -N2 -w n1,n2 --ntasks-per-node=1 <<-'S'
	srun "$BERTH" exec -- python3 "$SOURCE/tests/cluster/signalled.py"
	S
	until_seen "$SHARE/srun-signalled.out" 'up 0'
	until_seen "$SHARE/srun-signalled.out" 'up 1'
	scancel --signal=USR1 "$job"
	until_seen "$SHARE/srun-signalled.out" '1 was signalled'
	until_seen "$SHARE/srun-signalled.out" '0 was signalled'
	scancel --signal=TERM "$job"
	finish srun-signalled
	[ "$(grep -c '^[01] was signalled$' <<<"$output")" = 2 ]
	has '^0 ends$'
	has '^1 ends$'
	nothing_left n1 n2
}

@test "torchrun on each node: its workers are the ranks, and train" {
	/usr/bin/python3 -c 'import torch.distributed' 2>/dev/null || skip 'no PyTorch (Debian: python3-torch)'
	[ -x /usr/bin/torchrun ] || skip 'no torchrun'
	batch torchrun -N2 -w n1,n2 --ntasks-per-node=1 <<-S
	unset BERTH_TOPOLOGY
	# Debian 12's torchrun needs the first two under its Python 3.11.
	export PET_REDIRECTS=1 PET_TEE=1 GLOO_SOCKET_IFNAME=hsn0 OMP_NUM_THREADS=1
	srun sh -c 'exec /usr/bin/torchrun --nnodes=2 --nproc_per_node=1 --node_rank=\$SLURM_NODEID --master_addr=10.9.0.11 \\
		--master_port=29511 --no_python \$BERTH exec -- /usr/bin/python3 $HERE/ddp.py'
	S
	[ "$status" = 0 ]
	has 'rank 0 of 2 on n1 local 0 at 10.9.0.11 trained'
	has 'rank 1 of 2 on n2 local 0 at 10.9.0.11 trained'
}

# Replaces ssh with cluster.py's way to reach a node.
remote_shell() {
	mkdir -p fake
	cat >fake/shell <<-S
	#!/bin/bash
	while [[ \$1 == -* ]]; do shift; done
	host=\$1; shift
	exec python3 $HERE/cluster.py on "\$host" sh -c "\$*"
	S
	chmod +x fake/shell
}

@test "Open MPI's mpirun" {
	need mpirun
	remote_shell
	mpi() {
		run timeout 60 env -u SLURM_CONF mpirun --mca plm_rsh_agent "$SHARE/fake/shell" --mca oob_tcp_if_include 10.1.0.0/24 \
			-x PATH -x LD_LIBRARY_PATH --map-by ppr:2:node:OVERSUBSCRIBE --bind-to none --host n1:2,n2:2 "$BERTH" exec "$@"
		echo "$output"
	}
	mpi --master-addr 10.9.0.11 -- sh -c "$SAY"
	everybody 10.9.0.11
	# mpirun does not report the address of rank 0, and berth does not guess it.
	mpi -- sh -c "$SAY"
	[ "$status" != 0 ]
	has 'mpirun started 4 ranks on several nodes.*--master-addr ADDRESS'
	[ -n "${MPI_SUM-}" ] || return 0
	mpi --master-addr none -- env OMPI_MCA_btl_tcp_if_include=10.9.0.0/24 "$MPI_SUM"
	[ "$status" = 0 ]
	[ "$(grep -c '^MPI rank [0-3] of 4, sum 10,' <<<"$output")" = 4 ]
}

@test "MPICH's mpiexec (hydra)" {
	[ -n "${HYDRA-}" ] || skip "no mpiexec.hydra (Debian: mpich)"
	remote_shell
	run timeout 60 env -u SLURM_CONF LD_LIBRARY_PATH="${HYDRA_LIBRARIES-}:$LD_LIBRARY_PATH" \
		"$HYDRA" -launcher ssh -launcher-exec "$SHARE/fake/shell" -iface eth0 -hosts n1,n2 -ppn 2 -n 4 \
		"$BERTH" exec --master-addr 10.9.0.11 --port 29512 -- sh -c "$SAY"
	echo "$output"
	everybody 10.9.0.11
}
