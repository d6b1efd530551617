# SPDX-License-Identifier: BSD-3-Clause
# berth check on realistic networks: it passes, or fails with the right message that names the
# node. One cluster; each test undoes its layout.

load support.bash

setup() {
	pretend_ofi
}

teardown() {
	cancel_jobs
	undo
}

@test "three nodes without faults" {
	check well n1,n2,n3 --ckpt "$SHARE"
	[ "$status" = 0 ]
	has '^berth: note: 3 nodes checked, no fault$'
	saysnt FAULT
	says 'ok network n1 hsn0 10.9.0.11, slingshot'
	says 'ok reach all reaches all other nodes'
	says 'ok ring n2 all-reduce of 1 KiB to 4 MiB: sums correct; [0-9]+ Mb/s from n1, [0-9]+ MiB sent over hsn0'
	says 'ok port all reaches the first node at 10.9.0.11 port'
	says 'ok names all all nodes. names resolve'
	says 'ok plugin all libnccl-net-ofi.so'
	says 'ok checkpoint all .*, shared by all nodes'
	[ -z "$(find "$SHARE" -name '.berth-check*')" ]
	nothing_left n1 n2 n3
}

@test "the fast NIC is down on one node" {
	layout down
	check down n1,n2,n3
	[ "$status" = 76 ]
	says 'FAULT network n2 hsn0 is down here, so the job would use a slower network'
	has '^berth: error: 1 fault on 3 nodes$'
}

@test "packets are silently lost on the fast network of one node" {
	layout lost
	check lost n1,n2,n3
	[ "$status" = 76 ]
	local fault='FAULT reach n2 its hsn0 10.9.0.12 does not answer: '
	fault+='(connects are dropped silently|no host on this network).*, according to all other nodes'
	says "$fault"
	saysnt 'FAULT reach n[13] '
}

@test "two nodes have the same fast address" {
	layout twice
	check twins n1,n2,n3
	[ "$status" = 76 ]
	says 'FAULT network n2 hsn0 has the address 10.9.0.13, and so has n3'
	says 'FAULT network n3 hsn0 has the address 10.9.0.13, and so has n2'
}

@test "a fast-looking NIC that is slow" {
	layout slow
	check slow n1,n2,n3
	[ "$status" = 76 ]
	says 'FAULT ring n3 receives from n2 at [0-9]+ Mb/s over hsn0, whose nominal speed is much higher; the best link has [0-9]+ Mb/s'
	saysnt 'FAULT ring n1 '
}

@test "one node lacks a plug-in and has another library version" {
	mkdir -p "$SHARE/none"
	hide n2 "$SHARE/none" "$SHARE/ofi"
	check plugin n1,n2
	[ "$status" = 76 ]
	says 'FAULT plugin n2 no aws-ofi-nccl plug-in: NCCL would silently use TCP'
	says 'ok plugin n1 '
}

@test "a checkpoint directory that is not shared" {
	check local n1,n2 --ckpt /tmp
	[ "$status" = 76 ]
	says 'FAULT checkpoint n1 /tmp is not the same directory on all nodes: files written on n2 are not visible here'
	says 'FAULT checkpoint n2 /tmp is not the same directory on all nodes: files written on n1'
}

@test "names: none resolve, one's own is 127.0.1.1, one resolves to the wrong node or to none" {
	echo '127.0.0.1 localhost' >"$SHARE/hosts"
	printf '127.0.0.1 localhost\n127.0.1.1 n2\n10.1.0.11 n1\n' >"$SHARE/hosts.own"
	printf '127.0.0.1 localhost\n10.1.0.13 n1\n10.1.0.13 n3\n10.1.0.12 n2\n' >"$SHARE/hosts.wrong"
	hide n1 "$SHARE/hosts" /etc/hosts
	hide n2 "$SHARE/hosts.own" /etc/hosts
	check names n1,n2
	[ "$status" = 0 ]
	says 'note names n1 n\[1-2\] do not resolve here'
	says 'note names n2 its own name, n2, is 127.0.1.1'
	hide n3 "$SHARE/hosts.wrong" /etc/hosts
	check wrong n2,n3,n1
	[ "$status" = 76 ]
	says 'FAULT names n3 the name n1 resolves to 10.1.0.13, which is an address of n3'
	# Also an address that no node has, beside 127.0.1.1 for its own name, which is a note alone.
	printf '127.0.0.1 localhost\n127.0.1.1 n3\n10.1.0.99 n1\n10.1.0.12 n2\n' >"$SHARE/hosts.wrong"
	check stale n2,n3,n1
	[ "$status" = 76 ]
	says 'FAULT names n3 the name n1 resolves to 10.1.0.99, which no node of this job has'
}

@test "docker0 everywhere, another name of the fast NIC, IPv6 only: no faults" {
	bridge n1 docker0 172.17.0.1/16
	bridge n2 docker0 172.17.0.1/16
	rename_fast n2 fast7
	check docker n1,n2
	[ "$status" = 0 ]
	says 'ok network n2 fast7 10.9.0.12'
	undo
	for node in n1 n2; do
		on $node sh -c "ip address flush dev hsn0; ip address add fd09::1${node#n}/64 dev hsn0 nodad"
	done
	check v6 n1,n2
	[ "$status" = 0 ]
	says 'ok network n1 hsn0 fd09::11, slingshot'
	says 'ok port all reaches the first node at fd09::11 port'
	says 'MiB sent over hsn0'
}

@test "a node that never connects is named" {
	on n3 ip link set eth0 down
	on n3 ip link set hsn0 down
	run timeout 60 salloc -Q -N3 -w n1,n2,n3 "$BERTH" check --start-timeout 4s
	on n3 ip link set eth0 up
	echo "$output"
	[ "$status" = 76 ]
	table=$(tr -s ' \n' ' ' <<<"$output")
	says 'FAULT agent n3 no agent started within 4 s'
}

@test "by hand: the same command on two machines; the first one prints the table" {
	mkdir -p "$SHARE/hand"
	export BERTH_SECRET_FILE=$SHARE/hand/secret LD_LIBRARY_PATH=$SHARE/ofi
	(umask 077; openssl rand -hex 32 >"$BERTH_SECRET_FILE")
	unset SLURM_CONF
	on n2 timeout 60 "$BERTH" check --nnodes 2 --node-rank 1 --rdzv-endpoint 10.1.0.11:4719 >"$SHARE/hand/second" 2>&1 3>&- &
	second=$!
	run on n1 timeout 60 "$BERTH" check --nnodes 2 --node-rank 0 --rdzv-endpoint 10.1.0.11:4719
	echo "$output"
	wait $second || true
	cat "$SHARE/hand/second"
	[ "$status" = 0 ]
	table=$(tr -s ' \n' ' ' <<<"$output")
	says 'ok ring [^ ]+ all-reduce of 1 KiB to 4 MiB: sums correct; [0-9]+ Mb/s from [^ ]+, [0-9]+ MiB sent over hsn0'
	says 'berth: note: 2 nodes checked, no fault'
}
