# SPDX-License-Identifier: BSD-3-Clause
# Networks as they are found, good and bad: at which address the ranks meet, what is said, and that
# a training's bytes go over the fast NIC. One cluster; each test undoes its layout.

load support.bash

teardown() {
	scancel --state=RUNNING --state=PENDING --user=root --quiet || true
	undo
}

# meet NAME [BERTH OPTIONS]: a job on n1 and n2 that says where its ranks meet.
meet() {
	local name=$1
	shift
	batch "$name" -N2 -w n1,n2 <<-S
	"\$BERTH" run --ranks-per-node 1 -v $* -- sh -c 'echo "rank \$RANK at \$MASTER_ADDR:\$MASTER_PORT gloo \$GLOO_SOCKET_IFNAME nccl \$NCCL_SOCKET_IFNAME ompi \$OMPI_MCA_btl_tcp_if_include"'
	S
}

# trains NAME: two ranks train; at most 2 % of what n1 and n2 send goes over other NICs than FAST1,
# FAST2.
trains() {
	[ -n "$MPI_SUM" ] || return 0
	local name=$1 fast1=${2:-hsn0} fast2=${3:-hsn0} all1 all2 fast all
	all1=$(sent n1) all2=$(sent n2)
	fast=$(($(bytes n1 "$fast1") + $(bytes n2 "$fast2")))
	batch "$name" -N2 -w n1,n2 <<-'S'
	"$BERTH" train convnet --ranks-per-node 1 --data synthetic:1x28x28,n=512 --steps 25
	S
	[ "$status" = 0 ] || return 1
	fast=$(($(bytes n1 "$fast1") + $(bytes n2 "$fast2") - fast))
	all=$(($(sent n1) - all1 + $(sent n2) - all2))
	echo "$all bytes sent, $fast of them over $fast1 and $fast2"
	[ $fast -gt 4000000 ] && [ $((fast * 100)) -ge $((all * 98)) ]
}

@test "management first, fast second" {
	meet plain
	[ "$status" = 0 ]
	has '^rank 0 at 10.9.0.11:[0-9]+ gloo hsn0 nccl hsn0 ompi 10.9.0.0/24$'
	has '^rank 1 at 10.9.0.11:[0-9]+ gloo hsn0 nccl hsn0 ompi 10.9.0.0/24$'
	trains plain-train
}

@test "the fast NIC is called differently on each node" {
	rename_fast n2 fast7
	meet renamed
	[ "$status" = 0 ]
	has '^rank 0 at 10.9.0.11:[0-9]+ gloo hsn0 nccl hsn0 ompi 10.9.0.0/24$'
	has '^rank 1 at 10.9.0.11:[0-9]+ gloo fast7 nccl fast7 ompi 10.9.0.0/24$'
	trains renamed-train hsn0 fast7
}

@test "docker0 and virbr0 have the same address everywhere" {
	for node in n1 n2; do
		bridge $node docker0 172.17.0.1/16
		bridge $node virbr0 192.168.122.1/24
	done
	[ "$(on n1 cat /sys/class/net/docker0/operstate)" = up ]
	meet bridges
	[ "$status" = 0 ]
	has '^rank 1 at 10.9.0.11:[0-9]+ gloo hsn0'
	trains bridges-train
}

@test "the fast NIC is down on one node: said, with the node, and the ranks still meet" {
	on n2 ip link set hsn0 down
	meet down
	[ "$status" = 0 ]
	has '^rank 1 at 10.1.0.11:[0-9]+ gloo eth0'
	has '^berth: warning: .*hsn0 10.9.0.11.*n2'
	meet down-asked --iface hsn0
	[ "$status" = 76 ]
	has '^berth: no address of n1 can serve .*hsn0 10.9.0.11 \(.*n2'
}

@test "two nodes have the same fast address: refused, both named" {
	on n2 sh -c 'ip address flush dev hsn0; ip address add 10.9.0.13/24 dev hsn0'
	batch twice -N3 <<-'S'
	"$BERTH" run --ranks-per-node 1 -- sh -c 'echo "rank $RANK at $MASTER_ADDR"'
	"$BERTH" run --ranks-per-node 1 --iface hsn0 -- sh -c 'echo "rank $RANK at $MASTER_ADDR"'
	S
	[ "$status" = 76 ]
	has '^berth: warning: .*hsn0 10.9.0.11.*n2 and n3 both have 10.9.0.13'
	has '^rank 2 at 10.1.0.11$'
	has '^berth: no address of n1 can serve .*n2 and n3 both have 10.9.0.13'
}

