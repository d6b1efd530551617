# SPDX-License-Identifier: BSD-3-Clause
# berth run started on each machine: by hand, and in the containers of an OpenPAI job. The machines are
# the nodes of cluster.py, without Slurm.

load support.bash

setup() {
	unset SLURM_CONF
	cd "$SHARE" || return
	rm -rf hand
	mkdir hand
	export HOME=$SHARE/hand BERTH_SECRET_FILE=$SHARE/hand/secret
	(umask 077; openssl rand -hex 32 >"$BERTH_SECRET_FILE")
}

# by_hand NODE OPTIONS...: run it in the background; output and exit code go to hand/NODE.*
by_hand() {
	local node=$1 run=$BATS_TEST_NUMBER.$((++runs))
	shift
	rm -f "hand/$node".*
	echo "$run" >"hand/$node.run"
	(
		code=0
		on "$node" timeout 60 env -C "$SHARE" "$BERTH" run "$@" >"hand/$node.out" 2>&1 3>&- || code=$?
		echo "$code" >"hand/$node.tmp$run"
		# The one before on this node may end only now.
		[ "$(<"hand/$node.run")" != "$run" ] || mv "hand/$node.tmp$run" "hand/$node.code"
	) 3>&- &
}

# ended NODE: wait for its end, and set $status and $output.
ended() {
	within 60 test -e "hand/$1.code" || true
	output=$(cat "hand/$1.out")
	status=$(cat "hand/$1.code" 2>/dev/null || echo "no end after 60 s times ${BERTH_TEST_SLOW:-1}")
	echo "# $1: $status"
	echo "$output"
}

SAY='echo "rank $RANK of $WORLD_SIZE on $(hostname) node $NODE_RANK local $LOCAL_RANK/$LOCAL_WORLD_SIZE at $MASTER_ADDR '
SAY+='nccl $NCCL_SOCKET_IFNAME gpus ${CUDA_VISIBLE_DEVICES-none}"'

@test "two machines: --rdzv-endpoint is a host name, and the second machine starts first" {
	by_hand n2 --nnodes 2 --node-rank 1 --rdzv-endpoint n1:4711 -- true
	until_seen hand/n2.out 'waiting for the first machine'
	by_hand n1 --nnodes 2 --node-rank 0 --rdzv-endpoint n1:4711 --ranks-per-node 2 -- sh -c "$SAY"
	ended n1
	[ "$status" = 0 ]
	has '^rank 0 of 4 on n1 node 0 local 0/2 at 10.9.0.11 nccl hsn0 '
	has '^rank 3 of 4 on n2 node 1 local 1/2 at 10.9.0.11 nccl hsn0 '
	ended n2
	[ "$status" = 0 ]
	hasnt '^rank'
	nothing_left n1 n2
}

# handles_term NODE: berth there has blocked SIGTERM, in order to read it as a message.
handles_term() { on "$1" sh -c 'grep -qs "^SigBlk:.*[4-7c-f]...$" "/proc/$(pgrep -o -x berth)/status"'; }

@test "a machine that waits reports it, and a signal ends the wait" {
	by_hand n1 --nnodes 3 --node-rank 0 --rdzv-endpoint n1:4719 -n 3 -- true
	by_hand n2 --nnodes 3 --node-rank 1 --rdzv-endpoint 10.9.0.13:4719 -- true
	until_seen hand/n1.out 'berth: note: node0 of 3, waiting at n1:4719 for the others'
	until_seen hand/n2.out 'node1 of 3, waiting for the first machine at 10.9.0.13:4719'
	within 30 handles_term n1
	within 30 handles_term n2
	local begun=$SECONDS
	for node in n1 n2; do
		on "$node" pkill -TERM -x berth -o
		ended "$node"
		[ "$status" = 143 ]
	done
	has '^berth: error: node1 .*: stopped by Terminated while waiting for the controller$'
	[ $((SECONDS - begun)) -lt 30 ]
	nothing_left n1 n2
}

@test "SIGKILL of berth on the second machine ends the job, and nothing is left" {
	by_hand n1 --nnodes 2 --node-rank 0 --rdzv-endpoint n1:4718 -n 2 -- sh -c 'echo "up $RANK"; sleep 70'
	by_hand n2 --nnodes 2 --node-rank 1 --rdzv-endpoint n1:4718 -- true
	until_seen hand/n1.out '^up 1'
	on n2 pkill -KILL -x berth-guard
	ended n1
	[ "$status" = 76 ]
	has '^berth: error: node1: the agent.s guardian process .* was killed$'
	ended n2
	[ "$status" = 137 ]
	nothing_left n1 n2
}

