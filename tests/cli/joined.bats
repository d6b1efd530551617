# SPDX-License-Identifier: BSD-3-Clause
# Ranks that do not meet the others at MASTER_PORT. The ranks load a file with the name of PyTorch's
# library instead of PyTorch. Looks are taken from 0.25 s on, and ranks are named after 30 s, so the
# jobs run side by side.

load ../support/berth

setup() {
	make_dir
	cd "$DIR"
	for library in libtorch_cpu.so libmpich.so.12 libpmix.so.2; do
		head -c 4096 /dev/zero >$library
	done
	cat >rank.py <<-'P'
	# rank.py SECONDS RANKS [LIBRARY...]: ranks in the list meet the others; rank 0 listens.
	import mmap, os, socket, sys, time

	rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
	loaded = []
	for library in sys.argv[3:] or (["libtorch_cpu.so"] if sys.argv[2] != "-" else []):
	    with open(library, "rb") as file:
	        loaded.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
	kept = []
	brief = sys.argv[1] == "8" and sys.argv[2] == "0123"
	if brief:
	    time.sleep(max(0, float(open("start").read()) + 7.1 - time.time()))
	if str(rank) in sys.argv[2]:
	    if rank == 0:
	        kept.append(socket.create_server(("127.0.0.1", port)))
	        for _ in sys.argv[2][1:]:
	            kept.append(kept[0].accept())
	    for _ in range(100 if rank else 0):
	        try:
	            kept.append(socket.create_connection(("127.0.0.1", port)))
	            break
	        except OSError:
	            time.sleep(0.1)
	if sys.argv[2] == "local" and rank == 0: # as the tutorials' MASTER_ADDR=localhost
	    kept.append(socket.create_server(("127.0.0.1", 0)))
	    kept.append(socket.create_connection(kept[0].getsockname()))
	    kept.append(kept[0].accept())
	if sys.argv[2] == "013": # until they are named
	    while "| rank 2, process " not in open("some").read():
	        time.sleep(0.1)
	time.sleep(0.5 if brief else float(sys.argv[1]))
	P
}

# A tool that is quicker than gdb.
stack_tool() {
	mkdir bin
	printf '#!/bin/sh\necho "#0 stand_in ()"\n' >bin/eu-stack
	chmod +x bin/eu-stack
	PATH=$DIR/bin:$PATH
}

# Podman's processes: the program is a child of conmon, outside the group of podman run.
podman_stand_in() {
	mkdir -p image/bin
	touch image/bin/sh
	cat >bin/podman <<-'P'
	#!/usr/bin/env python3
	import ctypes, os, sys

	if sys.argv[1] == "rm":
	    sys.exit()
	begin = next(i for i, word in enumerate(sys.argv) if word.endswith(":O")) + 1
	done, write = os.pipe()
	if not os.fork():
	    if os.fork():
	        os._exit(0)
	    os.setsid()
	    ctypes.CDLL(None).prctl(15, b"conmon", 0, 0, 0) # PR_SET_NAME
	    program = os.fork()
	    if not program:
	        os.setsid()
	        os.execvp(sys.argv[begin], sys.argv[begin:])
	    os.write(write, bytes([os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])]))
	    os._exit(0)
	sys.exit(os.read(done, 1)[0])
	P
	chmod +x bin/podman
}

# job NAME SECONDS RANKS [OPTION...]
job() {
	local name=$1 seconds=$2 ranks=$3

	shift 3
	"$BERTH" run -n 4 "$@" -- python3 rank.py "$seconds" "$ranks" >"$name" 2>&1 3>&- &
}

@test "ranks that have not connected after 30 s are named with their stacks; if none has, the end says so" {
	stack_tool
	# Looks are rare after 2 s, in which the ranks of all these jobs together may not have begun.
	job short 1 x
	wait
	job short-meets 0 0123
	wait
	date +%s.%N >start
	job some 0 013
	job all 36 0123
	job local 33 local --launcher loopback -N 2
	job local-one 33 local
	job none 8 x
	job brief 8 0123 # they meet for 0.5 s, perhaps between two looks
	job other 8 - # programs that do not load PyTorch
	job node 8 x --per-node
	"$BERTH" run --role meet -n 1 -- sleep 8 : --role ranks -n 2 -- python3 rank.py 8 x >roles 2>&1 3>&- &
	wait
	"$BERTH" run -n 2 -- python3 rank.py 5 - libmpich.so.12 >mpich 2>&1 3>&- &
	"$BERTH" run -n 2 -- python3 rank.py 5 - libmpich.so.12 libpmix.so.2 >pmix 2>&1 3>&- &
	podman_stand_in
	"$BERTH" run -n 2 --container ./image --container-runtime podman -- python3 rank.py 5 - libmpich.so.12 >podman 2>&1 3>&- &
	"$BERTH" run -n 2 --hang-timeout 3s --container ./image --container-runtime podman -- sleep 60 >hangs 2>&1 3>&- &
	wait
	for name in some all local local-one none brief other node roles short short-meets mpich pmix podman hangs; do
		echo "---- $name"
		cat $name
	done
	grep -q 'warning: after 30 s, 3 ranks have connected to MASTER_PORT, and 1 has not: 2\. ' some
	grep -q '  | rank 2, process ' some
	! grep -E '  \| rank [013],' some || false
	grep -q 'warning: 4 ranks have loaded PyTorch or JAX, but none has connected to another one' none
	grep -q 'but none has connected to another one' short
	grep -q 'warning: after 30 s, rank 0 on .* listens at localhost, and ranks on other nodes (such as rank 2 on ' local
	! grep 'but none' local || false
	for name in all local-one brief other node roles short-meets; do
		! grep -E 'MASTER_PORT|rank 2' $name || false
	done
	! grep 'but none' some || false
	for name in mpich podman; do
		grep -q 'warning: 2 ranks have loaded MPICH or a relative of it without PMIx' $name
	done
	! grep MPICH pmix || false
	grep -qE '\| rank [01], process [0-9]+ \(sleep 60 \)$' hangs
}
