# SPDX-License-Identifier: BSD-3-Clause
# Do the installed libraries read the variables that berth sets? Each library, or its own tool, runs
# as a rank on two simulated nodes. tests/cluster (layouts, torch) shows that the bytes then take that
# network; tests/cluster/nccl.bats tests NCCL's choice.

load ../support/berth

# ranked COMMAND...: run it as two ranks and keep their output.
ranked() {
	expect 0 timeout 60 "$BERTH" run --launcher loopback -N 2 --ranks-per-node 1 -q -- "$@"
}

# both PATTERN: both ranks print it.
both() { [ "$(grep -cE -- "$1" <<<"$output")" = 2 ] || { echo "not said twice: $1"; return 1; }; }

@test "Open MPI: its TCP transport and its out-of-band channel" {
	need ompi_info openmpi-bin
	ranked sh -c 'ompi_info --param all all --level 9 --parsable | grep -aE "tcp_if_include:(value|source)"'
	both 'btl_tcp_if_include:value:127.0.0.0/8'
	both 'btl_tcp_if_include:source:environment'
	if ompi_info --version | grep -q 'v4'; then
		both 'oob_tcp_if_include:value:127.0.0.0/8'
		both 'oob_tcp_if_include:source:environment'
	fi
}

@test "UCX" {
	need ucx_info ucx-utils
	ranked ucx_info -c
	both '^UCX_NET_DEVICES=lo$'
	# UCX's own list must hold a device of that name.
	run ucx_info -d
	grep -qE 'Device: lo$' <<<"$output"
}

@test "libfabric" {
	need fi_info libfabric-bin
	ranked fi_info -e
	both '^# FI_TCP_IFACE: String'
}

@test "Gloo and TensorPipe, in the installed torch" {
	library=$(/usr/bin/python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null) ||
		skip 'no PyTorch (Debian: python3-torch)'
	library=$(find -L "$library/lib" /usr/lib -name 'libtorch_cpu.so*' 2>/dev/null | head -1)
	grep -qa GLOO_SOCKET_IFNAME "$library"
	# Debian's PyTorch 2.14 is built without TensorPipe.
	! grep -qa TensorPipe "$library" || grep -qa TP_SOCKET_IFNAME "$library"
	ranked sh -c 'echo "$GLOO_SOCKET_IFNAME $TP_SOCKET_IFNAME"'
	both '^lo lo$'
}
