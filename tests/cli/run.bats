# SPDX-License-Identifier: BSD-3-Clause
# berth run: the ranks' environment, how a job ends, and errors for bad input.

load ../support/berth

# value NAME RANK: the value of a variable in the file with a rank's environment
value() {
	sed -n "s/^$1=//p" "$DIR/env.$2"
}

@test "2 and 3 ranks: every documented variable is set and consistent" {
	for n in 2 3; do
		rm -f env.*
		"$BERTH" run -q -n "$n" -- sh -c 'env >env.$RANK'
		for rank in $(seq 0 $((n - 1))); do
			[ "$(value RANK "$rank")" = "$rank" ]
			[ "$(value WORLD_SIZE "$rank")" = "$n" ]
			[ "$(value LOCAL_RANK "$rank")" = "$rank" ]
			[ "$(value LOCAL_WORLD_SIZE "$rank")" = "$n" ]
			[ "$(value NODE_RANK "$rank")" = 0 ]
			[ "$(value GROUP_RANK "$rank")" = 0 ]
			[ "$(value MASTER_ADDR "$rank")" = 127.0.0.1 ]
			[ "$(value MASTER_PORT "$rank")" -gt 0 ]
			[ "$(value MASTER_PORT "$rank")" = "$(value MASTER_PORT 0)" ]
			[ "$(value OMP_NUM_THREADS "$rank")" -ge 1 ]
			[ "$(value BERTH_ATTEMPT "$rank")" = 0 ]
			[ -n "$(value BERTH_JOB_ID "$rank")" ]
			[ "$(value JAX_PROCESS_ID "$rank")" = "$rank" ]
			! grep -q '^BERTH_AGENT_' "env.$rank" || false
		done
	done
}

@test "the user's variables win, --env overrides them, all others are inherited" {
	WEIRD=$'two\nlines' OMP_NUM_THREADS=7 OTHER=mine \
		"$BERTH" run -n 1 --env OTHER=option --env NEW=a=b -- sh -c 'env >env.0'
	[ "$(value OMP_NUM_THREADS 0)" = 7 ]
	[ "$(value OTHER 0)" = option ]
	[ "$(value NEW 0)" = a=b ]
	grep -qx lines env.0
}

@test "arguments and directory reach the program unchanged, without a shell" {
	run --separate-stderr "$BERTH" run -n 1 -- printf '[%s]' 'a b' '$HOME' '' '*' $'\xff' --ranks
	[ "$status" -eq 0 ]
	[ "$output" = $'[a b][$HOME][][*][\xff][--ranks]' ]
	[ "$("$BERTH" run -n 1 pwd)" = "$(pwd)" ]
	# options end at the program, with or without --
	[ "$("$BERTH" run -n 1 echo -n 5)" = "$(echo -n 5)" ]
}

@test "ranks start in the directory as its user names it, as it may be mounted elsewhere on other nodes" {
	mkdir real
	ln -s real link
	cd link
	# The second role stands for a node that has it elsewhere.
	expect 0 "$BERTH" run --role one -n 1 -- sh -c 'cd "$0" && mv real other && ln -sfn other link' "$DIR" : \
		--role two -n 1 --after one -- sh -c 'pwd -P'
	[[ $output == *"$DIR/other"* ]]
}

@test "a working directory that was removed is an error: the ranks start in no other one" {
	local error='berth: error: cannot find the working directory, in which the ranks would start: No such file or directory. Change'
	for launcher in fork loopback; do
		expect 66 sh -c 'mkdir -p "$0/gone" && cd "$0/gone" && rmdir "$0/gone" && exec "$@"' "$DIR" \
			"$BERTH" run --launcher $launcher -n 1 -- /bin/touch "$DIR/ran"
		[[ "${lines[-1]}" == "$error"* ]]
		[ ! -e ran ]
	done
}

