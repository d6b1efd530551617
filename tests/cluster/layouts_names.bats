# SPDX-License-Identifier: BSD-3-Clause
# Names, ports and neighbours: what a job meets on a working network (layouts.bash).

load layouts.bash

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

@test "two jobs at once on the same nodes" {
	layout two
	local node1=n1 node2=n2 fast1=hsn0 fast2=hsn0 all all1 all2 fast kind=GLOO
	can GLOO || kind=MPI
	# Each job starts ranks twice, over the management network: train for twice as long, too.
	MPI=${MPI/n=512/n=1024}
	MPI=${MPI/steps 32/steps 64}
	if can MPI; then begin; else kind=; fi
	# Each job waits until the other has started, so that they train at the same time.
	for i in 1 2; do
		submit "both$i" -N2 -n2 --mem-per-cpu=50 -w n1,n2 <<-S
		touch here$i
		until [ -e here1 ] && [ -e here2 ]; do sleep 0.05; done
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
