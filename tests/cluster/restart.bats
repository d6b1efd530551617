# SPDX-License-Identifier: BSD-3-Clause
# berth run --max-restarts under a real Slurm: lost nodes, and links that are down.

load support.bash

teardown() {
	cancel_jobs
	for node in n1 n2 n3; do revive "$node"; done
}

# A rank that prints when it starts, and writes heartbeats until the second attempt.
RANK='echo "up $BERTH_ATTEMPT.$RANK of $WORLD_SIZE on $(hostname) at $MASTER_ADDR"
echo "slurm $BERTH_ATTEMPT.$RANK: node $SLURM_NODEID of $SLURM_NNODES and $SLURM_STEP_NUM_NODES, $SLURM_STEP_NODELIST"; i=0
while [ $i -lt 600 ] && [ "$BERTH_ATTEMPT" = 0 -o $i -lt 3 ]; do i=$((i+1)); echo $i >$BERTH_HEARTBEAT_FILE; sleep 0.2; done
echo "done $RANK"'

# since_cut PATTERN: milliseconds from the loss to a line of the output, whose first word is its time
since_cut() { awk -v cut="$(cat "$SHARE/cut")" -v p="$1" '$0 ~ p { printf "%d\n", ($1 - cut) / 1e6; exit }' "$SHARE/$2"; }

# stamp: prefix each line with the time of its arrival
STAMP='while IFS= read -r line; do echo "$(date +%s%N) $line"; done'

@test "a node is lost: the other ranks end within 10 s, and a spare replaces it" {
	export RANK STAMP
	submit lost -N3 --no-kill <<-'S'
	"$BERTH" run --ranks-per-node 1 --spares 1 --max-restarts 2 --report lost.json -- sh -c "$RANK" 2>&1 | sh -c "$STAMP"
	exit ${PIPESTATUS[0]}
	S
	until_seen "$SHARE/lost.out" 'up 0.0'
	until_seen "$SHARE/lost.out" 'up 0.1'
	lose n2
	finish lost
	[ "$status" = 0 ]
	local warning='when a node of this job fails, .* unless the job was submitted with --no-kill; berth cannot tell whether it was. '
	warning+='To be sure, add #SBATCH --no-kill to the job script'
	has " berth: warning: $warning\$"
	has 'node n2 was lost: no heartbeat from its agent for 8 s'
	has 'n2 is excluded \(lost\): spare node n3 replaces it'
	has 'up 1.0 of 2 on n1 at 10.9.0.11$'
	has 'up 1.1 of 2 on n3 at 10.9.0.11$'
	has 'slurm 0.1: node 1 of 2 and 2, n\[1-2\]$'
	has 'slurm 1.1: node 1 of 2 and 2, n\[1,3\]$'
	has 'done 1$'
	grep -q '"node": "n2"' "$SHARE/lost.json"
	# From the loss to the decision, when the other ranks have ended, and to the next start.
	down=$(since_cut 'restarting, ' lost.out) up=$(since_cut 'up 1.1' lost.out)
	echo "# down after $down ms, up again after $up ms" >&3
	[ "$down" -le 30000 ]
}

@test "a node is lost without a spare: the job continues on fewer nodes" {
	export RANK
	rm -f "$SHARE/smaller".*
	cat >"$SHARE/smaller.sh" <<-S
	#!/bin/bash
	#SBATCH -N2 --no-kill -w n1,n2
	#SBATCH -o $SHARE/smaller.out
	$BERTH run --ranks-per-node 2 --min-nodes 1 --max-restarts 2 --node-timeout 6s -- sh -c "\$RANK"
	echo \$? >$SHARE/smaller.code
	S
	sbatch "$SHARE/smaller.sh"
	until_seen "$SHARE/smaller.out" 'up 0.3'
	lose n2
	finish smaller
	[ "$status" = 0 ]
	has 'n2 is excluded \(lost\): the job continues on 1 node$'
	has '^berth: note: the job was submitted with --no-kill: Slurm lets it continue when a node fails$'
	has 'up 1.1 of 2 on n1 at 127.0.0.1$'
	hasnt 'up 1.2'
}

