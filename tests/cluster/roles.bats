# SPDX-License-Identifier: BSD-3-Clause
# berth run --role on several nodes of a real Slurm, and of the PBS stand-in.

load support.bash

setup_file() {
	# Listens only on the address that the other roles find in their environment.
	cat >"$SHARE/serve.py" <<-'P'
	import os, socket
	server = socket.create_server((os.environ['BERTH_ROLE_SERVE_ADDR'], int(os.environ['BERTH_ROLE_SERVE_PORT'])))
	print('serving', flush=True)
	while True:
	    peer, _ = server.accept()
	    peer.sendall(b'hello')
	    peer.close()
	P
	cat >"$SHARE/ask.py" <<-'P'
	import os, socket, time
	address = os.environ['BERTH_ROLE_SERVE_ADDR']
	while True:
	    try:
	        peer = socket.create_connection((address, int(os.environ['BERTH_ROLE_SERVE_PORT'])), 5)
	        break
	    except ConnectionRefusedError:
	        time.sleep(0.1)
	print(*(os.environ[name] for name in ('BERTH_ROLE', 'RANK', 'WORLD_SIZE', 'MASTER_ADDR')), socket.gethostname(),
	      peer.recv(9).decode(), address)
	P
}

teardown() {
	cancel_jobs
	for node in n1 n2 n3; do revive "$node"; done
}

@test "Slurm: disjoint nodes, and a server's address on the fast network" {
	submit roles -N3 <<-'S'
	"$BERTH" run --report roles.json --role serve --service --nodes 1 -n 1 -- python3 serve.py : \
		--role train --ranks-per-node 1 -- python3 ask.py : --role drive --gpus-per-rank 0 -- python3 ask.py 2>&1
	S
	finish roles
	[ "$status" = 0 ]
	has '^\[serve 0\] serving$'
	has '^\[train 0\] train 0 2 10.9.0.12 n2 hello 10.9.0.11$'
	has '^\[train 1\] train 1 2 10.9.0.12 n3 hello 10.9.0.11$'
	has '^\[drive 0\] drive 0 1 127.0.0.1 n1 hello 10.9.0.11$'
	holds "$SHARE/roles.json" '{k["role"]: k["network"] for k in r["ranks"]} == {"serve": "hsn0", "train": "hsn0", "drive": "lo"}'
	nothing_left n1 n2 n3
}

@test "Slurm: the server's node is lost: named, and the other roles end" {
	submit lost -N2 --no-kill <<-'S'
	"$BERTH" run --report lost.json --role train --nodes 1 -n 1 -- sh -c 'echo trains; exec sleep 1000' : \
		--role serve --service -n 1 -- python3 serve.py 2>&1
	S
	until_seen "$SHARE/lost.out" 'trains'
	lose n2
	finish lost
	[ "$status" = 76 ]
	echo "# $(($(date +%s%N) - $(cat "$SHARE/cut"))) ns" >&3
	has 'role serve: node n2 was lost: no heartbeat from its agent for 8 s'
	holds "$SHARE/lost.json" 'lost["code"] == 76 and lost["node"] == "n2"'
	nothing_left n1
}

@test "Slurm: berth run's own network fails: the message names it, not only the node that is silent" {
	[ "$SUITE" = full ] || skip 'in the long suite'
	submit cut -N2 <<-'S'
	"$BERTH" run --node-timeout 3 --role serve --service --nodes 1 -n 1 -- python3 serve.py : \
		--role train -n 1 -- sh -c 'echo trains; exec sleep 1000' 2>&1
	S
	until_seen "$SHARE/cut.out" 'trains'
	on n1 sh -c 'ip link set eth0 down; ip link set hsn0 down'
	finish cut
	revive n1
	[ "$status" = 76 ]
	has 'role train: node n2 was lost: no heartbeat from its agent for 3 s; on n1, (eth0|hsn0) is down'
}

@test "Slurm: the node of a service with --restart is lost: the other roles do not notice the wait for srun" {
	submit again -N2 --no-kill <<-'S'
	"$BERTH" run --node-timeout 3s --start-timeout 10s --max-restarts 1 --role train --nodes 1 -n 1 -- sh -c 'echo trains; exec sleep 1000' : \
		--role serve --service --restart -n 1 -- python3 serve.py 2>&1
	S
	until_seen "$SHARE/again.out" 'trains'
	lose n2
	finish again
	[ "$status" = 76 ]
	has '^berth: warning: restarting role serve, 1 of at most 1 times$'
	has '^berth: error: role serve: no agent on n2: '
	hasnt 'was suspended'
}

@test "Slurm: a signal to all processes of the job does not reach a service, so the trainer can save through it" {
	submit usr1 -N2 <<-'S'
	"$BERTH" run --role serve --service -N 1 -n 1 -- python3 serve.py : \
		--role train -n 1 -- sh -c 'trap "python3 ask.py; exit 75" USR1; echo trains; while :; do sleep 0.1; done' 2>&1
	S
	until_seen "$SHARE/usr1.out" 'trains'
	until_seen "$SHARE/usr1.out" 'serving'
	scancel --signal=USR1 "$job"
	finish usr1
	[ "$status" = 75 ]
	has '^\[train 0\] train 0 1 .* hello '
	hasnt 'role serve: rank'
}

