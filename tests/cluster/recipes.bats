# SPDX-License-Identifier: BSD-3-Clause
# The lines of docs/guides/roles.md for Redis, Dask, Spark, TensorBoard and PyTorch's RPC, as printed, on three nodes of a real
# Slurm with two networks, and of the stand-in for PBS. They need redis-server, and RECIPES: the bin directory of a virtual
# environment with distributed, redis and tensorboard; two of them also torch, and pyspark and Java.

load support.bash

setup() {
	[ -n "${RECIPES-}" ] && [ -x "$RECIPES/dask" ] && command -v redis-server >/dev/null ||
		skip "needs redis-server, and RECIPES, the bin directory of an environment with distributed, redis and tensorboard"
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
	cat >spark.py <<-'P'
	import os, socket, time
	from pyspark.sql import SparkSession
	spark = SparkSession.builder.getOrCreate()
	def node(_):
	    time.sleep(0.2)
	    yield os.environ['BERTH_NODE_ADDR']
	sc, seen = spark.sparkContext, set()
	while len(seen) < 3:
	    seen |= set(sc.parallelize(range(12), 12).mapPartitions(node).collect())
	print('sum', sc.parallelize(range(10)).map(lambda x: x * x).sum(), 'by', *sorted(seen), 'driver', sc.getConf().get('spark.driver.host'))
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

# recipe ROLE [pbs]: the line of the guide that has this role first, on three nodes.
recipe() {
	local line
	line=$(sed -n "/^berth run --role $1 /,/^\`\`\`/{/^\`\`\`/q;p}" "$SOURCE/docs/guides/roles.md")
	[[ $line == "berth run"* ]]
	if [ "${2-}" = pbs ]; then
		pbs_start recipe 3:ncpus=4:ngpus=4 -l place=scatter <<<"PATH=$SHARE/bin:$RECIPES:\$PATH; $line 2>&1"
	else
		submit recipe -N3 <<<"$line 2>&1"
	fi
	finish recipe 180
	[ "$status" = 0 ]
	check_$1
}

check_store() {
	has '^\[train [0-9]+\] ranks so far 1 at 10.9.0.11$'
	hasnt 'requirepass'
}

check_scheduler() { has '^\[client 0\] sum 285 by tcp://10.9.0.1[1-3]:[0-9]+ tcp://10.9.0.1[1-3]:[0-9]+'; }

check_master() { has '^\[client 0\] sum 285 by 10.9.0.11 10.9.0.12 10.9.0.13 driver 10.9.0.11$'; }

check_board() { has '^\[train 0\] board 200 10.9.0.11$'; }

check_ps() { has '^\[worker 0\] sum [0-9.]+ of [0-9]+ at 10.9.0.11$'; }

# able ROLE: succeed if its programs are installed.
able() {
	case $1 in
	master) command -v java >/dev/null && [ -x "$RECIPES/spark-class" ] && cp spark.py client.py ;;
	ps) "$RECIPES/python" -c 'import torch' ;;
	esac
}

@test "Redis" { recipe store; }

@test "Dask" { recipe scheduler; }

@test "Spark" {
	able master || skip "no Spark or no Java"
	recipe master
}

@test "TensorBoard" { recipe board; }

@test "a parameter server" {
	able ps || skip "no torch"
	recipe ps
}

@test "PBS: the same lines" {
	local role
	python3 "$HERE/pbs.py" begin n1 n2 n3 3>&-
	for role in store scheduler board ps master; do
		! able $role || recipe $role pbs
	done
}
