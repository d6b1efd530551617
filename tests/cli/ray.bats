# SPDX-License-Identifier: BSD-3-Clause
# berth run --ray and --ports on one machine, with a stand-in for Ray (fixtures/ray). cluster/ray.bats has several nodes.

load ../support/berth

setup() {
	make_dir
	export PATH=$FIXTURES/ray:$PATH PYTHONPATH=$FIXTURES/ray
}

@test "--ray: the driver runs once Ray's node has joined, looks as if alone, and its code is the job's" {
	export RAY_SEEN=$PWD/seen
	expect 3 "$BERTH" run --ray --ray-args "--resources='{\"a b\": 1}'" -- \
		sh -c 'ray status; echo "$RAY_ADDRESS ${BERTH_RAY-unset} ${#RAY_AUTH_TOKEN} $BERTH_ROLE_RAY_PORTS $1"; exit 3' sh :
	[ "${lines[2]}" = ' 1 node_127.0.0.1' ]
	[[ ${lines[5]} =~ ^127.0.0.1:[0-9]+\ unset\ 32\ [2-3][0-9]{4}-[0-9]{5}\ :$ ]]
	grep -qx 'cpus [1-9][0-9]* gpus 0 {"a b": 1} rank None nodes None' seen.127.0.0.1
	! kill -0 "$(sed -n 's/^daemon //p' seen.127.0.0.1)"
	compgen -G "${TMPDIR:-/tmp}/berth-*/ray" && return 1
	true
}

@test "--ray: the port of Ray Client, if its packages are there" {
	export RAY_SEEN=$PWD/seen PYTHONPATH=$PYTHONPATH:$PWD/more
	mkdir -p more/grpc
	touch more/grpc/__init__.py
	expect 0 "$BERTH" run --ray -- true
	grep -qE '^client [0-9]{5}$' seen.127.0.0.1
	rm -r more
	if ! python3 -c 'import grpc' 2>/dev/null; then
		expect 0 "$BERTH" run --ray -- true
		grep -qx 'client None' seen.127.0.0.1
	fi
}

@test "--ray in an image: Ray is the image's, the host has none" {
	command -v bwrap >/dev/null || skip 'no bwrap'
	mkdir -p image/usr/bin image/etc image/dev image/proc image/sys image/tmp "image$FIXTURES"
	for name in bin lib lib64; do ln -s usr/$name image/$name; done
	touch image/usr/bin/sh image/etc/inside
	expect 0 env PATH="${PATH#*:}" "$BERTH" run --ray --container image --container-runtime bwrap --bind /usr:/usr:ro --bind "$FIXTURES" \
		--env "PATH=$FIXTURES/ray:/usr/bin:/bin" -- sh -c 'ls /etc/inside; ray status'
	[[ $output == *'/etc/inside'*' 1 node_127.0.0.1'* ]]
}

@test "--ray: GPUs as planned; the driver sees what its node has, and claims nothing" {
	export RAY_SEEN=$PWD/seen
	expect 0 env BERTH_TOPOLOGY="$FIXTURES/topo/locality-machine.xml" "$BERTH" run --ray -- sh -c 'echo "$CUDA_VISIBLE_DEVICES"'
	grep -q ' gpus 4 ' seen.127.0.0.1
	[[ $output == *'0,1,2,3'* ]]
}

@test "--ray: two jobs at once, and a TMPDIR that is too long for Ray's sockets" {
	local long=$PWD/$(printf 'd%.0s' {1..60}) dir
	dir=/tmp/$(printf 'x%.0s' {1..50})
	mkdir -p "$dir"
	TMPDIR=$dir "$BERTH" run --ray -- sh -c 'touch one; until [ -e two ]; do sleep 0.05; done; ray status' >first 2>&1 3>&- &
	expect 0 "$BERTH" run --ray -- sh -c 'touch two; until [ -e one ]; do sleep 0.05; done; ray status'
	wait $!
	grep -q ' 1 node_127.0.0.1' first
	rmdir "$dir"
}

@test "--ray: Ray's node ends: named, with what it said last" {
	expect 137 "$BERTH" run --ray -- sh -c 'pkill -KILL -f "ray start.*--port=${BERTH_ROLE_RAY_PORTS%-*} "; exec sleep 1000'
	[[ $output == *"role ray: rank 0 on $HOST exited with code 137"* ]]
}

@test "--ray: Ray is missing, or of another version than where berth run was started" {
	expect 66 env PATH="${PATH#*:}" "$BERTH" run --ray -- touch started
	[[ $output == *'[ray 0] ray is not in PATH on '* ]]
	rm -rf shim other
	mkdir shim
	# This one is 2.60.0 for berth run, and 2.59.0 for the role.
	printf '#!/bin/sh\n' >shim/ray
	chmod +x shim/ray
	cat >shim/python3 <<-P
	#!/bin/sh
	[ ! -e other ] || { echo '2.59.0 with Python 3.11'; exit; }
	touch other
	exec $(command -v python3) "\$@"
	P
	chmod +x shim/python3
	expect 64 env PATH="$PWD/shim:$PATH" "$BERTH" run --ray -- touch started
	[[ $output == *'[ray 0] Ray is 2.59.0 with Python 3.11 on '*', and 2.60.0 with Python '* ]]
	expect 64 "$BERTH" run --ray --ray-args "--resources='{" -- touch started
	[[ $output == *"[ray 0] --ray-args is not a list of words of a shell: --resources='{"* ]]
	[ ! -e started ]
}

