#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Apptainer, which Debian 12 and 13 lack: the packages of Debian's development release, unpacked below DIR with
# the C library that they need.
#   apptainer.sh DIR COMMAND...   runs COMMAND with APPTAINER set to a directory with bin/apptainer; fetches it once;
#                                 exits with code 77 if it is unavailable. With BERTH_TEST_NETWORK=yes, MPI_IMAGE is an
#                                 image (600 MB) with Debian 13's Open MPI, likewise
set -u
dir=$1
shift
say() { echo "apptainer: skipped: $1" >&2; exit 77; }

# Apptainer finds its parts from its own path, but the packages spread them over the whole system.
unpack() {
	root=$dir/apptainer apt=$dir/apptainer-apt
	set -- -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$apt/lists" \
		-o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root
	rm -rf "$root" "$apt" && mkdir -p "$root" "$apt/lists/partial" "$apt/cache/archives/partial" || return
	echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian sid main' >"$apt/sources.list"
	timeout 120 apt-get "$@" -qq update >&2 || return
	(cd "$apt" && timeout 120 apt-get "$@" -qq download apptainer libc6 libseccomp2 libsqlite3-0 >&2 &&
		for deb in *.deb; do dpkg -x "$deb" "$root" || exit; done) || return
	rm -rf "$apt"
	libraries=$root/usr/lib/x86_64-linux-gnu
	for program in "$root/usr/bin/apptainer" "$libraries/apptainer/bin/starter"; do
		patchelf --set-interpreter "$libraries/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$libraries" "$program" || return
	done
	mkdir -p "$root/var/lib/apptainer/mnt/session"
	for part in etc var; do ln -sfn "../$part" "$root/usr/$part" && ln -sfn "../../$part" "$root/usr/lib/$part" || return; done
	: >"$root/complete"
}

if [ -z "${APPTAINER-}" ]; then
	APPTAINER=$dir/apptainer/usr
	[ "$(uname -m)" = x86_64 ] || say 'its packages are unpacked on x86_64 only'
	for tool in apt-get dpkg patchelf mksquashfs squashfuse; do command -v $tool >/dev/null || say "no $tool"; done
	[ -e "$dir/apptainer/complete" ] || unpack || say "Debian's package apptainer cannot be had"
fi
if [ "${BERTH_TEST_NETWORK-}" = yes ]; then
	MPI_IMAGE=$dir/apptainer-trixie
	if [ ! -e "$MPI_IMAGE/usr/bin/mpirun" ]; then
		command -v debootstrap >/dev/null || say 'no debootstrap'
		rm -rf "$MPI_IMAGE"
		timeout 600 debootstrap --variant=minbase --include=python3-mpi4py,openmpi-bin trixie "$MPI_IMAGE" \
			http://deb.debian.org/debian >/dev/null || say 'Debian 13 cannot be had'
	fi
	export MPI_IMAGE
fi
"$APPTAINER/bin/apptainer" --version >/dev/null || say "$APPTAINER/bin/apptainer does not start here"
export APPTAINER
exec "$@"
