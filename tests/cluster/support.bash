# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2034 # the variables are for the tests
# Helpers for tests that run on the login node of cluster.py's cluster.

load ../support/berth

# All tests use the cluster's own directory, $SHARE.
setup() { :; }
teardown() { print_logs; }

export PATH="$PATH:/usr/sbin:/sbin"
SHARE=$CLUSTER/share
TOOLS=$SHARE/pbs/bin # of the stand-in for PBS, after pbs.py begin
HERE=$SOURCE/tests/cluster

# on NODE COMMAND...: run it as root on that node, as cluster.py does, but without starting Python (which
# takes 0.4 s if python3 is pyenv's, about twenty times per layout).
on() { nsenter -t "$(<"$CLUSTER/pid/$1")" -a --wd=/ "${@:2}"; }

# batch NAME [SBATCH OPTIONS] <<SCRIPT: submit the script and wait for its end; sets $status and $output
# as run does. The job's own files are SHARE/NAME.*
batch() {
	submit "$@"
	finish "$1"
}

# submit NAME [OPTIONS] <<SCRIPT: submit the script and set $job to its number.
submit() {
	local name=$1
	shift
	rm -f "$SHARE/$name".*
	{
		echo '#!/bin/bash'
		echo "cd $SHARE; export BERTH=$BERTH PROBE=$PROBE MPI_SUM=${MPI_SUM-} BUILD=$BUILD SOURCE=$SOURCE"
		echo "trap 'echo \$? >$SHARE/$name.code.tmp; mv $SHARE/$name.code.tmp $SHARE/$name.code' EXIT"
		cat
	} >"$SHARE/$name.sh"
	job=$(sbatch --parsable -o "$SHARE/$name.out" "$@" "$SHARE/$name.sh")
}

# pbs_job NAME SELECT [QSUB OPTIONS] <<SCRIPT: as batch, in a job of the stand-in for PBS.
pbs_job() {
	pbs_start "$@"
	finish "$1"
}

# pbs_start NAME SELECT [QSUB OPTIONS] <<SCRIPT: start the job, without Slurm's variables, and set $job to its number.
pbs_start() {
	local name=$1 select=$2
	shift 2
	rm -f "$SHARE/$name".*
	{
		echo "cd $SHARE; export BERTH=$BERTH PROBE=$PROBE MPI_SUM=${MPI_SUM-}"
		# The cluster's hardware is simulated, and everything runs as root here.
		echo "export BERTH_TOPOLOGY=$BERTH_TOPOLOGY OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
		echo "export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1"
		echo "trap 'echo \$? >$SHARE/$name.code.tmp; mv $SHARE/$name.code.tmp $SHARE/$name.code' EXIT"
		cat
	} >"$SHARE/$name.sh"
	: >"$SHARE/$name.out"
	job=$(env -u SLURM_CONF "$TOOLS/qsub" -N "$name" -o "$SHARE/$name.out" -l "select=$select" -l walltime=01:00:00 "$@" "$SHARE/$name.sh")
	status=
}

# submit_to_pbs [VARIABLES]: start the stand-in for PBS on n1 and n2. berth submit uses it, and jobs have VARIABLES.
submit_to_pbs() {
	python3 "$HERE/pbs.py" begin n1 n2 3>&-
	cat >"$HOME/.config/berth/submit.json" <<-J
	{"scheduler": "pbs", "lines": ["export BERTH_TOPOLOGY=$BERTH_TOPOLOGY LD_LIBRARY_PATH=$LD_LIBRARY_PATH",
	 "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ${1-}"]}
	J
	export PATH="$TOOLS:$PATH"
}

# own_berth: a copy of berth in /tmp/own on n1 and n2; on n2 its libraries are missing.
own_berth() {
	local node
	for node in n1 n2; do
		on $node mkdir -p /tmp/own
		on $node cp "$BERTH" /tmp/own/berth
	done
	printf '#!/bin/sh\necho "berth: error while loading shared libraries: libx.so" >&2\nexit 127\n' >"$SHARE/broken"
	on n2 cp "$SHARE/broken" /tmp/own/berth
}

# need_slurm_pmix: skip where a release's Slurm has no mpi/pmix.
need_slurm_pmix() { find /usr/lib* -name mpi_pmix.so | grep -q . || skip "this Slurm has no mpi/pmix"; }

