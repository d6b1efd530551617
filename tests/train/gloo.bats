# SPDX-License-Identifier: BSD-3-Clause
# --comm gloo: what the trainer over MPI does not have. The other tests run with gloo, too: see meson.build.

load support

free_port() {
	python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# rank NUMBER OF PORT OPTIONS: berth-train as that rank, without a launcher
rank() {
	RANK=$1 WORLD_SIZE=$2 LOCAL_RANK=$1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$3 timeout 60 "$BUILD/bin/berth-train" \
		linear --data "$DATA" --steps 2 --no-eval "${@:4}"
}

@test "auto: mpi under a launcher that serves MPI, else gloo, each with the reason; one rank needs neither" {
	line() { grep -h '^computing on cpu ' "$@"; }
	if [[ " $MODULES " == *" comm-mpi "* ]]; then
		train linear -n 2 --data "$DATA" --steps 2 --no-eval 2>err
		[[ "$(line err)" == *"; 2 ranks over mpi (the launcher serves MPI)" ]]
	fi
	port=$(free_port)
	rank 1 2 "$port" 2>err.1 &
	rank 0 2 "$port" 2>err.0
	wait $!
	[[ "$(line err.0)" == *"; 2 ranks over gloo (the launcher serves no MPI)" ]]
	mkdir -p bin lib/modules
	cp "$BUILD/bin/berth" "$BUILD/bin/berth-train" bin
	cp "$BUILD"/lib/modules/{comm-gloo,device-cpu,ranks-pmix}.so lib/modules
	timeout 60 bin/berth train linear -n 2 --data "$DATA" --steps 2 --no-eval 2>err
	[[ "$(line err)" == *"; 2 ranks over gloo (MPI is missing)" ]]
	# Without either, the error names what is missing.
	rm lib/modules/comm-gloo.so
	expect 69 timeout 60 bin/berth train linear -n 2 --data "$DATA" --steps 2
	[[ "$output" == *"2 ranks need MPI or gloo: module comm-mpi.so is not installed"* ]]
	expect 69 timeout 60 bin/berth train linear -n 2 --data "$DATA" --steps 2 --comm gloo
	[[ "$output" == *"2 ranks need gloo: module comm-gloo.so is not installed"* ]]
	train linear -n 1 --data "$DATA" --steps 2 --no-eval 2>err
	[[ "$(line err)" != *over* ]]
}

@test "torchrun's variables: the ranks meet beside MASTER_PORT, where torchrun itself listens" {
	# What torchrun of PyTorch 2.15 sets for a program started with --no_python. (That of Debian 12 fails with it.)
	python3 - "$BUILD/bin/berth-train" linear --data "$DATA" --steps 2 --no-eval <<'PY'
import os, socket, subprocess, sys
agent = socket.create_server(('127.0.0.1', 0))
port = agent.getsockname()[1]
common = {'WORLD_SIZE': '2', 'LOCAL_WORLD_SIZE': '2', 'GROUP_RANK': '0', 'MASTER_ADDR': 'localhost', 'MASTER_PORT': str(port),
          'TORCHELASTIC_USE_AGENT_STORE': 'True', 'TORCHELASTIC_RUN_ID': 'a run', 'TORCHELASTIC_RESTART_COUNT': '0',
          # Of a berth run around torchrun.
          'PMIX_NAMESPACE': 'another', 'PMIX_RANK': '0'}
ranks = [subprocess.Popen(['timeout', '60', *sys.argv[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, **common, 'RANK': str(rank), 'LOCAL_RANK': str(rank)}) for rank in range(2)]
text = ''.join(rank.communicate()[0] for rank in ranks)
print(text)
assert [rank.returncode for rank in ranks] == [0, 0]
assert '; 2 ranks over gloo (the launcher serves no MPI)' in text and ': 2 steps, 2 ranks' in text
PY
}

@test "the same bits in repeats, on 2, 3 and 5 ranks; against MPI the losses of an epoch" {
	# Without shared memory, so that gloo reduces the gradients. Small batches and Winograd's algorithm would magnify
	# the rounding of a sum tenfold per step.
	net() {
		(ulimit -f 20000; train resnet18 --stem cifar -n $n --data synthetic:3x8x8,n=60,classes=5 --batch 8 --cpu-conv direct --lr 0.0001 \
			--epochs 1 --no-eval "$@")
	}
	for n in 2 3 5; do
		net --comm gloo --metrics $n.a
		net --comm gloo --metrics $n.b
		same_rows $n.a $n.b
		[[ " $MODULES " == *" comm-mpi "* ]] || continue
		net --comm mpi --metrics $n.mpi
		# Two numbers have one sum; more depend on the order.
		near_rows $n.a $n.mpi $([ $n = 2 ] && echo 0 || echo 1e-5)
	done
}

@test "bad input: the interface, another gloo, a rank that does not come" {
	expect 64 timeout 60 "$BERTH" train linear -n 2 --data "$DATA" --comm glue
	[[ "$output" == *"unknown communication library 'glue'; expected one of: auto, nccl, mpi, gloo, self"* ]]
	for name in nowhere "a name with blanks" $(printf 'x%.0s' {1..64}); do
		GLOO_SOCKET_IFNAME=$name expect 69 timeout 60 "$BERTH" train linear -n 2 --data "$DATA" --comm gloo
		[[ "${lines[0]}" == *"rank 0: GLOO_SOCKET_IFNAME is $name, but this node has no interface of that name with an address. "* ]]
		[ "${#lines[@]}" -eq 2 ]
	done
	# Only one rank's is bad: that rank reports it, and no other waits.
	expect 69 timeout 60 "$BERTH" run -n 3 -- sh -c '[ $RANK != 2 ] || export GLOO_SOCKET_IFNAME=nowhere
		exec "$BUILD/bin/berth-train" linear --data '"$DATA"' --steps 2 --comm gloo'
	[[ "${lines[-2]}" == *"rank 2: GLOO_SOCKET_IFNAME is nowhere, "* && "${lines[-1]}" == *"rank 2 on "*"exited with code 69" ]]
	# A library whose build ID differs.
	library=$(ldd "$BUILD/lib/modules/comm-gloo.so" | awk '/libgloo/ { print $3 }')
	mkdir other
	python3 - "$library" "other/${library##*/}" <<'PY'
import re, subprocess, sys
notes = subprocess.run(['readelf', '-n', sys.argv[1]], capture_output=True, text=True, check=True).stdout
build = bytes.fromhex(re.search(r'Build ID: (\w+)', notes)[1])
data = open(sys.argv[1], 'rb').read()
assert data.count(build) == 1
open(sys.argv[2], 'wb').write(data.replace(build, bytes(len(build))))
PY
	expect 69 timeout 60 "$BERTH" run -n 3 -- sh -c '[ $RANK != 1 ] || export LD_LIBRARY_PATH=$PWD/other
		exec "$BUILD/bin/berth-train" linear --data '"$DATA"' --steps 2 --comm gloo'
	[[ "$output" == *"rank 0 on "*" has gloo build "*", but rank 1 on "*" has gloo build 000000000000: they are incompatible"* ]]
	expect 76 rank 0 2 "$(free_port)" --comm gloo --comm-timeout 1s
	[[ "$output" == *"after 1000 ms still waiting for rank 1. Look for earlier errors"* ]]
}

@test "an interface without an address" {
	unshare -rn ip link add none type veth peer name other || skip "cannot make an interface here"
	expect 69 timeout 60 unshare -rn sh -c 'ip link set lo up && ip link add none type veth peer name other &&
		GLOO_SOCKET_IFNAME=none "$BERTH" train linear -n 2 --data '"$DATA"' --comm gloo'
	[[ "$output" == *"GLOO_SOCKET_IFNAME is none, but this node has no interface of that name with an address. "* ]]
}

@test "a rank that is killed, or hangs: the others end, and name it with its node" {
	# Without berth, which would report the killed rank itself, and without shared memory.
	port=$(free_port)
	for number in 0 1 2; do
		(ulimit -f 20000
			export RANK=$number WORLD_SIZE=3 LOCAL_RANK=$number MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
			exec "$BUILD/bin/berth-train" resnet18 --stem cifar --data synthetic:3x8x8,n=32,classes=5 --batch 4 --no-eval \
				--steps 100000000 --epochs 1000000 --log-every 1 --metrics m --comm gloo --comm-timeout 20s) \
			>/dev/null 2>err.$number 3>&- &
		pids[number]=$!
	done
	wait_for m/metrics.jsonl 3
	kill -KILL "${pids[1]}"
	wait "${pids[1]}" || true
	for number in 0 2; do
		ends 76 "${pids[number]}" err.$number
		grep -q "rank $number on $(hostname) lost a connection: .*; missing ranks: 1 on $(hostname)\." err.$number
	done
	rm -r m
	timeout 120 "$BERTH" train linear -n 3 --data "$DATA" --comm gloo --steps 100000000 --no-eval --log-every 50 --metrics m \
		--comm-timeout 6s >out 2>err 3>&- &
	run_pid=$!
	wait_for m/metrics.jsonl 3
	hung=$(trainer_of 1) || { kill "$run_pid"; wait "$run_pid"; return 1; }
	kill -STOP "$hung"
	ends 76 "$run_pid" err
	grep -q "rank [02] on $(hostname) waited 6 s in a collective; missing ranks: 1 on $(hostname)\." err
	[ ! -e "/proc/$hung" ]
}