@test "Slurm: berth info, and berth run, as programs of roles on a part of the nodes" {
	submit part -N3 <<-'S'
	"$BERTH" run --role one -N 1 -n 1 -- "$BERTH" info : --role two -N 2 --ranks-per-node 1 -- "$BERTH" run --nested --dry-run -- true 2>&1
	S
	finish part
	[ "$status" = 0 ]
	has '^\[one 0\]   size +1 node, 1 rank'
	has '^\[two 1\]   job .*, 3 nodes, '
}

@test "Slurm: a heterogeneous job: all groups are one job, or a role has a group" {
	submit het -N1 -w n3 : -N2 -w n1,n2 <<-'S'
	"$BERTH" run --ranks-per-node 1 -- sh -c 'echo "one $RANK of $WORLD_SIZE on $SLURMD_NODENAME at $MASTER_ADDR in $SLURM_STEP_NODELIST"'
	"$BERTH" run --role serve --het-group 1 --service -N 1 -n 1 -- python3 serve.py : --role train --het-group 0 -n 1 -- python3 ask.py : \
		--role rest --het-group 1 --ranks-per-node 1 -- python3 ask.py 2>&1
	S
	finish het
	[ "$status" = 0 ]
	has '^one 0 of 3 on n3 at 10.9.0.13 in n\[3,1-2\]$'
	has '^one 1 of 3 on n1 at 10.9.0.13'
	has '^one 2 of 3 on n2 at 10.9.0.13'
	has '^\[train 0\] train 0 1 127.0.0.1 n3 hello 10.9.0.11$'
	has '^\[rest 0\] rest 0 1 127.0.0.1 n2 hello 10.9.0.11$'
	nothing_left n1 n2 n3
}

@test "PBS: the same line, and a role has a chunk" {
	python3 "$HERE/pbs.py" begin n1 n2 n3 3>&-
	pbs_job roles 2:mpiprocs=1 <<-'S'
	env -u BERTH_TOPOLOGY "$BERTH" run --role serve --service --nodes 1 -- python3 serve.py : --role train -- python3 ask.py 2>&1
	S
	[ "$status" = 0 ]
	has '^\[train 0\] train 0 1 127.0.0.1 n2 hello 10.9.0.11$'
	pbs_job chunks 1:ncpus=1+2:ncpus=2 <<-'S'
	unset BERTH_TOPOLOGY
	"$BERTH" run --role serve --chunk 1 --service -N 1 -n 1 -- python3 serve.py : --role train --chunk 0 -n 1 -- python3 ask.py : \
		--role rest --chunk 1 -n 1 -- python3 ask.py 2>&1
	"$BERTH" run --role train --chunk 2 -n 1 -- true 2>&1
	echo "code $?"
	PATH=/bin PBS_CONF_FILE=/no/such "$BERTH" run --role train --chunk 0 -n 1 -- true 2>&1
	echo "code $?"
	S
	has '^\[train 0\] train 0 1 127.0.0.1 n1 hello 10.9.0.12$'
	has '^\[rest 0\] rest 0 1 127.0.0.1 n3 hello 10.9.0.12$'
	has 'role train asks for group 2, from 0, and the job has 2 groups'
	has '^code 64$'
	has "--chunk: cannot find the nodes of the job's chunks: found no qstat in PATH or in PBS_EXEC"
	has '^code 69$'
}

@test "PBS: walltime with roles: the trainer saves while its server still serves, and a new job continues" {
	[ -d "$TOOLS" ] || python3 "$HERE/pbs.py" begin n1 n2 n3 3>&-
	rm -f "$SHARE"/wall.*
	pbs_start wall 2:mpiprocs=1 -l walltime=00:00:40 <<-S
	unset BERTH_TOPOLOGY
	export PBS_CONF_FILE=$CLUSTER/share/pbs/pbs.conf
	turn=\${BERTH_REQUEUES:-0}
	[ \$turn = 0 ] || until [ -e wall.go ]; do sleep 0.1; done
	"\$BERTH" run --requeue --end-time +8s --warn-before 4s --report wall.report.\$turn \\
		--role serve --service -N 1 -n 1 -- python3 serve.py : --role train -n 1 -- sh -c '
		[ '\$turn' = 0 ] || exec python3 ask.py
		until [ -e "\$BERTH_STOP_FILE" ]; do sleep 0.1; done
		python3 ask.py; exit 75' 2>&1
	S
	finish wall
	[ "$status" = 75 ]
	has '^\[train 0\] train 0 1 127.0.0.1 n2 hello 10.9.0.11$'
	holds "$SHARE/wall.report.0" 'r["code"] == 75 and r["kind"] == "stopped" and r["role"] == "train" and "qsub" in r["next"]'
	nothing_left n1 n2
	touch "$SHARE/wall.go"
	within 60 test -e "$SHARE/wall.report.1"
	holds "$SHARE/wall.report.1" 'r["code"] == 0'
	has_line() { grep -q '^\[train 0\] train 0 1 .* hello ' "$SHARE/wall.out"; }
	within 10 has_line
}
