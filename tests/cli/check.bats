# SPDX-License-Identifier: BSD-3-Clause
# berth check on one machine and on simulated nodes, with faults injected by a preloaded library
# (faults.c) and by a fake NVML. Real networks: tests/cluster/check.bats.

load ../support/berth

# run's $status and $output; stdout alone in $table, stderr in $words.
check() {
	run --separate-stderr timeout 60 "$BERTH" check "$@"
	# shellcheck disable=SC2154
	words=$stderr table=$output
	printf '%s\n' "$table" "# $words"
}

# amiss FAULT NODE ARGUMENTS...: with three simulated nodes.
amiss() {
	local fault=$1 node=$2
	shift 2
	check_env=(LD_PRELOAD="$FAULTS" BERTH_FAULT="$fault" BERTH_FAULT_NODE="$node"
		ASAN_OPTIONS="${ASAN_OPTIONS-}:verify_asan_link_order=0")
	run --separate-stderr env "${check_env[@]}" timeout 60 "$BERTH" check --launcher loopback -N 3 "$@"
	table=$output
	printf '%s\n' "$table" "# $stderr"
}

# has TEXT: the table contains TEXT; wrapped lines are joined first.
has() {
	tr -s ' \n' ' ' <<<"$table" | grep -qE -- "$1" || { echo "not in the table: $1"; return 1; }
}

setup() {
	make_dir
	export COLUMNS=200
}

@test "one machine without faults: reports no fault" {
	check
	[ "$status" = 0 ]
	[[ $words == "berth: note: 1 node checked, no fault" ]]
	has '^RESULT PROBE NODE FINDING'
	has "ok versions [^ ]+ berth $BERTH_VERSION, $(uname -m)"
	has 'ok port [^ ]+ reaches the first node at 127.0.0.1 port [0-9]+'
	has 'skipped ring [^ ]+ one node'
	has 'skipped checkpoint [^ ]+ no directory was given with --ckpt'
}

@test "simulated nodes: an all-reduce with checked sums, rates and bytes; JSON follows the schema" {
	mkdir ckpt
	check --launcher loopback -N 4 --ckpt ckpt
	[ "$status" = 0 ]
	has 'ok ring loop0 all-reduce of 1 KiB to 4 MiB: sums correct; [0-9]+ Mb/s from loop3, [0-9]+ MiB sent over lo'
	has 'ok reach all reaches all other nodes'
	has 'ok checkpoint all .*, shared by all nodes'
	[ -z "$(ls -A ckpt)" ]
	# Nothing waits for an agent's exit code, so a sanitizer's report appears only on stderr.
	[[ $words != *Sanitizer* ]]
	check --launcher loopback -N 3 --json
	[ "$status" = 0 ]
	python3 - "$table" <<-'P'
	import json, sys
	check = json.loads(sys.argv[1])
	assert check['schema'] == 'berth.check/1' and check['faults'] == 0, check
	assert [n['node'] for n in check['nodes']] == ['loop0', 'loop1', 'loop2']
	names = ['versions', 'memlock', 'shm', 'checkpoint', 'gpus', 'plugin', 'names', 'clock',
	         'network', 'reach', 'port', 'ring']
	for node in check['nodes']:
	    assert [p['name'] for p in node['probes'] if p['name'] != 'variables'] == names, node
	    for probe in node['probes']:
	        assert probe['result'] in ('ok', 'fault', 'skipped') and probe['seen'], probe
	for i, row in enumerate(check['reach']):
	    for j, words in enumerate(row):
	        lo = [w for w, a in zip(words, check['nodes'][j]['addresses'])
	              if a['address'] == '127.0.0.1']
	        assert lo == ['self' if i == j else 'ok'], (i, j, words)
	P
}

