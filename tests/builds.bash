# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2034 # for .ci/run and tests/stress.sh
# The builds of .ci/run: warnings are errors, and every feature that a CPU machine can have is required.

if [ -z "${BERTH_TEST_TOPO-}" ] && [ -d ../shared/topo ]; then
	BERTH_TEST_TOPO=$(cd ../shared/topo && pwd)
	export BERTH_TEST_TOPO
fi
builds=(plain asan tsan)

# use_build NAME: set the environment, and the arrays prefix, before tests/run.sh; options, of tests/run.sh; and meson,
# of meson.
use_build() {
	prefix=() options=(--build "build-ci-$1")
	meson=(-Dwerror=true -Dpmix=enabled -Dmpi=enabled -Dgloo=enabled -Djpeg=enabled -Ddnnl=enabled -Dman=enabled
		-Dgpu_arch=90 # one is enough to compile the kernels, if nvcc is present
		-Ddebug=false -Dc_args=-g1 -Dcpp_args=-g1) # a report has its line, and the compiler a quarter less to do
	case $1 in
	asan) # Open MPI and PMIx keep memory until the process ends: tests/lsan.supp names them.
		export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0}"
		export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}"
		export LSAN_OPTIONS="${LSAN_OPTIONS:-suppressions=$PWD/tests/lsan.supp:print_suppressions=0}"
		options+=(--no-suite once --no-suite plain --slow 4)
		meson+=('-Db_sanitize=address,undefined' -Db_lundef=false) ;;
	tsan) # TSan aborts if address randomisation maps a library where it keeps its shadow memory.
		! setarch -R true 2>/dev/null || prefix=(setarch -R)
		export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp"
		options+=(--suite threads --slow 4)
		# TSan does not see how OpenMP synchronises its threads: without oneDNN nothing uses them.
		meson=("${meson[@]/-Ddnnl=enabled/-Ddnnl=disabled}" -Db_sanitize=thread -Db_lundef=false) ;;
	esac
}
