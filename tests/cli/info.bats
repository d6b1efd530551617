# SPDX-License-Identifier: BSD-3-Clause
# berth info: the stages with their reasons. BERTH: the program.

load ../support/berth

# check EXPRESSION: EXPRESSION is true; info is info.json, env its environment.
check() { holds info.json "(lambda env: $1)({var['name']: var for var in info['environment']})"; }

@test "JSON has the documented members" {
	"$BERTH" info -n 2 --json >"$DIR/info.json"
	check "info['schema'] == 'berth.info/1'"
	check "{'alloc', 'ranks', 'inventory', 'network', 'plan', 'environment', 'warnings'} <= info.keys()"
	check "info['inventory']['format'] == 'berth.inventory/1' and info['alloc']['rdzv_endpoint'] is None"
	check "info['ranks'] == 2 and len(info['plan']['ranks']) == 2"
	check "info['alloc']['source'] == 'local' and len(info['alloc']['nodes']) == 1"
	check "info['network']['address'] in ('127.0.0.1', '::1')"
	check "info['rank'] is None"
}

@test "every choice has a reason" {
	"$BERTH" info -n 2 --json >"$DIR/info.json"
	check "all(var['from'] in ('option', 'user', 'site', 'scheduler', 'berth', 'start') for var in info['environment'])"
	check "all(var['why'] for var in info['environment'])"
	check "all(rank['why'] for rank in info['plan']['ranks'])"
	check "info['alloc']['why'] and info['network']['why']"
}

@test "the environment is that of the requested rank" {
	"$BERTH" info -n 3 --rank 2 --json >"$DIR/info.json"
	check "env['RANK']['value'] == '2' and env['WORLD_SIZE']['value'] == '3'"
	check "env['RANK']['from'] == 'berth'"
}

@test "the user's value wins and is shown as the user's" {
	OMP_NUM_THREADS=3 "$BERTH" info -n 2 --json >"$DIR/info.json"
	check "env['OMP_NUM_THREADS']['value'] == '3' and env['OMP_NUM_THREADS']['from'] == 'user'"
}

@test "an interface that the node lacks is a warning" {
	NCCL_SOCKET_IFNAME=nowhere0 "$BERTH" info -n 1 --json >"$DIR/info.json"
	check "any('interface nowhere0' in text for text in info['warnings'])"
	run env NCCL_SOCKET_IFNAME=nowhere0 "$BERTH" info -n 1
	[[ $output == *Warnings*nowhere0* ]]
}

@test "text shows the stages in order" {
	expect 0 "$BERTH" info -n 2 -v
	[[ $output == *Allocation*Inventory*Network*Plan*Environment* ]]
	[[ $output == *"2 ranks"* ]]
	[[ $output == *"WORLD_SIZE"* ]]
}

@test "the first five lines answer where, how many, which network and what is wrong; variables need -v or --rank" {
	expect 0 "$BERTH" info -n 2
	[[ ${lines[0]} == "berth "*" on $HOST" ]]
	[[ ${lines[1]} == "  where     local, job local-"* ]]
	[[ ${lines[2]} == "  size      1 node, 2 ranks; GPUs here: "[0-9]* ]]
	[ "${lines[3]}" = "  network   one node: its ranks use loopback" ]
	[[ ${lines[4]} == "  warnings  "[0-9]* ]]
	[[ $output == *"one agent per node with fork"* && $output != *"child process of berth run"* ]]
	[[ $output != *Environment* && $output != *WORLD_SIZE* ]]
	expect 0 "$BERTH" info -n 2 --rank 1
	[[ $output == *WORLD_SIZE* && $output != *"child process of berth run"* ]]
	expect 0 "$BERTH" info -n 2 --verbose
	[[ $output == *"one agent per node with fork:"*"child process of berth run"*WORLD_SIZE* ]]
	expect 0 env NCCL_SOCKET_IFNAME=nowhere0 "$BERTH" info -n 1
	grep -q '^  warnings  [1-9][0-9]*: .' <<<"$output"
}

@test "berth plans for another machine's topology file and reports that" {
	cp "$FIXTURES/topo/pci-order-not-numa-order.xml" "$DIR/node.xml"
	BERTH_TOPOLOGY=$DIR/node.xml "$BERTH" info --json >"$DIR/info.json"
	check "info['inventory']['this_system'] is False"
	check "len(info['inventory']['gpus']) == info['ranks'] > 1"
	check "env['CUDA_VISIBLE_DEVICES']['from'] == 'berth'"
	run env BERTH_TOPOLOGY="$DIR/node.xml" "$BERTH" info
	[[ $(echo $output) == *"from another machine, so ranks cannot be bound"* ]]
}