@test "--ray: bad command lines: one clear line and code 64" {
	while IFS='|' read -r line text; do
		# shellcheck disable=SC2086 # the words of the line
		expect 64 "$BERTH" run $line
		[[ $output == "berth: error: "*"$text"* ]] || { echo "$line: $output"; false; }
		[ "${#lines[@]}" -eq 1 ]
	done <<-'E'
	--ray|no PROGRAM given
	--ray-args x -- true|--ray-args needs --ray
	--ray --role a -- true|--ray conflicts with --role
	--ray -n 2 -- true|-n conflicts with --ray
	--ray --per-node -- true|--per-node conflicts with --ray
	--ray --ports 3 -- true|--ports conflicts with --ray
	--ray --port 3 -- true|--port conflicts with --ray
	--ray -N 2 -- true|--nodes 2: the allocation has 1 node
	--ray --nnodes 2 --node-rank 0 --rdzv-endpoint 127.0.0.1:1 -- true|--nnodes conflicts with --ray
	E
}

@test "--ports: a block of ports that no other job on this machine gets, as long as the ranks run" {
	cat >ports.py <<-'P'
	import os, socket, sys
	first, last = map(int, os.environ['BERTH_PORTS'].split('-'))
	# As servers do, but for one: Python's create_server sets SO_REUSEADDR.
	held = [socket.create_server(('', port)) for port in range(first, last + 1)]
	print(first, last, flush=True)
	open(f'up.{sys.argv[1]}', 'w').close()
	while not os.path.exists('over'): __import__('time').sleep(0.05)
	P
	"$BERTH" run -n 1 --ports 64 -- python3 ports.py 1 >one 2>&1 3>&- &
	"$BERTH" run -n 1 --ports 64 -- python3 ports.py 2 >two 2>&1 3>&- &
	within 30 [ -e up.1 ]
	within 30 [ -e up.2 ]
	touch over
	wait
	awk '$2 - $1 != 63 { exit 1 }' one two
	[ "$(cat one)" != "$(cat two)" ]
	expect 0 "$BERTH" run --port-hold off -n 2 --ports 1 -- sh -c 'echo "$BERTH_PORTS"'
	[[ ${lines[0]} =~ ^[23][0-9]{4}$ && ${lines[0]} = "${lines[1]}" ]]
	for bad in 0 65 -1 x 1-2; do
		expect 64 "$BERTH" run --ports "$bad" -- true
		[[ $output == *'expected a whole number from 1 to 64'* ]]
	done
}

@test "--ready: a port of the role's own block, and what a command said" {
	expect 0 "$BERTH" run --role serve --service -n 1 --ports 2 --ready tcp:+1 -- python3 -c '
import os, socket, time
server = socket.create_server(("", int(os.environ["BERTH_PORTS"].split("-")[1])))
time.sleep(1000)' : --role train -n 1 -- sh -c 'echo "$BERTH_ROLE_SERVE_PORTS ${BERTH_PORTS-none}"'
	[[ $output =~ \[train\ 0\]\ [0-9]+-[0-9]+\ none ]]
	expect 69 "$BERTH" run --role serve --service -n 1 --ready-timeout 1s --ready 'command:echo one; echo two of 3 >&2; exit 4' -- \
			sleep 1000 : --role train -n 1 -- true
	[[ $output == *'not ready within 1 s'*': exit code 4: two of 3'* ]]
	expect 64 "$BERTH" run --role serve --service --ports 2 --ready tcp:+2 -- true : --role train -- true
	[[ $output == *"role serve has 2 ports of its own"* ]]
	expect 64 "$BERTH" run --role serve --service --ready http::+64/ -- true : --role train -- true
}

@test "--ready http: to an IPv6 address: its Host header has the brackets that strict servers require" {
	expect 0 "$BERTH" run --subnet ::1/128 --role serve --service -n 1 --ports 1 --ready-timeout 20s --ready http::+0/ -- python3 -c '
import http.server, os, socket
class Server(http.server.HTTPServer):
    address_family = socket.AF_INET6
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        good = self.headers["Host"] == "[::1]:" + os.environ["BERTH_PORTS"]
        self.send_response(200 if good else 400)
        self.end_headers()
Server(("::1", int(os.environ["BERTH_PORTS"])), Handler).serve_forever()' : --role train -n 1 -- echo used
	[[ $output == *used* ]]
}

@test "--ready: a command may write without end, and leave others behind with its output" {
	expect 0 "$BERTH" run --role serve --service -n 1 --ready 'command:head -c 100000000 /dev/zero; sleep 1000 & exit 0' -- sleep 1000 : \
		--role train -n 1 -- true
}