# free_until FILE JOB [SECONDS]: wait for FILE, and start the requeued job early.
free_until() {
	within "${3:-180}" exists_or_free "$1" "$2" || { squeue; cat "$SHARE"/*.out; return 1; }
}
exists_or_free() { [ -e "$1" ] || start_requeued "$2"; }

# start_requeued JOB: Slurm holds a requeued job for two minutes; this starts it early, but only after the seconds in
# which Slurm revokes its old credentials, since it would revoke the new ones, too. Always returns 1, for within.
start_requeued() {
	if [ "$(squeue -h -j "$1" -o %r 2>/dev/null)" = BeginTime ]; then
		sleep 3
		scontrol update JobId="$1" StartTime=now 2>/dev/null || true
	fi
	sleep 0.2
	return 1
}

# finish NAME [SECONDS]: wait for the job's end.
finish() {
	within "${2:-60}" test -e "$SHARE/$1.code" || true
	output=$(cat "$SHARE/$1.out")
	status=$(cat "$SHARE/$1.code" 2>/dev/null || echo "no end after ${2:-60} s times ${BERTH_TEST_SLOW:-1}")
	echo "# $1: $status"
	echo "$output"
}

# print_logs: after a failed case, the last lines of the schedulers' logs.
print_logs() {
	! case_failed || tail -n 15 "$CLUSTER"/log/* "$SHARE"/pbs/*.log 2>/dev/null || true
}

# cancel_jobs: cancel the jobs of all tests; a job that has ended is not an error.
cancel_jobs() {
	print_logs
	scancel --user=root --quiet || true # of several --state, Slurm 22.05 obeys the last
}

has() { grep -qE -- "$1" <<<"$output" || { echo "not in the output: $1"; return 1; }; }
hasnt() { ! grep -qE -- "$1" <<<"$output" || { echo "in the output: $1"; return 1; }; }

# nothing_left NODE...: wait until no process of berth or of its ranks is on these nodes; else list them.
nothing_left() {
	local node seen=
	for node in "$@"; do
		on "$node" ps -eo comm >/dev/null || return 1
		within 30 none_on "$node" || { echo "left on $node: $seen"; return 1; }
	done
}
none_on() {
	seen=$(on "$1" ps -eo comm,args | grep -E 'berth|probe|sleep 7[0-9]' | grep -vE 'grep|cluster.py|pbs.py|sshd:' || true)
	[ -z "$seen" ]
}

# ---- nodes that are lost ----

# lose NODE: cut its links, then kill all its processes, so that no peer is notified.
lose() {
	date +%s%N >"$SHARE/cut"
	on "$1" sh -c 'ip link set eth0 down; ip link set hsn0 down; kill -KILL -1'
}

# revive NODE: restore it, and resume it in Slurm.
revive() {
	on "$1" sh -c 'ip link set eth0 up; ip link set hsn0 up'
	[ -n "$(on "$1" pgrep -x slurmd)" ] || on "$1" slurmd -N "$1"
	within 60 resumed "$1" || { sinfo -N -l; return 1; }
}
resumed() {
	# Slurm 22.05 reports a node whose step never ended as "mixed", even without a job on it.
	case "$(sinfo -h -n "$1" -o %T)" in
		idle | mixed) return 0 ;;
		# Slurm repeats its question whether the job has ended less and less often; down forgets the job.
		completing) scontrol update nodename="$1" state=down reason=revived 2>/dev/null || true ;;
	esac
	scontrol update nodename="$1" state=resume 2>/dev/null || true
	sleep 1
	return 1
}

# ---- the secret ----

# Each rank runs this until SHARE/go exists.
WAITS='env >env.$RANK; echo "up $RANK"; until [ -e go ]; do sleep 0.1; done; echo "rank $RANK of $WORLD_SIZE ends"'
DIGITS='(^|[^0-9a-f])[0-9a-f]{64}([^0-9a-f]|$)' # what a secret looks like

# secrets NODE...: list those in the environments of processes there, which only their owner can read.
secrets() {
	local node
	for node in "$@"; do
		on "$node" sh -c 'cat /proc/[0-9]*/environ 2>/dev/null' | tr '\0' '\n' | sed -n 's/^BERTH_AGENT_SECRET=//p'
	done | sort -u
}

# nothing_shown [SECRET]: check that no command line, rank environment or file that others can read has it.
nothing_shown() {
	local node seen
	# The login node sees the processes of all nodes; a node sees only its own.
	seen=$(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n')
	[ "$(grep -c "^$BERTH$" <<<"$seen")" -ge 2 ] || { echo "no berth runs"; return 1; }
	! grep -E "$DIGITS|BERTH_AGENT_SECRET=${1:+|$1}" <<<"$seen" || { echo "on a command line"; return 1; }
	for node in login n1 n2; do
		# What bats keeps of this test's own output may quote the secret.
		seen=$(on "$node" find /tmp /dev/shm "$CLUSTER" -xdev -type f -not -path "$BATS_RUN_TMPDIR/*" \
			-not -path "$SHARE/env.*" -perm /044 -size -2000k -exec grep -lIE "$DIGITS${1:+|$1}" {} + || true)
		[ -z "$seen" ] || { echo "in a file of $node: $seen"; return 1; }
	done
	# BERTH_STORE_SECRET is the ranks' own: the job's secret does not follow from it.
	seen=$(grep -hE "BERTH_AGENT_|[0-9a-f]{64}" "$SHARE"/env.* | grep -v '^BERTH_STORE_SECRET=' || true)
	[ -z "$seen" ] && ! grep -qF "${1:-BERTH_AGENT_}" "$SHARE"/env.* || { echo "in a rank's environment"; return 1; }
}

# bytes NODE IFACE: print how many bytes it has sent so far.
bytes() { on "$1" cat "/sys/class/net/$2/statistics/tx_bytes"; }

# ---- layouts ----

# sent NODE: bytes sent over all its NICs, except loopback and the far ends of bridge's and vlan's pairs.
sent() {
	on "$1" bash -c 'sum=0; cd /sys/class/net
		for nic in *; do
			case $nic in lo | *-[pq]) ;; *) sum=$((sum + $(cat "$nic/statistics/tx_bytes"))) ;; esac
		done; echo $sum'
}