@test "warns if Slurm's granted GPUs differ from those of a simulated machine" {
	cp "$FIXTURES/topo/pci-order-not-numa-order.xml" "$DIR/node.xml"
	job() {
		env BERTH_TOPOLOGY="$DIR/node.xml" SLURM_JOB_ID=7 SLURM_JOB_NODELIST=n1 SLURMD_NODENAME=n1 \
			SLURM_TASKS_PER_NODE=1 SLURM_JOB_END_TIME=4102444800 "$@" "$BERTH" info --json >"$DIR/info.json"
	}
	job SLURM_GPUS_ON_NODE=2 CUDA_VISIBLE_DEVICES=0,1
	check "info['alloc']['nodes'][0]['gpus'] == 2 < info['ranks']"
	check "sum('GPUs granted here: 2 (CUDA_VISIBLE_DEVICES is \'0,1\'), but the plan uses all %d GPUs' % info['ranks'] in text
		for text in info['warnings']) == 1"
	check "'the list 0,1 does not apply to another machine' in env['CUDA_VISIBLE_DEVICES']['why']"
	job SLURM_GPUS_ON_NODE="$(python3 -c "import json; print(json.load(open('$DIR/info.json'))['ranks'])")"
	check "not any('GPUs granted' in text for text in info['warnings'])"
}

@test "in a rank: its place, its CPUs, and the origin of each variable" {
	"$BERTH" run -n 2 --env NCCL_DEBUG=INFO -- sh -c 'if [ $RANK = 1 ]; then exec "$@"; fi' sh \
		env OMP_NUM_THREADS=7 "$BERTH" info --json >"$DIR/info.json"
	check "info['ranks'] == 2 and info['rank']['rank'] == 1 and info['rank']['local_rank'] == 1"
	check "info['rank']['bound_to'] == info['plan']['ranks'][1]['cpus']"
	check "env['RANK']['value'] == '1' and env['RANK']['from'] == 'berth'"
	check "int(env['MASTER_PORT']['value']) > 0 and env['MASTER_PORT']['from'] == 'berth'"
	check "env['OMP_NUM_THREADS']['value'] == '7' and env['OMP_NUM_THREADS']['from'] == 'user'"
	check "not any('MASTER_ADDR' in text for text in info['warnings'])"
}

@test "in a rank: a plan file at the end of a long path" {
	"$BERTH" run -n 1 --env WHERE="$DIR/$(printf 'a%.0s' {1..250})/$(printf 'b%.0s' {1..250})/$(printf 'c%.0s' {1..250})" -- sh -c '
		mkdir -p "$WHERE" && cp "$BERTH_PLAN_FILE" "$WHERE" && BERTH_PLAN_FILE=$WHERE/plan.json exec "$@"' \
		sh "$BERTH" info --json --rank 0 >"$DIR/info.json"
	check "env['BERTH_PLAN_FILE']['value'].endswith('c/plan.json')"
}

@test "colour on a terminal only, and NO_COLOR turns it off" {
	need script
	script -qec true /dev/null >/dev/null 2>&1 || skip "no pseudo terminal can be had here"
	escape=$(printf '\033')
	run "$BERTH" info -n 1
	[[ $output != *"$escape"* ]]
	run env -u NO_COLOR TERM=xterm script -qec "$BERTH info -n 1" /dev/null
	[[ $output == *"$escape["* ]]
	run env NO_COLOR=1 TERM=xterm script -qec "$BERTH info -n 1" /dev/null
	[[ $output == *Allocation* ]]
	[[ $output != *"$escape["* ]]
}

@test "bad input: a message and the documented exit code" {
	refused() { # CODE WORD COMMAND...
		expect "$1" "${@:3}"
		[[ $output == *"$2"* ]]
	}
	refused 64 "--ranks" "$BERTH" info -n 0
	refused 64 "--rank" "$BERTH" info -n 2 --rank 2
	refused 64 "surplus" "$BERTH" info surplus
	refused 64 "no-such" "$BERTH" info --no-such
	refused 64 "--verbose" "$BERTH" info --verbose=1
	refused 64 "--verbose" "$BERTH" info --verbose=
	refused 64 "verbos3" "$BERTH" info --verbos3
	refused 64 "x" "$BERTH" info -vx
	refused 64 "2" "$BERTH" info -v 2
	refused 64 "--rank" "$BERTH" info -v -n 2 -r 2
	refused 66 "$DIR/none.xml" env BERTH_TOPOLOGY="$DIR/none.xml" "$BERTH" info
	echo '<topology' >"$DIR/broken.xml"
	refused 65 "$DIR/broken.xml" env BERTH_TOPOLOGY="$DIR/broken.xml" "$BERTH" info
	refused 66 "BERTH_PLAN_FILE" env BERTH_PLAN_FILE="$DIR/none.json" "$BERTH" info
	echo '{"nodes":[]}' >"$DIR/plan.json"
	refused 65 "BERTH_PLAN_FILE" env BERTH_PLAN_FILE="$DIR/plan.json" "$BERTH" info
}

@test "output that cannot be written is an error" {
	expect 74 sh -c '"$BERTH" info -n 1 >/dev/full'
	expect 74 sh -c '"$BERTH" info -n 1 --json >/dev/full'
}
