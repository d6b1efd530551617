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

@test "--xml: the topology as hwloc XML, from which the same plan follows" {
	unset BERTH_TOPOLOGY
	"$BERTH" plan --xml >"$DIR/here.xml"
	"$BERTH" plan --topology "$DIR/here.xml" -n 1 >"$DIR/again"
	"$BERTH" plan -n 1 | diff - "$DIR/again"
	grep -q 'type="PCIDev"' "$DIR/here.xml" || [ ! -e /sys/bus/pci/devices/0000:00:00.0 ]
	refuses 65 "version 3" --xml --topology "$TOPO/hwloc-3.xml"
	refuses 66 "nosuch.xml" --xml --topology nosuch.xml
	expect 74 sh -c '"$BERTH" plan --xml >/dev/full'
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
	refuses 64 "has no usable GPU. Omit the option" -t "$TOPO/no-gpu.xml" -n 1 --gpus-per-rank 1
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

@test "HGX B200: InfiniBand that only manages NVLink is planned for no GPU; Grace-Hopper: cores, GPU and NIC of one module" {
	for nics in '' -roce; do
		expect 0 "$BERTH" plan --topology "$FIXTURES/topo/nvlink-management$nics.xml" --json
		python3 -c 'import json, sys
ranks = json.load(sys.stdin)["ranks"]
nics = [[nic["rdma"] for nic in rank["nics"]] for rank in ranks]
assert nics == [["rdmap%ds0" % n] for n in (33, 34, 65, 66, 161, 162, 193, 194)], nics' <<<"$output"
	done
	expect 0 "$BERTH" plan --topology "$FIXTURES/topo/grace-hopper.xml" --json
	python3 -c 'import json, sys
ranks = json.load(sys.stdin)["ranks"]
for i, rank in enumerate(ranks):
    assert [nic["net"] for nic in rank["nics"]] == ["hsn%d" % i], rank
    assert rank["cpus"] == "%d-%d" % (8 * i, 8 * i + 7), rank
assert len(ranks) == 4' <<<"$output"
}

@test "GB200 and Aurora: each GPU has cores and a fabric NIC of its own package" {
	expect 0 "$BERTH" plan --topology "$FIXTURES/topo/gb200.xml" --json
	python3 -c 'import json, sys
ranks = [(rank["cpus"], [nic["rdma"] for nic in rank["nics"]]) for rank in json.load(sys.stdin)["ranks"]]
assert ranks == [("0-3", ["mlx5_0"]), ("4-7", ["mlx5_1"]), ("8-11", ["mlx5_4"]), ("12-15", ["mlx5_5"])], ranks' <<<"$output"
	expect 0 "$BERTH" plan --topology "$FIXTURES/topo/aurora.xml" --json
	python3 -c 'import json, sys
ranks = json.load(sys.stdin)["ranks"]
nics = [[nic["net"] for nic in rank["nics"]] for rank in ranks]
assert nics == [["hsn0"], ["hsn1"], ["hsn2", "hsn3"], ["hsn4"], ["hsn5"], ["hsn6", "hsn7"]], nics
for i, rank in enumerate(ranks):
    first = [int(part.split("-")[0]) for part in rank["cpus"].split(",")]
    assert all(cpu % 26 // 13 == i // 3 for cpu in first), rank' <<<"$output"
	expect 0 "$BERTH" plan --topology "$FIXTURES/topo/aurora.xml"
	[[ "$output" == *ZE_AFFINITY_MASK=0,1,2,3,4,5* ]]
}

@test "MI250X and MI300A: cores and NICs as OLCF, LUMI and LLNL publish them; ROCR_VISIBLE_DEVICES hands them over" {
	[ -e "${BERTH_TEST_TOPO-}/frontier-tioga.xml" ] || skip "no captured topologies (BERTH_TEST_TOPO)"
	cores() { python3 -c 'import json, sys
print(*(rank["cpus"].split(",")[0] + "/" + rank["nics"][0]["net"] for rank in json.load(sys.stdin)["ranks"]))' <<<"$output"; }
	expect 0 "$BERTH" plan --topology "$BERTH_TEST_TOPO/frontier-tioga.xml" --json
	[ "$(cores)" = "48-55/hsi0 56-63/hsi0 16-23/hsi1 24-31/hsi1 0-7/hsi2 8-15/hsi2 32-39/hsi3 40-47/hsi3" ]
	expect 0 "$BERTH" plan --topology "$BERTH_TEST_TOPO/elcap-spx.xml" --json
	[ "$(cores)" = "0-23/hsi0 24-47/hsi1 48-71/hsi2 72-95/hsi3" ]
	expect 0 "$BERTH" plan --topology "$BERTH_TEST_TOPO/elcap-spx.xml"
	[[ "$output" == *ROCR_VISIBLE_DEVICES=0,1,2,3* ]]
	expect 0 "$BERTH" plan --topology "$BERTH_TEST_TOPO/pmix-intel-composite.xml"
	[[ "$output" == *ZE_AFFINITY_MASK=0,1,2,3* ]]
}

@test "--svg: every fixture becomes well-formed XML in which each core, GPU and NIC is where the plan has it" {
	for file in "$FIXTURES"/topo/*.xml; do
		[[ $file == */hwloc-3.xml ]] && continue
		expect 0 --separate-stderr "$BERTH" plan -t "$file" --json --svg "$DIR/plan.svg"
		echo "$output" >"$DIR/plan.json"
		python3 - "$DIR/plan.svg" "$DIR/plan.json" "$file" <<-'P'
		import json, os, sys
		import xml.etree.ElementTree as tree

		root, plan = tree.parse(sys.argv[1]).getroot(), json.load(open(sys.argv[2]))
		ns = '{http://www.w3.org/2000/svg}'
		assert root.find(ns + 'title').text.startswith('The berths of ') and root.get('role') == 'img'
		described = root.find(ns + 'desc').text
		texts = [text.text for text in root.iter(ns + 'text')]
		assert texts[0].startswith('Ranks on ') and 'PIX one PCI switch' in texts[-1], (sys.argv[3], texts)
		shapes = [shape.get('class') for shape in root.iter(ns + 'rect')]
		for rank in plan['ranks']:
		    number = rank['local_rank']
		    assert f'Rank {number}:' in described and rank['cpus'] in described, (sys.argv[3], number)
		    for gpu in rank['gpus']:
		        assert f'GPU {gpu["index"]}: rank {number}' in texts, (sys.argv[3], texts)
		    same = [other for other in plan['ranks'] if other['local_rank'] % 8 == number % 8]
		    wanted = sum(other['threads'] + len(other['gpus']) for other in same)
		    shared = len({other['cpus'] for other in plan['ranks']}) < len(plan['ranks'])
		    assert shared or shapes.count(f'c{number % 8}') == wanted, (sys.argv[3], number, wanted)
		height = float(root.get('viewBox').split()[3])
		lowest = max((float(shape.get('y')) + float(shape.get('height')) for shape in root.iter(ns + 'rect')), default=0)
		assert lowest < height and os.path.getsize(sys.argv[1]) < 100000, (sys.argv[3], lowest, height)
		P
	done
	# Names are not trusted.
	sed 's/<topology/<!-- -->&/; s/hsn0/a\&lt;b]]\&gt;/; s/hsn1/\xc3\x80\xe2\x80\xae/' "$FIXTURES/topo/aurora.xml" >"$DIR/names.xml"
	expect 0 "$BERTH" plan -t "$DIR/names.xml" --svg "$DIR/plan.svg"
	grep -q 'a&lt;b]]&gt;' "$DIR/plan.svg"
	grep -q $'\xc3\x80\xef\xbf\xbd' "$DIR/plan.svg"
}

@test "--svg: files that cannot be written, and a name that is missing" {
	for bad in "$DIR/none/x.svg" "$DIR" /proc/x.svg; do
		expect 73 "$BERTH" plan --svg "$bad"
		[[ "$output" == *"berth: error: "*"${bad%/x.svg}"* ]]
	done
	expect 64 "$BERTH" plan --svg
	expect 64 "$BERTH" plan --svg ''
	expect 66 "$BERTH" plan -t none.xml --svg "$DIR/new.svg"
	[ ! -e "$DIR/new.svg" ]
}
