# SPDX-License-Identifier: BSD-3-Clause
# Networks with a fault: berth names it, and the ranks still meet (layouts.bash).

load layouts.bash

@test "the fast NIC is down on one node: berth names the node and uses the other network" {
	layout down
	meet down
	[ "$status" = 0 ]
	has '^rank 1 at 10.1.0.11:[0-9]+ gloo eth0'
	has "^berth: warning: .*hsn0 \(10.9.0.11\).*only 1 of 2 nodes can reach it; n2's hsn0 is down"
	meet down-asked --iface hsn0
	[ "$status" = 76 ]
	has '^berth: error: no address of n1 can serve .*hsn0 10.9.0.11 \(.*n2'
	check down-check n1,n2
	[ "$status" = 76 ]
	says 'FAULT network n2 hsn0 is down here, so the job would use a slower network'
	has '^berth: error: 1 fault on 2 nodes$'
	trains MPI eth0 eth0
}

@test "no data passes over the fast network of one node: berth uses the other network and says why" {
	command -v nft >/dev/null || skip "no nft (Debian: nftables)"
	layout small
	meet small
	[ "$status" = 0 ]
	has '^rank 1 at 10.1.0.11:[0-9]+ gloo eth0'
	has "^berth: warning: .*hsn0 \(10.9.0.11\).*only 1 of 2 nodes can reach it; n2 connects to it, but no data passes \(compare the MTUs\)"
	trains MPI eth0 eth0
}

@test "two nodes have the same fast address: berth does not use it and names both" {
	layout twice
	batch twice -N3 <<-'S'
	"$BERTH" run --ranks-per-node 1 -- sh -c 'echo "rank $RANK at $MASTER_ADDR"'
	"$BERTH" run --ranks-per-node 1 --iface hsn0 -- sh -c 'echo "rank $RANK at $MASTER_ADDR"'
	S
	[ "$status" = 76 ]
	has '^berth: warning: .*hsn0 \(10.9.0.11\).*n2 and n3 both have the address 10.9.0.13'
	has '^rank 2 at 10.1.0.11$'
	has '^berth: error: no address of n1 can serve .*n2 and n3 both have the address 10.9.0.13'
	check twice-check n1,n2,n3
	[ "$status" = 76 ]
	says 'FAULT network n2 hsn0 has the address 10.9.0.13, and so has n3'
	says 'FAULT network n3 hsn0 has the address 10.9.0.13, and so has n2'
	saysnt 'FAULT reach'
	trains MPI eth0 eth0 n2 n3
}

@test "another node has the same fast address as the first node" {
	layout shared
	meet shared
	[ "$status" = 0 ]
	has '^berth: warning: .*hsn0 \(10.9.0.11\) .*: n1 and n2 both have the address 10.9.0.11'
	has '^rank 1 at 10.1.0.11'
	check shared-check n1,n2
	[ "$status" = 76 ]
	says 'FAULT network n1 hsn0 has the address 10.9.0.11, and so has n2'
	says 'FAULT network n2 hsn0 has the address 10.9.0.11, and so has n1'
	saysnt 'FAULT reach' # each node reaches itself at that address, which refuses the connection
	trains MPI eth0 eth0
}

@test "the fast network silently drops the packets of one node" {
	layout lost
	meet lost
	[ "$status" = 0 ]
	has '^rank 1 at 10.1.0.11:[0-9]+ gloo eth0'
	has '^berth: warning: .*hsn0 \(10.9.0.11\) .*only 1 of 2 nodes can reach it; n2 cannot'
	check lost-check n1,n2,n3
	[ "$status" = 76 ]
	local fault='FAULT reach n2 its hsn0 10.9.0.12 does not answer: '
	fault+='(connects are dropped silently|no host on this network).*, according to all other nodes'
	says "$fault"
	has '^berth: error: 1 fault on 3 nodes$'
	trains MPI eth0 eth0
}

@test "a fast-looking NIC that is slow" {
	layout slow
	meet slow
	[ "$status" = 0 ]
	has '^rank 1 at 10.9.0.11:[0-9]+ gloo hsn0'
	trains MPI
	lag n1
	check slow-check n1,n2,n3
	[ "$status" = 76 ]
	says 'FAULT ring n3 receives from n2 at [0-9]+ Mb/s over hsn0, whose nominal speed is much higher; the best link has [0-9]+ Mb/s'
	saysnt 'FAULT ring n1 '
	says 'ok ring n1 '
	saysnt 'FAULT ring n[1-3] [0-9]+ MiB were sent' # nor because a counter is late
}
