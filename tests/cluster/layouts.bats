# SPDX-License-Identifier: BSD-3-Clause
# Networks that work, in the layouts of real clusters (layouts.bash).

load layouts.bash

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