@test "a clock that is ahead, another architecture" {
	amiss clock 1
	[ "$status" = 76 ]
	has 'FAULT clock loop1 its clock is (89|90)\.[0-9]* s ahead of .* Fix: .*chronyd'
	[ "${stderr##*$'\n'}" = "berth: error: 1 fault on 3 nodes" ]
	amiss arch 2
	[ "$status" = 76 ]
	has "FAULT versions loop2 architecture: riscv64 here, $(uname -m) on other nodes"
	has 'ok versions loop\[0-1\]'
}

@test "a full /dev/shm, a full checkpoint directory, and a missing one" {
	amiss shm 0
	[ "$status" = 76 ]
	has 'FAULT shm loop0 /dev/shm has 4 MiB free of 64 MiB: NCCL fails with .* Fix: make it larger'
	mkdir ckpt
	export BERTH_FAULT_FOLDER=$PWD/ckpt
	amiss empty 1 --ckpt ckpt
	[ "$status" = 76 ]
	has 'FAULT checkpoint loop1 .*/ckpt has 0 MiB free'
	check --ckpt nowhere
	[ "$status" = 76 ]
	has 'FAULT checkpoint .*/nowhere: cannot access it: No such file or directory'
}

@test "a file system that hangs on one node delays no other probe and is named" {
	mkdir ckpt
	export BERTH_FAULT_FOLDER=$PWD/ckpt
	amiss folder 2 --ckpt ckpt
	[ "$status" = 76 ]
	has 'FAULT checkpoint loop2 .*/ckpt: no answer in time. Fix: run ls on the directory on that node'
	has 'ok checkpoint loop\[0-1\]'
	has 'ok ring loop2'
	[ -z "$(ls -A ckpt)" ]
}

@test "a prober that dies, and one that never answers" {
	amiss crash 1
	[ "$status" = 76 ]
	has 'FAULT agent loop1 rank 1 on loop1 was killed by signal 9'
	amiss mute 0
	[ "$status" = 76 ]
	has 'FAULT agent loop0 its agent started, but the prober did not answer within 10 s'
	has 'ok versions loop\[1-2\]'
}

@test "a wrong sum is detected" {
	amiss sums 1
	[ "$status" = 76 ]
	has 'FAULT ring .*the sum of [0-9]+ KiB is wrong, first at element [0-9]+'
}

@test "a node whose cores are busy: no fault, and no file stays" {
	mkdir ckpt
	amiss busy 1 --ckpt ckpt
	[ "$status" = 0 ]
	has 'ok reach all reaches all other nodes'
	has 'ok ring loop1 all-reduce of 1 KiB to 4 MiB: sums correct'
	has 'ok checkpoint all .*, shared by all nodes'
	[ -z "$(ls -A ckpt)" ]
}

@test "GPUs that other processes use or that report errors" {
	ln -s "$FAKE_NVML" libnvidia-ml.so.1
	export LD_LIBRARY_PATH=$PWD
	check
	[ "$status" = 76 ]
	has 'FAULT gpus .*GPU 1 \(0000:02:00.0\): NVML: row remapping failed'
	BERTH_FAKE_NVML=held check
	[ "$status" = 76 ]
	has "FAULT gpus [^ ]+ GPU 0 \(0000:01:00.0\) is in use by pid [0-9]+ \([^,]+, user $(id -un)\), 3072 MiB"
	BERTH_FAKE_NVML=ecc check
	[ "$status" = 76 ]
	has 'FAULT gpus [^ ]+ GPU 1 \(0000:02:00.0\): uncorrected memory errors since the driver was loaded: 7'
	BERTH_FAKE_NVML=held CUDA_VISIBLE_DEVICES=1 check
	[ "$status" = 0 ]
	has 'ok gpus [^ ]+ 1 of 2 are granted to this job: not in use, no errors'
}

# tool NAME LINE...: a program of the image, whose output is these lines
tool() { (echo '#!/bin/sh' && printf "echo '%s'\n" "${@:2}") >"image/usr/bin/$1" && chmod +x "image/usr/bin/$1"; }
inside() { check --container image --container-runtime bwrap "$@"; }

