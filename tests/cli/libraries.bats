# SPDX-License-Identifier: BSD-3-Clause
# Do the libraries that are installed read the variables that berth sets? Each library's own tool, or
# the library itself, is asked in a rank of two pretended nodes. That the bytes then go there is shown
# in tests/cluster (layouts, torch); NCCL's choice is in tests/cluster/nccl.bats.

load ../support/berth

# ranked COMMAND...: its output in the two ranks.
ranked() {
	expect 0 timeout 60 "$BERTH" run --launcher loopback -N 2 --ranks-per-node 1 -q -- "$@"
}

# both PATTERN: each of the two ranks says it.
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

@test "PMIx: its connections" {
	need pmix_info libpmix-bin
	# It breaks its lines at the terminal's width.
	ranked sh -c 'pmix_info --param all all --level 9 | tr -s " \n" " "; echo'
	both 'ptl_base_if_include" \(current value: "127.0.0.0/8", data source: environment'
}

@test "UCX" {
	need ucx_info ucx-utils
	ranked ucx_info -c
	both '^UCX_NET_DEVICES=lo$'
	# The device of that name is one of its own list.
	run ucx_info -d
	grep -qE 'Device: lo$' <<<"$output"
}

@test "libfabric" {
	need fi_info libfabric-bin
	ranked fi_info -e
	both '^# FI_TCP_IFACE: String'
}

@test "Gloo and TensorPipe, in the torch that is here" {
	library=$(/usr/bin/python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null) ||
		skip 'no PyTorch (Debian: python3-torch)'
	library=$(find -L "$library/lib" /usr/lib -name 'libtorch_cpu.so*' 2>/dev/null | head -1)
	grep -qa GLOO_SOCKET_IFNAME "$library"
	grep -qa TP_SOCKET_IFNAME "$library"
	ranked sh -c 'echo "$GLOO_SOCKET_IFNAME $TP_SOCKET_IFNAME"'
	both '^lo lo$'
}
