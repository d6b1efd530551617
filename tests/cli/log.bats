# SPDX-License-Identifier: BSD-3-Clause
# BERTH_LOG: what each stage decides and sends.

load ../support/berth

# two_nodes WORDS COMMAND...: run COMMAND as 2 ranks on 2 simulated nodes; its stderr goes to ./err.
two_nodes() {
	local words=$1
	shift
	BERTH_LOG=$words "$BERTH" run -q --launcher loopback -N 2 -n 2 -- "$@" >out 2>err || { cat err; return 1; }
}

# has PATTERN: ./err has a line of the log whose node, rank, level and text match.
TIME='berth: [0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z'
has() { grep -qE "^$TIME $1" err || { echo "no line: $1"; cat err; return 1; }; }

@test "debug: what each stage decides and sends, with time and node" {
	two_nodes debug echo hello
	has "$HOST info alloc: source local: .* 1 nodes from $HOST"
	has "$HOST info launch: launcher loopback: --launcher"
	has "$HOST info launch: agents connect to 127\.0\.0\.1:[0-9]+; 2 x .* agent"
	has "$HOST info plan: 2 ranks on 2 nodes meet at 127\.0\.0\.1 port [0-9]+: "
	has "$HOST info plan: loop1: rank 1, CPUs "
	has "$HOST info controller: job state: run, was probe"
	has "$HOST debug overlay: sent START, node 1, [0-9]+ bytes"
	for node in 0 1; do
		has "loop$node info inventory: .* cores"
		has "loop$node info agent: plan received: 1 ranks from rank $node"
		has "loop$node info agent: rank $node runs as process [0-9]+"
		has "loop$node info agent: rank $node \(process [0-9]+\) ended with code 0"
		has "loop$node debug overlay: received START, node $node"
	done
	# Each line is whole, and the ranks' output is as without the log.
	! grep -vE "^$TIME ($HOST|loop[01]) (info|debug) [a-z]+: ." err || false
	[ "$(cat out)" = $'hello\nhello' ]
	! grep -E '[0-9a-f]{64}' err || false # the secret
}

@test "unset or empty: nothing; info: no messages; a module: it alone; info and a module: both" {
	two_nodes '' true
	[ ! -s err ]
	unset BERTH_LOG
	"$BERTH" run -q --launcher loopback -N 2 -n 2 -- true 2>err
	[ ! -s err ]
	two_nodes info true
	has 'loop0 info agent: '
	! grep -E "^$TIME [^ ]+ debug " err || false
	two_nodes agent,plan true
	has 'loop1 info agent: '
	has "$HOST info plan: "
	! grep -vE ' info (agent|plan): ' err || false
	two_nodes info,overlay true
	has 'loop0 debug overlay: '
	has 'loop0 info agent: '
	! grep -E ' debug (launch|pmix): ' err || false
}

@test "pmix: namespace and fences with their sizes, and nothing else" {
	[ -n "$PMIX_SIZE" ] || skip "built without PMIx"
	two_nodes pmix "$PMIX_SIZE"
	for node in 0 1; do
		has "loop$node info pmix: namespace [^ ]+ is registered: 1 ranks on this node"
		has "loop$node debug pmix: fence 0: this node contributes [0-9]+ bytes"
		has "loop$node debug pmix: fence 0 done: [0-9]+ bytes of all nodes"
	done
	! grep -v ' pmix: ' err || false
}

@test "a failed rank: its end, its cause, and what ended the others" {
	BERTH_LOG=agent,controller run "$BERTH" run --launcher loopback -N 2 -n 2 -- sh -c '[ $RANK = 1 ] && exit 7; sleep 60'
	[ "$status" -eq 7 ]
	printf '%s\n' "$output" >err
	has 'loop1 info agent: rank 1 \(process [0-9]+\) ended with code 7, signal 0'
	has "$HOST info controller: ending the ranks, SIGKILL after [0-9]+ ms: rank 1 on loop1 exited with code 7"
	has 'loop0 info agent: rank 0 \(process [0-9]+\) ended with .*, stopped by berth'
	has "$HOST info controller: attempt 0 ends with code 7: rank 1 on loop1 exited with code 7"
}

@test "a reader of stderr that has stopped does not stop an agent that logs" {
	mkfifo pipe
	exec 9<>pipe
	BERTH_LOG=debug timeout 120 "$BERTH" run -n 2 --report r.json -- sh -c ': >started.$RANK; until [ -e go ]; do sleep 0.05; done' 2>&9 &
	run_pid=$!
	wait_for started.0 0
	wait_for started.1 0
	python3 -c 'import os; os.set_blocking(9, False)
try:
    while True: os.write(9, b"." * 4095 + b"\n")
except BlockingIOError: os.set_blocking(9, True)'
	# The agent logs the ends of the ranks, which the job's end needs.
	: >go
	wait_for r.json 1
	cat <&9 >err 3>&- &
	cat_pid=$!
	ends 0 $run_pid
	kill $cat_pid
	exec 9>&-
}

