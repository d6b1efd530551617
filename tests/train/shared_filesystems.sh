#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# One checkpoint directory through two clients of a shared file system:
#   shared_filesystems.sh glusterfs|sshfs|sshfs-cached
# with BUILD as in tests/cli/meson.build; KILLS, TAKEOVERS and OUTAGE change the counts. sshfs-cached keeps
# sshfs's cache of directories (20 s). Server, mounts and runs live in namespaces of their own and end with
# this script. Each client is a mount of its own, so a run on one does not see the locks of a run on the other.
set -euo pipefail

FS=$1
case $FS in
glusterfs) need=glusterd ;;
*) need=sshfs ;;
esac
if [ -z "${INSIDE-}" ]; then
	unshare -mnpf --mount-proc true 2>/dev/null || { echo "needs root"; exit 77; }
	[ -w /dev/fuse ] || { echo "/dev/fuse is missing or not writable"; exit 77; }
	for program in $need /usr/sbin/sshd; do
		command -v "$program" >/dev/null || { echo "no $program"; exit 77; }
	done
	DIR=$(mktemp -d)
	export DIR INSIDE=1
	code=0
	unshare -mnpf --mount-proc --kill-child bash "$0" "$FS" || code=$?
	rm -rf "$DIR"
	exit $code
fi

cd "$DIR"
DATA=synthetic:1x16x16,n=640,classes=5
mkdir brick a b
ip link set lo up
ip addr add 10.77.0.1/32 dev lo
mount -t tmpfs none /run