@test "the first node of a job started from the login node is lost: the next node becomes the first" {
	export RANK
	salloc -Q --no-kill -N3 "$BERTH" run --ranks-per-node 1 --min-nodes 2 --max-restarts 2 --node-timeout 6s -- \
		sh -c "$RANK" >"$SHARE/first.out" 2>&1 3>&- &
	pid=$!
	until_seen "$SHARE/first.out" 'up 0.2'
	lose n1
	status=0
	wait $pid || status=$?
	output=$(cat "$SHARE/first.out")
	echo "$output"
	[ "$status" = 0 ]
	has 'n1 is excluded \(lost\): the job continues on 2 nodes'
	has 'up 1.0 of 2 on n2 at 10.9.0.12$'
	has 'up 1.1 of 2 on n3 at 10.9.0.12$'
}

@test "a link that is down for 5 s does not end the job" {
	export RANK
	submit blink -N2 --no-kill -w n1,n2 <<-'S'
	"$BERTH" run --ranks-per-node 1 --max-restarts 2 --node-timeout 24s -- sh -c \
		'echo up $RANK; until [ -e blink.go ]; do sleep 0.1; done; echo done $RANK $BERTH_ATTEMPT'
	S
	until_seen "$SHARE/blink.out" 'up 1'
	on n2 ip link set eth0 down
	on n2 ip link set hsn0 down
	sleep 5
	on n2 ip link set eth0 up
	on n2 ip link set hsn0 up
	touch "$SHARE/blink.go"
	finish blink
	[ "$status" = 0 ]
	has 'done 0 0$'
	has 'done 1 0$'
	hasnt 'restarting, '
}

@test "a link that stays down: the agent ends the node's ranks, and a spare replaces the node" {
	export RANK
	submit cut -N3 --no-kill <<-'S'
	"$BERTH" run --ranks-per-node 1 --spares 1 --max-restarts 1 --node-timeout 6s -- sh -c "$RANK"
	S
	until_seen "$SHARE/cut.out" 'up 0.1'
	on n2 ip link set eth0 down
	on n2 ip link set hsn0 down
	finish cut
	[ "$status" = 0 ]
	has 'up 1.1 of 2 on n3'
	nothing_left n2
}

@test "an agent is killed: the job tries its node again" {
	export RANK
	submit agent -N2 --no-kill -w n1,n2 <<-'S'
	"$BERTH" run --ranks-per-node 1 --max-restarts 1 -- sh -c "$RANK"
	S
	until_seen "$SHARE/agent.out" 'up 0.1'
	on n2 pkill -KILL -f 'berth agent'
	finish agent
	[ "$status" = 0 ]
	has 'n2 was lost, but the job will try it again'
	has 'up 1.1 of 2 on n2'
}

@test "a stopped rank of a training is named; the next attempt resumes from the checkpoint" {
	[ -n "$MPI_SUM" ] || skip "no MPI"
	allow_leaks
	submit stopped -N2 -w n1,n2 <<-'S'
	"$BERTH" train convnet --ranks-per-node 1 --data synthetic:1x28x28,n=4096 --epochs 40 --steps 300 --no-eval \
		--ckpt stopped.ckpt --save-every 50 --log-every 50 --max-restarts 1 --hang-timeout 4s
	S
	within 60 test -e "$SHARE/stopped.ckpt/latest"
	on n2 pkill -STOP -x berth-train
	finish stopped 120
	rm -rf "$SHARE/stopped.ckpt"
	[ "$status" = 0 ]
	has 'the job hangs: .*; rank 1 on n2 is behind.*its process is stopped'
	has 'resuming from stopped.ckpt/step-'
	has 'Slurm requeues the job as soon as it marks the node down \(after 20 s\)'
}

@test "slurmd of a node has died before the start: srun's own end of the step names the node, and a spare replaces it" {
	submit died -N3 --no-kill <<-'S'
	touch died.up; until [ -e died.go ]; do sleep 0.1; done
	"$BERTH" run --ranks-per-node 1 --spares 1 --max-restarts 1 --report died.json -- sh -c 'echo "up $BERTH_ATTEMPT.$RANK on $(hostname)"'
	S
	within 30 test -e "$SHARE/died.up"
	on n2 pkill -KILL -x slurmd
	touch "$SHARE/died.go"
	finish died
	[ "$status" = 0 ]
	has 'no agent on n2: srun could not start it: '
	has 'n2 is excluded \(lost\): spare node n3 replaces it'
	has 'up 1.0 on n1$'
	has 'up 1.1 on n3$'
	hasnt 'scancel|n1 (is excluded|was lost)'
	holds "$SHARE/died.json" "r['code'] == 0 and [e['node'] for e in r['left_out']] == ['n2']"
}
