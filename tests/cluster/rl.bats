# SPDX-License-Identifier: BSD-3-Clause
# The files of docs/guides/rl.md as printed, under a real Slurm and the stand-in for PBS, with programs that check what they
# were given; and each of the programs killed.

load support.bash

setup() {
	local name
	cd "$SHARE"
	mkdir -p bin
	for name in inference vllm-router orchestrator torchrun; do
		printf '#!/bin/sh\nexec /usr/bin/python3 %s/serving/part.py %s "$@"\n' "$HERE" "$name" >"bin/$name"
	done
	chmod +x bin/*
	export PATH=$SHARE/bin:$PATH
	for name in rl disaggregated inference; do
		sed -n "/^# $name.berth$/,/^\`\`\`/{/^\`\`\`/!p}" "$SOURCE/docs/guides/rl.md" >$name.berth
		[ "$(grep -vc '^#' $name.berth)" -le 15 ] && [ -s $name.berth ]
	done
}

teardown() { cancel_jobs; }

# What rl.berth's programs have seen, with two nodes of each replica and the rest for the trainer.
check_rl() {
	local replica first
	for replica in 0 1; do
		first=$((2 * replica + 1))
		has "^\[infer.$replica 0\] inference on n$first gpus 4 replica $replica rank 0 head 10.9.0.1$first nixl None$"
		has "^\[infer.$replica 1\] inference on n$((first + 1)) gpus 4 replica $replica rank 1 head 10.9.0.1$first nixl None$"
		has "^\[router.$replica 0\] vllm-router on n$first gpus 0 replica $replica routes --worker-urls n$first n$((first + 1))$"
	done
	has '^\[orchestrator 0\] orchestrator on n5 gpus 0 asks n1:n1,n2 n3:n3,n4 admin n1 n2 n3 n4$'
	has '^\[trainer 0\] torchrun on n5 gpus 4 node 0 of 2 at 10.9.0.15$'
	has '^\[trainer 1\] torchrun on n6 gpus 4 node 1 of 2 at 10.9.0.15$'
}

# The same of disaggregated.berth, with one node of each replica.
check_disaggregated() {
	has '^\[prefill.1 0\] inference on n2 gpus 4 replica 1 rank None head None nixl 10.9.0.12$'
	has '^\[decode.0 0\] inference on n3 gpus 4 replica 0 rank None head None nixl 10.9.0.13$'
	has '^\[router.0 0\] vllm-router on n1 gpus 0 replica 0 routes --prefill --prefill --decode --decode n1 n2 n3 n4$'
	has '^\[orchestrator 0\] orchestrator on n5 gpus 0 asks n1:n1,n2,n3,n4 admin$'
	has '^\[trainer 1\] torchrun on n6 gpus 4 node 1 of 2 at 10.9.0.15$'
}

@test "Slurm: replicas of two nodes, a router for each, an orchestrator and a trainer" {
	submit job -N6 <<<'"$BERTH" run --log-dir logs @rl.berth 2>&1'
	finish job
	[ "$status" = 0 ]
	check_rl
	[ -s logs/infer.1/rank-0001.log ] && [ -s logs/router.0/rank-0000.log ]
	nothing_left n1 n2 n3 n4 n5 n6
}

@test "Slurm: prefill and decode apart" {
	submit pd -N6 <<<'"$BERTH" run @disaggregated.berth 2>&1'
	finish pd
	[ "$status" = 0 ]
	check_disaggregated
	nothing_left n1 n2 n3 n4 n5 n6
}

@test "Slurm: any one program killed: named, and all end" {
	local role node
	for role in inference:infer.1:n4 vllm-router:router.0:n1 orchestrator:orchestrator:n5 torchrun:trainer:n6; do
		IFS=: read -r program role node <<<"$role"
		submit kill -N6 <<<'HOLDS="orchestrator torchrun" "$BERTH" run @rl.berth 2>&1'
		until_seen kill.out 'orchestrator on n5'
		[ "$program" != torchrun ] || until_seen kill.out 'torchrun on n6'
		on "$node" pkill -KILL -f "^/usr/bin/python3 .*part.py $program "
		finish kill
		[ "$status" = 137 ]
		has "^berth: error: role $role: rank [01] on $node was killed by signal 9"
		nothing_left n1 n2 n3 n4 n5 n6
	done
}

@test "Slurm: servers of which one may fail" {
	submit need -N3 <<<'HOLDS=orchestrator "$BERTH" run @inference.berth 2>&1'
	until_seen need.out 'orchestrator on n1 gpus 0 asks n1:n1,n2,n3'
	! grep -q '^.router [12]' need.out || false
	on n2 pkill -KILL -f "^/usr/bin/python3 .*part.py inference "
	until_seen need.out 'role infer.1: rank 0 on n2 was killed by signal 9.*the others go on without it'
	on n1 pkill -TERM -f "^/usr/bin/python3 .*part.py orchestrator "
	finish need
	[ "$status" = 143 ]
	has 'error: role client: rank 0 on n1 was killed by signal 15'
	hasnt 'error: role infer'
	nothing_left n1 n2 n3
}

@test "Slurm: a server whose node cannot start it, which --need allows" {
	own_berth
	on n3 mkdir -p /tmp/own
	on n3 cp "$BERTH" /tmp/own/berth
	submit need -N3 <<<'/tmp/own/berth run @inference.berth 2>&1'
	finish need
	[ "$status" = 0 ]
	has 'warning: role infer.1: .*n2.*; the others go on without it .--need 2.'
	has '^\[router 0\] vllm-router on n1 gpus 0 replica None routes --worker-urls n1 n3$'
}

@test "PBS: the same files" {
	local name
	python3 "$HERE/pbs.py" begin n1 n2 n3 n4 n5 n6 3>&-
	for name in rl disaggregated inference; do
		pbs_job job 6:ncpus=8:ngpus=4 <<-S
		PATH=\$PWD/bin:\$PATH "\$BERTH" run @$name.berth 2>&1
		S
		[ "$status" = 0 ]
		case $name in
		inference) has '^\[client 0\] orchestrator on n1 gpus 0 asks n1:n1,n2,n3 admin$' ;;
		*) "check_$name" ;;
		esac
		nothing_left n1 n2 n3 n4 n5 n6
	done
}
