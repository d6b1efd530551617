# SPDX-License-Identifier: BSD-3-Clause
# berth run --role: several programs in one job.

load ../support/berth

SERVE='echo up; exec sleep 1000'

@test "each role has ranks and a rendezvous of its own, and knows the others" {
	expect 0 "$BERTH" run --role serve --service -n 1 -- sh -c 'env | sort >serve.tmp; mv serve.tmp serve; exec sleep 1000' : \
		--role train-2 -n 2 -- sh -c 'env | sort >"train.$RANK"; until [ -e serve ]; do sleep 0.05; done; echo "$RANK of $WORLD_SIZE"'
	[[ $output == *"[train-2 0] 0 of 2"* && $output == *"[train-2 1] 1 of 2"* ]]
	grep -qx 'WORLD_SIZE=1' serve
	grep -qx 'WORLD_SIZE=2' train.1
	grep -qx 'BERTH_ROLE=serve' serve
	grep -qx 'BERTH_ROLE=train-2' train.0
	# All ranks have the same view of all roles.
	grep '^BERTH_ROLE_' serve >of_serve
	grep '^BERTH_ROLE_' train.1 >of_train
	cmp of_serve of_train
	[ "$(wc -l <of_serve)" -eq 11 ]
	grep -qx "BERTH_ROLE_TRAIN_2_URLS=http://127.0.0.1:$(sed -n 's/^MASTER_PORT=//p' train.0)" of_serve
	grep -qx 'BERTH_ROLE_SERVE_ADDR=127.0.0.1' of_serve
	grep -qx 'BERTH_ROLE_TRAIN_2_WORLD_SIZE=2' of_serve
	grep -qx "BERTH_ROLE_SERVE_PORT=$(sed -n 's/^MASTER_PORT=//p' serve)" of_serve
	grep -qx "BERTH_ROLE_TRAIN_2_PORT=$(sed -n 's/^MASTER_PORT=//p' train.1)" of_serve
	[ "$(sed -n 's/^MASTER_PORT=//p' serve)" != "$(sed -n 's/^MASTER_PORT=//p' train.0)" ]
}

@test "one program: no role variables, and no label" {
	expect 0 "$BERTH" run -n 1 -- sh -c 'env | grep -c BERTH_ROLE || true'
	[ "$output" = 0 ]
}

@test "others start once a service runs, which is ended when they have" {
	expect 0 "$BERTH" run --role train -n 1 -- sh -c 'cat served; echo trained' : \
		--role serve --service -n 1 -- sh -c 'sleep 0.3; echo ready >served; exec sleep 1000'
	[[ $output == *"[train 0] trained"* ]]
	[[ $output != *error* ]]
}

# A server that needs a moment. PORT: a free port.
SLOW='sleep 0.4; exec python3 -m http.server "$PORT" --bind 127.0.0.1 >/dev/null 2>&1'

# "serve" and "check", which asks it, answer on PORT and ADDR of their arguments.
SERVER='import http.server as h, sys; h.HTTPServer((sys.argv[1], int(sys.argv[2])), h.SimpleHTTPRequestHandler).serve_forever()'
CLIENT='import sys, urllib.request; print("status", urllib.request.urlopen(sys.argv[1]).status)'

@test "in one breath: a service is one process per node, its port is that of --ready, and placeholders are arguments" {
	: >health
	for ready in http:/health http tcp; do
		expect 0 "$BERTH" run --role serve --service --ready $ready -- python3 -c "$SERVER" {addr} {port} : \
			--role ask --gpus-per-rank 0 -- python3 -c "$CLIENT" http://{serve.addr}:{serve.port}/health
		[[ $output == *"[ask 0] status 200"* && $output != *note* ]]
	done
	expect 0 "$BERTH" run --launcher loopback -N 3 --role serve --service -N 2 --ports 2 -- \
			sh -c 'echo "$@ $PET_NNODES" >"of.$RANK"; sleep 60' sh {nodes} {node_rank} {gpus} {ports} {{ports}} '{"a": {b}}' : \
		--role ask -- sh -c 'until [ -s of.0 ] && [ -s of.1 ]; do sleep 0.05; done; echo "ranks $WORLD_SIZE $2"' sh {serve.nodes} {serve.ports}
	[[ $output == *"[ask 0] ranks 2 "* ]]
	[ "$(cut -d' ' -f1-3,5- of.1)" = '2 1 0 {ports} {"a": {b}} 2' ]
	[[ $output == *"ranks 2 $(cut -d' ' -f4 of.0)"* ]]
}

@test "a service without --ready that others wait for: a note" {
	local note='note: role serve has no --ready: other roles start as soon as its program runs'
	expect 0 "$BERTH" run --role serve --service -- sleep 60 : --role ask -n 1 -- true
	[[ $output == *"$note"* ]]
	expect 0 "$BERTH" run --quiet --role serve --service -- sleep 60 : --role ask -n 1 -- true
	[[ $output != *"$note"* ]]
	expect 0 "$BERTH" run --role serve --service -- sleep 60 : --role ask --after none -n 1 -- true
	[[ $output != *"$note"* ]]
}

@test "services end in the reverse order of their start" {
	local loop='while :; do sleep 0.05; done'
	expect 0 "$BERTH" run --role store --service --ready file:store -- \
			sh -c "trap 'sleep 0.3; echo store >>ended; exit' TERM; touch store; $loop" : \
		--role serve --service --after store --ready file:serve -- \
			sh -c "trap 'sleep 0.3; echo serve >>ended; exit' TERM; touch serve; $loop" : \
		--role ask -n 1 -- true
	[ "$(tr '\n' ' ' <ended)" = 'serve store ' ]
}

