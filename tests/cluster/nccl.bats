# SPDX-License-Identifier: BSD-3-Clause
# Which NIC the installed NCCL chooses, on every node of every layout, in the environment that berth
# gives a rank. Without that environment NCCL chooses wrongly on most layouts. The first test shows
# that; otherwise these tests would prove nothing.

load support.bash

setup() {
	"$NCCL_ID" >/dev/null || [ $? != 77 ] || skip 'no NCCL (libnccl.so.2) is here'
}

teardown() {
	cancel_jobs
	undo
}

# agree NAME: NCCL and the plan agree on n1 and on n2.
agree() {
	batch "$1" -N2 -w n1,n2 <<-S
	"\$BERTH" run --ranks-per-node 1 -- "$NCCL_ID"
	S
	[ "$status" = 0 ] && [ "$(grep -c ': agrees$' <<<"$output")" = 2 ]
}

@test "management NIC first, fast NIC second; without berth NCCL takes the management NIC" {
	agree plain
	has '^rank 0: NCCL [0-9]+ meets at 10.9.0.11 on hsn0;'
	has '^rank 1: NCCL [0-9]+ meets at 10.9.0.12 on hsn0;'
	batch bare -N2 -w n1,n2 <<-S
	"\$BERTH" run --ranks-per-node 1 -- env -u NCCL_SOCKET_IFNAME "$NCCL_ID"
	S
	[ "$status" = 1 ]
	has '^rank [01]: NCCL [0-9]+ meets at 10.1.0.1[12] on eth0; .*: DIFFERS$'
}

@test "the fast NIC has another name on each node" {
	layout renamed
	agree renamed
	has '^rank 1: NCCL [0-9]+ meets at 10.9.0.12 on fast7;'
}

@test "docker0 and virbr0 next to the fast NIC" {
	layout bridges
	agree bridges
}

@test "IPv6 only on the fast network" {
	layout v6
	agree v6
	has '^rank 0: NCCL [0-9]+ meets at fd09::11 on hsn0;'
}

@test "IPv4 and IPv6 on both networks" {
	for node in n1 n2; do
		on $node sh -c "ip address add fd01::1${node#n}/64 dev eth0 nodad; ip address add fd09::1${node#n}/64 dev hsn0 nodad"
	done
	agree both
	for node in n1 n2; do on $node ip address del fd01::1${node#n}/64 dev eth0; done
}

@test "bond0 next to bond0.2093, whose name begins with it" {
	for node in n1 n2; do
		rename_fast $node bond0
		# First in NCCL's order and with an address of its own.
		on $node sh -ec "ip link add bond0.2093 type veth peer name vlan-q; ip link set vlan-q up
			ip address add 10.93.0.1${node#n}/24 dev bond0.2093; ip link set bond0.2093 up"
	done
	agree prefix || failed=yes
	for node in n1 n2; do
		on $node sh -c 'ip link delete bond0.2093; ip link set bond0 down; ip link set bond0 name hsn0'
	done
	[ -z "${failed-}" ]
	has "^rank 0: NCCL [0-9]+ meets at 10.9.0.11 on bond0; .* NCCL_SOCKET_IFNAME '=bond0': agrees"
}

@test "another interface whose name begins with ib, which NCCL prefers by default" {
	for node in n1 n2; do
		on $node sh -ec "ip link add ibs9 type veth peer name ib-q; ip link set ib-q up
			ip address add 10.77.0.1${node#n}/24 dev ibs9; ip link set ibs9 up"
	done
	agree infiniband || failed=yes
	for node in n1 n2; do on $node ip link delete ibs9; done
	[ -z "${failed-}" ]
	has '^rank 0: NCCL [0-9]+ meets at 10.9.0.11 on hsn0;'
}

@test "a single network: berth sets nothing, and NCCL finds it" {
	for node in n1 n2; do on $node sh -c 'ip address flush dev hsn0; ip link set hsn0 down'; done
	agree alone
	has "^rank 1: NCCL [0-9]+ meets at 10.1.0.12 on eth0; .* NCCL_SOCKET_IFNAME '': agrees"
}

@test "all other layouts" {
	local name address
	while read -r name address; do
		echo "# $name"
		layout "$name"
		agree "also-$name" || failed="${failed-} $name"
		has "^rank 1: NCCL [0-9]+ meets at $address;" || failed="${failed-} $name"
		undo
	done <<-'T'
		closed 10.9.0.12 on hsn0
		down 10.1.0.12 on eth0
		shared 10.1.0.12 on eth0
		nodns 10.9.0.12 on hsn0
		debian 10.9.0.12 on hsn0
		port 10.9.0.12 on hsn0
		prefix 10.9.0.12 on hsn0
		slow 10.9.0.12 on hsn0
		lost 10.1.0.12 on eth0
	T
	echo "failed:${failed-}"
	[ -z "${failed-}" ]
	layout twice
	batch also-twice -N3 <<-S
	"\$BERTH" run --ranks-per-node 1 -- "$NCCL_ID"
	S
	[ "$status" = 0 ]
	[ "$(grep -c ' on eth0;.*: agrees$' <<<"$output")" = 3 ]
}