# Simulates Slingshot, where NCCL needs a library of this name.
pretend_ofi() {
	mkdir -p "$SHARE/ofi"
	cp "$FAULTS" "$SHARE/ofi/libnccl-net-ofi.so"
}

# check NAME NODES [OPTIONS], after pretend_ofi: run berth check in a job on these nodes; $table gets its rows,
# one per line.
check() {
	local name=$1 nodes=$2
	shift 2
	batch "$name" -N"$(tr -cd , <<<"$nodes," | wc -c)" -w "$nodes" <<-S
	export LD_LIBRARY_PATH=$SHARE/ofi COLUMNS=200
	"\$BERTH" check $*
	S
	table=$(tr -s ' \n' ' ' <<<"$output")
}
says() { grep -qE -- "$1" <<<"$table" || { echo "not said: $1"; return 1; }; }
saysnt() { ! grep -qE -- "$1" <<<"$table" || { echo "said: $1"; return 1; }; }

# The switches: the ports mgmt-NODE and fast-NODE on the bridges mgmt and fast.
switch() { nsenter -t 1 -n "$@"; }

# rename_fast NODE NAME: rename the fast NIC there, also in the node's hardware description.
rename_fast() {
	on "$1" sh -c "ip link set hsn0 down; ip link set hsn0 name $2; ip link set $2 up"
	machine "$1" "$2"
}

# machine NODE NAME [KIND]: set the fast NIC in the node's hardware description.
machine() {
	(cd "$SHARE" && python3 "$HERE/topology.py" . "$1.topology" "${@:2}")
	cat "$SHARE/$1.topology.xml" >"$CLUSTER/$1/topology.xml"
}

# bridge NODE NAME ADDRESS: add a bridge with a port, as containers and VMs do.
bridge() {
	on "$1" sh -ec "ip link add $2 type bridge; ip link add $2-p type veth peer name $2-q
		ip link set $2-p master $2 up; ip link set $2-q up; ip link set $2 up; ip address add $3 dev $2"
}

