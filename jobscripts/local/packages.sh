# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=sh
# The list of system packages that berth needs, and functions that find and install missing ones.
# Sourced by quickstart.sh and tests/run.sh.

# use | what is looked for | Debian, Ubuntu | Fedora, RHEL | elsewhere
#   use    build: berth and its trainer; test: tests/run.sh; data: the quickstart's data set;
#          speed: the trainer needs it on CPUs; extra: tests that need it are skipped without it;
#          full: the same for a long test
#   looked for
#          cc           a C compiler that can link a program
#          cmd:NAME [V] a command, at least version V
#          pc:NAME [V]  a pkg-config module
#          file:PATH    a file
#          header:NAME  a header that the C compiler finds
#          deb:NAME     a Debian package (ignored without dpkg), if nothing else shows that it is installed
packages_table() {
	cat <<'TABLE'
build|cc|gcc libc6-dev|gcc glibc-devel|module load gcc
build|cmd:meson 1.0.0|meson|meson|pip install --user meson
build|cmd:ninja|ninja-build|ninja-build|pip install --user ninja
build|cmd:pkg-config|pkgconf|pkgconf-pkg-config|module load pkgconf
build|pc:hwloc 2.3|libhwloc-dev|hwloc-devel|module load hwloc
build|deb:libhwloc-plugins|libhwloc-plugins||
build|pc:jansson 2.10|libjansson-dev|jansson-devel|module load jansson
build|pc:libsodium 1.0.14|libsodium-dev|libsodium-devel|module load libsodium
build|pc:zlib|zlib1g-dev|zlib-devel|module load zlib
build|pc:libjpeg|libjpeg-dev|libjpeg-turbo-devel|module load libjpeg-turbo
build|pc:pmix 4.1|libpmix-dev|pmix-devel|module load pmix
build|pc:ompi-c|libopenmpi-dev|openmpi-devel|module load openmpi
speed|header:dnnl.h|libdnnl-dev|onednn-devel|module load onednn
data|file:/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz|dataset-fashion-mnist||
test|cmd:python3|python3|python3|module load python
test|pc:cmocka|libcmocka-dev|libcmocka-devel|module load cmocka
test|cmd:bats|bats|bats|module load bats
test|cmd:scdoc|scdoc|scdoc|module load scdoc
test|cmd:mpirun|openmpi-bin|openmpi|module load openmpi
test|cmd:ps|procps|procps-ng|
extra|file:/usr/include/gloo/allreduce.h|libgloo-dev g++|gloo-devel gcc-c++|
extra|cmd:ucx_info|ucx-utils|ucx|
extra|cmd:fi_info|libfabric-bin|libfabric|
extra|file:/usr/sbin/sshd|openssh-server|openssh|
extra|cmd:modulecmd|environment-modules|environment-modules|
extra|deb:lua-posix|lua5.3 lua-posix lua-filesystem lua-json lua-term||
extra|cmd:scontrol|slurm-client|slurm|module load slurm
extra|cmd:slurmctld|slurmctld|slurm-slurmctld|
extra|cmd:slurmd|slurmd|slurm-slurmd|
extra|cmd:munged|munge|munge|
extra|cmd:ip|iproute2|iproute|
extra|cmd:strace|strace|strace|
extra|file:/usr/sbin/nft|nftables|nftables|
extra|cmd:patchelf|patchelf||
extra|cmd:mksquashfs|squashfs-tools|squashfs-tools|
extra|cmd:squashfuse|squashfuse|squashfuse|
extra|cmd:ch-run|charliecloud-runtime||
extra|cmd:bwrap|bubblewrap|bubblewrap|
extra|cmd:shellcheck|shellcheck|ShellCheck|
extra|cmd:codespell|codespell|codespell|
extra|cmd:clang-format-14|clang-format-14||
extra|cmd:clang-tidy-14|clang-tidy-14||
extra|cmd:dh|debhelper||
extra|deb:build-essential|build-essential||
extra|cmd:dh_python3|dh-python||
extra|cmd:lintian|lintian||
extra|deb:libopenblas0-pthread|libopenblas0-pthread||
extra|deb:python3-torchvision|python3-torchvision||
extra|deb:python3-fusepy|python3-fusepy fuse3||
full|cmd:pip3|python3-pip python3-venv|python3-pip|
full|cmd:debootstrap|debootstrap|debootstrap|
full|cmd:rpmbuild|rpm|rpm-build|
full|cmd:autoreconf|autoconf automake libtool|autoconf automake libtool|
full|cmd:glusterd|glusterfs-server glusterfs-client|glusterfs-server glusterfs-fuse|
full|cmd:sshfs|sshfs|fuse-sshfs|
full|cmd:qemu-system-x86_64|qemu-system-x86||
full|cmd:qemu-aarch64|qemu-user||
full|file:/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1|libc6-arm64-cross||
full|cmd:busybox|busybox-static|busybox|
TABLE
}

# packages_present KIND:WHAT [VERSION]: is it installed?
packages_present() {
	case $1 in
	cc)
		packages_tmp=$(mktemp) || return 1
		echo '#include <stdio.h>
