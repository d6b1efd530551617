# SPDX-License-Identifier: BSD-3-Clause
# PyTorch under a real Slurm: with and without torchrun.

load support.bash

setup() {
	/usr/bin/python3 -c 'import torch.distributed' 2>/dev/null || skip 'no PyTorch (Debian: python3-torch)'
	TORCHRUN=$(command -v torchrun) || skip 'no torchrun'
	export TORCHRUN HERE
	# Debian 12's torchrun needs these two under its Python 3.11, with and without berth.
	export PET_REDIRECTS=1 PET_TEE=1 TORCHELASTIC_ERROR_FILE=
}

teardown() {
	cancel_jobs
	undo
}

# trained RANKS: every rank has printed its line, half of them on each node.
trained() {
	[ "$(grep -cE "rank [0-9]+ of $1 on n1 local [0-9]+ .*trained" <<<"$output")" = $(($1 / 2)) ]
	[ "$(grep -cE "rank [0-9]+ of $1 on n2 local [0-9]+ .*trained" <<<"$output")" = $(($1 / 2)) ]
}

# quiet: at most 2 % of the bytes sent since begin went over the management NICs.
begin() {
	slow=$(($(bytes n1 eth0) + $(bytes n2 eth0))) fast=$(($(bytes n1 hsn0) + $(bytes n2 hsn0)))
}
over_the_fast_one() {
	slow=$(($(bytes n1 eth0) + $(bytes n2 eth0) - slow))
	fast=$(($(bytes n1 hsn0) + $(bytes n2 hsn0) - fast))
	echo "management $slow bytes, fast $fast bytes"
	[ $fast -gt 4000000 ] && [ $((slow * 100)) -le $(((slow + fast) * 2)) ]
}

@test "a script with env:// and no torchrun" {
	begin
	batch env -N2 -w n1,n2 <<-'S'
	"$BERTH" run --ranks-per-node 1 -- /usr/bin/python3 "$HERE/ddp.py"
	S
	[ "$status" = 0 ]
	trained 2
	has 'rank 1 of 2 on n2 local 0 at 10.9.0.11 trained'
	over_the_fast_one
}

@test "a rank finds what torchrun sets, except for three variables; --per-node leaves them to torchrun" {
	names() { sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p' "$1" | sort; }
	clean() { env -u TORCHELASTIC_ERROR_FILE "$@"; }
	cd "$SHARE"
	clean "$TORCHRUN" --standalone --nproc_per_node 2 --no_python sh -c 'env >torchrun.$RANK' 3>&-
	clean "$BERTH" run -n 2 -- sh -c 'env >berth.$RANK' 3>&-
	missing=$(comm -23 <(names torchrun.1) <(names berth.1) | grep -vx LC_CTYPE)
	# No store of the agent, PyTorch's own default, and signals that torchrun's agent handles.
	! grep -vE '^(TORCHELASTIC_USE_AGENT_STORE|(TORCH_)?NCCL_ASYNC_ERROR_HANDLING|TORCHELASTIC_SIGNALS_TO_HANDLE)$' <<<"$missing" || false
	grep -qx TORCHELASTIC_USE_AGENT_STORE <<<"$missing"
	diff <(grep -E '^(ROLE|GROUP|LOCAL|RANK|WORLD|TORCHELASTIC_(RE|MAX))' torchrun.1 | sort) \
		<(grep -E '^(ROLE|GROUP|LOCAL|RANK|WORLD|TORCHELASTIC_(RE|MAX))' berth.1 | sort)
	clean "$BERTH" run --per-node -- sh -c 'env >per-node.$RANK' 3>&-
	! grep -v "^TORCHELASTIC_ERROR_FILE=" per-node.0 | grep TORCHELASTIC
}

@test "torchrun with another machine's node rank, which berth's replaces" {
	begin
	batch torchrun -N2 -w n1,n2 <<-'S'
	"$BERTH" run --per-node --ranks-per-node 2 -- "$TORCHRUN" --nnodes=2 --node_rank=0 --master_addr=n1 "$HERE/ddp.py"
	S
	[ "$status" = 0 ]
	trained 4
	has 'rank 0 of 4 on n1 local 0 at 10.9.0.11 trained'
	over_the_fast_one
}

@test "a torchrun batch script, changed only by berth run --per-node before torchrun" {
	# As Debian writes /etc/hosts: torchrun compares host names, and would not see that it is the host.
	for node in n1 n2; do
		{ echo "127.0.1.1 $node"; cat "$CLUSTER/hosts"; } >"$SHARE/hosts.$node"
		hide $node "$SHARE/hosts.$node" /etc/hosts
	done
	begin
	batch story -N2 -w n1,n2 <<-'S'
	# The original script took the first node's first address, which is the management network's, and
	# started torchrun on that node only; it waited ten minutes for the other node.
	head_node_ip=$(hostname -I | awk '{print $1}')
	"$BERTH" run --per-node -- "$TORCHRUN" --nnodes=2 --nproc_per_node=2 --rdzv_id=$SLURM_JOB_ID \
		--rdzv_backend=c10d --rdzv_endpoint="$head_node_ip:29500" "$HERE/ddp.py"
	S
	[ "$status" = 0 ]
	trained 4
	over_the_fast_one
}