# vlan NODE NAME ADDRESS: add an interface of that name, which may begin with another interface's name.
vlan() {
	on "$1" sh -ec "ip link add $2 type veth peer name vlan-q; ip link set vlan-q up
		ip address add $3 dev $2; ip link set $2 up"
}

# close_management NODE...: eth0 accepts packets to Slurm's ports (cluster.py) and silently drops all
# other TCP. If the kernel has no packet filter, routing rules do the same: an incoming packet reaches
# the table of local addresses only if an earlier rule allows it.
close_management() {
	local node
	for node in "$@"; do
		on "$node" sh -ec '
			for ports in 6817-6818 7200-7999; do
				ip rule add pref 5 iif eth0 ipproto tcp dport $ports lookup local
				ip rule add pref 5 iif eth0 ipproto tcp sport $ports lookup local
			done
			ip rule add pref 6 iif eth0 ipproto tcp blackhole
			ip rule add pref 7 lookup local
			ip rule delete pref 0'
	done
}

# slow NODE: limit its fast NIC to 100 Mb/s, though it still reports its full speed.
slow() { on "$1" tc qdisc add dev hsn0 root tbf rate 100mbit burst 64k latency 200ms; }

# small NODE: its fast NIC silently drops packets of more than 1,400 bytes, as a path with a smaller MTU does.
small() {
	on "$1" nft 'add table ip small; add chain ip small in { type filter hook input priority 0; }
		add rule ip small in iifname hsn0 ip length > 1400 drop'
}

# take_port NODE PORT: occupy the port on every address until free_port.
take_port() {
	free_port
	echo "$1" >"$SHARE/taken.node"
	on "$1" sh -c 'python3 -c "
import os, socket, sys, time
s = socket.create_server((\"::\", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
print(os.getpid(), flush=True)
time.sleep(100)" "$1" >"$2"' sh "$2" "$SHARE/taken.pid" 3>&- </dev/null &
	until_seen "$SHARE/taken.pid" '[0-9]'
}
free_port() {
	[ ! -e "$SHARE/taken.pid" ] || on "$(cat "$SHARE/taken.node")" kill "$(cat "$SHARE/taken.pid")" || true
	rm -f "$SHARE/taken.pid"
}

# hide NODE FILE OVER: mount FILE over OVER on the node.
hide() {
	on "$1" mount --bind "$2" "$3"
	echo "$1 $3" >>"$SHARE/hidden"
}

# lag NODE: the fast NIC's counter is updated only every 2 s, as some drivers do it, until unlag.
lag() {
	touch "$SHARE/lag" "$SHARE/lag.on"
	on "$1" sh -c 'while awk "\$1 == \"hsn0:\" { printf \"%20d\n\", \$10 }" /proc/net/dev 1<>"$1" && [ -e "$1.on" ]; do
		sleep 2
	done' sh "$SHARE/lag" 3>&- &
	hide "$1" "$SHARE/lag" /sys/class/net/hsn0/statistics/tx_bytes
}
unlag() { rm -f "$SHARE/lag.on"; }

# layout NAME: set up one of the networks of layouts*.bats and tests/bench/layouts.bash. undo removes it.
layout() {
	local node
	case $1 in
	plain | two) ;; # two: two jobs at once, which the test starts later
	closed) close_management n1 n2 n3 ;;
	renamed) rename_fast n2 fast7 ;;
	bridges)
		for node in n1 n2; do
			bridge $node docker0 172.17.0.1/16
			bridge $node virbr0 192.168.122.1/24
		done ;;
	down) on n2 ip link set hsn0 down ;;
	twice) on n2 sh -c 'ip address flush dev hsn0; ip address add 10.9.0.13/24 dev hsn0' ;;
	shared) on n2 sh -c 'ip address flush dev hsn0; ip address add 10.9.0.11/24 dev hsn0' ;;
	v6)
		for node in n1 n2; do
			on $node sh -c "ip address flush dev hsn0; ip address add fd09::1${node#n}/64 dev hsn0 nodad"
		done ;;
	nodns)
		echo '127.0.0.1 localhost' >"$SHARE/hosts"
		for node in n1 n2; do hide $node "$SHARE/hosts" /etc/hosts; done ;;
	debian)
		for node in n1 n2; do
			{ echo "127.0.1.1 $node"; cat "$CLUSTER/hosts"; } >"$SHARE/hosts.$node"
			hide $node "$SHARE/hosts.$node" /etc/hosts
		done ;;
	prefix) for node in n1 n2; do vlan $node hsn0.2093 10.93.0.1${node#n}/24; done ;;
	port) take_port n1 29500 ;;
	slow) slow n2 ;;
	small) small n2 ;;
	lost) switch ip link set fast-n2 nomaster ;;
	*) echo "no layout $1"; return 1 ;;
	esac
}

