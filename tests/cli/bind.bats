# SPDX-License-Identifier: BSD-3-Clause
# Ranks run on the CPUs of the plan, as the kernel of this machine reports.

load ../support/berth

# Each rank saves its CPUs according to the kernel, its environment and its plan.
ranks() {
	cat >"$DIR/rank.sh" <<'SH'
grep Cpus_allowed_list: /proc/self/status | cut -f2 >"$1/cpus.$RANK"
echo "$OMP_NUM_THREADS $LOCAL_RANK $WORLD_SIZE" >"$1/env.$RANK"
cp "$BERTH_PLAN_FILE" "$1/plan.$RANK"
SH
	"$BERTH" run "$@" -- sh "$DIR/rank.sh" "$DIR"
}

# check N: the kernel reports the plan's CPUs; they are disjoint if there are enough cores
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

@test "1 rank: the kernel reports the plan's CPUs" {
	ranks -n 1
	check 1
}

@test "2 ranks: the kernel reports the plan's CPUs, and no CPU twice" {
	ranks -n 2
	check 2
}

@test "3 ranks: the kernel reports the plan's CPUs" {
	ranks -n 3
	check 3
}

@test "ranks use only the CPUs to which berth run is restricted" {
	first=$(grep Cpus_allowed_list: /proc/self/status | cut -f2 | grep -o '^[0-9]*')
	need taskset util-linux
	taskset -c "$first" "$BERTH" run -n 2 -- sh -c \
		'grep Cpus_allowed_list: /proc/self/status | cut -f2' >"$DIR/out"
	[ "$(sort -u "$DIR/out")" = "$first" ]
	[ "$(wc -l <"$DIR/out")" -eq 2 ]
}

@test "the user's hwloc variables do not prevent binding" {
	HWLOC_SYNTHETIC="node:8 core:8 pu:1" ranks -n 2
	check 2
}

@test "another machine's topology: ranks are not bound to its CPUs, and berth prints a note" {
	expect 0 env BERTH_TOPOLOGY="$FIXTURES/topo/pci-order-not-numa-order.xml" "$BERTH" run -n 2 -- \
		sh -c 'grep Cpus_allowed_list: /proc/self/status'
	[[ $output == *"another machine"* ]]
	[ "$(grep -c Cpus_allowed_list: <<<"$output")" -eq 2 ]
	# If there are two CPUs, each rank gets one.
	if [ "$(nproc)" -ge 2 ]; then
		[ "$(grep Cpus_allowed_list: <<<"$output" | sort -u | wc -l)" -eq 2 ]
	fi
}