int main(void) { return puts("") < 0; }' | ${CC:-cc} -x c -o "$packages_tmp" - 2>/dev/null
		packages_rc=$?
		rm -f "$packages_tmp"
		return $packages_rc ;;
	cmd:*)
		command -v "${1#cmd:}" >/dev/null 2>&1 || return 1
		[ -z "${2-}" ] && return 0
		packages_seen=$("${1#cmd:}" --version 2>/dev/null | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
		[ "$(printf '%s\n' "$2" "$packages_seen" | sort -V | head -n 1)" = "$2" ] ;;
	pc:*)
		command -v pkg-config >/dev/null 2>&1 || return 1
		pkg-config --exists "${1#pc:}${2:+ >= $2}" 2>/dev/null ;;
	header:*)
		echo "#include <${1#header:}>" | ${CC:-cc} -x c -E - >/dev/null 2>&1 ;;
	file:*) [ -e "${1#file:}" ] ;;
	deb:*)
		command -v dpkg-query >/dev/null 2>&1 || return 0
		# shellcheck disable=SC2016 # dpkg-query's own variable
		[ "$(dpkg-query -W -f '${db:Status-Abbrev}' "${1#deb:}" 2>/dev/null | cut -c1-2)" = ii ] ;;
	*) return 1 ;;
	esac
}

# packages_missing USE...: print the rows of these uses that are not installed, one per line.
packages_missing() {
	packages_table | while IFS='|' read -r use want debian fedora elsewhere; do
		case " $* " in *" $use "*) ;; *) continue ;; esac
		# shellcheck disable=SC2086 # "pc:hwloc 2.3" is two words
		packages_present $want || echo "$use|$want|$debian|$fedora|$elsewhere"
	done
}

# packages_names COLUMN: the names in that column of the rows on stdin, on one line.
packages_names() {
	cut -d '|' -f "$1" | tr ' ' '\n' | sed '/^$/d' | sort -u | tr '\n' ' ' | sed 's/ $//'
}

packages_can_install() {
	[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1
}

# packages_apt NAME...: install; update the package lists only if the present ones do not suffice.
# Prints apt-get's output if the second attempt fails too.
packages_apt() {
	packages_apt_once "$@" >/dev/null && return 0
	[ -n "${packages_updated-}" ] || apt-get -qq -o Acquire::http::Timeout=20 update </dev/null >&2
	packages_updated=yes
	packages_said=$(packages_apt_once "$@") && return 0
	printf '%s\n' "$packages_said" | tail -n 20 >&2
	return 1
}

packages_apt_once() {
	# Some packages bring a service (munge, slurmd). The tests start their own, so keep Debian from
	# starting these through this file. If it exists already, it is the administrator's: leave it.
	packages_policy=
	if [ ! -e /usr/sbin/policy-rc.d ]; then
		packages_policy=/usr/sbin/policy-rc.d
		# shellcheck disable=SC2016 # checks that this shell runs: a leftover file has no effect
		printf '#!/bin/sh\n# of berth: while its packages are installed\nkill -0 %d 2>/dev/null && exit 101\nexit 0\n' $$ \
			>"$packages_policy" && chmod 755 "$packages_policy" || packages_policy=
	fi
	packages_apt_get "$@"
	packages_code=$?
	[ -z "$packages_policy" ] || rm -f "$packages_policy"
	return $packages_code
}

packages_apt_get() {
	DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 \
		-o Dpkg::Use-Pty=0 install --no-install-recommends "$@" </dev/null 2>&1
}

# packages_say: print how to install the rows on stdin.
packages_say() {
	packages_rows=$(cat)
	{
		echo "berth: error: these packages are missing:"
		printf '%s\n' "$packages_rows" | while IFS='|' read -r _ want debian _ _; do
			case $want in
			cc) echo "  a C compiler with the C library's headers" ;;
			cmd:*\ *) echo "  ${want#cmd:} or newer" ;;
			cmd:*) echo "  ${want#cmd:}" ;;
			header:*) echo "  the C header ${want#header:}" ;;
			pc:*\ *) echo "  ${want#pc:} or newer (pkg-config module)" ;;
			pc:*) echo "  ${want#pc:} (pkg-config module)" ;;
			*) echo "  $debian" ;;
			esac
		done
		echo "To install them:"
		echo "  Debian, Ubuntu (as root): apt-get install --no-install-recommends $(printf '%s\n' "$packages_rows" | packages_names 3)"
		packages_rpm=$(printf '%s\n' "$packages_rows" | packages_names 4)
		[ -z "$packages_rpm" ] || echo "  Fedora, RHEL with EPEL:   dnf install $packages_rpm"
		echo "  a cluster (names vary, see 'module avail'), or pip:"
		printf '%s\n' "$packages_rows" | cut -d '|' -f 5 | sed '/^$/d; s/^/    /' | sort -u
	} >&2
}

# packages_need USE...: return if all are installed or could be installed; otherwise print how to
# install them and exit with code 69.
packages_need() {
	packages_left=$(packages_missing "$@")
	[ -n "$packages_left" ] || return 0
	if packages_can_install; then
		packages_list=$(printf '%s\n' "$packages_left" | packages_names 3)
		echo "berth: note: installing $packages_list" >&2
		# shellcheck disable=SC2086 # a list of names
		packages_apt $packages_list || true
		packages_left=$(packages_missing "$@")
		[ -n "$packages_left" ] || return 0
		echo "berth: error: apt-get could not install everything" >&2
	fi
	printf '%s\n' "$packages_left" | packages_say
	exit 69
}

# packages_want USE...: install what is available, one by one; never fails.
packages_want() {
	packages_can_install || return 0
	for packages_name in $(packages_missing "$@" | packages_names 3); do
		echo "berth: note: installing $packages_name" >&2
		packages_apt "$packages_name" 2>/dev/null ||
			echo "berth: warning: cannot install $packages_name; continuing without it" >&2
	done
}
