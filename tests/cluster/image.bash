# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2016,SC2089,SC2090
# For tests of containers: an image, and what its ranks show.

# image DIR: programs with their libraries, and a file that the host lacks
image() {
	local program library
	mkdir -p "$1"/{usr/bin,usr/lib64,etc,tmp,proc,sys,dev,root,run,var/tmp}
	ln -s usr/bin "$1/bin"
	ln -s usr/lib "$1/lib"
	ln -s usr/lib64 "$1/lib64"
	cp /etc/passwd /etc/group "$1/etc"
	echo image >"$1/etc/berth-image"
	for program in sh cat env grep hostname id kill ls readlink sleep sort wc; do
		cp -L "/bin/$program" "$1/usr/bin"
		for library in $(ldd "/bin/$program" | grep -o '/[^ ]*'); do
			mkdir -p "$1/usr/${library%/*}"
			cp -L "$library" "$1/$library"
		done
	done
}

# What a rank sees of its place, by the same line inside and outside; ranks end when all have started.
SHOWS='cpus=$(grep Cpus_allowed_list /proc/self/status)
	echo "$RANK/$WORLD_SIZE $LOCAL_RANK at $MASTER_ADDR gpu <$CUDA_VISIBLE_DEVICES> nic $NCCL_SOCKET_IFNAME in $PWD: $cpus"
	[ ! -e /etc/berth-image ] || echo "image $(hostname)" >&2
	: >met.$BERTH_JOB_ID.$RANK; until [ $(ls met.$BERTH_JOB_ID.* | wc -l) = $WORLD_SIZE ]; do sleep 0.1; done'
export SHOWS

all_up() { [ "$(grep -c '^up$' "$1.out" 2>/dev/null)" = 4 ]; }

# stops OPTIONS...: a stop signal reaches each rank's program once, and its code is the job's
stops() {
	export OPTIONS="$*"
	submit signal -N2 <<-'S'
	"$BERTH" run --ranks-per-node 2 $OPTIONS --stop-grace 20s -- sh -c '
		trap "echo caught \$RANK" TERM; echo up; until [ -e "$BERTH_STOP_FILE" ]; do sleep 0.1; done; sleep 1; exit 75' &
	until [ "$(grep -c "^up$" signal.out)" = 4 ]; do sleep 0.1; done
	kill -TERM $!
	wait $!
	S
	finish signal
	[ "$status" = 75 ]
	for rank in 0 1 2 3; do [ "$(grep -c "^caught $rank$" signal.out)" = 1 ]; done
	nothing_left n1 n2
}
