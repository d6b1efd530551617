# SPDX-License-Identifier: BSD-3-Clause
# Those programs of examples/ that need only Debian's PyTorch. cluster-frameworks runs the others.

load ../support/berth

setup() {
	/usr/bin/python3 -c 'import torch.distributed' 2>/dev/null || skip 'no PyTorch (Debian: python3-torch)'
	make_dir
	mkdir bin
	ln -s /usr/bin/python3 bin/python
	cp -r "$SOURCE/examples" .
	export PATH="$DIR/bin:$(dirname "$BERTH"):$PATH" OMP_NUM_THREADS=1 USE_LIBUV=0 # Debian 13's PyTorch has no libuv
}

teardown() { [ -z "${DIR-}" ] || remove_dir; }

@test "sweep.sh: a run of ddp.py per learning rate, and a table" {
	run sh examples/sweep.sh
	[ "$status" = 0 ]
	[[ $output == *'3 runs: 3 ended with code 0'* ]]
	grep -qx "rank 0 of 1 on $HOST: loss falls" runs/0.05/rank-0000.log
}

@test "ddp.py on two ranks" {
	expect 0 "$BERTH" run -n 2 -- python examples/ddp.py
	[[ $output == *"rank 0 of 2 on $HOST: loss falls"* && $output == *"rank 1 of 2 on $HOST: loss falls"* ]]
}
