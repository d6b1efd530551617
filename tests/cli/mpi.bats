# SPDX-License-Identifier: BSD-3-Clause
# PMIx programs and Open MPI programs as ranks of berth run.
# MPI_SUM, PMIX_SIZE: the programs, "" where their library is missing.

setup() {
	# Open MPI keeps memory in plug-ins that it has unloaded: no name is left to suppress.
	[ -z "$SANITIZED" ] || export ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0"
}

# No rank may be a world of one: that is what Open MPI does when it does not find its launcher.
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
		run "$BERTH" run -n "$n" -- "$PMIX_SIZE"
		echo "$output"
		[ "$status" -eq 0 ]
		expect_ranks PMIx "$n"
	done
}

@test "an Open MPI program with --pmix off: worlds of one, and that is said" {
	[ -n "$MPI_SUM" ] || skip "built without MPI"
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
		run "$BERTH" run -n "$n" -- "$MPI_SUM"
		echo "$output"
		[ "$status" -eq 0 ]
		expect_ranks MPI "$n"
		[ "$(grep -c "sum $((n * (n + 1) / 2))," <<<"$output")" -eq "$n" ]
	done
}

@test "an Open MPI program on two agents of this machine" {
	[ -n "$MPI_SUM" ] || skip "built without MPI"
	"$BERTH" run --help | grep -q -- '--launcher' || skip "berth run has no --launcher"
	"$BERTH" run --help | grep -q loopback || skip "no loopback launcher"
	run "$BERTH" run --launcher loopback --hosts 'a,b' -n 4 -- "$MPI_SUM"
	echo "$output"
	[ "$status" -eq 0 ]
	expect_ranks MPI 4
}

@test "MPI_Abort ends the job and names the rank" {
	[ -n "$MPI_SUM" ] || skip "built without MPI"
	# Its files of shared memory, which would fill /dev/shm, go with it.
	mkdir "$BATS_TEST_TMPDIR/shm"
	export OMPI_MCA_btl_vader_backing_directory=$BATS_TEST_TMPDIR/shm
	run "$BERTH" run -n 3 -- "$MPI_SUM" 1
	echo "$output"
	[ "$status" -ne 0 ]
	[[ $output == *"rank 1"* ]]
	for ((i = 0; i < 60; i++)); do
		[ -n "$(ls "$BATS_TEST_TMPDIR/shm")" ] || break
		sleep 0.05
	done
	[ -z "$(ls "$BATS_TEST_TMPDIR/shm")" ]
}

@test "mpirun itself still works inside a rank" {
	[ -n "$MPI_SUM" ] || skip "built without MPI"
	command -v mpirun >/dev/null || skip "no mpirun"
	export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
	run "$BERTH" run -n 1 -- mpirun --oversubscribe -n 2 "$MPI_SUM"
	echo "$output"
	[ "$status" -eq 0 ]
	expect_ranks MPI 2
}
