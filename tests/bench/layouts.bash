# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# On each network of tests/cluster/layouts*.bats, the same PyTorch script (tests/cluster/ddp.py, one
# rank on each of two nodes, gloo) started twice:
#   berth     berth run --ranks-per-node 1 -- python3 ddp.py
#   by hand   a torchrun on every node, whose rendezvous is the first address of `hostname -I` on the first
#             node (--rdzv_backend=c10d), as in many published scripts
# Prints whether it trains, over which NIC its bytes went, and how long it took, or else the error. As root:
#     python3 tests/cluster/cluster.py --nodes 3 -- bash tests/bench/layouts.bash BUILD/bin/berth [LAYOUT...]
# The result is the table in docs/networks.md.
set -u
SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
BERTH=$(realpath "$1")
PROBE=
shift
# shellcheck source=tests/cluster/support.bash
. "$SOURCE/tests/cluster/support.bash"
LIMIT=${LIMIT:-90} # seconds for torchrun
TORCHRUN=$(command -v torchrun) || { echo "layouts: no torchrun" >&2; exit 77; }
export HERE LIMIT TORCHRUN
# Debian 12's torchrun needs these two under Python 3.11.
export PET_REDIRECTS=1 PET_TEE=1 TORCHELASTIC_ERROR_FILE=

rows=(
	"plain|management first, fast second"
	"closed|management closed to all but Slurm's ports"
	"renamed|fast NIC named differently on each node"
	"bridges|docker0 and virbr0 with the same address everywhere"
	"down|fast NIC down on one node"
	"twice|two nodes with the same fast address"
	"shared|the first node's fast address is another's too"
	"nodns|no DNS for the host names"
	"debian|/etc/hosts maps the own name to 127.0.1.1"
	"port|port 29500 taken on the first node"
	"prefix|hsn0 beside hsn0.2093"
	"v6|IPv6 only on the fast network"
	"two|two jobs at once on the same nodes"
	"lost|packets lost without a word on the fast network"
	"slow|fast-looking NIC that sends 100 Mb/s"
)

# counters: the bytes that each NIC has sent, one "eth0 123" per line.
counters() {
	for node in n1 n2 n3; do
		on $node bash -c 'cd /sys/class/net; for nic in *; do
			case $nic in lo | *-[pq]) ;; *) echo "$nic $(cat "$nic/statistics/tx_bytes")" ;; esac; done'
	done
}

# busiest BEFORE AFTER: "hsn0 99.9 %", with the name on n1 first if they differ.
busiest() {
	paste -d' ' "$1" "$2" | awk '
		{ d = $4 - $2; all += d; by[$1] += d }
		END {
			for (nic in by) if (by[nic] > all / 10) names = names (names ? " and " : "") nic
			for (nic in by) if (by[nic] > all / 10) sum += by[nic]
			if (all > 4000000) printf "%s, %.1f %%", names, 100 * sum / all
		}'
}

berth_script() {
	cat <<-'S'
	begin=$(date +%s%N)
	timeout "$LIMIT" "$BERTH" run --ranks-per-node 1 -- /usr/bin/python3 "$HERE/ddp.py"
	code=$?
	echo "TOOK $((($(date +%s%N) - begin) / 100000000))"
	exit $code
	S
}

hand_script() {
	cat <<-'S'
	begin=$(date +%s%N)
	head_node_ip=$(hostname -I | awk '{print $1}')
	timeout "$LIMIT" srun -N2 --ntasks=2 --ntasks-per-node=1 --overlap "$TORCHRUN" --nnodes=2 \
		--nproc_per_node=1 --rdzv_id="$SLURM_JOB_ID" --rdzv_backend=c10d \
		--rdzv_endpoint="$head_node_ip:29500" "$HERE/ddp.py"
	code=$?
	echo "TOOK $((($(date +%s%N) - begin) / 100000000))"
	exit $code
	S
}

# judge NAME: one cell.
judge() {
	local took word nics
	took=$(sed -n 's/^TOOK \([0-9]*\)\([0-9]\)$/\1.\2 s/p;s/^TOOK \([0-9]\)$/0.\1 s/p' <<<"$output" | tail -n 1)
	nics=$(busiest "$SHARE/before" "$SHARE/after")
	if [ "$status" = 0 ] && [ "$(grep -c 'rank [01] of 2 .* trained' <<<"$output")" = 2 ]; then
		word=$(grep -oE 'berth: warning: rendezvous and traffic.*' <<<"$output" | head -n 1)
		echo "trains over ${nics:-loopback}; $took${word:+; says: *${word#berth: warning: }*}"
		return
	fi
	word=$(grep -oE '^berth: error: .*' <<<"$output" | tail -n 1)
	[ -n "$word" ] || word=$(grep -oE '[A-Za-z.]*([Ee]rror|Exception|Timeout): [^"]*' <<<"$output" |
		grep -v '^srun\|^slurmstepd\|^error:' | head -n 1 | cut -c 1-160)
	[ "$status" != 124 ] || word="no end, stopped; ${word:-no word}"
	echo "**fails** after $took: ${word:-code $status}"
}

# one KIND LAYOUT NAME: the cell.
one() {
	local kind=$1 name=$2 nodes=n1,n2
	[ "$name" != twice ] || nodes=n2,n3
	layout "$name" >&2 || exit 1
	if [ "$name" = two ]; then
		"${kind}_script" | submit other -N2 -n2 --mem-per-cpu=50 -w n1,n2
	fi
	counters >"$SHARE/before"
	"${kind}_script" | submit "row" -N2 -n2 --mem-per-cpu=50 -w "$nodes"
	finish row $((LIMIT + 30)) >&2
	counters >"$SHARE/after"
	judge
	if [ "$name" = two ]; then
		local first=$output
		finish other $((LIMIT + 30)) >&2
		[ "$status" = 0 ] || echo " (the other job: code $status)"
		output=$first
	fi
	scancel --state=RUNNING --state=PENDING --user=root --quiet
	undo >&2
}

echo '| network | `berth run -- python3` | `torchrun` on each node, at the first address of `hostname -I` |'
echo '|---|---|---|'
for row in "${rows[@]}"; do
	name=${row%%|*}
	[ $# = 0 ] || [[ " $* " = *" $name "* ]] || continue
	ours=$(one berth "$name" | tr -d '\n')
	theirs=$(one hand "$name" | tr -d '\n')
	echo "| ${row#*|} | $ours | $theirs |"
done