@test "berth exits with the job's code on every machine; a machine that loses the first one reports it" {
	by_hand n1 --nnodes 2 --node-rank 0 --rdzv-endpoint n1:4720 -n 2 -- sh -c 'exit $((RANK * 5))'
	by_hand n2 --nnodes 2 --node-rank 1 --rdzv-endpoint n1:4720 -- true
	ended n1
	[ "$status" = 5 ]
	ended n2
	[ "$status" = 5 ]
	has 'node1: the job exited with code 5; the first machine prints the reason'
	rm -f hand/up
	by_hand n1 --nnodes 2 --node-rank 0 --rdzv-endpoint n1:4721 -- sh -c 'echo $$ >hand/up; exec sleep 100'
	by_hand n2 --nnodes 2 --node-rank 1 --rdzv-endpoint n1:4721 -- true
	within 20 test -s hand/up
	on n1 pkill -KILL -x berth
	ended n2
	[ "$status" = 76 ]
	has 'lost the first machine at n1:4721 before it reported how the job ended'
	ended n1
	nothing_left n1 n2
}

@test "machines with different numbers of GPUs" {
	(cd hand && python3 -c "import sys; sys.path.insert(0, '$HERE'); import topology; topology.write('.', 'cpu', gpus=False)")
	by_hand n1 --nnodes 2 --node-rank 0 --rdzv-endpoint 10.1.0.11:4712 -- sh -c "$SAY"
	BERTH_TOPOLOGY=$SHARE/hand/cpu.xml by_hand n2 --nnodes 2 --node-rank 1 --rdzv-endpoint 10.1.0.11:4712 -- true
	ended n1
	[ "$status" = 0 ]
	[ "$(grep -c ' on n1 node 0 local ./4 .* gpus 0,1,2,3' <<<"$output")" = 4 ]
	has ' on n2 node 1 '
	hasnt ' on n2 node 1 .*gpus [0-9]'
	ended n2
	[ "$status" = 0 ]
}

@test "different secrets: both sides report the fingerprints" {
	(umask 077; openssl rand -hex 32 >hand/other)
	BERTH_SECRET_FILE=$SHARE/hand/other by_hand n2 --nnodes 2 --node-rank 1 --rdzv-endpoint n1:4713 -- true
	until_seen hand/n2.out 'waiting for the first machine'
	by_hand n1 --nnodes 2 --node-rank 0 --rdzv-endpoint n1:4713 --start-timeout 6s -- touch "$SHARE/hand/started"
	ended n2
	[ "$status" != 0 ]
	has 'fingerprint'
	ended n1
	[ "$status" = 76 ]
	has 'fingerprint' && has 'node1'
	[ ! -e hand/started ]
	nothing_left n1 n2
}

@test "a duplicate --node-rank is refused, and the job continues" {
	by_hand n1 --nnodes 2 --node-rank 0 --rdzv-endpoint n1:4714 -- sh -c "$SAY; until [ -e hand/go ]; do sleep 0.1; done"
	by_hand n2 --nnodes 2 --node-rank 1 --rdzv-endpoint n1:4714 -- true
	until_seen hand/n1.out '^rank 0'
	by_hand n3 --nnodes 2 --node-rank 1 --rdzv-endpoint n1:4714 -- true
	ended n3
	[ "$status" = 76 ]
	has 'node1.*--node-rank 1'
	touch hand/go
	ended n1
	[ "$status" = 0 ]
	has 'it claims to be node 1, which is already connected'
}

@test "the first machine names a missing machine; a machine that cannot reach the first one reports it" {
	by_hand n1 --nnodes 2 --node-rank 0 --rdzv-endpoint n1:4715 --start-timeout 2s -- touch "$SHARE/hand/started"
	by_hand n2 --nnodes 2 --node-rank 1 --rdzv-endpoint n3:4715 --start-timeout 2s -- true
	by_hand n3 --nnodes 2 --node-rank 1 --rdzv-endpoint unknown.invalid:4715 --start-timeout 2s -- true
	ended n1
	[ "$status" = 76 ]
	has 'node1 within 2 s'
	ended n2
	[ "$status" = 76 ]
	has 'cannot reach the controller'
	ended n3
	[ "$status" = 76 ]
	has 'unknown.invalid'
	[ ! -e hand/started ]
}