@test "the head's own fast address is also another node's" {
	on n2 sh -c 'ip address flush dev hsn0; ip address add 10.9.0.11/24 dev hsn0'
	meet shared
	[ "$status" = 0 ]
	has '^berth: warning: .*hsn0 10.9.0.11.*n2'
	has '^rank 1 at 10.1.0.11'
}

@test "no DNS for the names of the nodes" {
	echo '127.0.0.1 localhost' >"$SHARE/hosts"
	for node in n1 n2; do hide $node "$SHARE/hosts" /etc/hosts; done
	run on n1 getent hosts n2
	[ "$status" != 0 ]
	meet nodns
	[ "$status" = 0 ]
	has '^rank 1 at 10.9.0.11'
	trains nodns-train
}

@test "/etc/hosts maps the own name to 127.0.1.1" {
	for node in n1 n2; do
		printf '127.0.0.1 localhost\n127.0.1.1 %s\n' $node >"$SHARE/hosts.$node"
		hide $node "$SHARE/hosts.$node" /etc/hosts
	done
	meet debian
	[ "$status" = 0 ]
	has '^rank 1 at 10.9.0.11'
	trains debian-train
}

@test "port 29500 is taken: another one by default, a clear end where it is asked for" {
	on n1 python3 -c '
import socket, time
s = socket.socket(socket.AF_INET6); s.bind(("::", 29500)); s.listen(); print("up", flush=True); time.sleep(75)' >"$SHARE/port" &
	taker=$!
	until_seen "$SHARE/port" up
	meet port
	[ "$status" = 0 ]
	hasnt ':29500 '
	meet port-asked --port 29500
	[ "$status" = 76 ]
	has '^berth: .*29500'
	on n1 sh -c 'kill $(ps -eo pid,args | sed -n "s/ *\([0-9]*\) python3 -c.*/\1/p")' || true
	wait $taker || true
}

@test "one name begins another: NCCL gets the exact one" {
	for node in n1 n2; do
		on $node sh -ec "ip link add hsn0.2093 type veth peer name vlan-q; ip link set vlan-q up
			ip address add 10.93.0.1${node#n}/24 dev hsn0.2093; ip link set hsn0.2093 up"
	done
	meet prefix
	[ "$status" = 0 ]
	has '^rank 0 at 10.9.0.11:[0-9]+ gloo hsn0 nccl =hsn0 '
}

@test "IPv6 only on the fast network" {
	for node in n1 n2; do
		on $node sh -c "ip address flush dev hsn0; ip address add fd09::1${node#n}/64 dev hsn0 nodad"
	done
	meet v6
	[ "$status" = 0 ]
	has '^rank 0 at fd09::11:[0-9]+ gloo hsn0'
	has '^rank 1 at fd09::11:[0-9]+ gloo hsn0'
}

@test "two jobs at once on the same nodes" {
	for i in 1 2; do
		submit "both$i" -N2 -n2 --mem-per-cpu=50 -w n1,n2 <<-'S'
		"$BERTH" run --ranks-per-node 1 -- sh -c 'echo "rank $RANK at $MASTER_ADDR:$MASTER_PORT job $BERTH_JOB_ID"; sleep 1'
		S
	done
	finish both1
	[ "$status" = 0 ]
	first=$(sed -n 's/^rank 1 at //p' <<<"$output")
	finish both2
	[ "$status" = 0 ]
	second=$(sed -n 's/^rank 1 at //p' <<<"$output")
	[ -n "$first" ] && [ -n "$second" ] && [ "${first% job*}" != "${second% job*}" ]
}

@test "a node whose packets are lost without a word on the fast network" {
	switch ip link set fast-n2 nomaster
	meet lost
	[ "$status" = 0 ]
	has '^rank 1 at 10.1.0.11:[0-9]+ gloo eth0'
	has '^berth: warning: .*hsn0 10.9.0.11 .*reached by 1 of 2 nodes'
}