fail() {
	echo "not ok: $*"
	tail -n 12 ./*.err 2>/dev/null || true
	exit 1
}
within() { # SECONDS COMMAND...
	local last=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -le $last ] || fail "still not true: $*"
		sleep 0.1
	done
}

# ---- the file systems: begin, mount_at DIRECTORY, kill_server, start_server, pids of the server ----

case $FS in
glusterfs)
	start() {
		mkdir -p /run/gluster
		mount -t tmpfs none /var/lib/glusterd
		mount -t tmpfs none /var/log/glusterfs
		glusterd
		within 30 gluster --mode=script pool list
		gluster --mode=script volume create v "10.77.0.1:$DIR/brick" force
		gluster --mode=script volume start v
	}
	mount_at() { glusterfs -s 10.77.0.1 --volfile-id v "$1"; }
	server() { cat /run/gluster/vols/v/*.pid; }
	restart() { gluster --mode=script volume start v force; }
	;;
sshfs*)
	options=reconnect,ServerAliveInterval=5,ServerAliveCountMax=3
	[ "$FS" = sshfs-cached ] || options=$options,dir_cache=no
	start() {
		mkdir -p /run/sshd
		ssh-keygen -q -t ed25519 -N '' -f host
		ssh-keygen -q -t ed25519 -N '' -f user
		restart
	}
	restart() {
		/usr/sbin/sshd -f /dev/null -h "$DIR/host" -o ListenAddress=10.77.0.1 -o PidFile=/run/sshd.pid \
			-o AuthorizedKeysFile="$DIR/user.pub" -o StrictModes=no -o UsePAM=no -o PermitRootLogin=yes \
			-o Subsystem="sftp /usr/lib/openssh/sftp-server"
	}
	mount_at() {
		sshfs -F /dev/null -o "$options,IdentityFile=$DIR/user,StrictHostKeyChecking=no,UserKnownHostsFile=/dev/null,LogLevel=ERROR" \
			"10.77.0.1:$DIR/brick" "$1"
	}
	server() { pgrep -x 'sshd|sftp-server'; }
	;;
esac

# ---- runs ----

# train NAME CLIENT ARGUMENTS: in the background, as attempt $attempt of job 1; $pid is its unshare
attempt=0 c=c
train() {
	attempt=$((attempt + 1))
	SLURM_JOB_ID=1 SLURM_RESTART_COUNT=$attempt unshare -pf --mount-proc --kill-child \
		"$BUILD/bin/berth-train" linear --data "$DATA" --batch 8 --no-eval --log-every 100000 --keep 3 \
		--ckpt "$2/$c" "${@:3}" >"$1.out" 2>"$1.err" &
	pid=$!
}
ends() { # CODE PID WHAT
	local code=0
	wait "$2" || code=$?
	[ "$code" = "$1" ] || fail "$3: exit code $code, expected $1"
}
inner() { pgrep -P "$1" -x berth-train; }
latest() { sed 's/step-0*\([0-9]*\).*/\1/' "brick/$c/latest"; }
past() { [ "$(latest)" -gt "$1" ]; }
sums() { (cd "brick/$c" && sha256sum latest step-*.safetensors); }

start
mount_at a
mount_at b
within 30 mountpoint a
within 30 mountpoint b
mount | grep -E "$DIR/[ab] "

# The bits of a run that nothing disturbs.
steps=160000
train whole . --steps $steps --save-every 800
ends 0 $pid whole
rm -rf whole-c
mv c whole-c

# kill_at SHARE: kill the run as it starts (every third), or once it has saved about SHARE of 1000 of the
# steps; at any moment of a save
kill_at() {
	local target=$((steps * $1 / 1000))
	within 60 inner $pid >/dev/null
	if [ $((kills % 3)) != 0 ]; then
		while inner $pid >/dev/null && ! { [ -e brick/$c/latest ] && past $target; }; do sleep 0.01; done
	fi
	sleep "0.0$((RANDOM % 60 + 10))"
	kill -KILL "$(inner $pid)" 2>/dev/null
}

echo "# a kill storm: each attempt is killed, the next one runs on the other client"
kills=0 resumed=0 wanted=${KILLS:-30}
for ((i = 0; ; i++)); do
	client=$([ $((i % 2)) = 0 ] && echo a || echo b)
	before=0 killed=
	[ ! -e brick/$c/latest ] || before=$(latest)
	train storm "$client" --steps $steps --save-every 800
	if [ $kills -lt "$wanted" ] && kill_at $(((1000 * kills + RANDOM % 500) / (wanted + 1))); then
		kills=$((kills + 1)) killed=yes
	fi
	code=0
	wait $pid 2>/dev/null || code=$?
	if grep -q 'resuming from' storm.err; then
		from=$(sed -n 's/.*resuming from.*: step \([0-9]*\),.*/\1/p' storm.err)
		[ "$from" -ge "$before" ] || fail "resumed from step $from, but step $before was saved"
		resumed=$((resumed + 1))
	fi
	! grep -q skipped storm.err || fail "a damaged checkpoint"
	[ $code != 0 ] || break # there were enough kills
	[ -n "$killed" ] || fail "exit code $code"
done
[ $kills -ge "$wanted" ] || fail "it ended after $kills kills"
cmp whole-c/step-00$steps.safetensors brick/$c/step-00$steps.safetensors
cmp whole-c/latest brick/$c/latest
echo "ok: $kills kills, resumed $resumed times, the same bits in the end"

echo "# takeover: the first run is stopped in the middle, continues after the second, and changes nothing"
for ((i = 0; i < ${TAKEOVERS:-10}; i++)); do
	c=taken$i
	train first a --steps 100000000 --save-every 50
	first=$pid
	within 60 test -e brick/$c/latest
	sleep "0.$((RANDOM % 50 + 10))"
	stopped=$(inner $first)
	kill -STOP "$stopped"
	end=$(($(latest) + 300))
	train second b --steps $end --save-every 50
	ends 0 $pid 'the second run'
	[ "$(latest)" = $end ] || fail "latest is $(latest), not $end"
	sums >before
	kill -CONT "$stopped"
	ends 73 $first 'the first run'
	grep -q 'was taken over by job 1' first.err || fail 'the first run gives another reason'
	sums >after
	cmp before after || { diff before after; fail 'the first run changed something'; }
done
echo "ok: $i takeovers"

for outage in frozen killed; do
	echo "# the server is $outage for ${OUTAGE:-30} s"
	train out1 a --steps 1000000000 --save-every 1s
	within 60 test -e brick/$c/latest
	before=$(latest)
	within 60 past "$before"
	# shellcheck disable=SC2046 # processes
	kill -$([ $outage = frozen ] && echo STOP || echo KILL) $(server)
	before=$(latest)
	sleep "${OUTAGE:-30}"
	if [ $outage = frozen ]; then
		# shellcheck disable=SC2046
		kill -CONT $(server)
	else
		restart
	fi
	kill -0 $pid || fail "the run ended: $(wait $pid; echo $?)"
	within 120 past "$before"
	kill -TERM "$(inner $pid)"
	ends 75 $pid 'the run'
	grep -E 'warning|error' out1.err || true
	before=$(latest)
	train out2 b --steps $((before + 10))
	ends 0 $pid 'the next run'
	grep -q "resuming from b/$c/step-0*$before.safetensors" out2.err || fail 'it resumed from another step'
	! grep -q skipped out2.err || fail 'a damaged checkpoint'
	echo "ok: the run continued; the next one resumed from step $before"
done