@test "the lines of agents that a launcher's tool starts reach stderr; its last output stays free of them" {
	# The stand-in for srun starts two agents, as two tasks that share its stderr.
	fake srun <<-'S'
	while [ "$1" != sh ]; do shift; done
	for node in n1 n2; do SLURMD_NODENAME=$node "$@" & done
	wait
	S
	export PATH="$DIR/bin:$PATH" SLURM_JOB_ID=77 SLURM_JOB_NODELIST='n[1-2]' SLURM_JOB_NUM_NODES=2
	export SLURM_TASKS_PER_NODE='1(x2)' SLURM_JOB_END_TIME=4102444800
	BERTH_LOG=debug "$BERTH" run -q --iface lo -- true 2>err
	has "$HOST info alloc: source slurm: SLURM_JOB_ID is set; "
	has "$HOST info launch: launcher srun: the first that fits; these do not: fork, hand"
	has "$HOST info launch: agents connect to .*; srun --nodes=2 "
	has 'n1 info agent: rank 0 runs'
	has 'n2 info agent: rank 1 runs'
	[ "$(grep -c 'n1 info agent: rank 0 runs' err)" = 1 ] # each line once
	[ "$(grep -c 'n2 info agent: rank 1 runs' err)" = 1 ]
	fake srun <<-'S'
	echo 'berth: 2026-11-23T04:55:35.123Z n1 info agent: x' >&2
	echo 'srun: error: no way' >&2
	exit 1
	S
	BERTH_LOG=agent expect 76 "$BERTH" run -q --iface lo -- true
	[[ "${lines[-1]}" == *"its last output: srun: error: no way"* && "${lines[-1]}" != *"info agent"* ]]
	fake srun <<-'S'
	for i in $(seq 120); do echo "line $i of the prolog" >&2; done
	printf 'berth: 2026-11-23T04:55:35.123Z n1 info agent: \033[2Jx\n' >&2
	echo 'srun: error: no way' >&2
	exit 1
	S
	BERTH_LOG=agent expect 76 "$BERTH" run -q --iface lo -- true
	[[ "${lines[-1]}" == *"; line 120 of the prolog; srun: error: no way"* ]]
	[[ "$output" == *"info agent:  [2Jx"* && "$output" != *$'\033'* ]]
	# The tool's error stands before 60 KB of the agents' lines.
	fake srun <<-'S'
	echo 'srun: error: no way' >&2
	for i in $(seq 1000); do echo "berth: 2026-11-23T04:55:35.123Z n1 info agent: $i 345678901234567" >&2; done
	printf 'cut he' >&2
	exit 1
	S
	BERTH_LOG=agent expect 76 "$BERTH" run -q --iface lo -- true
	[[ "${lines[-1]}" == *"its last output: srun: error: no way; cut he"* && "${lines[-1]}" != *"info agent"* ]]
}

@test "berth train: data, model, checkpoint and resume, each with its rank" {
	allow_leaks
	BERTH_LOG=train,checkpoint,resume "$BERTH" train -n 2 --data synthetic:64 --steps 2 --ckpt c linear 2>err || { cat err; false; }
	cat err
	has "$HOST rank 1 info train: data synthetic:64, model linear, device "
	has "$HOST rank 0 info resume: .*: new weights"
	has "$HOST rank 0 info checkpoint: took the lease "
	has "$HOST rank 0 info checkpoint: step 2, [0-9]+ bytes, .*: fsynced and renamed to "
	BERTH_LOG=resume "$BERTH" train -n 2 --data synthetic:64 --steps 3 --ckpt c linear 2>err
	has "$HOST rank 0 info resume: step 2: whole"
	has "$HOST rank 0 info resume: .*: resuming from "
}

@test "a word that BERTH_LOG does not know: code 65, and the words that it knows" {
	for words in debg agent, DEBUG 'agent pmix' info,gpu; do
		BERTH_LOG=$words expect 65 "$BERTH" run -- touch started
		[[ "$output" == *"BERTH_LOG: unknown word "*"; choose from: info, debug, alloc, "* ]]
	done
	BERTH_LOG=debg expect 65 "$(dirname "$BERTH")/berth-train" linear
	[[ "$output" == *"BERTH_LOG: unknown word 'debg'"* ]]
	[ ! -e started ]
	BERTH_LOG=debg "$BERTH" --version
}