@test "--rdzv-endpoint does not resolve or is another machine: the first machine reports it, too" {
	by_hand n1 --nnodes 2 --node-rank 0 --rdzv-endpoint unknown.invalid:4718 --start-timeout 2s -- touch "$SHARE/hand/started"
	# This machine is started as the first one, but the endpoint is another machine.
	by_hand n2 --nnodes 2 --node-rank 0 --rdzv-endpoint n3:4718 --start-timeout 2s -- touch "$SHARE/hand/started"
	ended n1
	[ "$status" = 76 ]
	has 'cannot resolve the first node.s name unknown.invalid on this node.*Give its IP address'
	ended n2
	[ "$status" = 76 ]
	has 'warning: this machine should be the first one .*none of its interfaces has an address of n3:4718'
	has 'node1 within 2 s'
	[ ! -e hand/started ]
	by_hand n1 --nnodes 2 --node-rank 0 --rdzv-endpoint localhost:4719 --start-timeout 2s -- true
	by_hand n3 --nnodes 2 --node-rank 0 --rdzv-endpoint 10.9.0.13:4719 --start-timeout 2s -- true
	ended n1
	hasnt 'warning: this machine'
	ended n3
	hasnt 'warning: this machine'
}

@test "the first machine creates the secret, readable only by its owner; other machines ask for a copy" {
	unset BERTH_SECRET_FILE
	by_hand n1 --nnodes 2 --node-rank 0 --rdzv-endpoint n1:4716 -- sh -c "$SAY"
	until_seen hand/n1.out 'created the secret'
	[ "$(stat -c %a hand/.config/berth/secret)" = 600 ]
	by_hand n2 --nnodes 2 --node-rank 1 --rdzv-endpoint n1:4716 -- true
	ended n1
	[ "$status" = 0 ]
	chmod 644 hand/.config/berth/secret
	by_hand n2 --nnodes 2 --node-rank 1 --rdzv-endpoint n1:4716 -- true
	ended n2
	[ "$status" = 65 ]
	has 'mode 0644'
	rm hand/.config/berth/secret
	by_hand n2 --nnodes 2 --node-rank 1 --rdzv-endpoint n1:4716 --start-timeout 1s -- true
	ended n2
	[ "$status" = 66 ]
	has 'note: waiting for the secret .*/hand/.config/berth/secret, which the first machine creates; copy it here unless'
	has 'Copy it from the first'
	# berth creates no file that the user has named, so this machine does not wait for it.
	BERTH_SECRET_FILE=$SHARE/hand/none by_hand n2 --nnodes 2 --node-rank 1 --rdzv-endpoint n1:4716 -- true
	ended n2
	[ "$status" = 66 ]
	hasnt 'waiting for the secret'
}

@test "the second machine starts first, and waits for the secret that the first one creates" {
	unset BERTH_SECRET_FILE
	by_hand n2 --nnodes 2 --node-rank 1 --rdzv-endpoint n1:4723 -- true
	until_seen hand/n2.out 'waiting for the secret'
	by_hand n1 --nnodes 2 --node-rank 0 --rdzv-endpoint n1:4723 --ranks-per-node 1 -- sh -c "$SAY"
	ended n1
	[ "$status" = 0 ]
	has 'created the secret' && has '^rank 1 of 2 on n2 '
	ended n2
	[ "$status" = 0 ]
	nothing_left n1 n2
}

@test "OpenPAI: every container runs the same command" {
	export PAI_JOB_NAME=job1 PAI_TASK_ROLE_LIST=worker PAI_CURRENT_TASK_ROLE_NAME=worker
	export PAI_TASK_ROLE_TASK_COUNT_worker=2 PAI_HOST_IP_worker_0=10.1.0.11 PAI_HOST_IP_worker_1=10.1.0.12
	export PAI_PORT_LIST_worker_0_ssh=2200 PAI_PORT_LIST_worker_0_berth=4717 PAI_RESOURCE_worker=4,8,1000,100
	PAI_TASK_INDEX=0 by_hand n1 -- sh -c "$SAY"
	PAI_TASK_INDEX=1 by_hand n2 -- sh -c "$SAY"
	ended n1
	[ "$status" = 0 ]
	has '^rank 0 of 8 on n1 node 0 local 0/4 at 10.9.0.11 nccl hsn0 gpus 0,1,2,3$'
	has '^rank 7 of 8 on n2 node 1 local 3/4 at 10.9.0.11 nccl hsn0 gpus 0,1,2,3$'
	ended n2
	[ "$status" = 0 ]
	nothing_left n1 n2
}

