# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2034 # the variables are for the tests
# What layouts*.bats share: in each layout of the network, where the ranks meet and what berth prints;
# what berth check reports; and that a training's bytes travel over the chosen NIC, with berth's own trainer
# (comm mpi) and with PyTorch (gloo). One cluster; each test undoes its layout.
# SUITE=quick runs one of the two trainings in each layout, SUITE=full both.

load support.bash # layout describes each of them

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
	"\$BERTH" run --ranks-per-node 1 -v $* -- sh -c 'echo "rank \$RANK at \$MASTER_ADDR:\$MASTER_PORT" \\
		"gloo \$GLOO_SOCKET_IFNAME nccl \$NCCL_SOCKET_IFNAME ompi \$OMPI_MCA_btl_tcp_if_include"'
	S
}

MPI='"$BERTH" train convnet --ranks-per-node 1 --data synthetic:1x28x28,n=512 --batch 8 --steps 32'
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
