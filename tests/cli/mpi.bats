# SPDX-License-Identifier: BSD-3-Clause
# PMIx programs and Open MPI programs as ranks of berth run.
# MPI_SUM, PMIX_SIZE: the programs, "" where their library is missing.

load ../support/berth

setup() {
	make_dir
	allow_leaks
}

# No rank may be a world of its own: Open MPI makes one if it does not find its launcher.
expect_ranks() { # KIND N
	for ((rank = 0; rank < $2; rank++)); do
		[[ $output == *"$1 rank $rank of $2"* ]] || {
			echo "no '$1 rank $rank of $2' in: $output"
			return 1
		}
	done
	[ "$(grep -c "$1 rank" <<<"$output")" -eq "$2" ]
}

@test "a PMIx program sees 1, 2 and 5 ranks" {
	[ -n "$PMIX_SIZE" ] || skip "built without PMIx"
	for n in 1 2 5; do
		expect 0 "$BERTH" run -n "$n" -- "$PMIX_SIZE"
		expect_ranks PMIx "$n"
	done
}

@test "node names of 70 characters, more than libpmix writes into a regular expression: a PMIx program has all its ranks" {
	[ -n "$PMIX_SIZE" ] || skip "built without PMIx"
	name=$(printf 'n%.0s' {1..68})
	export SLURM_JOB_ID=77 SLURM_JOB_NODELIST="$name-[1-2]" SLURM_JOB_NUM_NODES=2 SLURM_TASKS_PER_NODE='2(x2)'
	export PATH="$DIR/bin:$PATH" SLURM_JOB_END_TIME=4102444800
	fake srun "while [ \"\$1\" != sh ]; do shift; done
	for node in $name-1 $name-2; do SLURMD_NODENAME=\$node \"\$@\" & done
	wait"
	expect 0 "$BERTH" run --iface lo --pmix on -n 4 -- "$PMIX_SIZE"
	expect_ranks PMIx 4
}

@test "an Open MPI program with --pmix off: each rank is its own world, and berth warns" {
	[ -n "$MPI_SUM" ] || skip "built without MPI"
	export OMPI_MCA_btl_vader_backing_directory=$DIR # Open MPI 5 leaves a file of each such world
	run "$BERTH" run -n 2 --pmix off -- "$MPI_SUM"
	echo "$output"
	[ "$(grep -c 'MPI rank 0 of 1' <<<"$output")" -eq 2 ]
	[ "$(grep -c 'uses Open MPI: with --pmix off it runs as 2 worlds' <<<"$output")" -eq 1 ]
	for program in "$MPI_SUM -n 1" "true -n 2 --pmix off" "$MPI_SUM -n 2"; do
		set -- $program
		run "$BERTH" run "${@:2}" -- "$1"
		[[ $output != *"uses Open MPI"* ]]
	done
}

@test "an Open MPI program sees 1, 2 and 4 ranks and reduces" {
	[ -n "$MPI_SUM" ] || skip "built without MPI"
	for n in 1 2 4; do
		expect 0 "$BERTH" run -n "$n" -- "$MPI_SUM"
		expect_ranks MPI "$n"
		[ "$(grep -c "sum $((n * (n + 1) / 2))," <<<"$output")" -eq "$n" ]
	done
}

@test "an Open MPI program on two agents of this machine" {
	[ -n "$MPI_SUM" ] || skip "built without MPI"
	"$BERTH" run --help | grep -q -- '--launcher' || skip "berth run has no --launcher"
	"$BERTH" run --help | grep -q loopback || skip "no loopback launcher"
	expect 0 "$BERTH" run --launcher loopback --hosts 'a,b' -n 4 -- "$MPI_SUM"
	expect_ranks MPI 4
}

@test "MPI_Abort ends the job and names the rank" {
	[ -n "$MPI_SUM" ] || skip "built without MPI"
	# Its shared-memory files, which would fill /dev/shm, are removed.
	mkdir shm
	export OMPI_MCA_btl_vader_backing_directory=$DIR/shm
	run "$BERTH" run -n 3 -- "$MPI_SUM" 1
	echo "$output"
	[ "$status" -ne 0 ]
	[[ $output == *"rank 1"* ]]
	within 3 rmdir shm
}

@test "a PMIx server that needs a while to remove the ranks' files has it" {
	[ -n "$MPI_SUM" ] || skip "built without MPI"
	mkdir shm
	export OMPI_MCA_btl_vader_backing_directory=$DIR/shm ASAN_OPTIONS="${ASAN_OPTIONS-}:verify_asan_link_order=0"
	run env LD_PRELOAD="$SLOW_REMOVAL_LIBRARY" SLOW_REMOVAL="$DIR/shm/" \
		"$BERTH" run -n 2 -- sh -c 'unset SLOW_REMOVAL LD_PRELOAD; exec "$0" 1' "$MPI_SUM"
	echo "$output"
	[ "$status" -ne 0 ]
	ls shm
	rmdir shm
}

@test "mpirun itself still works inside a rank" {
	[ -n "$MPI_SUM" ] || skip "built without MPI"
	need mpirun
	export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
	expect 0 "$BERTH" run -n 1 -- mpirun --oversubscribe -n 2 "$MPI_SUM"
	expect_ranks MPI 2
}
