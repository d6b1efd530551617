# SPDX-License-Identifier: BSD-3-Clause
# Ranks are where the plan says, read back from the kernel on this machine.

load ../support/berth

# Each rank copies what the kernel and its environment say about it.
ranks() {
	cat >"$DIR/rank.sh" <<'SH'
grep Cpus_allowed_list: /proc/self/status | cut -f2 >"$1/cpus.$RANK"
echo "$OMP_NUM_THREADS $LOCAL_RANK $WORLD_SIZE" >"$1/env.$RANK"
cp "$BERTH_PLAN_FILE" "$1/plan.$RANK"
SH
	"$BERTH" run "$@" -- sh "$DIR/rank.sh" "$DIR"
}

# check N: the plan's CPUs are the kernel's; disjoint where there are cores enough
check() {
	python3 - "$DIR" "$1" <<'PY'
import json, os, sys
folder, count = sys.argv[1], int(sys.argv[2])

def cpus(text):
    found = set()
    for part in text.strip().split(','):
        first, _, last = part.partition('-')
        found |= set(range(int(first), int(last or first) + 1))
    return found

def read(name):
    return open(os.path.join(folder, name)).read()

allowed = os.sched_getaffinity(0)
seen = []
for rank in range(count):
    plan = json.loads(read(f'plan.{rank}'))
    nodes = plan.get('nodes', [plan])
    planned = nodes[0]['ranks'][rank]
    real = cpus(read(f'cpus.{rank}'))
    assert real == cpus(planned['cpus']), (rank, real, planned)
    assert real <= allowed, (rank, real, allowed)
    threads, local_rank, world = map(int, read(f'env.{rank}').split())
    assert threads == planned['threads'] >= 1, (threads, planned)
    assert (local_rank, world) == (rank, count)
    seen.append(real)
assert len(list(os.scandir(folder))) == 3 * count + 1
if sum(map(len, seen)) <= len(allowed) and count <= len(allowed):
    assert len(set.union(*seen)) == sum(map(len, seen)), f'a CPU twice: {seen}'
else:
    assert count > 1, 'one rank cannot share CPUs with itself'
PY
}

@test "1 rank: the plan's CPUs are the kernel's" {
	ranks -n 1
	check 1
}

@test "2 ranks: the plan's CPUs are the kernel's, no CPU twice" {
	ranks -n 2
	check 2
}

@test "3 ranks: the plan's CPUs are the kernel's" {
	ranks -n 3
	check 3
}

@test "berth run itself restricted: ranks stay within" {
	first=$(grep Cpus_allowed_list: /proc/self/status | cut -f2 | grep -o '^[0-9]*')
	need taskset util-linux
	taskset -c "$first" "$BERTH" run -n 2 -- sh -c \
		'grep Cpus_allowed_list: /proc/self/status | cut -f2' >"$DIR/out"
	[ "$(sort -u "$DIR/out")" = "$first" ]
	[ "$(wc -l <"$DIR/out")" -eq 2 ]
}

@test "hwloc variables of the user do not keep ranks from being bound" {
	HWLOC_SYNTHETIC="node:8 core:8 pu:1" ranks -n 2
	check 2
}

@test "another machine's topology: bound to no CPU of that plan, and it is said" {
	expect 0 env BERTH_TOPOLOGY="$FIXTURES/topo/pci-order-not-numa-order.xml" "$BERTH" run -n 2 -- \
		sh -c 'grep Cpus_allowed_list: /proc/self/status'
	[[ $output == *"another machine"* ]]
	[ "$(grep -c Cpus_allowed_list: <<<"$output")" -eq 2 ]
	# Where there are two CPUs they are shared out.
	if [ "$(nproc)" -ge 2 ]; then
		[ "$(grep Cpus_allowed_list: <<<"$output" | sort -u | wc -l)" -eq 2 ]
	fi
}