# undo: restore every node as cluster.py made it.
undo() {
	local node where name
	if [ -e "$SHARE/hidden" ]; then
		while read -r node where; do on "$node" umount "$where"; done <"$SHARE/hidden"
		rm "$SHARE/hidden"
	fi
	free_port
	unlag
	for node in n1 n2 n3; do
		switch ip link set "fast-$node" master fast
		on "$node" sh -c "
			for name in docker0 docker0-p virbr0 virbr0-p hsn0.2093; do # (and the other end)
				[ ! -e /sys/class/net/\$name ] || ip link delete \$name
			done
			[ ! -e /sys/class/net/fast7 ] || { ip link set fast7 down; ip link set fast7 name hsn0; }
			if ip rule show pref 7 | grep -q local; then
				ip rule add pref 0 lookup local
				for p in 5 5 5 5 6 7; do ip rule delete pref \$p; done
			fi
			! nft list table ip small >/dev/null 2>&1 || nft delete table ip small
			! tc qdisc show dev hsn0 | grep -q tbf || tc qdisc delete dev hsn0 root
			ip link set eth0 up
			ip address flush dev hsn0
			ip link set hsn0 up
			ip address add 10.9.0.1${node#n}/24 dev hsn0"
		[ ! -e "$SHARE/$node.topology.xml" ] || machine "$node" hsn0
		rm -f "$SHARE/$node.topology.xml"
	done
}

# ssh_begin: a real sshd on n1 and n2; $CLUSTER/share/ssh/bin has an ssh that may log in there as root.
ssh_begin() {
	local root=$CLUSTER/share/ssh node
	mkdir -p "$root/bin"
	ssh-keygen -q -t ed25519 -N '' -f "$root/host"
	ssh-keygen -q -t ed25519 -N '' -f "$root/user"
	cp "$root/user.pub" "$root/authorized"
	chmod go-w "$CLUSTER/share" "$root"
	printf '%s\n' 'StrictHostKeyChecking no' "UserKnownHostsFile $root/known" "IdentityFile $root/user" >"$root/config"
	# ssh takes the home directory from the password file, so the cluster's configuration must be passed.
	printf '#!/bin/sh\nprintf "%%s\\n" "$*" >>%s/lines\nexec /usr/bin/ssh -F %s/config "$@"\n' "$root" "$root" >"$root/bin/ssh"
	chmod 755 "$root/bin/ssh"
	for node in n1 n2; do
		python3 "$SOURCE/tests/cluster/cluster.py" on "$node" sh -c "mkdir -p /run/sshd
			exec /usr/sbin/sshd -f /dev/null -h $root/host -o PidFile=none -o AuthorizedKeysFile=$root/authorized \
			-o StrictModes=no -o UsePAM=no -o PermitRootLogin=yes" 3>&-
	done
}

# GONE: the script of a job whose working directory has been removed, and then is missing on the second node.
# gone NODE: check what it printed. Every scheduler's jobs end alike.
GONE='mkdir /tmp/gone && cd /tmp/gone && rmdir /tmp/gone
"$BERTH" run --ranks-per-node 1 -- /bin/hostname && echo "ran"; echo "removed: $?"
mkdir /tmp/gone && cd /tmp/gone
"$BERTH" run --ranks-per-node 1 -- /bin/hostname; echo "missing: $?"
rmdir /tmp/gone'
gone() {
	hasnt '^ran$'
	has '^berth: error: cannot find the working directory, in which the ranks would start: No such file or directory. Change'
	has '^removed: 66$'
	local cause="cannot start /bin/hostname: cannot enter directory /tmp/gone: No such file or directory"
	has "^berth: error: rank 1 on $1 could not be started: $cause\$"
	has '^missing: 69$'
}