@test "stdin goes to rank 0 of several nodes: 20 MB of a file or a pipe, to its end; unread; again after a restart" {
	two=("$BERTH" run -q --launcher loopback --nodes 2 -n 2)
	head -c 20000000 /dev/urandom >big
	sum=$(md5sum <big) none=$(md5sum </dev/null)
	expect 0 "${two[@]}" --label -- md5sum <big
	[ "$(sort <<<"$output")" = "[0] $sum
[1] $none" ]
	expect 0 bash -c 'cat big | "$@"' - "${two[@]}" --label -- md5sum
	[ "$(sort <<<"$output")" = "[0] $sum
[1] $none" ]
	expect 0 "${two[@]}" -- sh -c '[ $RANK = 1 ] || { exec <&-; echo closed; }' <big
	[ "$output" = closed ]
	expect 0 "${two[@]}" -- true <big
	expect 3 "${two[@]}" --max-restarts 1 -- sh -c '[ $RANK = 1 ] || { wc -c; exit 3; }' <big
	[ "$(grep -c '^20000000$' <<<"$output")" = 2 ]
	expect 0 "$BERTH" run --launcher loopback --nodes 2 -n 2 -- sh -c '[ $RANK = 1 ] || wc -c' <"$DIR"
	[[ $output == *"warning: cannot read standard input, rank 0 sees its end: Is a directory"* ]]
	# More than is ever on its way: the writer waits for the rank.
	bash -c '{ head -c 3000000 /dev/zero; : >wrote; } | "$@"' - "${two[@]}" -- sh -c \
		'[ $RANK = 1 ] || { : >up; until [ -e go ]; do sleep 0.1; done; wc -c; }' >out &
	pid=$!
	within 30 test -e up
	sleep 1
	[ ! -e wrote ]
	: >go
	ends 0 $pid out
	grep -qx 3000000 out
	[ -e wrote ]
}

@test "stdin goes to rank 0" {
	[ "$(printf 'to rank 0\n' | "$BERTH" run -q -n 2 --label -- cat)" = "[0] to rank 0" ]
}

@test "the plan file holds this node's plan while the rank runs, and is removed afterwards" {
	"$BERTH" run -q -n 2 -- sh -c 'cp "$BERTH_PLAN_FILE" plan.$RANK; echo "$BERTH_PLAN_FILE" >path'
	python3 -c 'import json; p = json.load(open("plan.1")); assert p["schema"] == "berth.plan/1"
assert [r["local_rank"] for r in p["ranks"]] == [0, 1], p'
	[ ! -e "$(cat path)" ]
	[ -z "$(ls -d "$DIR"/berth-* 2>/dev/null)" ]
}

@test "the job exits with the code of the first failed rank; the others are killed" {
	run "$BERTH" run -n 3 --report report.json -- sh -c '[ $RANK = 1 ] && { echo dying; exit 7; }; sleep 60'
	[ "$status" -eq 7 ]
	[[ "$output" == *"berth: error: rank 1 on $HOST exited with code 7"* ]]
	[ "$(grep -c dying <<<"$output")" -eq 1 ] # printed once
	report 'report["schema"] == "berth.run/1" and report["by"] == "program"'
	report 'report["code"] == 7 and report["signal"] == 0 and report["rank"] == 1'
	report 'report["last_lines"] == ["dying"] and "rank 1" in report["first_cause"]'
	report 'len(report["ranks"]) == 3'
	report 'all(r["stopped"] for r in report["ranks"] if r["rank"] != 1)'
}

@test "a rank killed by signal N: exit code 128+N, and the signal is named" {
	run "$BERTH" run -n 2 --report report.json -- sh -c '[ $RANK = 0 ] && kill -SEGV $$; sleep 60'
	[ "$status" -eq 139 ]
	[[ "$output" == *"rank 0 on $HOST was killed by signal 11"* ]]
	report 'report["signal"] == 11 and report["code"] == 139'
}

@test "ranks that ignore SIGTERM are killed with their child processes" {
	start=$(date +%s)
	run "$BERTH" run -n 2 -- sh -c 'trap "" TERM; echo $$ >>pids
		setsid sh -c "trap \"\" TERM; echo \$\$ >>pids; while :; do sleep 1; done" &
		[ $RANK = 0 ] && { sleep 0.5; exit 3; }; while :; do sleep 1; done'
	[ "$status" -eq 3 ]
	[ $(($(date +%s) - start)) -lt 15 ] # promised: 5
	for pid in $(cat pids); do
		! kill -0 "$pid" 2>/dev/null || false
	done
}

@test "INT, TERM, USR1, USR2, HUP and QUIT are forwarded to all ranks, once" {
	for name in INT TERM USR1 USR2 HUP QUIT; do
		rm -f up got
		# Tests that run under nohup must not decide what a hangup does here.
		env --default-signal "$BERTH" run -n 2 -- bash -c "trap 'echo $name \$RANK >>got; exit 0' $name; echo >>up
			while :; do sleep 0.05; done" &
		wait_for up 2
		kill -"$name" $!
		wait $!
		[ "$(sort got)" = "$name 0"$'\n'"$name 1" ]
	done
}

@test "under nohup SIGHUP is ignored" {
	(
		trap '' HUP
		exec "$BERTH" run -n 2 -- bash -c 'trap "exit 0" USR1; echo >>up; while :; do sleep 0.05; done'
	) &
	wait_for up 2
	# berth would forward SIGHUP first, and the ranks would die of it.
	kill -HUP $!
	kill -USR1 $!
	wait $!
}

@test "a parent that ignores SIGCHLD does no harm" {
	command -v python3 >/dev/null || skip "no python3"
	ignoring='import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])'
	timeout -k 5 60 python3 -c "$ignoring" "$BERTH" run -n 2 -- true
	code=0
	timeout -k 5 60 python3 -c "$ignoring" "$BERTH" run -n 2 -- sh -c 'exit 7' || code=$?
	[ "$code" -eq 7 ]
}

@test "a low limit of open files applies to the ranks, not to berth" {
	[ "$(ulimit -Hn)" = unlimited ] || [ "$(ulimit -Hn)" -ge 512 ] || skip "a hard limit of $(ulimit -Hn)"
	run bash -c 'ulimit -Sn 64; "$BERTH" run -n 40 -q -- sh -c "ulimit -Sn"'
	[ "$status" -eq 0 ]
	[ "$(grep -cx 64 <<<"$output")" -eq 40 ]
}

@test "a rank ends with code 0 while another still exchanges data with it: the reason names it" {
	for code in 0 75; do
		rm -f pid
		expect 1 "$BERTH" run -n 2 --stop-grace 9s -- sh -c '[ $RANK = 0 ] || { echo $$ >pid.tmp; mv pid.tmp pid; exit '$code'; }
			until [ -e pid ] && ! kill -0 "$(cat pid)" 2>/dev/null; do sleep 0.05; done
			trap "" TERM
			echo "RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:51094" >&2; exit 1'
		[[ $output == *"known failure: another rank ended or crashed while this one exchanged data with it"* ]]
		[[ $output == *"reason: rank 1 on $HOST had ended before, with code $code"* ]]
		[[ "${lines[-1]}" == *"rank 0 on $HOST exited with code 1"* ]]
	done
}

@test "a low limit of processes is reported as the cause" {
	[ "$(id -u)" = 0 ] || skip "needs root, to become a user without processes"
	command -v setpriv >/dev/null && command -v prlimit >/dev/null || skip "no setpriv, no prlimit"
	as_nobody="setpriv --reuid 65534 --regid 65534 --clear-groups"
	$as_nobody test -x "$BERTH" 2>/dev/null || skip "the build is not for others to read"
	allow_leaks # LeakSanitizer itself needs one more process, and reports if it gets none
	for limit in 1 2 3; do
		run $as_nobody prlimit --nproc="$limit" "$BERTH" run -n 2 -- true
		echo "$limit: $output"
		[ "$status" -ge 64 ] && [ "$status" -lt 128 ]
		[[ $output == *"temporarily unavailable"* || $output == *"cannot start a thread"* ]]
	done
}

@test "a limit of file size is reported and does not kill berth" {
	run bash -c 'ulimit -f 0; "$BERTH" run -n 1 --report report.json -- true'
	echo "$output"
	[ "$status" -ge 64 ] && [ "$status" -lt 128 ]
	[[ $output == *"berth: error: "*"File too large"* ]]
}

@test "a second SIGINT ends the job at once" {
	"$BERTH" run -n 2 -- sh -c 'trap "" INT TERM; echo >>up; while :; do sleep 1; done' 2>err &
	wait_for up 2
	kill -INT $!
	within 30 received $! INT
	kill -INT $!
	code=0; wait $! || code=$?
	[ "$code" -eq 130 ]
	grep -q '^berth: error: ' err
}

@test "bad input: an error message and the documented exit code, nothing is started" {
	touch plain; chmod -x plain
	mkdir empty python3-only
	ln -s /bin/true python3-only/python3
	printf '#!/nowhere/interpreter\n' >script; chmod +x script
	printf '#!/bin/sh\r\n' >dos; chmod +x dos
	# For another machine (e_machine is loongarch), and data: /bin/sh runs neither.
	cp "$BERTH" other; printf '\2\1' | dd of=other bs=1 seek=18 conv=notrunc status=none
	printf 'a\0b\n' >data; chmod +x data
	mkdir nested; cp -p script nested
	local first='--nnodes 2 --node-rank 0' # arguments of some rows
	local by_hand="$first --rdzv-endpoint n1:4711"
	while IFS='|' read -r code text arguments; do
		eval "run \"\$BERTH\" run $arguments"
		echo "$arguments: $status: $output"
		[ "$status" -eq "$code" ]
		[[ "$output" == *"$text"* ]]
		[[ "${lines[-1]}" == "berth: error: "* ]]
	done <<'ROWS'
64|--ranks is "0"|-n 0 -- touch started
64|--ranks|-n -1 -- touch started
64|--ranks|-n 1x -- touch started
64|PROGRAM|-n 1
64|PROGRAM|-n 1 --
64|expected auto, on or off|--pmix maybe -- touch started
64|NAME=VALUE|--env =x -- touch started
64|NAME=VALUE|--env 'A B=1' -- touch started
64|--env RANK=7: berth sets RANK for each rank|--env RANK=7 -- touch started
64|--env MASTER_PORT=1: berth sets MASTER_PORT for each rank|--env MASTER_PORT=1 -- touch started
64|--json needs --dry-run|--json -- touch started
64|--quiet conflicts with --verbose|-q -v -- touch started
64|--iface eth9: |--iface eth9 -- touch started
64|has no such interface with an address; it has lo|--iface eth9 -n 2 -- touch started
64|--port|--port 65536 -- touch started
64|choose one of: fork, hand, srun, pals, tm, prterun, mpirun, ssh, loopback|--launcher nosuch -- touch started
64|unrecognized option '--engine'|--engine fork -- touch started
64|unrecognized option '--head'|--head 127.0.0.1 -- touch started
64|option '--launcher' requires an argument|--launcher
64|--master-addr is 'n1', expected a numeric address|--master-addr n1 -- touch started
64|--master-addr is '', expected a numeric address|--master-addr '' -- touch started
64|--master-addr is '127.0.0.1:4711', expected a numeric address|--master-addr 127.0.0.1:4711 -- touch started
64|--master-addr is '[::1]', expected a numeric address|--master-addr '[::1]' -- touch started
64|--master-addr is '10.0.0.256', expected a numeric address|--master-addr 10.0.0.256 -- touch started
64|--master-addr 203.0.113.9: no interface of|--master-addr 203.0.113.9 -- touch started
64|option '--master-addr' requires an argument|--master-addr
64|--master-addr n1:4711: conflicts with --nnodes. Use --rdzv-endpoint HOST:PORT|$first --master-addr n1:4711 -- touch started
64|--master-addr 127.0.0.1: conflicts with --nnodes. Use --rdzv-endpoint HOST:PORT|$by_hand --master-addr 127.0.0.1 -- touch started
64|--rdzv-endpoint n1:4711: needs --nnodes and --node-rank|--rdzv-endpoint n1:4711 -- touch started
64|use --master-addr ADDRESS|--rdzv-endpoint 127.0.0.1 -n 2 -- touch started
64|--node-rank needs --nnodes and --rdzv-endpoint HOST:PORT|--node-rank 0 --rdzv-endpoint n1:4711 -- touch started
64|--nnodes 2 also needs --node-rank and --rdzv-endpoint HOST:PORT|--nnodes 2 --node-rank 0 -- touch started
64|--nnodes 2 also needs --node-rank and --rdzv-endpoint HOST:PORT|--nnodes 2 --rdzv-endpoint n1:4711 -- touch started
64|--rdzv-endpoint n1: expected HOST:PORT|--nnodes 2 --node-rank 0 --rdzv-endpoint n1 -- touch started
64|--rdzv-endpoint : expected HOST:PORT|--nnodes 2 --node-rank 0 --rdzv-endpoint '' -- touch started
64|--rdzv-endpoint fd00::1:4711: expected HOST:PORT|--nnodes 2 --node-rank 0 --rdzv-endpoint fd00::1:4711 -- touch started
64|--rdzv-endpoint n1:65536: expected a port from 1 to 65535|--nnodes 2 --node-rank 0 --rdzv-endpoint n1:65536 -- touch started
64|--rdzv-endpoint n1:0: expected a port from 1 to 65535|--nnodes 2 --node-rank 0 --rdzv-endpoint n1:0 -- touch started
64|option '--rdzv-endpoint' requires an argument|--nnodes 2 --node-rank 0 --rdzv-endpoint
76|elsewhere.invalid|--hosts elsewhere.invalid -- touch started
76|elsewhere.invalid|--hosts localhost,elsewhere.invalid -- touch started
64|has 1 node|-N 2 -- touch started
64|GPUs|--gpus-per-rank 1000 -n 1 -- touch started
66|cannot find the program ./absent|-- ./absent
66|in PATH|-- absent-from-path
66|python in PATH. Use python3, or activate the environment that has it (venv, conda, module load).|--env PATH="$PWD/python3-only" -- python
66|python in PATH. Activate the environment that has it (venv, conda, module load).|--env PATH="$PWD/empty" -- python
66|PROGRAM is empty|-- ""
69|is not executable|-- ./plain
69|is a directory|-- /
69|is a directory|-- ./nested
66|the interpreter /nowhere/interpreter, which is missing|-n 2 -- ./script
66|the interpreter /nowhere/interpreter, which is missing|--env PATH="$PWD:$PATH" -n 2 -- script
66|carriage return|-- ./dos
69|cannot start ./other: Exec format error (it is a program for loongarch, and this machine is |-q -- ./other
69|cannot start ./data: Exec format error (neither a program for this architecture nor a script|-q -- ./data
66|the interpreter /nowhere/interpreter, which is missing|-- ./nested/script
73|--log-dir|--log-dir /proc/nowhere -- touch started
73|--log-dir|--log-dir plain -- touch started
73|--report|--report /nowhere/report -- touch started
ROWS
	[ ! -e started ]
	# An agent removes its directory after the controller has exited; under ASan that is slow.
	removed() { [ -z "$(ls -d berth-* 2>/dev/null)" ]; }
	within 10 removed
}

@test "-v prints the time of each stage" {
	expect 0 "$BERTH" run -v --launcher loopback -N 2 --ranks-per-node 1 -- sleep 0.3
	grep -qE '^berth: debug: times: allocation and checks [0-9.]+ s$' <<<"$output"
	local times='agents [0-9.]+ s, inventories [0-9.]+ s, addresses [0-9.]+ s, start of the ranks [0-9.]+ s, '
	times+='ranks (0\.[3-9]|[1-9])[0-9.]* s, end [0-9.]+ s'
	grep -qE "^berth: debug: times: $times\$" <<<"$output"
}

@test "more ranks than cores: allowed, with a warning" {
	n=$(($(nproc) + 1))
	run --separate-stderr "$BERTH" run -n "$n" -- true
	[ "$status" -eq 0 ]
	[[ "$stderr" == *"more ranks ($n) than cores"* ]]
}

@test "MASTER_PORT: reserved for rank 0, free for SO_REUSEADDR, rejected if in use" {
	cat >port.py <<'PY'
import os, socket, sys
port = int(os.environ['MASTER_PORT'])
other = socket.socket()
try:
    other.bind(('0.0.0.0', port))
    taken = False
except OSError:
    taken = True
mine = socket.socket()
mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if taken:
    mine.bind(('0.0.0.0', port))
    mine.listen()
print('held' if taken else 'free', port)
PY
	[[ "$("$BERTH" run -n 1 -- python3 port.py)" == held\ * ]]
	[[ "$("$BERTH" run -n 1 --port-hold off -- python3 port.py)" == free\ * ]]
	port=$("$BERTH" run -n 1 -- sh -c 'echo $MASTER_PORT')
	[ "$("$BERTH" run -n 1 --port "$port" -- python3 port.py)" = "held $port" ]
	# in use by a listener; and by another job that only reserves it
	"$BERTH" run -n 1 -- sh -c 'echo $MASTER_PORT >port; while [ ! -e stop ]; do sleep 0.05; done' &
	holder=$!
	wait_for port 1
	run "$BERTH" run -n 1 --port "$(cat port)" -- touch started
	touch stop; wait "$holder"
	[ "$status" -eq 76 ]
	[[ "$output" == *"port $(cat port) is already in use"* ]]
	[ ! -e started ]
	python3 -c 'import socket, subprocess, sys
s = socket.create_server(("127.0.0.1", 0)); p = str(s.getsockname()[1])
r = subprocess.run([sys.argv[1], "run", "-n", "1", "--port", p, "--", "true"], capture_output=True, text=True)
assert r.returncode == 76 and f"port {p} is already in use" in r.stderr, r' "$BERTH"
	# a port whose server has just exited (TIME_WAIT) is free
	python3 -c 'import socket, subprocess, sys
s = socket.create_server(("127.0.0.1", 0)); p = s.getsockname()[1]
c = socket.create_connection(("127.0.0.1", p)); a, _ = s.accept(); a.close(); c.recv(1); c.close(); s.close()
subprocess.run([sys.argv[1], "run", "-n", "1", "--port", str(p), "--", "true"], check=True)' "$BERTH"
}

@test "--hosts may name this host" {
	for name in localhost 127.0.0.1 "$(hostname)" "$(hostname).any.domain"; do
		run "$BERTH" run --hosts "$name" -n 1 -- sh -c 'echo "rank $RANK"'
		echo "$name: $output"
		[ "$status" -eq 0 ]
		[[ $output == *"rank 0"* ]]
	done
}

@test "--dry-run quotes arguments for a shell" {
	"$BERTH" run --dry-run -n 1 -- printf '%s|' "a  b" "it's" '' '$HOME' >dry
	line=$(sed -n '/^Program$/{n;s/^  //p;}' dry)
	[ "$(eval "$line")" = "a  b|it's||\$HOME|" ]
}

@test "--dry-run lists every variable that a rank gets, those that follow at the start too" {
	"$BERTH" run --dry-run --json -n 2 --ports 2 -- true >dry.json
	"$BERTH" run -n 2 --ports 2 -- python3 -c 'import json, os; print(json.dumps(dict(os.environ)))' >ranks
	python3 - <<'PY'
import fnmatch, json, os
dry = {e['name']: e for e in json.load(open('dry.json'))['nodes'][0]['environments'][0]}
rank = next(r for r in map(json.loads, open('ranks')) if r['RANK'] == '0')
new = [name for name in rank if os.environ.get(name) != rank[name] and name not in ('PWD', '_', 'SHLVL')]
assert 'BERTH_PORTS' in new and 'BERTH_HEARTBEAT_FILE' in new, new
mine = [n for n in new if not n.startswith(('OMPI_', 'PMIX_'))]
assert not [n for n in mine if not any(fnmatch.fnmatchcase(n, d) for d in dry)], mine
for name, e in dry.items():
    assert name not in rank or e['from'] == 'start' or name.endswith(('JOB_ID', 'RUN_ID')) or e['value'] == rank[name], name
    assert name in rank or e['from'] == 'start', name
PY
}

@test "--dry-run starts nothing and shows launcher, ranks, cores and environment" {
	run --separate-stderr "$BERTH" run --dry-run -n 2 --log-dir logs --report r.json -- touch started
	[ "$status" -eq 0 ]
	[ ! -e started ] && [ ! -e logs ] && [ ! -e r.json ]
	[[ "$output" == *fork* && "$output" == *WORLD_SIZE* && "$output" == *"touch started"* ]]
	"$BERTH" run --dry-run --json -n 2 -- touch started >dry.json
	python3 - <<'PY'
import json
dry = json.load(open('dry.json'))
assert dry['schema'] == 'berth.dryrun/1' and dry['launcher'] == 'fork' and dry['world_size'] == 2
assert dry['program'] == ['touch', 'started']
node, = dry['nodes']
assert [r['local_rank'] for r in node['plan']['ranks']] == [0, 1]
ranks = [{e['name']: e for e in env} for env in node['environments']]
assert [r['RANK']['value'] for r in ranks] == ['0', '1']
assert all(e['from'] in ('option', 'user', 'site', 'scheduler', 'berth', 'start') and e['why']
           for r in ranks for e in r.values())
PY
	OMP_NUM_THREADS=3 "$BERTH" run --dry-run --json -n 1 -- true | python3 -c 'import json, sys
env = {e["name"]: e for e in json.load(sys.stdin)["nodes"][0]["environments"][0]}
assert env["OMP_NUM_THREADS"]["from"] == "user" and env["OMP_NUM_THREADS"]["value"] == "3", env'
}

@test "--dry-run outside the first node (salloc on a login node) shows what is known and what is not" {
	export SLURM_JOB_ID=42 SLURM_JOB_NODELIST='n[1-2]' SLURM_NNODES=2 SLURM_TASKS_PER_NODE='4(x2)' SLURM_JOB_END_TIME=4102444800
	SLURM_GPUS_PER_NODE=4 run "$BERTH" run --dry-run -- touch started
	echo "$output"
	[ "$status" -eq 0 ] && [ ! -e started ]
	local node2='n2    4      4             4'
	[[ "$output" == *srun*"an address of n1 that all nodes reach"*"8 ranks"*"$node2"*"Not known here"*"n1, the first node"* ]]
	[[ "$output" != *127.0.0.1* && "$output" != *--master-addr* && "$output" != *MASTER_ADDR* && "$output" != *"are like it"* ]]
	run "$BERTH" run --dry-run -- true
	[[ "$output" == *"one rank per GPU"* ]]
	"$BERTH" run --dry-run --json -n 5 -- true | python3 -c 'import json, sys
dry = json.load(sys.stdin)
assert dry["world_size"] == 5 and dry["address"] is None and "n1" in dry["not_known"], dry
assert [(n["node"], n["plan"], n["environments"], n["ranks"]) for n in dry["nodes"]] == \
       [("n1", None, [], None), ("n2", None, [], None)], dry'
	run "$BERTH" run --dry-run --master-addr n1 -- true
	[ "$status" -eq 64 ]
	[[ "$output" == *"expected a numeric address"* ]]
	SLURMD_NODENAME=n1 run "$BERTH" run --dry-run --master-addr 203.0.113.9 -- true
	[ "$status" -eq 64 ]
	[[ "$output" == *"--master-addr 203.0.113.9: no interface of n1 has that address"*"omit --master-addr"* ]]
	# On the first node itself, whose addresses are known: no option that the user did not give.
	SLURMD_NODENAME=n1 run "$BERTH" run --dry-run -- true
	[ "$status" -eq 0 ]
	[[ $(echo $output) == *"the best address of n1; before ranks start, berth tests whether all 2 nodes can reach it"*MASTER_ADDR* ]]
	[[ $(echo $output) == *MASTER_ADDR*"berth examined only this node and assumes that the others are like it"* ]]
	[[ "$output" != *"requested with --master-addr"* && "$output" != *" option "* ]]
}

@test "BERTH_TOPOLOGY: its plan is used with a note; the ranks run" {
	cp "$FIXTURES"/topo/*.xml . 2>/dev/null || skip "no fixtures"
	set -- *.xml
	BERTH_TOPOLOGY="$1" run "$BERTH" run -n 2 -- sh -c 'echo rank $RANK'
	[ "$status" -eq 0 ]
	[[ "$output" == *"rank 0"* && "$output" == *"rank 1"* ]]
	BERTH_TOPOLOGY=absent.xml run "$BERTH" run -n 1 -- true
	[ "$status" -eq 66 ]
	[[ "$output" == *absent.xml* ]]
}

@test "--master-addr with an address that the host lacks is rejected before a rank starts" {
	local error="berth: error: --master-addr 203.0.113.9: no interface of "
	for options in '-n 2' '--launcher loopback -N 2'; do
		run --separate-stderr "$BERTH" run $options --master-addr 203.0.113.9 --report r.json -- touch started
		[ "$status" -eq 64 ] && [ ! -e started ]
		[[ "$stderr" == *"$error"*" has that address, but rank 0 listens on "*"Give an address of that node"* ]]
		grep -q '"by": "berth"' r.json
	done
}

@test "by hand on a host with loopback only: the error names an option, and that option works" {
	unshare -n true 2>/dev/null || skip "no network namespace can be made here (needs root)"
	command -v ip >/dev/null || skip "no ip (iproute2)"
	(umask 077; head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >secret)
	by_hand() {
		BERTH_SECRET_FILE=$DIR/secret unshare -n bash -c 'ip link set lo up
			for node in 1 0; do
				timeout 100 "$BERTH" run --nnodes 2 --node-rank $node --rdzv-endpoint 127.0.0.1:4711 -n 2 "$@" -- \
					sh -c "echo rank \$RANK at \$MASTER_ADDR" >out.$node 2>&1 &
			done
			wait $!; code=$?; wait; exit $code' sh "$@"
	}
	export BERTH DIR
	run by_hand
	cat out.0
	[ "$status" -eq 76 ]
	grep -q '^berth: error: no address of node0 can .*(--iface lo if all nodes are this machine)' out.0
	run by_hand --iface lo
	cat out.0
	[ "$status" -eq 0 ]
	[ "$(grep -c '^rank [01] at 127.0.0.1$' out.0)" = 2 ]
}

@test "loopback: several agents form one world" {
	"$BERTH" run -q --launcher loopback -N 3 -n 6 -- sh -c 'env >env.$RANK'
	for rank in 0 1 2 3 4 5; do
		[ "$(value WORLD_SIZE "$rank")" = 6 ]
		[ "$(value NODE_RANK "$rank")" = $((rank / 2)) ]
		[ "$(value LOCAL_RANK "$rank")" = $((rank % 2)) ]
		[ "$(value MASTER_PORT "$rank")" = "$(value MASTER_PORT 0)" ]
	done
	"$BERTH" run -q --launcher loopback -N 2 -n 2 --log-dir logs -- sh -c 'echo out $RANK; echo err >&2'
	grep -qx 'out 0' logs/rank-0000.log
	grep -qx 'out 1' logs/rank-0001.log
}

@test "loopback: more agents than the fan-out, a tree of three levels" {
	"$BERTH" run -q --launcher loopback -N 34 -n 34 --label -- sh -c 'echo $NODE_RANK' >out
	[ "$(sort -n -k2 out | awk '{ print $2 }' | tr '\n' ' ')" = "$(seq 0 33 | tr '\n' ' ')" ]
	"$BERTH" run -q --launcher loopback -N 15 -n 15 --fan-out 2 -- sh -c 'echo $RANK' | sort -n >out
	[ "$(tr '\n' ' ' <out)" = "$(seq 0 14 | tr '\n' ' ')" ]
	# the failure of a leaf reaches the controller; signals reach the leaves
	run "$BERTH" run -q --launcher loopback -N 7 -n 7 --fan-out 2 -- sh -c '[ $RANK = 6 ] && exit 9; sleep 60'
	[ "$status" -eq 9 ]
	[[ "$output" == *"rank 6 on loop6"* ]]
	"$BERTH" run -q --launcher loopback -N 7 -n 7 --fan-out 2 -- bash -c '
		trap "echo \$RANK >>got; exit 0" USR1; echo >>up; while :; do sleep 0.1; done' &
	wait_for up 7
	kill -USR1 $!; wait $!
	[ "$(sort got | tr '\n' ' ')" = "0 1 2 3 4 5 6 " ]
}

@test "a first node with many addresses, all probed by many nodes at once, drops no connection" {
	unshare -rn ip link set lo up 2>/dev/null || skip "no network namespace of one's own, or no ip"
	# A probe that a slow build answers too late is dropped by its own node.
	local nodes=40
	[ -z "$SANITIZED" ] || nodes=12
	export nodes
	run unshare -rn sh -c 'ip link set lo up
		i=0; while [ $i -lt 30 ]; do i=$((i + 1)); ip address add 198.18.0.$i/32 dev lo; done
		exec "$BERTH" run --launcher loopback -N $nodes -n $nodes -- true'
	echo "$output"
	[ "$status" -eq 0 ]
	[ -z "$output" ]
}

@test "loopback: nodes without ranks forward messages of other nodes" {
	[ "$("$BERTH" run -q --launcher loopback -N 5 -n 2 --fan-out 1 -- sh -c 'echo $RANK' | sort | tr '\n' ' ')" = "0 1 " ]
}

@test "a silent agent means a lost node: it is named, exit code 76, all ranks are killed" {
	"$BERTH" run --launcher loopback -N 4 -n 4 --fan-out 2 --node-timeout 4s --report report.json \
		-- sh -c 'echo $PPID >agent.$RANK; echo $$ >>up; sleep 60' 2>err &
	pid=$!
	wait_for up 4
	kill -STOP "$(cat agent.3)" # a leaf, below node 0
	code=0; wait "$pid" || code=$?
	[ "$code" -eq 76 ]
	grep -q '^berth: error: node loop3 was lost: no heartbeat from its agent for 4 s' err
	report 'report["by"] == "berth" and report["node"] == "loop3" and report["rank"] is None'
	for rank in $(cat up); do ! kill -0 "$rank" 2>/dev/null || false; done
}

@test "nodes that share one machine have more time before they count as lost" {
	[ "$(id -u)" = 0 ] || skip "needs root to read the agents' environment"
	local timeout='tr "\0" "\n" </proc/$PPID/environ | grep ^BERTH_AGENT_NODE_TIMEOUT_MS='

	for row in '1:8000' '5:8200' '5:4000:--node-timeout 4s'; do
		IFS=: read -r nodes expected option <<<"$row"
		"$BERTH" run -q --launcher loopback --nodes "$nodes" $option -- sh -c "$timeout" >out
		[ "$(sort -u <out)" = "BERTH_AGENT_NODE_TIMEOUT_MS=$expected" ]
	done
}

@test "an agent that dies below another agent: the report names what killed it" {
	"$BERTH" run --launcher loopback -N 4 -n 4 --fan-out 2 -- sh -c 'echo $PPID >agent.$RANK; echo $$ >>up; sleep 60' 2>err &
	pid=$!
	wait_for up 4
	kill -KILL "$(cat agent.3)"
	ends 76 $pid err
	grep -q '^berth: error: node loop3 was lost: its agent was killed by signal 9 (Killed)' err
}

@test "an agent started by hand explains how to start it" {
	run env -u BERTH_AGENT_CONTROLLER "$BERTH" agent
	[ "$status" -eq 64 ]
	[[ "$output" == "berth: error: "*"berth run"* ]]
	BERTH_AGENT_CONTROLLER=127.0.0.1:1 BERTH_AGENT_JOB=x BERTH_AGENT_NODE=0 BERTH_AGENT_SECRET=xyz run "$BERTH" agent
	[ "$status" -eq 65 ]
	[[ "$output" == *"64 hexadecimal digits"* ]]
	[[ "$output" != *xyz* ]]
	BERTH_AGENT_CONTROLLER=127.0.0.1:1 BERTH_AGENT_JOB=x BERTH_AGENT_NODE=0 \
		BERTH_AGENT_SECRET=$(printf 'ab%.0s' $(seq 32)) run "$BERTH" agent
	[ "$status" -eq 76 ]
	[[ "$output" == *"cannot reach the controller"* ]]
}

@test "agents are not sent to the address of a containers' bridge, which every node may have" {
	unshare -n true 2>/dev/null || skip "no network namespace can be made here (needs root)"
	printf '#!/bin/sh\nexit 1\n' >"$DIR/ssh"
	chmod +x "$DIR/ssh"
	cat >"$DIR/namespace" <<-'EOF'
		mount -t sysfs none /sys
		ip link set lo up
		ip link add docker0 type bridge
		ip link add inside type veth peer name outside
		ip link set inside master docker0
		ip address add 172.17.0.1/16 dev docker0
		[ -z "$1" ] || ip address add 10.6.0.1/24 dev outside
		for each in docker0 inside outside; do ip link set $each up; done
		BERTH_LOG=launch timeout 30 "$BERTH" run --hosts a,b -n 2 -- true
	EOF
	PATH=$DIR:$PATH run unshare -nm sh "$DIR/namespace" other
	[[ $output == *"agents connect to 10.6.0.1:"* ]]
	[[ $output != *172.17.0.1* ]]
	PATH=$DIR:$PATH run unshare -nm sh "$DIR/namespace" ''
	[[ $output == *"agents connect to 172.17.0.1:"* ]] # there is no other
}

@test "a variable that lists GPUs where none is visible: a warning, and the job runs" {
	[ ! -e /dev/nvidia0 ] || skip "this machine has a GPU"
	for list in 0,1 GPU-8932f937 MIG-1; do
		CUDA_VISIBLE_DEVICES=$list run --separate-stderr "$BERTH" run -n 1 -- true
		[ "$status" -eq 0 ]
		[[ $stderr == "berth: warning: "*": CUDA_VISIBLE_DEVICES is $list, but no GPU is visible: ranks run without GPUs."* ]]
	done
	for list in '' -1 all NoDevFiles; do
		CUDA_VISIBLE_DEVICES=$list run --separate-stderr "$BERTH" run -n 1 -- true
		[ "$status" -eq 0 ]
		[ -z "$stderr" ]
	done
	CUDA_VISIBLE_DEVICES=0 run "$BERTH" check
	[ "$status" -eq 76 ]
	[[ $output == *"FAULT "*"CUDA_VISIBLE_DEVICES lists GPUs, but none is visible"* ]]
}

@test "ranks share a secret for their store, which is not the job's and new for each job" {
	run -0 "$BERTH" run --pmix off -n 2 -- sh -c 'echo "$BERTH_STORE_SECRET${BERTH_AGENT_SECRET-}"'
	[[ "${lines[0]}" =~ ^[0-9a-f]{64}$ && "${lines[0]}" == "${lines[1]}" ]]
	first=${lines[0]}
	run -0 "$BERTH" run --pmix off -n 1 -- sh -c 'echo "$BERTH_STORE_SECRET"'
	[[ "${lines[0]}" =~ ^[0-9a-f]{64}$ && "${lines[0]}" != "$first" ]]
}

@test "torchrun runs once per node; mpirun and srun are refused with the user's own line, converted" {
	mkdir bin
	printf '#!/bin/sh\necho "started, $PET_NPROC_PER_NODE workers, $*"\n' >bin/torchrun
	printf '#!/bin/sh\n[ "$2" = torch.distributed.run ] && echo "started, $PET_NPROC_PER_NODE workers"\n' >bin/python3
	cp bin/torchrun bin/mpirun
	cp bin/torchrun bin/accelerate
	chmod +x bin/*
	PATH="$PWD/bin:$PATH"
	expect 0 "$BERTH" run -n 2 -- torchrun train.py
	[ "$(grep -cx 'started, 2 workers, train.py' <<<"$output")" = 1 ]
	[[ "$output" == *"berth: note: torchrun starts ranks of its own, so berth starts one per node, as with --per-node"* ]]
	expect 0 "$BERTH" run --launcher loopback --nodes 2 -- "$PWD/bin/torchrun" train.py
	[ "$(grep -c started <<<"$output")" = 2 ]
	expect 0 "$BERTH" run -n 2 -- python3 -m torch.distributed.run train.py
	[ "$(grep -cx 'started, 2 workers' <<<"$output")" = 1 ]
	expect 0 "$BERTH" run -n 2 --per-node -- torchrun
	[[ "$output" != *note:* ]]
	while IFS='|' read -r line converted; do
		eval "expect 64 '$BERTH' run $line"
		[[ "$output" == *"use berth run -n $converted, or "*" -n ${converted/ -- / berth exec -- }. Add -n 1 "* ]]
	done <<-'E'
	-n 2 -- mpirun ./a.out|2 -- ./a.out
	-- mpirun ./a.out|N -- ./a.out
	-- mpirun -np 4 --bind-to core -x A=1 ./a.out 'a b' -n 3|4 -- ./a.out 'a b' -n 3
	-n 2 -- mpirun --map-by=node ./a.out|2 -- ./a.out
	-- /usr/bin/srun -n4 --overlap hostname|4 -- hostname
	-- srun --ntasks=4 -N 2 hostname -f|4 -- hostname -f
	-- srun -n 4 --unknown x hostname|4 -- PROGRAM
	-- srun|N -- PROGRAM
	E
	expect 0 "$BERTH" run -n 2 -- accelerate env
	[ "$(grep -c started <<<"$output")" = 2 ]
	expect 0 "$BERTH" run -n 1 -- mpirun
	expect 0 "$BERTH" run -n 2 -- sh -c 'echo torchrun'
}

# What ask_launcher.c and ask_launcher.py use of accelerate and DeepSpeed; tests/cluster/frameworks.bats has the real ones.
fake_launchers() {
	mkdir -p fake/accelerate/commands fake/deepspeed/launcher fake/torch/distributed bin
	touch fake/torch/__init__.py fake/torch/distributed/__init__.py fake/accelerate/__init__.py fake/accelerate/commands/__init__.py \
		fake/deepspeed/__init__.py fake/deepspeed/launcher/__init__.py
	echo 'def run(args): raise SystemExit("torchrun started")' >fake/torch/distributed/run.py
	cat >fake/accelerate/commands/launch.py <<-'E'
	import argparse, os, subprocess, types
	default_config_file = os.path.expanduser('~/default.yaml')
	def launch_command_parser():
	    parser = argparse.ArgumentParser('accelerate launch')
	    for option in 'config_file', 'gpu_ids', 'main_process_ip', 'mpirun_hostfile', 'mode':
	        parser.add_argument('--' + option)
	    for option in 'num_processes', 'num_machines', 'machine_rank', 'main_process_port', 'num_cpu_threads_per_process':
	        parser.add_argument('--' + option, type=int)
	    parser.add_argument('--module', action='store_true')
	    parser.add_argument('--no_python', action='store_true')
	    parser.add_argument('training_script')
	    parser.add_argument('training_script_args', nargs=argparse.REMAINDER)
	    return parser
	def _validate_launch_command(args):
	    print('noise on standard output')
	    path = args.config_file or (default_config_file if os.path.exists(default_config_file) else None)
	    config = types.SimpleNamespace(**dict(line.split() for line in open(path))) if path else None
	    if config and hasattr(config, 'num_processes'):
	        config.num_processes = int(config.num_processes)
	    if args.mode == 'bad':
	        raise ValueError('mode bad')
	    if args.mode == 'broken':
	        raise KeyError('broken')
	    for key, value in (vars(config) if config else {}).items():
	        if getattr(args, key, None) is None:
	            setattr(args, key, value)
	    return args, config, False
	def tpu_launcher(args): pass
	def launch_command(args):
	    args, *_ = _validate_launch_command(args)
	    assert args.num_machines == 1 and args.machine_rank == 0 and args.gpu_ids == 'all'
	    env = dict(os.environ, MASTER_ADDR='wrong', MASTER_PORT='1', OMP_NUM_THREADS=str(args.num_cpu_threads_per_process or 77),
	               ACCELERATE_MIXED_PRECISION=getattr(args, 'precision', 'no'))
	    if args.mode == 'tpu':
	        tpu_launcher(args)
	    elif args.mode == 'simple':
	        subprocess.Popen([args.training_script, *args.training_script_args], env=env).wait()
	    elif args.mode != 'nothing':
	        import torch.distributed.run as torchrun
	        os.environ.update(env)
	        torchrun.run(args)
	E
	cat >fake/deepspeed/launcher/runner.py <<-'E'
	import argparse
	def parse_args(arguments):
	    parser = argparse.ArgumentParser('deepspeed')
	    parser.add_argument('--num_gpus', type=int, default=-1)
	    parser.add_argument('--num_nodes', type=int, default=-1)
	    for option in 'include', 'exclude', 'autotuning':
	        parser.add_argument('--' + option, default='')
	    for option in 'module', 'no_python', 'no_local_rank':
	        parser.add_argument('--' + option, action='store_true')
	    parser.add_argument('user_script')
	    parser.add_argument('user_args', nargs=argparse.REMAINDER)
	    return parser.parse_args(arguments)
	E
	printf '#!/usr/bin/env python3\nraise SystemExit("the launcher itself ran")\n' >bin/accelerate
	printf "#!/bin/sh\n'''exec' \"$(command -v python3)\" \"\$0\" \"\$@\"\n' '''\n" >bin/deepspeed
	chmod +x bin/accelerate bin/deepspeed
	cat >show.py <<-'E'
	import os, sys
	print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ.get('ACCELERATE_MIXED_PRECISION'), os.environ.get('CROSS_SIZE'),
	      os.environ['OMP_NUM_THREADS'] == '77', os.environ['MASTER_ADDR'], *sys.argv[1:])
	E
	export PATH="$DIR/bin:$PATH" PYTHONPATH="$DIR/fake" HOME="$DIR"
}

@test "accelerate launch in an image: its own accelerate is asked" {
	command -v bwrap >/dev/null || skip 'no bwrap'
	fake_launchers
	mkdir -p image/usr/bin image/etc image/dev image/proc image/sys image/tmp
	for name in bin lib lib64; do ln -s usr/$name image/$name; done
	touch image/usr/bin/sh
	rm bin/accelerate # the host has none
	printf 'precision bf16\nnum_processes 2\n' >c.yaml
	for first in '#!/usr/bin/python3' "#!/bin/sh
'''exec' \"/usr/bin/python3\" \"\$0\" \"\$@\""; do
		echo "$first" >bin/accelerate
		mkdir -p "mine" && mv bin/accelerate mine && chmod +x mine/accelerate
		expect 0 "$BERTH" run --container image --container-runtime bwrap --bind /usr:/usr:ro --env "PATH=$DIR/mine:/usr/bin:/bin" \
			--env "PYTHONPATH=$DIR/fake" -- accelerate launch --config_file c.yaml show.py --lr 1
		[ "$(sort <<<"$output")" = $'0 2 bf16 None False 127.0.0.1 --lr 1\n1 2 bf16 None False 127.0.0.1 --lr 1' ]
	done
	expect 69 "$BERTH" run --container image --container-runtime bwrap --bind /usr:/usr:ro --env "PATH=$DIR/none:/bin" -- \
		accelerate launch show.py
	[[ $output == *"cannot ask accelerate for the ranks' variables: there is no such program"* ]]
	echo '#!/bin/sh' >mine/accelerate
	expect 64 "$BERTH" run --container image --container-runtime bwrap --bind /usr:/usr:ro --env "PATH=$DIR/mine:/usr/bin:/bin" -- \
		accelerate launch show.py
	[[ $output == *"does not begin with the Python that runs it"* ]]
}

@test "accelerate launch: one job whose ranks get accelerate's variables and berth's places" {
	fake_launchers
	printf 'precision bf16\nnum_processes 2\n' >c.yaml
	expect 0 "$BERTH" run -- accelerate launch --config_file c.yaml show.py --lr 1 'a b'
	[ "$(sort <<<"$output")" = $'0 2 bf16 None False 127.0.0.1 --lr 1 a b\n1 2 bf16 None False 127.0.0.1 --lr 1 a b' ]
	cp c.yaml default.yaml
	expect 0 "$BERTH" run -- accelerate launch show.py
	[ "$(grep -c ' 2 bf16 ' <<<"$output")" = 2 ]
	rm default.yaml
	expect 0 "$BERTH" run -n 2 -- python3 -W ignore -m accelerate.commands.launch --num_cpu_threads_per_process 77 show.py
	[ "$(grep -c ' 2 no None True ' <<<"$output")" = 2 ]
	expect 0 "$BERTH" run --launcher loopback -N 2 -n 2 -- accelerate launch --num_machines 2 --gpu_ids 0,1 --mode simple \
		"$(command -v python3)" show.py
	[ "$(grep -c ' 2 no ' <<<"$output")" = 2 ]
	[[ $output == *"berth: note: gpu_ids 0,1 has no effect: berth gives each rank its GPU"* ]]
	expect 64 "$BERTH" run -n 3 -- accelerate launch --config_file c.yaml show.py
	local error="berth: error: c.yaml asks for 2 ranks, but this job has 3 on 1 node: "
	error+="correct it, or add --num_processes 3 --num_machines 1, or change berth run's -n"
	[[ $output == *"$error"* ]]
	expect 64 "$BERTH" run -n 2 --launcher loopback -N 2 -- accelerate launch --num_machines 1 show.py
	[[ $output == *"berth: error: accelerate launch asks for 2 ranks on 1 node, but this job has 2 on 2 nodes"* ]]
	while IFS='|' read -r code options message; do
		expect "$code" "$BERTH" run $options
		[[ $output == *"berth: error: $message"* ]]
	done <<-'E'
	64|-n 3 -- accelerate launch --num_processes 4 show.py|accelerate launch asks for 4 ranks, but this job has 3 on 1 node
	64|-- accelerate launch --config_file missing.yaml show.py|cannot ask accelerate for the ranks' variables: FileNotFoundError:
	64|-- accelerate launch --confg_file c.yaml show.py|cannot ask accelerate for the ranks' variables: accelerate launch: error:
	64|-- accelerate launch --mode bad show.py|cannot ask accelerate for the ranks' variables: ValueError: mode bad
	64|-- accelerate launch --mode tpu show.py|cannot ask accelerate for the ranks' variables: ValueError: berth starts no ranks on TPUs
	69|-- accelerate launch --mode broken show.py|cannot ask accelerate for the ranks' variables: KeyError: 'broken'
	69|-- accelerate launch --mode nothing show.py|cannot ask accelerate for the ranks' variables: it started no program
	E
	# A restart on fewer nodes has other sizes.
	cat >rank.sh <<-'SH'
		[ "$BERTH_ATTEMPT" = 1 ] && { echo "again $RANK of $WORLD_SIZE"; exit; }
		touch "first.$RANK"
		[ "$RANK" = 3 ] && { until [ -e first.0 ] && [ -e first.1 ] && [ -e first.2 ]; do sleep 0.05; done; kill -KILL "$PPID"; }
		exec sleep 60
	SH
	expect 0 "$BERTH" run --launcher loopback -N 2 -n 4 --max-restarts 1 --min-nodes 1 -- accelerate launch --num_processes 4 \
		--num_machines 2 --no_python sh rank.sh
	[ "$(grep '^again' <<<"$output" | sort)" = $'again 0 of 2\nagain 1 of 2' ]
	printf '#!/bin/sh\n' >bin/accelerate
	expect 64 "$BERTH" run -- accelerate launch show.py
	[[ $output == *"does not begin with the Python that runs it"*"start it as python -m MODULE"* ]]
	rm -r fake/accelerate
	expect 69 "$BERTH" run -- python3 -m accelerate.commands.launch show.py
	[[ $output == *"ModuleNotFoundError: No module named 'accelerate'"* ]]
}

@test "deepspeed: its ranks get --local_rank; as srun's task, launchers are refused" {
	fake_launchers
	expect 0 "$BERTH" run -- deepspeed --num_gpus 2 --include localhost:0,1 show.py --lr 1
	local ranks=$'0 2 None 1 False 127.0.0.1 --local_rank=0 --lr 1\n1 2 None 1 False 127.0.0.1 --local_rank=1 --lr 1'
	[ "$(grep '^[01] ' <<<"$output" | sort)" = "$ranks" ]
	[[ $output == *"berth: note: --include localhost:0,1 has no effect"* ]]
	expect 0 "$BERTH" run -n 2 -- deepspeed --no_local_rank show.py
	[[ $output != *local_rank* ]]
	expect 64 "$BERTH" run -n 4 -- deepspeed --num_gpus 2 show.py
	[[ $output == *"deepspeed asks for 2 ranks per node, but this job has 4 on 1 node: correct --num_gpus and --num_nodes"* ]]
	expect 64 "$BERTH" run -- deepspeed --autotuning run show.py
	[[ $output == *"berth does not start DeepSpeed's autotuning"* ]]
	SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 expect 64 "$BERTH" run -- deepspeed show.py
	[[ $output == *"srun started 2 tasks of berth run, and each would start all ranks of deepspeed: omit srun"* ]]
}

@test "torchrun's options that cannot be right on two nodes give way to berth's, with a warning" {
	fake torchrun 'echo "node $PET_NODE_RANK of $PET_NNODES:$(printf " <%s>" "$@")"'
	fake accelerate 'echo started'
	PATH="$DIR/bin:$PATH"
	on_two() { expect "$1" "$BERTH" run --per-node --launcher loopback -N 2 -- "${@:2}"; }
	local replaced="cannot be right on 2 nodes that run the same line, so berth's own rendezvous replaces it: omit "
	# torchrun's options | what cannot be right | what is left
	while IFS='|' read -r given wrong left; do
		on_two 0 torchrun $given train.py --node_rank=7
		[[ $output == *"node 1 of 2:$left <train.py> <--node_rank=7>"* ]]
		if [ -n "$wrong" ]; then
			[[ $output == *"berth: warning: $wrong $replaced"* ]]
		else
			[[ $output != *"cannot be right"* ]]
		fi
	done <<-'E'
	--nnodes=2 --node_rank=0 --nproc_per_node 3 --master_addr n1 --master-port=29500|--node_rank=0| <--nproc_per_node> <3>
	--no-python --node-rank 1 -r 3|--node-rank 1| <--no-python> <-r> <3>
	-t3 --nnodes=5|--nnodes=5| <-t3>
	--standalone --module|--standalone| <--module>
	--nnodes 3 --rdzv_id 7|--nnodes 3|
	--nnodes=1|--nnodes=1|
	--nnodes 3:4|--nnodes 3:4|
	--rdzv-backend=c10d --rdzv_endpoint localhost:29400 --max-restarts=1|--rdzv_endpoint localhost:29400| <--max-restarts=1>
	--master_addr=127.0.1.1|--master_addr=127.0.1.1|
	-m --nnodes=x|| <-m> <--nnodes=x>
	E
	on_two 0 torchrun --nnodes=1:2 --rdzv-backend c10d --rdzv-endpoint 192.0.2.1:29400 train.py --node_rank=7
	local left="<--nnodes=1:2> <--rdzv-backend> <c10d> <--rdzv-endpoint> <192.0.2.1:29400>"
	[[ $output == *"node 1 of 2: $left <train.py> <--node_rank=7>"* && $output != *"cannot be right"* ]]
	expect 0 "$BERTH" run --per-node -- torchrun --standalone --node_rank=0 train.py
	[ "$output" = 'node 0 of 1: <--standalone> <--node_rank=0> <train.py>' ]
	on_two 64 accelerate launch --multi_gpu --num_machines 2 --machine_rank 0 train.py
	[[ $output == *"--machine_rank 0 cannot be right on 2 nodes that run the same line: omit --per-node, and "* ]]
	on_two 64 accelerate launch --num_machines 3 train.py
	on_two 64 accelerate launch --main_process_ip=localhost train.py
	on_two 0 accelerate launch --num_machines=2 train.py
}

@test "the options of mpirun, torchrun and srun work, or the error names berth's own" {
	for options in '--np 2' '--nproc-per-node 2' '--nproc_per_node=2'; do
		expect 0 "$BERTH" run $options -- sh -c 'echo "$RANK of $WORLD_SIZE"'
		[ "$(sort <<<"$output")" = $'0 of 2\n1 of 2' ]
	done
	while IFS='|' read -r option advice; do
		expect 64 "$BERTH" run $option -- true
		[[ "$output" == "berth: error: "*"$advice"* ]]
	done <<-'E'
	-np 2|-np is mpirun's: use -n N or --np N
	--standalone|Leave it out: without a scheduler, berth uses this machine
	--container-image=x|Use --container IMAGE
	--container-per=node|each rank has a container, and with --per-node each node
	-m json.tool|Use -- python -m MODULE
	--ntasks=2|Use -n N
	--ppn 2|Use --ranks-per-node K
	--master_addr x|Did you mean --master-addr?
	--hang-timout 3s|Did you mean --hang-timeout?
	E
	expect 64 "$BERTH" run --no-such-option -- true
	[[ "$output" == "berth: error: unrecognized option '--no-such-option' (berth run --help lists the options)" ]]
	expect 64 "$BERTH" rn
	[[ "$output" == "berth: error: unknown verb 'rn' (did you mean 'run'?); berth --help lists the verbs" ]]
	expect 0 "$BERTH" help run
	[[ "$output" == "Usage: berth run "* ]]
	for help in '' run; do
		# shellcheck disable=SC2086 # none or one word
		expect 0 "$BERTH" $help --help
		[ "$(sed -n '/^Examples:$/,/^$/p' <<<"$output" | head -n 6 | grep -c '^    berth ')" = 3 ]
		[ "$(grep -n '^Examples:$' <<<"$output" | cut -d: -f1)" -le 3 ]
	done
	expect 64 "$BERTH" help nosuch
}