@test "an image: what it has, and what does not fit the node" {
	command -v bwrap >/dev/null || skip 'no bwrap'
	load ../cluster/image
	image image
	tool getconf 'glibc 2.17'
	tool python3 PyTorch=2.9.0 CUDA=13.0.48
	tool mpirun 'mpirun (Open MPI) 4.1.6'
	tool ldconfig 'libpmix.so.2 => /libpmix.so.2'
	inside
	[ "$status" = 0 ]
	outside=$(getconf GNU_LIBC_VERSION)
	has "ok container [^ ]+ glibc 2.17 \(${outside#glibc } outside\), CUDA 13.0.48, PyTorch 2.9.0, mpirun \(Open MPI\) 4.1.6"
	tool ldconfig
	inside
	[ "$status" = 0 ]
	has 'note container [^ ]+ mpirun \(Open MPI\) 4.1.6 in the image has no PMIx: each rank would be alone'
	mkdir image/usr/lib/openmpi
	touch image/usr/lib/openmpi/mca_pmix_pmix3x.so
	inside
	has 'ok container'

	ln -s "$FAULTS" libcuda.so.1 # a driver for CUDA 12.8
	LD_LIBRARY_PATH=$PWD inside
	[ "$status" = 76 ]
	has 'FAULT container [^ ]+ the image has CUDA 13.0.48, and the driver here is for CUDA 12. Fix: use an image with an older CUDA'
	CUDA_VERSION=12.9 LD_LIBRARY_PATH=$PWD inside
	[ "$status" = 0 ]
	mkdir -p image/usr/local/cuda-13.0/compat
	touch image/usr/local/cuda-13.0/compat/libcuda.so.1
	LD_LIBRARY_PATH=$PWD inside
	[ "$status" = 0 ]

	BERTH_TOPOLOGY=$FIXTURES/topo/gb200.xml inside
	has 'FAULT container [^ ]+ the image has no libibverbs.so.1: NCCL would silently use TCP'
	tool ldconfig 'libibverbs.so.1 => /libibverbs.so.1'
	BERTH_TOPOLOGY=$FIXTURES/topo/gb200.xml inside
	has 'ok container'

	BERTH_TOPOLOGY=$FIXTURES/topo/grace-hopper.xml inside
	has 'FAULT container [^ ]+ the image has no aws-ofi-nccl plug-in: NCCL would silently use TCP'
	has 'skipped plugin [^ ]+ the image needs it, see container'
	tool ldconfig 'libnccl-net-ofi.so => /libnccl-net-ofi.so'
	BERTH_TOPOLOGY=$FIXTURES/topo/grace-hopper.xml inside
	has 'ok container'

	echo 1 >libold.so.1
	tool ldd 'libc.so.6: version `GLIBC_2.38'"'\\''"' not found' ' libcxi.so.1 => not found' ' libm.so.6 => /libm.so.6 (0x1)'
	touch image/usr/lib/libold.so.1
	inside --bind "$PWD/libold.so.1:/usr/lib/libold.so.1"
	[ "$status" = 76 ]
	has 'FAULT container [^ ]+ /usr/lib/libold.so.1 needs GLIBC_2.38 libcxi.so.1, which the image lacks. Fix: show a build of it'
	BERTH_CONTAINER_BIND=$PWD/libold.so.1:/usr/lib/libold.so.1 inside
	has 'FAULT container [^ ]+ /usr/lib/libold.so.1 needs GLIBC_2.38'
	tool ldd ' libm.so.6 => /libm.so.6 (0x1)'
	BERTH_CONTAINER_BIND=$PWD/libold.so.1:/usr/lib/libold.so.1 inside
	has 'ok container'
	inside --bind /no/such
	[ "$status" = 66 ]
	rm image/bin/sh
	ln -s cat image/bin/sh
	inside
	[ "$status" = 76 ]
	has 'FAULT container [^ ]+ no container starts: sh: invalid option'
	cp -L /bin/true image/usr/bin/true
	ln -sf true image/bin/sh
	inside
	[ "$status" = 76 ]
	has 'FAULT container [^ ]+ no container starts: it ended without a message'
}

