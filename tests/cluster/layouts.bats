# SPDX-License-Identifier: BSD-3-Clause
# Realistic networks, good and bad. Each test checks the rendezvous address, the warnings, the result of
# berth check, and that a training's bytes go over the chosen NIC, with berth's own trainer (comm mpi)
# and with PyTorch (gloo). All tests share one cluster, and each undoes its layout. SUITE=quick runs one
# of the two trainings per test, full runs both.

load support.bash # layout describes the networks

setup() {
	pretend_ofi
}

teardown() {
	cancel_jobs
	undo
}

# meet NAME [BERTH OPTIONS]: run a job on n1 and n2 that prints its rendezvous address.
meet() {
	local name=$1
	shift
	batch "$name" -N2 -w n1,n2 <<-S
	"\$BERTH" run --ranks-per-node 1 -v $* -- sh -c 'echo "rank \$RANK at \$MASTER_ADDR:\$MASTER_PORT gloo \$GLOO_SOCKET_IFNAME nccl \$NCCL_SOCKET_IFNAME ompi \$OMPI_MCA_btl_tcp_if_include"'
	S
}

MPI='"$BERTH" train convnet --ranks-per-node 1 --data synthetic:1x28x28,n=512 --batch 8 --steps 25'
# Open MPI unloads plug-ins that still own memory, so ASan cannot name them in a suppression.
MPI="$MPI --env ASAN_OPTIONS=${ASAN_OPTIONS-}:detect_leaks=0"
GLOO='"$BERTH" run --ranks-per-node 1 -- /usr/bin/python3 "$HERE/ddp.py"'
export HERE

can() { # KIND
	case $1 in
	MPI) [ -n "$MPI_SUM" ] ;;
	GLOO) /usr/bin/python3 -c 'import importlib.util as i; exit(not i.find_spec("torch"))' ;;
	esac
}

begin() {
	all1=$(sent "$node1") all2=$(sent "$node2")
	fast=$(($(bytes "$node1" "$fast1") + $(bytes "$node2" "$fast2")))
}

# over: at most 2 % of the bytes that the two nodes sent since begin went over other NICs than the fast ones.
over() {
	fast=$(($(bytes "$node1" "$fast1") + $(bytes "$node2" "$fast2") - fast))
	all=$(($(sent "$node1") - all1 + $(sent "$node2") - all2))
	echo "$all bytes sent, $fast of them over $fast1 and $fast2"
	[ $fast -gt 4000000 ] && [ $((fast * 100)) -ge $((all * 98)) ]
}

# trains KIND [FAST1 FAST2 [NODE1 NODE2]]: two ranks train, in the quick suite with this KIND only. FAST1
# and FAST2 are the NICs that must carry the data on NODE1 and NODE2.
trains() {
	local kind quick=$1 fast1=${2:-hsn0} fast2=${3:-hsn0} node1=${4:-n1} node2=${5:-n2}
	local all all1 all2 fast
	for kind in MPI GLOO; do
		[ "$SUITE" = full ] || [ $kind = "$quick" ] || continue
		can $kind || continue
		begin
		batch "train-$kind" -N2 -w "$node1,$node2" <<<"${!kind}"
		[ "$status" = 0 ] || return 1
		has '(loss .* images/s|rank 1 of 2 .* trained)'
		over || return 1
	done
}

# well NAME: berth check on n1 and n2 finds no fault.
well() {
	check "$1-check" n1,n2
	[ "$status" = 0 ] && has '^berth: note: 2 nodes checked, no fault$' && saysnt FAULT
}

@test "management first, fast second" {
	layout plain
	meet plain
	[ "$status" = 0 ]
	has '^rank 0 at 10.9.0.11:[0-9]+ gloo hsn0 nccl hsn0 ompi 10.9.0.0/24$'
	has '^rank 1 at 10.9.0.11:[0-9]+ gloo hsn0 nccl hsn0 ompi 10.9.0.0/24$'
	well plain
	trains MPI
}

@test "management is closed to all but Slurm's ports" {
	layout closed
	take_port n2 4999
	expect 124 on n1 timeout 1 bash -c '</dev/tcp/10.1.0.12/4999' # packets are dropped silently, without a refusal
	on n1 timeout 5 bash -c '</dev/tcp/10.9.0.12/4999'
	free_port
	meet closed
	[ "$status" = 0 ]
	has '^rank 1 at 10.9.0.11:[0-9]+ gloo hsn0 nccl hsn0 ompi 10.9.0.0/24$'
	meet closed-asked --iface eth0
	[ "$status" = 76 ]
	has '^berth: error: no address of n1 can serve .*eth0 10.1.0.11 \(only 1 of 2 nodes can reach it; n2 cannot\)'
	well closed
	trains MPI
}

