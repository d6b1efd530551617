# SPDX-License-Identifier: BSD-3-Clause
# Another user on the node takes the ports that berth has reserved, before the programs that they are for listen.
# In each case the attacker must receive nothing. The controls are the same lines without the attacker.

load ../support/berth
load ../support/users

teardown() {
	[ -z "${squatter-}" ] || kill "$squatter" 2>/dev/null || true
	remove_dir
}

# squat [WORD]: the attacker listens on what is reserved, and writes what it receives to $DIR/got.
squat() {
	touch "$DIR/got"
	chmod 666 "$DIR/got"
	EXEC=exec as $ATTACKER python3 "$SOURCE/tests/support/squat.py" "$DIR/got" ${1+"$1"} 3>&- &
	squatter=$!
	until_seen "$DIR/got" '^listens on'
}
got_nothing() { ! grep -v '^listens on' "$DIR/got"; }

# A server of the victim's that listens on the block's ports (from the first on) once $DIR/go exists, and a client
# that sends its key.
write_programs() {
	cat >server.py <<-'P'
	import http.server, os, sys, time
	open('up', 'w').close()
	while not os.path.exists('go'): time.sleep(0.02)
	class Handler(http.server.BaseHTTPRequestHandler):
	    def do_GET(self):
	        self.send_response(200); self.end_headers(); self.wfile.write(b'ours')
	    def log_message(self, *words): pass
	host = sys.argv[2] if len(sys.argv) > 2 else ''
	http.server.ThreadingHTTPServer((host, int(sys.argv[1] or os.environ['BERTH_PORTS'].split('-')[0])), Handler).serve_forever()
	P
	cat >client.py <<-'P'
	import os, sys, urllib.request
	port = sys.argv[1] or os.environ['BERTH_ROLE_SERVE_PORTS'].split('-')[0]
	request = urllib.request.Request(f"http://{os.environ['BERTH_ROLE_SERVE_ADDR']}:{port}/", headers={'Key': 'secret'})
	print(urllib.request.urlopen(request).read().decode())
	P
}

# serve READY [PORT [RUN OPTIONS]]: start the job in the background; $job.
serve() {
	local ready=$1 port=${2-}
	write_programs
	chmod 777 "$DIR"
	as $VICTIM "$BERTH" run "${@:3}" --role serve --service -n 1 --ports 2 --ready-timeout 60s --ready "$ready" -- \
		python3 server.py "$port" : --role ask -n 1 -- python3 client.py "$port" >"$DIR/out" 2>&1 3>&- &
	job=$!
	within 30 test -e up
}

# refused READY [PORT]: the attacker listens first: the job names it, and neither a question nor a key reaches it.
refused() {
	two_users
	serve "$@"
	squat ${2+"$2"}
	touch go
	ends 76 $job "$DIR/out"
	got_nothing
	grep -q "another user (uid $ATTACKER) listens on port [0-9]*, a port of the role" "$DIR/out"
	! grep -q ours "$DIR/out"
}

# served READY [PORT]: the control.
served() {
	two_users
	touch go
	serve "$@"
	ends 0 $job "$DIR/out"
	grep -q ours "$DIR/out"
}

@test "--ready http: of a reserved port" { refused http::+0/health; }
@test "--ready http: of a reserved port, control" { served http::+0/health; }
@test "--ready tcp: of a reserved port" { refused tcp:+0; }
@test "--ready tcp: of a reserved port, control" { served tcp:+0; }
@test "--ready http: of a fixed port" { refused http::18123/health 18123; }
@test "--ready http: of a fixed port, control" { served http::18123/health 18123; }
@test "--ready http: of localhost" { refused http:localhost:18123/ 18123; }
@test "--ready command: is not run before the first port of --ports is the role's" {
	refused 'command:touch asked; curl -s -H "Key: secret" 127.0.0.1:${BERTH_PORTS%%-*}'
	[ ! -e asked ]
}
@test "--ready command: control" { served 'command:touch asked'; [ -e asked ]; }
@test "--ready file: means nothing before the first port of --ports is the role's" { refused file:up; }
@test "--ready file: control" { served file:up; }

@test "an attacker that listens for 12 ms of each 60 ms receives nothing, while a look a second may miss it" {
	two_users
	serve 'command:curl -s -o /dev/null 127.0.0.1:${BERTH_PORTS%%-*}'
	squat 12,60
	sleep 2 # the attack itself takes time
	touch go
	code=0
	wait $job || code=$?
	cat "$DIR/out"
	got_nothing
	# Whoever comes first, its server or the attacker: the job ends well, or its server cannot listen.
	[ $code = 0 ] || grep -qE "another user \(uid $ATTACKER\) listens on port|Address already in use" "$DIR/out"
}

