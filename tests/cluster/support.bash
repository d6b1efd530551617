# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2034 # the variables are for the tests
# For the tests that run on the login node of cluster.py's cluster.

export PATH="$PATH:/usr/sbin:/sbin"
SHARE=$CLUSTER/share
HERE=$SOURCE/tests/cluster

# on NODE COMMAND...: as root on that node.
on() { python3 "$HERE/cluster.py" on "$@"; }

# batch NAME [SBATCH OPTIONS] <<SCRIPT: submit, and wait for the end; $status and $output as run
# has them. The job's own files are SHARE/NAME.*
batch() {
	submit "$@"
	finish "$1"
}

# submit NAME [OPTIONS] <<SCRIPT: $job is its number.
submit() {
	local name=$1
	shift
	rm -f "$SHARE/$name".*
	{
		echo '#!/bin/bash'
		echo "cd $SHARE; export BERTH=$BERTH PROBE=$PROBE MPI_SUM=${MPI_SUM-}"
		echo "trap 'echo \$? >$SHARE/$name.code.tmp; mv $SHARE/$name.code.tmp $SHARE/$name.code' EXIT"
		cat
	} >"$SHARE/$name.sh"
	job=$(sbatch --parsable -o "$SHARE/$name.out" "$@" "$SHARE/$name.sh")
}

# finish NAME: wait for the job's end.
finish() {
	local i
	for ((i = 0; i < 1200; i++)); do
		[ -e "$SHARE/$1.code" ] && break
		sleep 0.05
	done
	output=$(cat "$SHARE/$1.out")
	status=$(cat "$SHARE/$1.code" 2>/dev/null || echo "no end after 60 s")
	echo "# $1: $status"
	echo "$output"
}

# until_seen FILE TEXT: at most 20 s.
until_seen() {
	local i
	for ((i = 0; i < 400; i++)); do
		grep -qs -- "$2" "$1" && return 0
		sleep 0.05
	done
	echo "'$2' is not in $1 after 20 s:"
	cat "$1"
	return 1
}

has() { grep -qE -- "$1" <<<"$output" || { echo "not in the output: $1"; return 1; }; }
hasnt() { ! grep -qE -- "$1" <<<"$output" || { echo "in the output: $1"; return 1; }; }

# left NODE...: processes of berth or of the ranks on these nodes, for at most 10 s; none is good.
nothing_left() {
	local node i seen=
	for node in "$@"; do
		on "$node" ps -eo comm >/dev/null || return 1
		for ((i = 0; i < 200; i++)); do
			seen=$(on "$node" ps -eo comm,args | grep -E 'berth|probe|sleep 7[0-9]' | grep -vE 'grep|cluster.py|pbs.py|sshd:' || true)
			[ -z "$seen" ] && break
			sleep 0.05
		done
		[ -z "$seen" ] || { echo "left on $node: $seen"; return 1; }
	done
}

# bytes NODE IFACE: sent so far.
bytes() { on "$1" cat "/sys/class/net/$2/statistics/tx_bytes"; }

# ---- layouts ----

# sent NODE: over all its NICs but loopback and what stands upon another one.
sent() { on "$1" sh -c 'cat /sys/class/net/[efh]*[0-9]/statistics/tx_bytes | paste -sd+ | sed "s/^$/0/"' | bc_sum; }
bc_sum() { local text; read -r text; echo $((text)); }

# The switches: the ports mgmt-NODE and fast-NODE on the bridges mgmt and fast.
switch() { nsenter -t 1 -n "$@"; }

# rename_fast NODE NAME: the fast NIC has another name there, and the node's machine says so.
rename_fast() {
	on "$1" sh -c "ip link set hsn0 down; ip link set hsn0 name $2; ip link set $2 up"
	machine "$1" "$2"
}

# machine NODE NAME [KIND]: what the node's machine says of its fast NIC.
machine() {
	(cd "$SHARE" && python3 "$HERE/topology.py" . "$1.topology" "${@:2}")
	cat "$SHARE/$1.topology.xml" >"$CLUSTER/$1/topology.xml"
}

# bridge NODE NAME ADDRESS: a bridge with a port, as containers and VMs have it.
bridge() {
	on "$1" sh -ec "ip link add $2 type bridge; ip link add $2-p type veth peer name $2-q
		ip link set $2-p master $2 up; ip link set $2-q up; ip link set $2 up; ip address add $3 dev $2"
}

# hide NODE FILE OVER: the node reads FILE where it would read OVER.
hide() {
	on "$1" mount --bind "$2" "$3"
	echo "$1 $3" >>"$SHARE/hidden"
}

# undo: every node as cluster.py made it.
undo() {
	local node where name
	if [ -e "$SHARE/hidden" ]; then
		while read -r node where; do on "$node" umount "$where"; done <"$SHARE/hidden"
		rm "$SHARE/hidden"
	fi
	for node in n1 n2 n3; do
		switch ip link set "fast-$node" master fast
		on "$node" sh -c "
			for name in docker0 docker0-p virbr0 virbr0-p hsn0.2093; do # (and the other end)
				[ ! -e /sys/class/net/\$name ] || ip link delete \$name
			done
			[ ! -e /sys/class/net/fast7 ] || { ip link set fast7 down; ip link set fast7 name hsn0; }
			ip link set eth0 up
			ip address flush dev hsn0
			ip link set hsn0 up
			ip address add 10.9.0.1${node#n}/24 dev hsn0"
		machine "$node" hsn0
	done
}
