# SPDX-License-Identifier: BSD-3-Clause
# The build (warnings are errors), the quick tests and the quickstart in roots of the releases, with their PMIx, Open MPI,
# hwloc, oneDNN and PyTorch, and on clusters under their Slurm; and the build by clang. The trainer with CUDA 12.
# About 20 minutes per release.
# BERTH_TEST_ROOTS: where roots, and the layer of tests that failed, stay (else they are removed).

load ../support/berth
# shellcheck source=tests/releases/root.bash
. "$BATS_TEST_DIRNAME/root.bash"

setup_file() { roots_setup; }

teardown_file() { roots_teardown; }

# build RELEASE: returns 1 after the first step that failed.
build() {
	local layer=$ROOTS/$1-tests meson='-Dwerror=true -Dcuda=disabled -Dnccl=disabled' code=0
	local topo=${BERTH_TEST_TOPO:+BERTH_TEST_TOPO=/src/topo}
	root_make "$1" "$ROOTS/$1" || return 1
	rm -rf "$layer"
	root_layer "$ROOTS/$1" "$layer"
	mkdir -p "$layer/upper/src/berth" "$layer/upper/src/topo"
	"$SOURCE/packaging/files.sh" | tar -C "$SOURCE" -c --null -T - | tar -C "$layer/upper/src/berth" -x
	[ -z "${BERTH_TEST_TOPO-}" ] || cp -r "$BERTH_TEST_TOPO/." "$layer/upper/src/topo"

	root_run "$layer" sh -c "cd /src/berth && env $topo sh tests/run.sh -- $meson" >"$ROOTS/$1.log" 2>&1 || code=1
	grep -vE '^berth: note: installing' "$ROOTS/$1.log" | tail -n 60
	{
		root_run "$layer" sh -c 'cd /src/berth; build-test/bin/berth --version --modules; slurmd -V; cc --version | head -n 1'
		tail -n 1 "$ROOTS/$1.log"
	} 2>&1 | sed "s/^/# $1: /" >&3
	[ "$code" = 0 ] || return 1

	root_run "$layer" sh -c "apt-get -qq -y --no-install-recommends install clang >/dev/null && cd /src/berth &&
		CC=clang CXX=clang++ meson setup build-clang -Dtests=enabled $meson && ninja --quiet -C build-clang &&
		chown -R someone /src/berth" || return 1
	root_user "$layer" sh -c 'cd /src/berth && sh jobscripts/local/quickstart.sh' >"$ROOTS/$1.log" 2>&1 || code=1
	cat "$ROOTS/$1.log"
	grep -q 'Acc@1' "$ROOTS/$1.log" && [ "$code" = 0 ] || return 1
	rm -rf "$layer"
}

@test "Debian 12" { build bookworm; }

@test "Debian 13" { build trixie; }

@test "Ubuntu 24.04" { build noble; }

@test "Debian's development release: a failure is only reported" {
	build sid || skip "$(tail -n 1 "$ROOTS/sid.log")"
}

# Debian 13's nvcc is that of CUDA 12.4. cuDNN and NCCL for 12 are in Python packages, without the names for the linker.
@test "CUDA 12: the trainer builds, and its tests on CPUs pass" {
	layer=$ROOTS/cuda12
	root_make trixie "$ROOTS/trixie"
	rm -rf "$layer"
	root_layer "$ROOTS/trixie" "$layer"
	mkdir -p "$layer/upper/src/berth" "$layer/upper/nvidia"
	"$SOURCE/packaging/files.sh" | tar -C "$SOURCE" -c --null -T - | tar -C "$layer/upper/src/berth" -x
	python3 -m pip -q download --no-deps -d "$layer/wheels" nvidia-cudnn-cu12 nvidia-nccl-cu12 || skip "no packages of cuDNN and NCCL"
	for wheel in "$layer"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$layer/upper"; done
	rm -r "$layer/wheels"
	for file in "$layer"/upper/nvidia/*/lib/*.so.*; do ln -sf "${file##*/}" "${file%%.so.*}.so"; done
	root_run "$layer" sh -c 'sed -i "s/ main$/ main contrib non-free/" /etc/apt/sources.list && apt-get -qq update && apt-get -qq -y \
		--no-install-recommends install nvidia-cuda-toolkit g++ meson ninja-build pkg-config libjansson-dev libsodium-dev \
		zlib1g-dev libcmocka-dev >/dev/null' || skip "no CUDA toolkit in Debian 13"
	# shellcheck disable=SC2016 # the root's shell expands it
	run root_run "$layer" sh -c 'cd /src/berth && nvcc --version | tail -n 1 && meson setup B -Dtrainer_only=true -Dwerror=true \
		-Dmpi=disabled -Dgloo=disabled -Dpmix=disabled -Djpeg=disabled -Dcuda=enabled -Dnccl=enabled \
		-Dcudnn_dir=/nvidia/cudnn -Dnccl_dir=/nvidia/nccl && ninja --quiet -C B && meson test -C B --suite quick &&
		cuobjdump --list-elf B/lib/modules/device-cuda.so && ldd B/lib/modules/device-cuda.so'
	echo "$output"
	[ "$status" = 0 ]
	for what in 'Build cuda_12.4' sm_80 sm_90 libcudart.so.12 'Dgpu_arch=100 is left out'; do
		grep -q "$what" <<<"$output"
	done
	rm -rf "$layer"
}