@test "the fast NIC has another name on each node" {
	layout renamed
	meet renamed
	[ "$status" = 0 ]
	has '^rank 0 at 10.9.0.11:[0-9]+ gloo hsn0 nccl hsn0 ompi 10.9.0.0/24$'
	has '^rank 1 at 10.9.0.11:[0-9]+ gloo fast7 nccl fast7 ompi 10.9.0.0/24$'
	well renamed
	says 'ok network n2 fast7 10.9.0.12'
	trains GLOO hsn0 fast7
}

@test "docker0 and virbr0 have the same address everywhere" {
	layout bridges
	[ "$(on n1 cat /sys/class/net/docker0/operstate)" = up ]
	meet bridges
	[ "$status" = 0 ]
	has '^rank 1 at 10.9.0.11:[0-9]+ gloo hsn0'
	well bridges
	trains MPI
}

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

@test "no DNS for the names of the nodes" {
	layout nodns
	run on n1 getent hosts n2
	[ "$status" != 0 ]
	meet nodns
	[ "$status" = 0 ]
	has '^rank 1 at 10.9.0.11'
	well nodns
	says 'note names all n\[1-2\] do not resolve here'
	trains GLOO
}

@test "/etc/hosts maps the own name to 127.0.1.1" {
	layout debian
	meet debian
	[ "$status" = 0 ]
	has '^rank 1 at 10.9.0.11'
	well debian
	says 'note names n1 its own name, n1, is 127.0.1.1'
	says 'note names n2 its own name, n2, is 127.0.1.1'
	trains GLOO
}

@test "port 29500 is taken: berth uses another port, or fails with --port 29500" {
	layout port
	meet port
	[ "$status" = 0 ]
	hasnt ':29500 '
	meet port-asked --port 29500
	[ "$status" = 76 ]
	has '^berth: error: .*29500'
	well port
	check port-asked-check n1,n2 --port 29500
	[ "$status" = 76 ]
	says 'FAULT agent n1 port 29500 is already in use on this node' # (names the node once)
	trains MPI
}

@test "one interface name is a prefix of another: NCCL gets the exact name" {
	layout prefix
	meet prefix
	[ "$status" = 0 ]
	has '^rank 0 at 10.9.0.11:[0-9]+ gloo hsn0 nccl =hsn0 '
	well prefix
	trains MPI
}

@test "IPv6 only on the fast network" {
	layout v6
	meet v6
	[ "$status" = 0 ]
	has '^rank 0 at fd09::11:[0-9]+ gloo hsn0'
	has '^rank 1 at fd09::11:[0-9]+ gloo hsn0'
	well v6
	says 'ok network n1 hsn0 fd09::11, slingshot'
	trains GLOO
}

@test "two jobs at once on the same nodes" {
	layout two
	local node1=n1 node2=n2 fast1=hsn0 fast2=hsn0 all all1 all2 fast kind=GLOO
	can GLOO || kind=MPI
	if can MPI; then begin; else kind=; fi
	# Each job waits until the other has started, so that they train at the same time.
	for i in 1 2; do
		submit "both$i" -N2 -n2 --mem-per-cpu=50 -w n1,n2 <<-S
		touch here$i
		for ((i = 0; i < 400; i++)); do [ -e here1 ] && [ -e here2 ] && break; sleep 0.05; done
		"\$BERTH" run --ranks-per-node 1 -- sh -c 'echo "rank \$RANK at \$MASTER_ADDR:\$MASTER_PORT job \$BERTH_JOB_ID"; sleep 1'
		$([ $i = 1 ] || kind=MPI; [ -z "$kind" ] || echo "${!kind}")
		S
	done
	finish both1
	[ "$status" = 0 ]
	first=$(sed -n 's/^rank 1 at //p' <<<"$output")
	finish both2
	[ "$status" = 0 ]
	second=$(sed -n 's/^rank 1 at //p' <<<"$output")
	[ -n "$first" ] && [ -n "$second" ] && [ "${first% job*}" != "${second% job*}" ]
	[ -z "$kind" ] || over
	well both
}

@test "the fast network silently drops the packets of one node" {
	layout lost
	meet lost
	[ "$status" = 0 ]
	has '^rank 1 at 10.1.0.11:[0-9]+ gloo eth0'
	has '^berth: warning: .*hsn0 \(10.9.0.11\) .*only 1 of 2 nodes can reach it; n2 cannot'
	check lost-check n1,n2,n3
	[ "$status" = 76 ]
	says 'FAULT reach n2 its hsn0 10.9.0.12 does not answer: (connects are dropped silently|no host on this network).*, according to all other nodes'
	has '^berth: error: 1 fault on 3 nodes$'
	trains MPI eth0 eth0
}

@test "a fast-looking NIC that is slow" {
	layout slow
	meet slow
	[ "$status" = 0 ]
	has '^rank 1 at 10.9.0.11:[0-9]+ gloo hsn0'
	check slow-check n1,n2,n3
	[ "$status" = 76 ]
	says 'FAULT ring n3 receives from n2 at [0-9]+ Mb/s over hsn0, whose nominal speed is much higher; the best link has [0-9]+ Mb/s'
	saysnt 'FAULT ring n1 '
	trains MPI
}
