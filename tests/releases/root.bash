# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# Roots of other releases, made by debootstrap. A test works in a layer above one, so that the root stays
# as it was made. Layers are entered in namespaces with their own root, where tests can unshare again ("unshare:
# cannot change root filesystem propagation" in a plain chroot). No mount outlives the command.

# roots_setup, roots_teardown: for a file of tests; $ROOTS is where roots lie.
roots_setup() {
	command -v debootstrap >/dev/null || skip "no debootstrap here"
	[ "$(id -u)" = 0 ] || skip "not root"
	ROOTS=${BERTH_TEST_ROOTS-$(mktemp -d /var/tmp/berth-roots.XXXXXX)}
	export ROOTS
	mkdir -p "$ROOTS"
}

roots_teardown() {
	[ -n "${BERTH_TEST_ROOTS-}" ] || [ -z "${ROOTS-}" ] || rm -rf "$ROOTS"
}

# root_make RELEASE DIRECTORY: noble or a release of Debian, with package lists. An existing one is kept.
root_make() {
	local release=$1 root=$2 where=(http://deb.debian.org/debian) options=(--components=main)
	[ ! -e "$root/etc/root-made" ] || return 0
	rm -rf "$root"
	mkdir -p "$root"
	case $release in
	noble) # Debian has no package of Ubuntu's keys; nothing of this root leaves it.
		where=(http://archive.ubuntu.com/ubuntu gutsy) options=("--components=main,universe" --no-check-gpg) ;;
	esac
	debootstrap --variant=minbase --include=ca-certificates "${options[@]}" "$release" "$root" "${where[@]}" \
		>"$root.log" 2>&1 || {
		tail -n 5 "$root.log"
		return 1
	}
	printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # no service starts
	chmod 755 "$root/usr/sbin/policy-rc.d"
	# A mirror of sid that is a snapshot has a list that has expired.
	echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/snapshot"
	cp /etc/resolv.conf "$root/etc/resolv.conf"
	chroot "$root" useradd -m someone
	chroot "$root" apt-get -qq update && touch "$root/etc/root-made"
}

# root_layer ROOT DIRECTORY: a new layer above it.
root_layer() {
	mkdir -p "$2/upper" "$2/work" "$2/at"
	ln -sfn "$(realpath "$1")" "$2/root"
}

# root_run LAYER COMMAND...: as root there, with the machine's network and processors.
root_run() {
	local layer
	layer=$(realpath "$1")
	shift
	# shellcheck disable=SC2016 # the inner shell expands them
	env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive CI=true \
		unshare --mount --pid --fork --kill-child --propagation private bash -c '
		set -e
		mount -t overlay -o "lowerdir=$0/root,upperdir=$0/upper,workdir=$0/work" overlay "$0/at"
		cd "$0/at"
		mount --rbind /dev dev
		mount -t tmpfs -o mode=1777 tmpfs dev/shm
		mount --rbind /sys sys
		mount -t proc proc proc
		mkdir -p .old
		pivot_root . .old
		umount -l /.old
		rmdir /.old
		cd /
		exec "$@"' "$layer" "$@"
}

# root_user LAYER COMMAND...: the same as the ordinary user "someone", in that user's home.
root_user() {
	local layer=$1
	shift
	root_run "$layer" sh -c \
		'cd ~someone && exec env HOME=/home/someone setpriv --reuid someone --regid someone --init-groups "$@"' sh "$@"
}