@test "--replicas, --need and --on: copies on nodes of their own, and roles on the same nodes" {
	cat >job <<-'E'
	--role d --replicas 2 --nodes 2 --service --need 1 --ready file:up.d.0 --
	    sh -c 'touch "up.$BERTH_ROLE"; exec sleep 60' :
	--role router --replicas 2 --on d:first --service --ready command:true -- sh -c 'echo "$@" >"$BERTH_ROLE"; exec sleep 60' sh
	    {d.my.urls:--url} {d.1.port} {nodes} {router.urls} :
	--role train -- sh -c 'until [ -s router.0 ] && [ -s router.1 ]; do sleep 0.05; done; echo "$@"' sh {d.urls} {d.addrs} :
	--role orch --on train:first -- sh -c 'echo "on $BERTH_ROLE_ORCH_NODES with $WORLD_SIZE of $BERTH_ROLE_D_REPLICAS, ${BERTH_REPLICA-none}"'
	E
	expect 0 "$BERTH" run --launcher loopback -N 7 --log-dir logs @job
	[[ $output =~ \[train\ 0\]\ http://127.0.0.1:([0-9]+),http://127.0.0.1:([0-9]+)\ 127.0.0.1,127.0.0.1 ]]
	one=${BASH_REMATCH[1]} two=${BASH_REMATCH[2]}
	[[ $output == *"[orch 0] on loop4 with 1 of 2, none"* ]]
	[[ "$(cat router.0)" == "--url http://127.0.0.1:$one $two 1 http://"*,http://* ]]
	[[ "$(cat router.1)" == "--url http://127.0.0.1:$two $two 1 http://"* ]]
	[ -e logs/d.1/rank-0001.log ] && [ -e logs/router.1/rank-0000.log ]
	expect 0 "$BERTH" run --launcher loopback -N 7 --dry-run @job
	[[ "${lines[4]}" =~ ^\ +d.0\ +at\ once\ +loop\[0-1\]\ +2 ]]
	[[ "${lines[6]}" =~ ^\ +router.0\ +at\ once\ +loop0\ +1 ]]
	[[ "${lines[8]}" =~ ^\ +train\ +d\ \(1\ of\ 2\),\ router\ +loop\[4-6\] ]]
}

@test "--replicas on GPUs of one node, and --on with GPUs: all are disjoint" {
	export BERTH_TOPOLOGY=$FIXTURES/topo/pci-order-not-numa-order.xml
	expect 0 "$BERTH" run --role d --replicas 2 --gpus-per-rank 1 --service --ready file:up -- \
			sh -c 'echo "$BERTH_REPLICA $BERTH_REPLICAS $CUDA_VISIBLE_DEVICES" >"of.$BERTH_REPLICA"; touch up; exec sleep 60' : \
		--role train --after none -- \
			sh -c 'echo "1 2 $CUDA_VISIBLE_DEVICES" >of.t; until [ -s of.m ] && [ -s of.0 ] && [ -s of.1 ]; do sleep 0.05; done' : \
		--role m --on train --gpus-per-rank 1 --after none -- sh -c 'echo "1 2 $CUDA_VISIBLE_DEVICES" >of.m'
	[ "$(cat of.* | cut -d' ' -f3 | sort | tr -d '\n')" = 0123 ]
	[ "$(cut -d' ' -f1 of.0)$(cut -d' ' -f1 of.1)" = 01 ]
}

@test "simulated nodes of one role each do not share their GPUs" {
	export BERTH_TOPOLOGY=$FIXTURES/topo/pci-order-not-numa-order.xml
	expect 0 "$BERTH" run --launcher loopback -N 2 --role a --nodes 1 --ranks-per-node 1 -- true : --role b --ranks-per-node 4 -- true
}

@test "--need: a replica may fail; one that is one too many is the job's failure" {
	roles=(--role d --replicas 3 --need 2 --nodes 1 --service --ready file:up --
			sh -c 'touch up; [ -e "bad.$BERTH_REPLICA" ] && exit 7; exec sleep 60' :
		--role ask -n 1 -- sh -c 'sleep 0.5')
	touch bad.1
	expect 0 "$BERTH" run --launcher loopback -N 4 "${roles[@]}"
	[[ $output == *'warning: role d.1: rank 0 on loop1 exited with code 7; the others go on without it (--need 2)'* ]]
	touch bad.2
	expect 7 "$BERTH" run --launcher loopback -N 4 "${roles[@]}"
	[[ $output == *'error: role d.'*' exited with code 7'* ]]
}

# Replica 1 fails at once, also if it is restarted; replica 2 once the others go on without it, but not again.
LATER='touch up
	case $BERTH_REPLICA$BERTH_ATTEMPT in 10 | 11) exit 7 ;; 20) until grep -q "go on without" out; do sleep 0.05; done; exit 9 ;; esac
	touch "again.$BERTH_REPLICA"; exec sleep 60'

@test "--need: named is the replica that is one too many, and its code is the job's" {
	local one=(--role d --replicas 3 --need 2 --nodes 1 --service --ready file:up -- sh -c "$LATER" : --role ask -n 1 -- sleep 60)
	: >out
	"$BERTH" run --launcher loopback -N 4 --report report.json "${one[@]}" >out 2>&1 3>&- &
	ends 9 $! out
	grep -q 'warning: role d.1: rank 0 on loop1 exited with code 7; the others go on' out
	grep -q 'error: role d.2: rank 0 on loop2 exited with code 9' out
	report 'report["role"] == "d.2" and report["code"] == 9'
}

@test "--need and --restart: one replica is lost for good, another one is restarted alone, and the job goes on" {
	: >out
	"$BERTH" run --launcher loopback -N 4 --max-restarts 1 --role d --replicas 3 --need 2 --restart --nodes 1 --service --ready file:up -- \
		sh -c "$LATER" : --role ask -n 1 -- sh -c 'echo "asks $BERTH_ATTEMPT"; until [ -e again.2 ]; do sleep 0.05; done' >out 2>&1 3>&- &
	ends 0 $! out
	grep -q 'restarting role d.2, 1 of at most 1 times' out
	[ "$(grep -c '^.ask 0. asks' out)" = 1 ]
}

@test "--max-restarts with --replicas, --need and --on: all start again, also a replica that the others went on without" {
	: >out
	"$BERTH" run --launcher loopback -N 3 --max-restarts 1 --log-dir logs \
		--role d --replicas 2 --need 1 --nodes 1 --service --ready file:up -- \
			sh -c 'touch up; [ "$BERTH_REPLICA$BERTH_ATTEMPT" != 10 ] || exit 7; touch "d.$BERTH_REPLICA.$BERTH_ATTEMPT"; exec sleep 60' : \
		--role r --replicas 2 --on d --service --ready command:true -- sh -c 'touch "r.$BERTH_REPLICA.$BERTH_ATTEMPT"; exec sleep 60' : \
		--role ask -n 1 -- sh -c 'if [ "$BERTH_ATTEMPT" = 0 ]; then until grep -q "go on without" out; do sleep 0.05; done; exit 3; fi
			until [ -e d.0.1 ] && [ -e d.1.1 ] && [ -e r.0.1 ] && [ -e r.1.1 ]; do sleep 0.05; done' >out 2>&1 3>&- &
	ends 0 $! out
	[ -e logs/d.1/attempt-0/rank-0000.log ] && [ -e logs/d.1/attempt-1/rank-0000.log ] && [ -e logs/r.0/attempt-1/rank-0000.log ]
}

@test "standard input goes to rank 0 of the first role that is not a service, and to its first replica" {
	local what
	for what in '' '--after end'; do
		# shellcheck disable=SC2086
		run --separate-stderr "$BERTH" run --role serve --service --ready file:up -n 1 -- sh -c 'wc -l >of_serve; touch up; exec sleep 60' : \
			--role a --replicas 2 $what -n 1 -- wc -l : --role end --after serve -n 1 -- wc -l < <(printf 'one\ntwo\n')
		echo "$output $stderr"
		[ "$status" = 0 ]
		[ "$(sort <<<"$output" | tr '\n' ' ')" = '[a.0 0] 2 [a.1 0] 0 [end 0] 0 ' ]
		[ "$(cat of_serve)" = 0 ]
		rm up
	done
}

@test "a stop signal before the clients have started: the last line does not call it a failure" {
	"$BERTH" run --role serve --service --ready file:never -n 1 -- sh -c "$SERVE" : --role ask -n 1 -- touch started >out 2>&1 3>&- &
	until_seen out 'up'
	kill -TERM $!
	ends 143 $! out
	[ "$(tail -n 1 out)" = 'berth: error: a stop signal ended the job' ]
	[ ! -e started ]
}

@test "containers: replicas run in an image and another role outside; --restart restarts one replica alone" {
	need bwrap bubblewrap
	load ../cluster/image.bash
	image image
	mkdir -p "image$DIR"
	bwrap --ro-bind image / --proc /proc sh -c : 2>/dev/null || skip 'bubblewrap does not work here'
	cat >job <<-'E'
	--max-restarts 1 --log-dir logs
	--role d --replicas 2 -n 1 --restart --service --container ./image --container-runtime bwrap --ready file:up --
	    sh -c 'cat /etc/berth-image; [ "$BERTH_REPLICA$BERTH_ATTEMPT" != 10 ] || exit 4
	        echo $$ >"up.$BERTH_REPLICA"; echo >up; exec sleep 60' :
	--role ask --on d:first -- sh -c 'until [ -s up.0 ] && [ -s up.1 ]; do sleep 0.05; done; ls /etc/berth-image || echo outside'
	E
	expect 0 "$BERTH" run @job
	[[ $output == *'restarting role d.1, 1 of at most 1 times'* && $output == *'[ask 0] outside'* ]]
	grep -qx image logs/d.0/attempt-0/rank-0000.log
	grep -qx image logs/d.1/attempt-1/rank-0000.log
	[ ! -e "/proc/$(cat up.0)" ] && [ ! -e "/proc/$(cat up.1)" ]
	expect 0 "$BERTH" submit --slurm --dry-run --nodes 2 @job
	[[ $output == *' --container ./image --container-runtime bwrap --ready file:up -- sh -c '* ]]
}

@test "--dry-run: who runs where, in the order of the start; all of it with -v" {
	expect 0 "$BERTH" run --launcher loopback -N 3 --dry-run --role ask -- true : --role prep --gpus-per-rank 0 -- true : \
		--role serve --after prep --service --ready http:/health --ports 2 -N 1 -- true
	[ "${#lines[@]}" -le 10 ]
	[[ "${lines[4]}" =~ ^\ +prep\ +at\ once\ +loop0\ +1\ +0\ +1\ +127.0.0.1 ]]
	[[ "${lines[5]}" =~ ^\ +serve\ +prep\'s\ end\ +loop2\ +1\ +0\ +1\+2\ +127.0.0.1\ +http:/health$ ]]
	[[ "${lines[6]}" =~ ^\ +ask\ +serve\ +loop\[0-1\]\ +4\ +0\ +1 ]]
	expect 0 "$BERTH" run -v --dry-run --role a -- true : --role b -n 1 -- true
	[[ $output == *'Role a'*Environment*'of rank 0'*'Role b'*Environment*'of rank 0'* ]]
	expect 0 env PATH="$FIXTURES/ray:$PATH" "$BERTH" run --dry-run --ray -- true
	[ "${#lines[@]}" -le 30 ]
}

@test "berth info as a role's program shows what it knows of the others" {
	expect 0 "$BERTH" run --role serve --service --ports 2 -n 1 -- sleep 60 : --role ask -n 1 -- "$BERTH" info
	[[ $output == *Roles*"this process is of role ask"* ]]
	[[ $output =~ BERTH_ROLE_SERVE_ADDR\ +127.0.0.1 && $output =~ BERTH_ROLE_SERVE_PORTS\ +[0-9]+-[0-9]+ ]]
	[[ $output =~ BERTH_ROLE_SERVE_NODES\ +$HOST && $output != *BERTH_ROLE_SECRET*[0-9a-f]{32}* ]]
}

@test "http_proxy: NO_PROXY has the roles' addresses, so clients find the server and not the proxy" {
	local roles=(--role serve --service --ready tcp -- python3 -c "$SERVER" {addr} {port} :
		--role ask --gpus-per-rank 0 --
		python3 -c "import os; print(*map(os.environ.get, ('NO_PROXY', 'no_proxy'))); $CLIENT" http://{serve.addr}:{serve.port}/)
	expect 0 env http_proxy=http://127.0.0.1:9 NO_PROXY=a.b "$BERTH" run "${roles[@]}"
	[[ $output == *"[ask 0] a.b,127.0.0.1,127.0.0.1 a.b,127.0.0.1,127.0.0.1"*"[ask 0] status 200"* ]]
	[[ $output == *"note: http_proxy is set, so NO_PROXY has the roles' addresses, too: 127.0.0.1,127.0.0.1"* ]]
	expect 0 env -u http_proxy NO_PROXY=a.b "$BERTH" run "${roles[@]}"
	[[ $output == *"[ask 0] a.b None"* && $output != *note:* ]]
}

@test "a server that is not where --ready asks: the message says where it listens" {
	expect 69 "$BERTH" run --role serve --service --ready tcp:127.0.0.2:+0 --ports 1 --ready-timeout 2s -- \
		python3 -c "$SERVER" 127.0.0.1 {ports} : --role ask -n 1 -- true
	[[ $output == *' is not open at 127.0.0.2, only at 127.0.0.1: let the server listen '* ]]
}

@test "a server whose IPv6 socket listens at an IPv4 address, as Java's do, is ready" {
	local server="import socket, sys, time
s = socket.socket(socket.AF_INET6); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('::ffff:127.0.0.1', int(sys.argv[1]))); s.listen(); time.sleep(700)"
	expect 0 "$BERTH" run --role serve --service --ready tcp --ready-timeout 20s -- python3 -c "$server" {port} : --role ask -n 1 -- true
	expect 69 "$BERTH" run --role serve --service --ready tcp:127.0.0.2:+0 --ports 1 --ready-timeout 2s -- \
		python3 -c "$server" {ports} : --role ask -n 1 -- true
	[[ $output == *' is not open at 127.0.0.2, only at 127.0.0.1: let the server listen '* ]]
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

@test "--ready: the others start once it works" {
	local port what
	port=$(free_port)
	for what in "tcp:$port" "tcp:localhost:$port" "http::$port/" 'command:bash -c "exec 3<>/dev/tcp/127.0.0.1/$PORT"' 'file:up'; do
		rm -f up
		expect 0 "$BERTH" run --role serve --service -n 1 --env "PORT=$port" --ready "$what" -- sh -c "(sleep 0.5; touch up) & $SLOW" : \
			--role train -n 1 --env "WHAT=$what" -- python3 -c "
import os, socket
assert os.path.exists('up') or os.environ['WHAT'] != 'file:up'
os.environ['WHAT'] == 'file:up' or socket.create_connection(('127.0.0.1', $port), 5)
print('asked')"
		[[ $output == *"[train 0] asked"* ]]
	done
}

@test "a service that is not ready in time: named, with what was asked and the answer" {
	local port
	port=$(free_port)
	expect 69 "$BERTH" run --role serve --service -n 1 --ready "tcp:$port" --ready-timeout 2s -- sh -c 'echo loads; exec sleep 1000' : \
		--role train -n 1 -- touch started
	[[ $output == *"[serve 0] loads"* ]]
	[[ $output == *"error: role serve: it was not ready within 2 s (--ready-timeout); tcp:$port: no process listens on port $port"* ]]
	[ ! -e started ]
	expect 69 "$BERTH" run --role serve --service -n 1 --env "PORT=$port" --ready "http::$port/none" --ready-timeout 10s -- sh -c "$SLOW" : \
		--role train -n 1 -- touch started
	[[ $output == *"http::$port/none: HTTP/1.0 404 File not found"* ]]
	expect 5 "$BERTH" run --role serve --service -n 1 --ready "tcp:$port" -- sh -c 'exit 5' : --role train -n 1 -- touch started
	[[ $output == *"role serve: rank 0 on $HOST exited with code 5"* ]]
	[ ! -e started ]
}

@test "-v: the time that a role waits for another one is no part of its own start" {
	expect 0 "$BERTH" run -v --role serve --service -n 1 --ready file:up -- sh -c 'sleep 1; touch up; sleep 60' : --role ask -n 1 -- true
	[[ $output =~ times:\ agents\ [0-9.]+\ s,\ inventories\ [0-9.]+\ s,\ addresses\ 0[.0-9]+\ s,.*,\ waiting\ for\ other\ roles\ [1-9] ]]
}

@test "a command of --ready may leave processes behind" {
	expect 0 "$BERTH" run --role serve --service -n 1 --ready-timeout 4s \
			--ready 'command:sleep 1000 >/dev/null 2>&1 & echo $! >left' -- sleep 1000 : --role train -n 1 -- true
	within 30 test ! -e "/proc/$(cat left)"
}

@test "a command of --ready knows the role's ports" {
	expect 0 "$BERTH" run --role serve --service -n 1 --ports 2 \
		--ready 'command:echo "$BERTH_PORTS" >of_command; test "$BERTH_PORTS" = "$BERTH_ROLE_SERVE_PORTS"' -- \
		sh -c 'echo "$BERTH_PORTS" >of_rank; exec python3 -m http.server "${BERTH_PORTS%-*}"' : --role ask -n 1 -- true
	cmp of_command of_rank
}

@test "a check that hangs ends with the job, and so does its command" {
	expect 3 "$BERTH" run --role serve --service -n 1 --ready 'command:echo $$ >check.pid; exec sleep 1000' -- sleep 1000 : \
		--role train -n 1 -- true : --role end --after none -n 1 -- sh -c 'until [ -s check.pid ]; do sleep 0.05; done; exit 3'
	[ ! -e "/proc/$(cat check.pid)" ]
}

@test "--after a role that is not a service: once it has ended" {
	expect 0 "$BERTH" run --role train --after prepare -n 1 -- sh -c 'cat data' : \
		--role prepare -n 1 -- sh -c 'sleep 0.3; echo prepared >data'
	[[ $output == *"[train 0] prepared"* ]]
	expect 3 "$BERTH" run --role train --after prepare -n 1 -- touch started : --role prepare -n 1 -- sh -c 'exit 3'
	[[ $output == *"role prepare: rank 0 on $HOST exited with code 3"* ]]
	[ ! -e started ]
}

@test "the role that fails first is named, its code is the job's, and all others end" {
	local pid
	expect 7 "$BERTH" run --report report.json --log-dir logs \
		--role serve --service -n 1 -- sh -c 'echo $$ >serve.pid; exec sleep 1000' : \
		--role train -n 2 -- sh -c 'until [ -s serve.pid ] && [ -e eval ]; do sleep 0.05; done; [ "$RANK" = 0 ] || exit 7; exec sleep 1000' : \
		--role eval -n 1 -- sh -c 'touch eval; exec sleep 1000'
	[[ $output == *"full output: logs/train/rank-0001.log"* ]]
	[[ $output == *"error: role train: rank 1 on $HOST exited with code 7"* ]]
	[ -e logs/serve/rank-0000.log ] && [ -e logs/eval/rank-0000.log ]
	pid=$(cat serve.pid)
	[ ! -e "/proc/$pid" ]
	report 'report["code"] == 7 and report["rank"] == 1 and len(report["ranks"]) == 4'
	report '[r["role"] for r in report["roles"]] == ["serve", "train", "eval"]'
	report '[r["code"] for r in report["roles"] if r["service"]] == [0]'
	report '[r["program"][0] for r in report["roles"]] == ["sh", "sh", "sh"]'
	report '{r["role"] for r in report["ranks"]} == {"serve", "train", "eval"}'
}

@test "a service that ends by itself fails the job, whatever its code" {
	expect 69 "$BERTH" run --role serve --service -n 1 -- sh -c 'sleep 0.3' : --role train -n 1 -- sh -c "$SERVE"
	[[ $output == *"role serve: rank 0 on $HOST ended, but it is a service that others use"* ]]
	expect 5 "$BERTH" run --role serve --service -n 1 -- sh -c 'exit 5' : --role train -n 1 -- sh -c "$SERVE"
	[[ $output == *"role serve: rank 0 on $HOST exited with code 5"* ]]
}

@test "a stop signal: work may be saved while services still serve, and how these end does not count" {
	"$BERTH" run --report report.json --role serve --service -n 1 -- sh -c 'trap "touch told; exit 9" TERM; echo up; sleep 1000 & wait' : \
		--role train -n 1 -- sh -c 'trap "sleep 0.5; [ -e told ] || exit 75; exit 5" TERM; echo trains; sleep 1000 & wait' >out 2>&1 3>&- &
	until_seen out 'trains'
	until_seen out 'up'
	kill -TERM $!
	ends 75 $! out
	[ "$(grep -c 'forwarded SIGTERM' out)" -eq 1 ]
	grep -q 'note: role train: rank 0 .* saved its work and stopped early' out
	report 'report["code"] == 75'
}

@test "a stop signal: a role that waits for its turn does not change the code" {
	"$BERTH" run --role train -n 1 -- sh -c 'trap "exit 75" TERM; echo trains; sleep 1000 & wait' : \
		--role eval --after train -n 1 -- touch started >out 2>&1 3>&- &
	until_seen out 'trains'
	kill -TERM $!
	ends 75 $! out
	[ ! -e started ]
}

@test "a stop signal: a service that ignores it ends with the last program" {
	local begin=$SECONDS
	"$BERTH" run --stop-grace 1000s --role serve --service -n 1 -- sh -c 'trap "" TERM; echo up; sleep 1000' : \
		--role train -n 1 -- sh -c 'trap "exit 75" TERM; echo trains; sleep 1000 & wait' >out 2>&1 3>&- &
	until_seen out 'trains'
	until_seen out 'up'
	kill -TERM $!
	ends 75 $! out
	[ $((SECONDS - begin)) -lt $((100 * ${BERTH_TEST_SLOW:-1})) ]
}

@test "a role that stops with its work saved stops the others, which may save, too" {
	expect 75 "$BERTH" run --role serve --service -n 1 -- sh -c "$SERVE" : \
		--role a -n 1 -- sh -c 'until [ -e up ]; do sleep 0.05; done; exit 75' : \
		--role b -n 1 -- sh -c 'trap "touch saved; exit 75" TERM; touch up; sleep 1000 & wait'
	[ -e saved ]
}

@test "--max-restarts restarts all roles" {
	expect 0 "$BERTH" run --max-restarts 1 --role serve --service -n 1 -- sh -c 'touch "serve.$BERTH_ATTEMPT"; exec sleep 1000' : \
		--role train -n 1 -- sh -c 'until [ -e "serve.$BERTH_ATTEMPT" ]; do sleep 0.05; done; exit $((1 - BERTH_ATTEMPT))'
	[ -e serve.0 ] && [ -e serve.1 ]
	[[ $output == *"role train: rank 0 on $HOST exited with code 1"*"restarting, 1 of at most 1 times"* ]]
}

@test "--restart: a service alone, at the same port, while the others run" {
	expect 0 "$BERTH" run --max-restarts 2 --role serve --service --restart -n 1 -- \
			sh -c 'echo "$MASTER_PORT" >>ports; [ "$BERTH_ATTEMPT" = 2 ] || exit 5; exec sleep 1000' : \
		--role train -n 1 -- sh -c 'echo $$ >>trains; until [ "$(wc -l <ports)" = 3 ]; do sleep 0.05; done'
	[[ $output == *"role serve: rank 0 on $HOST exited with code 5"*"restarting role serve, 1 of at most 2 times"* ]]
	[ "$(sort -u ports | wc -l)" -eq 1 ]
	[ "$(wc -l <trains)" -eq 1 ]
}

@test "--restart and --max-restarts: a service's BERTH_ATTEMPT never repeats, so nor do its logs and its files" {
	expect 0 "$BERTH" run --max-restarts 1 --log-dir logs --role serve --service --restart -n 1 -- \
			sh -c 'echo "$BERTH_ATTEMPT" >>tries; [ "$BERTH_ATTEMPT" != 0 ] || exit 5; exec sleep 1000' : \
		--role train -n 1 -- sh -c 'until [ "$(wc -l <tries)" -gt $((BERTH_ATTEMPT + 1)) ]; do sleep 0.05; done; exit $((1 - BERTH_ATTEMPT))'
	[ "$(tr '\n' ' ' <tries)" = '0 1 2 ' ]
	[ -d logs/serve/attempt-0 ] && [ -d logs/serve/attempt-1 ] && [ -d logs/serve/attempt-2 ] || { find logs; false; }
}

@test "--restart: more failures than restarts fail the job" {
	expect 5 "$BERTH" run --max-restarts 1 --role serve --service --restart -n 1 -- sh -c 'sleep 0.3; exit 5' : \
		--role train -n 1 -- sh -c 'exec sleep 1000'
	[[ $output == *"restarting role serve, 1 of at most 1 times"* ]]
}

@test "--restart without --max-restarts: a warning, once for all replicas" {
	expect 0 "$BERTH" run --role d --replicas 2 --service --restart -n 1 --ready command:true -- sleep 60 : --role ask -n 1 -- true
	[ "$output" = 'berth: warning: role d: --restart needs --max-restarts R' ]
}

@test "GPUs are disjoint, and a role may have none" {
	export BERTH_TOPOLOGY=$FIXTURES/topo/pci-order-not-numa-order.xml
	expect 0 "$BERTH" run --dry-run --json --role a -n 1 -- true : --role b -n 1 -- true : --role c --gpus-per-rank 0 -- true
	echo "$output" >plan.json
	holds plan.json 'len({g["pci"] for role in plan["roles"][:2] for k in role["nodes"][0]["plan"]["ranks"] for g in k["gpus"]}) == 2'
	holds plan.json 'all(not k["gpus"] for k in plan["roles"][2]["nodes"][0]["plan"]["ranks"])'
	expect 0 "$BERTH" run --role a -n 1 -- sh -c 'echo "gpus $CUDA_VISIBLE_DEVICES"' : \
		--role c --gpus-per-rank 0 -- sh -c 'echo "gpus none $CUDA_VISIBLE_DEVICES."'
	[[ $output == *"[c 0] gpus none ."* ]]
	expect 64 "$BERTH" run --role a -n 1 -- touch started : --role b -n 1000 -- touch started
	[[ $output == *"used by role a, and roles share no GPUs"* ]]
	[ ! -e started ]
}

@test "GPUs: --overlap takes none from others; on one node, a role without a number gets what is left" {
	export BERTH_TOPOLOGY=$FIXTURES/topo/pci-order-not-numa-order.xml
	look='echo "gpus of $BERTH_ROLE: $WORLD_SIZE ranks, $CUDA_VISIBLE_DEVICES."'
	for order in first last; do
		roles=(--role see --overlap -n 1 -- true : --role train -- sh -c "$look")
		[ $order = first ] || roles=(--role train -- sh -c "$look" : --role see --overlap -n 1 -- true)
		expect 0 "$BERTH" run "${roles[@]}"
		[[ $output == *"gpus of train: 4 ranks, 0,1,2,3."* ]]
		serve=(--role serve --service -n 1 --gpus-per-rank 2 -- sh -c "$look; sleep 60")
		roles=("${serve[@]}" : --role train -- sh -c "$look")
		[ $order = first ] || roles=(--role train -- sh -c "$look" : "${serve[@]}")
		expect 0 "$BERTH" run "${roles[@]}"
		[[ $output == *"gpus of serve: 1 ranks, "* && $output == *"gpus of train: 2 ranks, "* ]]
		[ "$(sed -n 's/.*ranks, //p' <<<"$output" | tr -d . | sort -u | tr '\n' , | tr , '\n' | sort | tr -d '\n')" = 0123 ]
		"$BERTH" run --dry-run --json "${roles[@]}" >plan.json
		holds plan.json 'sorted(len(k["nodes"][0]["plan"]["ranks"]) for k in (r for r in plan["roles"])) == [1, 2]'
	done
	expect 64 "$BERTH" run --role serve --service -n 2 --gpus-per-rank 2 -- true : --role train -- true
	[[ $output == *"4 of 4 GPUs are used by role serve, and roles share no GPUs"* ]]
}

@test "what prepares for a service does not wait for it; a relative --chdir is below the job's directory" {
	mkdir below
	expect 0 timeout 60 "$BERTH" run --role prep --gpus-per-rank 0 -- touch prepared : \
		--role serve --service --after prep --ready file:"$DIR/below/up" -n 1 --chdir below -- \
			sh -c 'test -e ../prepared && touch up && sleep 60' : \
		--role train -n 1 -- test -e below/up
}

@test "disjoint nodes; a role without GPUs is beside others" {
	expect 0 "$BERTH" run --launcher loopback -N 4 --role serve --service --nodes 1 --ranks-per-node 1 -- sh -c 'exec sleep 1000' : \
		--role train --ranks-per-node 1 -- sh -c 'echo "$WORLD_SIZE ranks on $BERTH_ROLE_TRAIN_NODES, serve on $BERTH_ROLE_SERVE_NODES"' : \
		--role drive --gpus-per-rank 0 -- sh -c 'echo "driver on $BERTH_ROLE_DRIVE_NODES"'
	[[ $output == *"[train 0] 3 ranks on loop1,loop2,loop3, serve on loop0"* ]]
	[[ $output == *"[drive 0] driver on loop0"* ]]
}

@test "separators" {
	expect 0 "$BERTH" run --role=a -n 1 -- echo one '\:' two : --role b -n 1 -- echo three
	[[ $output == *"[a 0] one : two"* && $output == *"[b 0] three"* ]]
	expect 0 "$BERTH" run --separator + --role a -n 1 -- echo one : two + --role b -n 1 -- echo three
	[[ $output == *"[a 0] one : two"* && $output == *"[b 0] three"* ]]
}

@test "@FILE: the same words over several lines, quoted as in a shell, without expansions; what follows it is the last program's" {
	cat >job.berth <<-'E'
	# the job's
	--log-dir 'my logs'
	--role serve --service --ready file:up --   # a comment
	    sh -c 'touch up; exec sleep "$1"' sh 6\
	0
	:
	--role ask -n 1 -- printf '<%s>' "a \"b\" \$HOME $HOME \x" a\ b#c '' it\'s *
	E
	expect 0 "$BERTH" run @job.berth 'last one'
	[[ $output == '[ask 0] <a "b" $HOME $HOME \x><a b#c><><it'"'"'s><*><last one>' ]]
	[ -e 'my logs/ask/rank-0000.log' ]
	expect 0 "$BERTH" run -n 2 @<(printf %s '-- echo two')
	[ "$output" = $'two\ntwo' ]
	expect 0 "$BERTH" submit --slurm --dry-run @job.berth
	[[ $output == *"berth run --log-dir 'my logs' --role serve"*" : --role ask -n 1 -- printf '<%s>'"* ]]
	expect 0 "$BERTH" submit --slurm --dry-run --nodes 2 @<(printf %s '--max-restarts 2 -- python train.py') 'a b'
	[[ $output == *"berth run --max-restarts 2 -- python train.py 'a b'" && $output == *--nodes=2* ]]
	expect 66 "$BERTH" submit --slurm --dry-run @none
	expect 64 "$BERTH" submit --slurm --dry-run @<(echo '# nothing')
	expect 66 "$BERTH" run -- @job.berth
}

@test "@FILE: what is wrong, with file and line" {
	while IFS='|' read -r code text expected; do
		# shellcheck disable=SC2059 # the rows are formats
		printf -- "$text" >bad
		expect "$code" "$BERTH" run @bad
		[[ $output == "berth: error: $expected"* && "${#lines[@]}" = 1 ]]
	done <<-'E'
	64|# c\n--role a --bogus -- true|bad:2: unrecognized option '--bogus'
	64|-v\n--nodes\nx -- true|bad:3: --nodes is "x": expected a whole number
	64|--role a -- true : --role\n b -n\n\n\n0 -- true|bad:5: --ranks is "0"
	64|--role a --after b -- true|bad: --after b: there is no such role
	65|\n\n'abc\ndef|bad:3: a quote has no end
	65|true \0|bad has a NUL, so it is no text
	64|# nothing|no PROGRAM given
	66|@none|cannot find the program @none
	E
	expect 66 "$BERTH" run @none
	[[ $output == 'berth: error: cannot open none: No such file or directory' ]]
}

@test "bad command lines: one clear line and code 64" {
	while IFS='|' read -r line text; do
		# shellcheck disable=SC2086 # the words of the line
		expect 64 "$BERTH" run $line
		[[ $output == "berth: error: "*"$text"* ]]
		[ "${#lines[@]}" -eq 1 ]
	done <<-'E'
	--role a -- true :|no program follows the last ':'
	--role a -- true : -- true|a program after another one begins with --role NAME; write \: for an argument ':', or name another
	--role a -- true : --role b|no PROGRAM given
	--role a -- true : --role a -- true|two roles are called a
	--role 1a -- true|expected a name of at most 32 letters
	--role a --after b -- true|--after b: there is no such role
	--role a --after b -- true : --role b --after a -- true|would wait for itself
	--role a --service -- true|all roles are services
	--role a --nodes 2 -- true|role a asks for 2 nodes, and the job has 1
	--role a --bogus -- true|unrecognized option '--bogus'
	--role a -n 0 -- true|expected a whole number from 1
	--role a --env X -- true|expected NAME=VALUE
	--role a --ready http:n1/health -- true|a ready address without a port
	--role a --ready udp:1 -- true|an unknown kind
	--role a --ready file -- true|an unknown kind
	--role a -- echo {b.port}|{b.port}: there is no role b; for this text itself, write {{b.port}}
	--role a --service --replicas 2 -- true : --role b --after a.1 -- true|--after a.1: there is no such role
	--role a --replicas 0 -- true|expected a whole number from 1 to 64
	--role a --replicas 65 -- true|expected a whole number from 1 to 64
	--role a --replicas 64 -- true : --role b -- true|more than 64 programs
	--role a --replicas 2 --need 2 -- true|--need 2 is for a service with --replicas
	--role a --service --need 1 -- true|--need 1 is for a service with --replicas
	--role a --service --replicas 2 --need 3 -- true|and at most as many
	--role a --replicas 2 -- true {a.addr}|{a.addr}: role a has replicas: write {a.0.addr}
	--role a --replicas 2 -- true {a.2.addr}|there is no role a.2
	--role a --replicas 3 -- true : --role b --replicas 2 -- true {a.my.urls}|the 3 replicas of a cannot be shared out to the 2 of b
	--role a --replicas 3 -- true : --role b --replicas 2 --on a -- true|its 3 replicas cannot be shared out to the 2 of b
	--role a --on b -- true|--on b: there is no such role
	--role a -- true : --role b --on a -- true : --role c --on b -- true|--on b: that is itself --on a
	--role a -- true : --role b --on a -N 1 -- true|leave out --nodes
	--role a --replicas 2 -- true : --role a_1 -- true|roles a.1 and a_1 have the same name in variables
	--role a -- echo {a.node_urls}|{a.node_urls}: role a has no --ports
	--role a -- echo {ports}|{ports}: role a has no --ports
	--role a --restart -- true|--restart is for a role with --service
	--role a --ready-timeout 0 -- true|expected a time from 1s to 1d
	--ready tcp:1 -- true|come after --role NAME
	--service -- true|come after --role NAME
	--overlap -- true|come after --role NAME
	--het-group 0 -- true|come after --role NAME
	--role a --het-group 0 -- true|role a asks for group 0, from 0, and the job has 0 groups
	--role a --het-group x -- true|expected a whole number
	--chunk 0 -- true|come after --role NAME
	--bind /x -- true|--bind needs --container IMAGE
	--container-runtime apptainer -- true|--container-runtime needs --container IMAGE
	--container /x --bind data -- true|expected /PATH, /PATH:/PATH or /PATH:/PATH:ro
	--container /x --container-runtime rkt -- true|expected apptainer, singularity
	--role a --bind /x -- true|role a: --bind needs --container IMAGE
	--role a --container /x --bind /a,/b -- true|without commas
	--role a --chunk 0 -- true|role a asks for group 0, from 0, and the job has 0 groups
	--role a --chunk -1 -- true|expected a whole number
	-n 2 --role a -- true|-n conflicts with --role
	--wait --role a -- true|--wait conflicts with --role
	--spares 1 --role a -- true|--spares conflicts with --role
	--min-nodes 1 --role a -- true|--min-nodes conflicts with --role
	--nnodes 2 --role a -- true|--nnodes conflicts with --role
	--collapse on --role a -- true|--collapse on conflicts with --role
	--role a --spares 1 -- true|Options of the whole job stand before the first --role
	--launcher loopback -N 2 --role a --nodes 1 -- true : --role b --nodes 2 -- true|the roles need 3 nodes, and the job has 2
	--launcher loopback -N 2 --role a -- true : --role b -- true|roles a and b have neither --nodes nor -n
	E
	expect 66 "$BERTH" run --role a -- true : --role b -- no-such-program
}

@test "an image of a registry: what berth refuses before it pulls" {
	mkdir bin
	printf '#!/bin/sh\necho "$*" >&2; exit 3\n' >bin/apptainer
	cp bin/apptainer bin/podman
	chmod +x bin/*
	PATH=$PWD/bin:$PATH
	long=docker://$(printf 'a%.0s' $(seq 230))
	export BERTH_IMAGES=$PWD/images
	while IFS='|' read -r code settings image expected; do
		# shellcheck disable=SC2086
		run env $settings "$BERTH" run -n 1 --container $image -- true
		echo "$settings $image: $output"
		[ "$status" = "$code" ]
		[[ $output =~ $expected ]]
	done <<-E
	64|BERTH_IMAGES=images|docker://x|BERTH_IMAGES=images: expected a path that begins with /
	64|-u BERTH_IMAGES -u HOME -u XDG_CACHE_HOME|docker://x|HOME is not set; name a directory for pulled images with BERTH_IMAGES
	64|BERTH_CONTAINER_BIND=/a,b|docker://x|BERTH_CONTAINER_BIND: --bind 'b': expected /PATH
	65|BERTH_IMAGES_GB=x|docker://x|BERTH_IMAGES_GB is "x": expected a whole number
	64|X=1|$long|the name is too long
	64|X=1|docker://x --container-runtime podman|berth pulls with apptainer, singularity and enroot. Pull it with podman
	73|BERTH_IMAGES=/proc/x|docker://x|/proc/x
	69|X=1|docker://x/y:1|pull --disable-cache $PWD/images/docker%3A%2F%2Fx%2Fy%3A1.sif.part docker://x/y:1
	69|X=1|docker://x/y:1|apptainer cannot pull docker://x/y:1 .exit code 3.; its messages are above
	E
	[ -z "$(find images -name '*.sif*' ! -name '*.lock')" ]
	"$BERTH" run -n 1 --dry-run --container docker://x/y:1 -- true >dry
	grep -q 'x%2Fy%3A1.sif, pulled from docker://x/y:1, by' dry
}

@test "one of several tasks of srun: refused, because a task is one rank" {
	expect 64 env SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 \
		SLURM_STEP_NODELIST="$HOST" SLURM_STEP_TASKS_PER_NODE=2 "$BERTH" run --role a -- touch started : --role b -- touch started
	[[ $output == *"one of 2 tasks"*"--role has no effect"* ]]
	[ ! -e started ]
}
