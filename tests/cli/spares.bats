# SPDX-License-Identifier: BSD-3-Clause
# Nodes without ranks (spares, or more nodes than ranks) are no nodes of the ranks' job: each variable that counts
# nodes counts those with ranks, also after a spare has replaced a node.

load ../support/berth

# counts OPTIONS...: NAME=VALUE, once for each value that a rank would have, of the variables that count nodes
counts() {
	"$BERTH" run --launcher loopback --dry-run --json "$@" | python3 -c '
import json, sys
names = "GROUP_WORLD_SIZE", "PL_TRAINER_NUM_NODES", "PET_NNODES", "PET_NPROC_PER_NODE", "SLURM_NNODES", "SLURM_STEP_NUM_NODES"
print(*sorted({v["name"] + "=" + v["value"] for node in json.load(sys.stdin)["nodes"] for rank in node["environments"]
               for v in rank if v["name"] in names}))'
}

# ranks: what each rank of the second attempt has written, in the order of ranks
ranks() { cat second.*; }

@test "the plan: a spare, and more nodes than ranks" {
	[ "$(counts -N 3 --spares 1 --max-restarts 1 -n 4 -- true)" = 'GROUP_WORLD_SIZE=2 PL_TRAINER_NUM_NODES=2' ]
	[ "$(counts -N 3 -n 2 -- true)" = 'GROUP_WORLD_SIZE=2 PL_TRAINER_NUM_NODES=2' ]
	fake torchrun exit
	[ "$(PATH="$DIR/bin:$PATH" counts -N 3 --spares 1 --max-restarts 1 -n 4 --per-node -- torchrun)" = 'PET_NNODES=2 PET_NPROC_PER_NODE=2' ]
}

@test "a warning if there are fewer ranks than nodes, not about spares" {
	expect 0 "$BERTH" run --launcher loopback -N 3 --spares 1 --max-restarts 1 -n 4 -- true
	[[ "$output" != *"get no rank"* ]]
	expect 0 "$BERTH" run --launcher loopback -N 3 -n 2 -- true
	[[ "$output" == *"warning: 1 of 3 nodes get no rank: there are fewer ranks than nodes"* ]]
	expect 0 "$BERTH" run --launcher loopback -N 3 --spares 1 --max-restarts 1 -n 1 -- true
	[[ "$output" == *"warning: 1 of 2 nodes get no rank: there are fewer ranks than nodes, not counting spares"* ]]
}

@test "a spare has replaced the first node: nodes are counted and numbered as before" {
	cat >rank.sh <<-'SH'
		set -- first second
		[ "$BERTH_ATTEMPT" = 0 ] || shift
		echo "$RANK/$WORLD_SIZE $NODE_RANK $GROUP_RANK/$GROUP_WORLD_SIZE $BERTH_NODE_RANK $PL_TRAINER_DEVICES*$PL_TRAINER_NUM_NODES" \
			>"$1.$RANK"
		[ "$BERTH_ATTEMPT" = 1 ] && exit 0
		[ "$RANK" = 0 ] && { until [ -e first.1 ] && [ -e first.2 ] && [ -e first.3 ]; do sleep 0.05; done; kill -KILL "$PPID"; }
		exec sleep 60
	SH
	# One more spare stays.
	expect 0 "$BERTH" run --launcher loopback -N 4 --spares 2 --max-restarts 1 -n 4 -- sh rank.sh
	[[ "$output" == *"loop0 is excluded (lost): spare node loop2 replaces it"* ]]
	[ "$(ranks)" = '0/4 0 0/2 0 2*2
1/4 0 0/2 0 2*2
2/4 1 1/2 1 2*2
3/4 1 1/2 1 2*2' ]
	[ "$(cat first.*)" = "$(ranks)" ]
}

@test "torchrun with a spare, also after the spare has replaced a node" {
	/usr/bin/python3 -c 'import torch' 2>/dev/null || skip 'no PyTorch (Debian: python3-torch)'
	[ -x /usr/bin/torchrun ] || skip 'no torchrun'
	/usr/bin/python3 -c 'import torch.distributed as d; d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)' ||
		skip 'this PyTorch has no libuv, without which its torchrun does not start'
	# With and without berth, Debian 12's torchrun needs the first two under its Python 3.11.
	export PET_REDIRECTS=1 PET_TEE=1 OMP_NUM_THREADS=1
	cat >train.py <<-'PY'
		import os, signal, time
		attempt, rank = os.environ['BERTH_ATTEMPT'], os.environ['RANK']
		attempt = ('first', 'second')[int(attempt)]
		with open(f'{attempt}.{rank}', 'w', encoding='utf-8') as file:
		    print(*(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'GROUP_RANK', 'GROUP_WORLD_SIZE', 'LOCAL_RANK')), file=file)
		if attempt == 'first':
		    while not all(os.path.exists(f'first.{rank}') for rank in range(4)):
		        time.sleep(0.05)
		    if rank == '2':
		        # torchrun's parent is the node's agent.
		        with open(f'/proc/{os.getppid()}/stat', encoding='ascii') as file:
		            os.kill(int(file.read().rpartition(')')[2].split()[1]), signal.SIGKILL)
		    time.sleep(60)
	PY
	expect 0 timeout $((60 * ${BERTH_TEST_SLOW:-1})) "$BERTH" run --per-node --launcher loopback -N 3 --spares 1 --max-restarts 1 -n 4 -- \
		/usr/bin/torchrun train.py
	[[ "$output" == *"loop1 is excluded (lost): spare node loop2 replaces it"* ]]
	[ "$(ranks)" = '0 4 0 2 0
1 4 0 2 1
2 4 1 2 0
3 4 1 2 1' ]
	[ "$(cat first.*)" = "$(ranks)" ]
}