@test "a port in use, bad options" {
	python3 -c 'import socket, time
s = socket.socket(socket.AF_INET6); s.bind(("::", 0)); s.listen()
print(s.getsockname()[1], flush=True); time.sleep(60)' >port &
	taker=$!
	within 5 test -s port
	check --port "$(cat port)"
	kill $taker
	[ "$status" = 76 ]
	has "FAULT agent .*port $(cat port) is already in use"
	expect 64 --separate-stderr "$BERTH" check now
	[[ $stderr == "berth: error: unexpected argument 'now'"* ]]
	expect 64 --separate-stderr "$BERTH" check --ckpt ''
	while IFS='|' read -r text arguments; do
		eval "run --separate-stderr \"\$BERTH\" check $arguments"
		echo "$arguments: $status: $stderr"
		[ "$status" = 64 ]
		[[ $stderr == "berth: error: "*"$text"* ]]
	done <<'ROWS'
unrecognized option '--head'|--head 127.0.0.1
unrecognized option '--engine'|--engine fork
choose one of: fork, hand, srun|--launcher nosuch
--master-addr n1:4711: conflicts with --nnodes. Use --rdzv-endpoint|--nnodes 2 --node-rank 0 --master-addr n1:4711
--rdzv-endpoint n1:4711: needs --nnodes and --node-rank|--rdzv-endpoint n1:4711
--node-rank needs --nnodes and --rdzv-endpoint HOST:PORT|--node-rank 1
--nnodes 2 also needs --node-rank and --rdzv-endpoint HOST:PORT|--nnodes 2 --node-rank 0
--rdzv-endpoint n1: expected HOST:PORT|--nnodes 2 --node-rank 0 --rdzv-endpoint n1
--rdzv-endpoint n1:x: expected a port from 1 to 65535|--nnodes 2 --node-rank 0 --rdzv-endpoint n1:x
ROWS
	run --separate-stderr "$BERTH" check --hosts nowhere-at-all
	[ "$status" != 0 ]
}

@test "suspicious variables produce a note" {
	NCCL_SOCKET_IFNAME=nowhere0 check
	[ "$status" = 0 ]
	has 'note variables [^ ]+ NCCL_SOCKET_IFNAME names the interface nowhere0, which no node has'
}

@test "a line of NCCL's configuration file that chooses the network produces a note" {
	printf '# of another cluster\nNCCL_DEBUG=WARN\nNCCL_IB_DISABLE=1\n' >nccl.conf
	NCCL_CONF_FILE=$PWD/nccl.conf check --launcher loopback -N 2
	[ "$status" = 0 ]
	has 'note variables all .*/nccl.conf sets NCCL_IB_DISABLE=1, which NCCL uses here'
	NCCL_CONF_FILE=$PWD/nccl.conf NCCL_IB_DISABLE=0 check --launcher loopback -N 2
	[ "$status" = 0 ]
	run ! has 'nccl.conf'
}

@test "interrupted while waiting" {
	mkdir ckpt
	export BERTH_FAULT_FOLDER=$PWD/ckpt LD_PRELOAD="$FAULTS" BERTH_FAULT=folder BERTH_FAULT_NODE=1
	export ASAN_OPTIONS="${ASAN_OPTIONS-}:verify_asan_link_order=0"
	"$BERTH" check --launcher loopback -N 2 --ckpt ckpt >out 2>err &
	pid=$!
	filled() { [ -n "$(ls -A ckpt)" ]; }
	LD_PRELOAD='' within 30 filled
	LD_PRELOAD='' kill -INT $pid
	unset LD_PRELOAD
	ends 130 $pid err
	[ -z "$(ls -A ckpt)" ]
}
