# SPDX-License-Identifier: BSD-3-Clause
# The lines of docs/guides/roles.md for Redis, Dask, TensorBoard and PyTorch's RPC, as printed, on three nodes of a real Slurm
# with two networks. They need redis-server, and RECIPES: the bin directory of a virtual environment with distributed, redis,
# tensorboard and torch.

load support.bash

setup() {
	[ -n "${RECIPES-}" ] && [ -x "$RECIPES/dask" ] && command -v redis-server >/dev/null ||
		skip "needs redis-server, and RECIPES, the bin directory of an environment with distributed, redis, tensorboard and torch"
	cd "$SHARE"
	mkdir -p bin runs
	ln -sf "$BERTH" bin/berth
	export PATH=$SHARE/bin:$RECIPES:$PATH
	cat >ask_redis.py <<-'P'
	import os, sys, redis
	store = redis.Redis(sys.argv[1], int(sys.argv[2]), password=os.environ['BERTH_ROLE_SECRET'])
	print('ranks so far', store.incr('ranks'), 'at', sys.argv[1])
	P
	cat >client.py <<-'P'
	import sys
	from distributed import Client
	with Client(sys.argv[1]) as client:
	    client.wait_for_workers(2, timeout=60)
	    print('sum', sum(client.gather(client.map(lambda x: x * x, range(10)))), 'by', *sorted(client.scheduler_info()['workers']))
	P
	cat >train.py <<-'P'
	import os, urllib.request
	print('board', urllib.request.urlopen(os.environ['BERTH_ROLE_BOARD_URLS']).status, os.environ['BERTH_ROLE_BOARD_ADDR'])
	P
	cat >ps.py <<-'P'
	import os, sys, torch, torch.distributed.rpc as rpc
	role, workers = os.environ['BERTH_ROLE'], int(os.environ['BERTH_ROLE_WORKER_WORLD_SIZE'])
	os.environ.update(MASTER_ADDR=sys.argv[1], MASTER_PORT=sys.argv[2])
	rank = 0 if role == 'ps' else 1 + int(os.environ['RANK'])
	total = torch.zeros(1)
	def add(x):
	    global total
	    total += x
	    return total.clone()
	rpc.init_rpc(f'{role}{rank}', rank=rank, world_size=1 + workers)
	if rank:
	    print('sum', rpc.rpc_sync('ps0', add, args=(torch.ones(1),)).item(), 'of', workers, 'at', sys.argv[1])
	rpc.shutdown()
	P
}

teardown() { cancel_jobs; }

# The line of the guide that has this role first.
recipe() {
	local line
	line=$(sed -n "/^berth run --role $1 /,/^\`\`\`/{/^\`\`\`/q;p}" "$SOURCE/docs/guides/roles.md")
	[[ $line == "berth run"* ]]
	submit recipe -N3 <<<"$line 2>&1"
	finish recipe 120
	[ "$status" = 0 ]
}

@test "Redis" {
	recipe store
	has '^\[train [0-9]+\] ranks so far 1 at 10.9.0.11$'
	hasnt 'requirepass'
}

@test "Dask" {
	recipe scheduler
	has '^\[client 0\] sum 285 by tcp://10.9.0.1[1-3]:[0-9]+ tcp://10.9.0.1[1-3]:[0-9]+'
}

@test "TensorBoard" {
	recipe board
	has '^\[train 0\] board 200 10.9.0.11$'
}

@test "a parameter server" {
	"$RECIPES/python" -c 'import torch' || skip "no torch"
	recipe ps
	has '^\[worker 0\] sum [0-9.]+ of [0-9]+ at 10.9.0.11$'
}
