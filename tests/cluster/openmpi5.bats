# SPDX-License-Identifier: BSD-3-Clause
# Open MPI 5 (OPENMPI5; see openmpi5.sh) in jobs of the stand-in for PBS: prterun and mpirun start the
# agents; Open MPI programs run as ranks of berth; berth exec runs as a rank of Open MPI.

load support.bash

setup_file() {
	python3 "$HERE/pbs.py" begin n1 n2 3>&-
	# Moved after its installation: nothing tells its tools their new location.
	cp -r "$OPENMPI5" "$CLUSTER/share/openmpi5"
}

setup() {
	unset SLURM_CONF
	cd "$SHARE" || return
	FIVE=$SHARE/openmpi5
}

# The trainer uses the MPI it was built with, whichever is in PATH.
TRAIN='train convnet --ranks-per-node 1 --data synthetic:1x28x28,n=512 --steps 12 --seed 7'

trains() { # ENGINE OPTIONS
	pbs_job "$1" 2:ncpus=2 <<-S
	PATH=$FIVE/bin:\$PATH
	"\$BERTH" run --dry-run $2 -- true
	"\$BERTH" $TRAIN $2 --env ASAN_OPTIONS=${ASAN_OPTIONS-}:detect_leaks=0
	S
	[ "$status" = 0 ]
	has "$FIVE/bin/$1 --map-by ppr:1:node --bind-to none --host n1.bed.test:1,n2.bed.test:1"
	has 'trained convnet .* 12 steps, 2 ranks'
	nothing_left n1 n2
}

@test "prterun trains on two nodes; without a TM of its own it is not the default" {
	[ -n "${MPI_SUM-}" ] || skip "no MPI: the trainer has one rank"
	trains prterun '--launcher prterun'
	pbs_job default 2:ncpus=2 <<-S
	PATH=$FIVE/bin:\$PATH
	"\$BERTH" run --dry-run -- true
	S
	has 'one agent per node with tm:'
}

@test "mpirun of Open MPI 5 trains on two nodes" {
	[ -n "${MPI_SUM-}" ] || skip "no MPI: the trainer has one rank"
	trains mpirun '--launcher mpirun'
}

@test "prterun: PyTorch's DistributedDataParallel on two nodes" {
	/usr/bin/python3 -c 'import torch.distributed' 2>/dev/null || skip 'no PyTorch (Debian: python3-torch)'
	pbs_job ddp 2:ncpus=2 <<-S
	PATH=$FIVE/bin:\$PATH
	"\$BERTH" run --launcher prterun --ranks-per-node 1 -- /usr/bin/python3 $HERE/ddp.py
	S
	[ "$status" = 0 ]
	has '^rank 0 of 2 on n1 local 0 at 10.9.0.11 trained'
	has '^rank 1 of 2 on n2 local 0 at 10.9.0.11 trained'
	nothing_left n1 n2
}

@test "prterun: berth names a failed rank, exits with its code and ends the other ranks" {
	pbs_job fails 2:ncpus=2 <<-S
	PATH=$FIVE/bin:\$PATH
	"\$BERTH" run --launcher prterun --ranks-per-node 1 -- sh -c '[ \$RANK = 1 ] && exit 7; exec sleep 77'
	S
	[ "$status" = 7 ]
	has 'rank 1 on n2.bed.test exited with code 7'
	nothing_left n1 n2
}

@test "prterun: the secret is on no command line and in no file that others can read" {
	rm -f go env.*
	pbs_start shown 2:ncpus=2 <<-S
	PATH=$FIVE/bin:\$PATH
	"\$BERTH" run --launcher prterun --ranks-per-node 1 -- sh -c '$WAITS'
	S
	until_seen shown.out 'up 0'
	until_seen shown.out 'up 1'
	secret=$(secrets n1)
	[ ${#secret} = 64 ]
	nothing_shown "$secret"
	touch go
	finish shown
	[ "$status" = 0 ]
	hasnt "$secret"
}

@test "berth run is killed: no process remains on the nodes" {
	pbs_start killed 2:ncpus=2 <<-S
	PATH=$FIVE/bin:\$PATH
	"\$BERTH" run --launcher prterun --ranks-per-node 1 -- sh -c 'echo rank \$RANK up; exec sleep 77' &
	until grep -q 'rank 1 up' killed.out && grep -q 'rank 0 up' killed.out; do sleep 0.1; done
	kill -KILL \$!
	for i in \$(seq 100); do pgrep -x sleep >/dev/null || break; sleep 0.1; done
	exit 4
	S
	finish killed
	[ "$status" = 4 ]
	nothing_left n1 n2
}

mpi5() { # build a program with Open MPI 5
	[ -x mpi5 ] && return
	need gcc
	OPAL_PREFIX=$FIVE "$FIVE/bin/mpicc" "$SOURCE/jobscripts/site-test/mpi_sum.c" -o mpi5 || skip "its mpicc does not work here"
}

@test "an Open MPI 5 program as ranks of berth" {
	mpi5
	pbs_job program 2:ncpus=4:mpiprocs=2 <<-S
	export LD_LIBRARY_PATH=$FIVE/lib
	"\$BERTH" run --launcher tm --pmix on --ranks-per-node 2 -- ./mpi5
	S
	[ "$status" = 0 ]
	[ "$(grep -c '^MPI rank [0-3] of 4, sum 10,' <<<"$output")" = 4 ]
}

@test "berth run as one of two ranks of prterun is refused, as the only one it is not" {
	export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
	run "$FIVE/bin/prterun" --map-by :oversubscribe -n 2 "$BERTH" run -n 1 -- touch started
	echo "$output"
	[ "$status" = 64 ]
	[[ $output == *"prterun started this berth run as one of 2 ranks"* ]]
	[ ! -e started ]
	"$FIVE/bin/prterun" -n 1 "$BERTH" run -n 1 -- touch started
	[ -e started ]
}

@test "berth exec under prterun and mpirun of Open MPI 5" {
	mpi5
	# prterun gives a rank its place over PMIx only.
	export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_PREFIX=$FIVE PMIX_PREFIX=$FIVE
	export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LD_LIBRARY_PATH=$FIVE/lib:$LD_LIBRARY_PATH
	unset BERTH_TOPOLOGY
	for tool in prterun mpirun; do
		expect 0 timeout 60 "$FIVE/bin/$tool" --map-by :OVERSUBSCRIBE -n 2 "$BERTH" exec -- \
			sh -c 'echo "is $RANK of $WORLD_SIZE local $LOCAL_RANK of $LOCAL_WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT"'
		has '^is 0 of 2 local 0 of 2 at 127.0.0.1:'
		has '^is 1 of 2 local 1 of 2 at 127.0.0.1:'
		[ "$(grep -o 'at 127.0.0.1:[0-9]*' <<<"$output" | sort -u | wc -l)" = 1 ]
		expect 0 timeout 60 "$FIVE/bin/$tool" --map-by :OVERSUBSCRIBE -n 2 "$BERTH" exec -- ./mpi5
		has '^MPI rank 1 of 2, sum 3,'
	done
}
