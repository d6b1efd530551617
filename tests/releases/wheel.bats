# SPDX-License-Identifier: BSD-3-Clause
# The wheel: built here once, then installed and used by an ordinary user in roots of the releases, of which Debian 11
# has the oldest glibc (2.31). BERTH_TEST_ROOTS: where roots and the wheel stay (else they are removed).

load ../support/berth
# shellcheck source=tests/releases/root.bash
. "$BATS_TEST_DIRNAME/root.bash"

setup_file() {
	roots_setup
	rm -rf "$ROOTS/wheel"
	"$SOURCE/packaging/wheel.sh" "$ROOTS/wheel"
}

teardown_file() { roots_teardown; }

@test "libberth and the PMIx module export nothing of the libraries inside" {
	python3 -m zipfile -e "$ROOTS"/wheel/*.whl "$DIR/wheel"
	data=$(echo "$DIR"/wheel/*.data/data)
	expect 0 nm -D --defined-only "$data/lib/libberth.so.0"
	[ -n "$output" ]
	[ -z "$(grep -v ' berth_' <<<"$output")" ]
	expect 0 nm -D --defined-only "$data/lib/berth/ranks-pmix.so"
	[ -n "$output" ]
	[ -z "$(grep -v ' ranks_' <<<"$output")" ]
}

@test "the wheel for aarch64 plans as this machine's berth does, under qemu" {
	need qemu-aarch64 qemu-user
	[ -e /usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1 ] || skip "no aarch64 glibc (Debian: libc6-arm64-cross)"
	expect 0 env ARCH=aarch64 "$SOURCE/packaging/wheel.sh" "$DIR"
	python3 -m zipfile -e "$DIR"/*.whl "$DIR/wheel"
	arm=("$DIR"/wheel/*.data/scripts/berth)
	chmod +x "${arm[0]}"
	arm=(qemu-aarch64 -L /usr/aarch64-linux-gnu "${arm[0]}")
	expect 0 "${arm[@]}" --version
	# Debian 12's qemu has no PR_SET_CHILD_SUBREAPER, so `berth run` cannot be tried.
	expect 0 "${arm[@]}" info
	count=0
	for topology in "$FIXTURES"/topo/*.xml "${BERTH_TEST_TOPO-/nowhere}"/*.xml; do
		[ -e "$topology" ] && "$BERTH" plan --topology "$topology" >"$DIR/here" 2>&1 || continue
		echo "$topology"
		"${arm[@]}" plan --topology "$topology" 2>&1 | diff "$DIR/here" -
		count=$((count + 1))
	done
	echo "$count topologies"
	[ "$count" -gt 20 ]
}

release() { # NAME [PACKAGES]
	local root=$ROOTS/$1 layer=$ROOTS/$1-wheel
	shift
	root_make "$(basename "$root")" "$root"
	rm -rf "$layer"
	root_layer "$root" "$layer"
	mkdir -p "$layer/upper/wheel"
	cp "$ROOTS"/wheel/*.whl "$layer/upper/wheel"
	root_run "$layer" apt-get -qq -y --no-install-recommends install python3-venv gcc libc6-dev pkgconf "$@"
	root_user "$layer" sh -c 'python3 -m venv env && env/bin/pip install --no-index /wheel/*.whl'
	expect 0 root_user "$layer" env/bin/berth --version --modules
	[[ $output == *"berth train "*"not part of this installation" && $output != *comm-mpi* ]]
	echo 'import berth; print(f"rank {berth.rank()} of {berth.world_size()}")' >"$layer/upper/home/someone/train.py"
	expect 0 root_user "$layer" sh -c '. env/bin/activate && berth run -n 2 -- python train.py'
	[[ $output == *"rank 0 of 2"* && $output == *"rank 1 of 2"* ]]
	# libberth, found by pkg-config in the environment.
	root_user "$layer" sh -c 'PKG_CONFIG_PATH=env/lib/pkgconfig cc -o hello env/share/doc/berth/examples/hello.c \
		$(PKG_CONFIG_PATH=env/lib/pkgconfig pkg-config --cflags --libs berth)'
	expect 0 root_user "$layer" sh -c 'LD_LIBRARY_PATH=env/lib env/bin/berth run -n 2 -- ./hello'
	[[ $output == *"rank 1 of 2"* ]]
	expect 69 root_user "$layer" env/bin/berth train convnet -n 1
	[[ $output == *"the trainer is not installed"* ]]
	if [ $# -gt 0 ]; then # with the release's own MPI
		expect 0 root_user "$layer" env/bin/berth site-test --here
		[[ $output == *"PASS  PMIx program"*"PASS  MPI program"*"SKIP  checkpoint saved "*"not part of this installation"* ]]
		echo '#include <mpi.h>
#include <stdio.h>
int main(void)
{
	int size, rank, sum;
	MPI_Init(NULL, NULL);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	printf("MPI size %d sum %d\n", size, sum);
	return MPI_Finalize();
}' >"$layer/upper/home/someone/sum.c"
		root_user "$layer" mpicc -o sum sum.c
		expect 0 root_user "$layer" env/bin/berth run -n 3 -- ./sum
		[ "$(grep -c 'MPI size 3 sum 3' <<<"$output")" -eq 3 ]
	fi
	root_user "$layer" sh -c 'env/bin/pip uninstall -y berth-hpc && ! find env -type f | grep -i berth'
	rm -rf "$layer"
}

@test "Debian 11: the wheel" { release bullseye; }

@test "Debian 12: the wheel, and MPI programs over its libpmix" { release bookworm libopenmpi-dev libpmix2; }

@test "Debian 13: the wheel, and MPI programs over its libpmix" { release trixie libopenmpi-dev libpmix2t64; }

@test "Debian sid: the wheel" { release sid; }

@test "Ubuntu 24.04: the wheel, and MPI programs over its libpmix" { release noble libopenmpi-dev libpmix2t64; }
