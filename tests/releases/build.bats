# SPDX-License-Identifier: BSD-3-Clause
# The build (warnings are errors), the quick tests and the quickstart in roots of the releases, with their PMIx, Open MPI,
# hwloc, oneDNN and PyTorch, and on clusters under their Slurm; and the build by clang. About 20 minutes per release.
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
