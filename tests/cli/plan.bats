# SPDX-License-Identifier: BSD-3-Clause
# berth plan: the plan of one node from an hwloc XML. BERTH: the program.

load ../support/berth
TOPO=$FIXTURES/topo

# check EXPRESSION: EXPRESSION is true; plan is plan.json, ranks its ranks.
check() { holds plan.json "(lambda ranks: $1)(plan['ranks'])"; }

# refuses CODE TEXT ARGS...: berth plan exits with CODE and prints TEXT on stderr only
refuses() {
	expect "$1" --separate-stderr --keep-empty-lines "$BERTH" plan "${@:3}"
	[[ $stderr == *"$2"* && $'\n'$stderr == *$'\n'"berth: error: "* && -z $output ]]
}

@test "JSON has the documented members" {
	"$BERTH" plan --topology "$TOPO/pci-order-not-numa-order.xml" -n 4 --json >"$DIR/plan.json"
	check "plan['schema'] == 'berth.plan/1' and plan['warnings'] == []"
	check "[r['local_rank'] for r in ranks] == [0, 1, 2, 3]"
	check "[g['index'] for r in ranks for g in r['gpus']] == [0, 1, 2, 3]"
	check "[g['ordinal'] for r in ranks for g in r['gpus']] == [0, 1, 2, 3]"
	check "[r['numa'] for r in ranks] == ['3', '1', '2', '0']"
	check "all(g.keys() == {'pci', 'index', 'ordinal', 'uuid'} for r in ranks for g in r['gpus'])"
	check "all({'local_rank', 'gpus', 'cpus', 'numa', 'threads', 'nics', 'why'} <= r.keys() for r in ranks)"
	check "all(n.keys() == {'net', 'rdma', 'port', 'pci', 'kind', 'path', 'up'} for r in ranks for n in r['nics'])"
	check "all(n['kind'] == 'infiniband' and n['path'] == 'PIX' for r in ranks for n in r['nics'])"
}

@test "the text shows each rank with its reason, and warnings" {
	"$BERTH" plan --topology "$TOPO/gcd-on-cache.xml" -n 20 >"$DIR/out"
	[ "$(grep -cE '^ +[0-9]+ +[0-9]+ 0000:' "$DIR/out")" -eq 20 ]
	grep -q 'more ranks (20) than cores (16)' "$DIR/out"
	grep -q 'why' "$DIR/out"
	[ "$(grep -c $'\033' "$DIR/out")" -eq 0 ]
}

@test "without -n: one rank per GPU, else one" {
	"$BERTH" plan --topology "$TOPO/partitions.xml" --json >"$DIR/plan.json"
	check "len(ranks) == 6"
	"$BERTH" plan --topology "$TOPO/no-gpu.xml" --json >"$DIR/plan.json"
	check "len(ranks) == 1 and ranks[0]['gpus'] == []"
}

@test "the same input gives the same plan" {
	for n in 1 3 7; do
		"$BERTH" plan -t "$TOPO/management-nics.xml" -n $n --json >"$DIR/a"
		"$BERTH" plan -t "$TOPO/management-nics.xml" -n $n --json >"$DIR/b"
		cmp "$DIR/a" "$DIR/b"
	done
}

@test "options" {
	"$BERTH" plan -t "$TOPO/path-classes.xml" -n 1 --json >"$DIR/plan.json"
	check "plan['free_cpus'] == '8-11'"
	"$BERTH" plan -t "$TOPO/path-classes.xml" -n 1 --all-cores --json >"$DIR/plan.json"
	check "plan['free_cpus'] == '' and ranks[0]['cpus'] == '0-11'"
	"$BERTH" plan -t "$TOPO/pci-order-not-numa-order.xml" -n 2 --gpus-per-rank 2 --json >"$DIR/plan.json"
	check "[[g['ordinal'] for g in r['gpus']] for r in ranks] == [[0, 1], [0, 1]]"
	check "plan['visible_devices'] is None"
	"$BERTH" plan -t "$TOPO/locality-machine.xml" -n 2 --json >"$DIR/plan.json"
	check "plan['visible_devices'] == '0,2,1,3'"
	"$BERTH" plan -t "$TOPO/pci-order-not-numa-order.xml" -n 2 --gpus-visible own --json >"$DIR/plan.json"
	check "plan['visible_devices'] is None and ranks[1]['gpus'][0]['ordinal'] == 0"
}

@test "another machine's topology is read without this one's device list" {
	CUDA_VISIBLE_DEVICES=1 "$BERTH" plan -t "$TOPO/partitions.xml" --json >"$DIR/plan.json"
	check "len(ranks) == 6"
	BERTH_TOPOLOGY=$TOPO/partitions.xml "$BERTH" plan --json >"$DIR/plan.json"
	check "len(ranks) == 6"
}

@test "this machine can be planned" {
	"$BERTH" plan -n 1 --json >"$DIR/plan.json"
	check "len(ranks) == 1 and ranks[0]['cpus'] and ranks[0]['threads'] >= 1"
}

@test "impossible plans are rejected" {
	refuses 66 "no-such-file.xml" -t "$DIR/no-such-file.xml"
	refuses 65 "hwloc XML of version 3" -t "$TOPO/hwloc-3.xml"
	echo 'not xml' >"$DIR/bad.xml"
	refuses 65 "bad.xml" -t "$DIR/bad.xml"
	head -c 3000 "$TOPO/partitions.xml" >"$DIR/cut.xml"
	refuses 65 "cut.xml" -t "$DIR/cut.xml"
	refuses 66 "$DIR" -t "$DIR"
	refuses 64 "--ranks" -t "$TOPO/no-gpu.xml" -n 0
	refuses 64 "--ranks" -t "$TOPO/no-gpu.xml" -n -1
	refuses 64 "--ranks" -t "$TOPO/no-gpu.xml" -n 1e3
	refuses 64 "--ranks" -t "$TOPO/no-gpu.xml" -n 99999999999999999999
	refuses 64 "1 rank with 1 GPU per rank" -t "$TOPO/no-gpu.xml" -n 1 --gpus-per-rank 1
	refuses 64 "--gpus-visible" -t "$TOPO/no-gpu.xml" --gpus-visible some
	refuses 64 "unexpected argument" -t "$TOPO/no-gpu.xml" extra
}

@test "a full disk is reported" {
	[ -c /dev/full ] || skip "no /dev/full here"
	status=0
	"$BERTH" plan -t "$TOPO/partitions.xml" --json >/dev/full 2>"$DIR/err" || status=$?
	[ "$status" -eq 74 ]
	grep -q '^berth: error: ' "$DIR/err"
}