@test "a reserved port that the role has not used yet is watched; root's own jobs are not" {
	two_users
	touch go
	write_programs
	chmod 777 "$DIR"
	as $VICTIM "$BERTH" run -n 1 --ports 3 -- sh -c 'touch up; exec sleep 60' >"$DIR/out" 2>&1 3>&- &
	job=$!
	within 30 test -e up
	squat
	ends 76 $job "$DIR/out"
	grep -qE "another user \(uid $ATTACKER\) listens on port [0-9]+, (a port of the role|the ranks' MASTER_PORT)" "$DIR/out"
}

# restarts OPTION...: the port of a service is taken before it listens, and the job may be restarted.
restarts() {
	two_users
	chmod 777 "$DIR"
	as $VICTIM "$BERTH" run --max-restarts 1 --role serve --service "$@" -n 1 --ports 2 --ready tcp:+0 -- \
		sh -c 'echo "$BERTH_PORTS $BERTH_ROLE_SECRET" >>seen; touch up; exec sleep 60' : \
		--role ask -n 1 -- true >"$DIR/out" 2>&1 3>&- &
	job=$!
	within 30 test -e up
	squat
	within 30 has_lines seen 2
	kill $squatter
	squatter=
	pkill -TERM -P $job # berth, of the function's shell; SIGINT has no effect in the background
	wait $job || true
	cat "$DIR/out" seen
	[ "$(cut -d' ' -f1 seen | sort -u | wc -l)" = 2 ]
	[ "$(cut -d' ' -f2 seen | sort -u | wc -l)" = 2 ]
	grep -qE ' [0-9a-f]{32}$' seen
	grep -q "uid $ATTACKER" "$DIR/out"
	got_nothing
}

@test "--max-restarts: the next attempt has other ports and another secret" { restarts; }
@test "--restart: a service is not started again alone, on the port that another user took" { restarts --restart; }

@test "--ready: a port of another process of the same user, outside the run, does not count" {
	two_users
	write_programs
	chmod 777 "$DIR"
	touch go
	EXEC=exec as $VICTIM python3 server.py 18124 3>&- &
	other=$!
	within 30 python3 -c 'import socket; socket.create_connection(("127.0.0.1", 18124))' 2>/dev/null
	expect 69 as $VICTIM "$BERTH" run --role serve --service -n 1 --ready-timeout 2s --ready http::18124/ -- sleep 60 : \
		--role ask -n 1 -- true
	kill $other
	[[ $output == *'port 18124 is that of a process outside this run'* ]]
}

@test "--ready: a server that listens on another address than the one that others get" {
	two_users
	write_programs
	touch go
	chmod 777 "$DIR"
	ip addr add 10.99.0.1/32 dev lo 2>/dev/null || true
	expect 69 as $VICTIM "$BERTH" run --role serve --service -n 1 --ready-timeout 2s --ready http:10.99.0.1:18125/ -- \
		python3 server.py 18125 127.0.0.1 : --role ask -n 1 -- true
	[[ $output == *'port 18125 is not open at 10.99.0.1, only at 127.0.0.1'* ]]
}

@test "--ray: a token goes neither to who takes the head's port, nor with it to the job interface" {
	two_users
	chmod 777 "$DIR"
	cat >ray <<-P
	#!/bin/sh
	[ "\$1" = start ] || { echo "\$@ \$RAY_AUTH_TOKEN" >>$DIR/asked; exec $FIXTURES/ray/ray "\$@"; }
	touch $DIR/up
	until [ -e $DIR/go ]; do sleep 0.05; done
	exec $FIXTURES/ray/ray "\$@"
	P
	chmod 755 ray
	as $VICTIM env PATH="$DIR:$FIXTURES/ray:$PATH" PYTHONPATH="$FIXTURES/ray" \
		"$BERTH" run --ray -- ray status >"$DIR/out" 2>&1 3>&- &
	job=$!
	within 30 test -e up
	squat
	touch go
	ends 76 $job "$DIR/out"
	got_nothing
	[ ! -e asked ]
	grep -q "another user (uid $ATTACKER) listens on port" "$DIR/out"
	rm up
	kill $squatter
	as $VICTIM env PATH="$DIR:$FIXTURES/ray:$PATH" PYTHONPATH="$FIXTURES/ray" "$BERTH" run --ray -- ray status >"$DIR/out" 2>&1
	grep -q node_127.0.0.1 "$DIR/out"
	[ -e asked ]
}