# AGAIN: rank 1 fails in the first attempt; in the second, all ranks exit with code 0.
AGAIN='echo 1 >"$BERTH_HEARTBEAT_FILE"; echo "up $BERTH_ATTEMPT.$RANK on $(hostname)"
[ "$BERTH_ATTEMPT" = 1 ] && exit 0; [ "$RANK" = 1 ] && { sleep 0.3; exit 3; }; sleep 60'

@test "--max-restarts by hand: a rank fails, and both machines restart; only the first one needs the option" {
	by_hand n1 --nnodes 2 --node-rank 0 --rdzv-endpoint n1:4718 --ranks-per-node 1 --max-restarts 1 -- sh -c "$AGAIN"
	by_hand n2 --nnodes 2 --node-rank 1 --rdzv-endpoint n1:4718 -- true
	ended n1
	[ "$status" = 0 ]
	has '^up 0.1 on n2$' && has '^up 1.0 on n1$' && has '^up 1.1 on n2$'
	has 'restarting, 1 of at most 1 times'
	ended n2
	[ "$status" = 0 ]
	nothing_left n1 n2
}

@test "--max-restarts by hand: a killed agent joins again when it is restarted, or berth reports it in time" {
	by_hand n1 --nnodes 2 --node-rank 0 --rdzv-endpoint n1:4719 --ranks-per-node 1 --max-restarts 1 --start-timeout 40s \
		-- sh -c "${AGAIN/sleep 0.3; exit 3/sleep 60}"
	by_hand n2 --nnodes 2 --node-rank 1 --rdzv-endpoint n1:4719 -- true
	until_seen hand/n1.out '^up 0.1'
	on n2 pkill -KILL -f -- '--node-rank 1 --rdzv-endpoint n1:4719'
	until_seen hand/n1.out 'restarting, '
	by_hand n2 --nnodes 2 --node-rank 1 --rdzv-endpoint n1:4719 -- true
	ended n1
	[ "$status" = 0 ]
	has 'node1 was lost, but the job will try it again' && has '^up 1.1 on n2$'
	ended n2
	[ "$status" = 0 ]
	# The second machine first: it must connect within this time-out, too.
	by_hand n2 --nnodes 2 --node-rank 1 --rdzv-endpoint n1:4720 -- true
	until_seen hand/n2.out 'waiting for the first machine'
	by_hand n1 --nnodes 2 --node-rank 0 --rdzv-endpoint n1:4720 --ranks-per-node 1 --max-restarts 1 --start-timeout 6s \
		-- sh -c "${AGAIN/sleep 0.3; exit 3/sleep 60}"
	until_seen hand/n1.out '^up 0.1'
	on n2 pkill -KILL -f -- '--node-rank 1 --rdzv-endpoint n1:4720'
	ended n1
	[ "$status" = 76 ]
	has 'node1 within 6 s'
	nothing_left n1 n2
}

@test "--max-restarts by hand: the first machine is lost, and the others end in time" {
	by_hand n1 --nnodes 2 --node-rank 0 --rdzv-endpoint n1:4721 --ranks-per-node 1 --max-restarts 1 \
		-- sh -c "${AGAIN/sleep 0.3; exit 3/sleep 60}"
	until_seen hand/n1.out 'waiting at'
	by_hand n2 --nnodes 2 --node-rank 1 --rdzv-endpoint n1:4721 --start-timeout 5s --max-restarts 1 -- true
	until_seen hand/n1.out '^up 0.1'
	on n1 pkill -KILL -f -- '--node-rank 0 --rdzv-endpoint n1:4721'
	ended n2
	[ "$status" = 76 ]
	has 'cannot reach the controller'
	nothing_left n1 n2
}

@test "OpenPAI: a rank fails, and the containers restart" {
	export PAI_JOB_NAME=job2 PAI_TASK_ROLE_LIST=worker PAI_CURRENT_TASK_ROLE_NAME=worker
	export PAI_TASK_ROLE_TASK_COUNT_worker=2 PAI_HOST_IP_worker_0=10.1.0.11 PAI_HOST_IP_worker_1=10.1.0.12
	export PAI_PORT_LIST_worker_0_ssh=2200 PAI_PORT_LIST_worker_0_berth=4722 PAI_RESOURCE_worker=1,8,1000,100
	PAI_TASK_INDEX=0 by_hand n1 --max-restarts 1 -- sh -c "$AGAIN"
	PAI_TASK_INDEX=1 by_hand n2 --max-restarts 1 -- sh -c "$AGAIN"
	ended n1
	[ "$status" = 0 ]
	has '^up 1.0 on n1$' && has '^up 1.7 on n2$'
	ended n2
	[ "$status" = 0 ]
	nothing_left n1 n2
}
