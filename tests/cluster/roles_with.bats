# SPDX-License-Identifier: BSD-3-Clause
# berth run --role with what else a job may have: a requeue, lost nodes, groups of nodes, other jobs on its nodes.

load support.bash

setup() {
	cd "$SHARE"
	rm -f go.* # what the tests' ranks wait for
	cat >serve.py <<-'P'
	import http.server, sys
	http.server.HTTPServer((sys.argv[1], int(sys.argv[2])), http.server.SimpleHTTPRequestHandler).serve_forever()
	P
	cat >ask.sh <<-'S'
	for url in $(echo "$1" | tr , ' '); do
		python3 -c "import sys, urllib.request as u; print('asked', u.urlopen(sys.argv[1]).status)" "$url"
	done
	S
}

teardown() {
	cancel_jobs
	for node in n1 n2 n3; do revive "$node"; done
}

@test "Slurm: a requeue near the end: services with replicas serve while the trainer saves, and all start again" {
	cat >requeue.berth <<-'E'
	--requeue --end-time +9s --warn-before 5s
	--role d --replicas 2 -N 1 --service --ready tcp -- python3 serve.py {addr} {port} :
	--role r --replicas 2 --on d:first --service --ready command:true -- sleep 77 :
	--role t -n 1 -- sh -c '[ "$SLURM_RESTART_COUNT" = 1 ] || until [ -e "$BERTH_STOP_FILE" ]; do sleep 0.1; done
	    sh ask.sh "$0"; [ "$SLURM_RESTART_COUNT" = 1 ] || exit 75' {d.urls}
	E
	submit turns -N3 --requeue --open-mode=append <<-'S'
	"$BERTH" run --report turns.report.${SLURM_RESTART_COUNT:-0} @requeue.berth 2>&1
	[ $? != 0 ] || touch turns.done
	S
	free_until turns.done "$job" 60
	output=$(cat turns.out)
	echo "$output"
	[ "$(grep -c '^.t 0. asked 200$' turns.out)" = 4 ]
	hasnt 'role [dr].*(exited|was killed|ended)'
	holds turns.report.0 'r["code"] == 75 and r["kind"] == "stopped" and r["role"] == "t" and "scontrol requeue" in r["next"]'
	holds turns.report.1 'r["code"] == 0'
	nothing_left n1 n2 n3
}

@test "Slurm: --need with --max-restarts: a replica's node is lost, and the next attempt goes on without it, too" {
	submit need -N3 --no-kill <<-'S'
	"$BERTH" run --report need.json --max-restarts 1 --node-timeout 3s --start-timeout 10s --role t -N 1 -n 1 -- \
		sh -c 'echo "t $BERTH_ATTEMPT"; [ "$BERTH_ATTEMPT" = 1 ] || { until [ -e go.on ]; do sleep 0.1; done; exit 3; }' : \
		--role d --replicas 2 --need 1 -N 1 --service --ready command:true -- sh -c 'echo "d $BERTH_ATTEMPT"; exec sleep 76' 2>&1
	S
	until_seen need.out '^.t 0. t 0'
	until_seen need.out '^.d.1 0. d 0'
	lose n3
	until_seen need.out 'role d.1: node n3 was lost: .*; the others go on without it .--need 1.'
	touch go.on
	finish need
	[ "$status" = 0 ]
	has '^berth: warning: role d.1: no agent .*n3.*; the others go on without it .--need 1.'
	has '^\[d.0 0\] d 1$'
	has '^\[t 0\] t 1$'
	nothing_left n1 n2
}

@test "Slurm: --restart and --need: the node of a replica is lost for good" {
	submit again -N3 --no-kill <<-'S'
	"$BERTH" run --max-restarts 1 --node-timeout 3s --start-timeout 10s --role t -N 1 -n 1 -- \
		sh -c 'echo "t $BERTH_ATTEMPT"; until [ -e go.on ]; do sleep 0.1; done' : \
		--role d --replicas 2 --need 1 --restart -N 1 --service --ready command:true -- sh -c 'echo "d $BERTH_ATTEMPT"; exec sleep 76' 2>&1
	S
	until_seen again.out '^.t 0. t 0'
	until_seen again.out '^.d.1 0. d 0'
	lose n3
	until_seen again.out '^berth: warning: restarting role d.1, 1 of at most 1 times'
	until_seen again.out '^berth: warning: role d.1: no agent .*n3.*; the others go on without it .--need 1.'
	touch go.on
	finish again
	[ "$status" = 0 ]
	hasnt '^berth: error'
	[ "$(grep -c '^.t 0. t' again.out)" = 1 ]
	nothing_left n1 n2
}

# A file for two groups of nodes, or chunks: the second one has a node for each replica.
groups() {
	cat >groups.berth <<-E
	--role d $1 1 --replicas 2 --nodes 1 --service --ready command:true -- sh -c 'echo "d on \$BERTH_ROLE_D_1_NODES"; exec sleep 75' :
	--role r --replicas 2 --on d:first --service --ready command:true -- sh -c 'echo "r beside \$0"; exec sleep 75' {d.my.addr} :
	--role o --on t:first -- sh -c 'echo "o on \$BERTH_ROLE_O_NODES"' :
	--role t $1 0 -n 1 -- sh -c 'echo "t on \$BERTH_ROLE_T_NODES asks \$0"' {d.addrs}
	E
}

@test "Slurm: replicas and --on in a heterogeneous job, and Ray on all of its groups" {
	groups --het-group
	submit het -N1 -w n3 : -N2 -w n1,n2 <<-'S'
	"$BERTH" run @groups.berth 2>&1
	echo "code $?"
	"$BERTH" run --role d --replicas 3 --nodes 1 --het-group 1 -- true : --role t --het-group 0 -n 1 -- true 2>&1
	echo "code $?"
	PATH=$SOURCE/tests/fixtures/ray:$PATH "$BERTH" run --ray -- sh -c 'echo "drives $BERTH_ROLE_RAY_NODES at $RAY_ADDRESS"' 2>&1
	S
	finish het
	[ "$status" = 0 ]
	has '^code 0$'
	has '^\[d.1 0\] d on n2$'
	has '^\[r.0 0\] r beside 10.9.0.11$'
	has '^\[r.1 0\] r beside 10.9.0.12$'
	has '^\[o 0\] o on n3$'
	has '^\[t 0\] t on n3 asks 10.9.0.11,10.9.0.12$'
	has '^berth: error: the roles need 3 nodes, and the group has 2 '
	has '^code 64$'
	has '^drives n3,n1,n2 at 10.9.0.13:'
	nothing_left n1 n2 n3
}

@test "PBS: replicas and --on in chunks" {
	python3 "$HERE/pbs.py" begin n1 n2 n3 3>&-
	groups --chunk
	pbs_job chunks 1:ncpus=1+2:ncpus=2 <<-'S'
	unset BERTH_TOPOLOGY
	"$BERTH" run @groups.berth 2>&1
	S
	[ "$status" = 0 ]
	has '^\[d.1 0\] d on n3.bed.test$'
	has '^\[r.0 0\] r beside 10.9.0.12$'
	has '^\[r.1 0\] r beside 10.9.0.13$'
	has '^\[o 0\] o on n1.bed.test$'
	has '^\[t 0\] t on n1.bed.test asks 10.9.0.12,10.9.0.13$'
	nothing_left n1 n2 n3
}

@test "Slurm: two jobs with the same roles on the same nodes at once: disjoint ports, and one ends without the other" {
	local name
	for name in one two; do
		export NAME=$name
		submit $name -N2 -w n1,n2 -n2 <<-'S'
		"$BERTH" run --role d --replicas 2 -N 1 --gpus-per-rank 1 --ports 2 --service --ready tcp -- python3 serve.py {addr} {port} : \
			--role t --on d -- sh -c 'env | grep -E "^BERTH_ROLE_.*_PORT="; echo up; until [ -s go.$NAME ]; do sleep 0.1; done
				sh ask.sh "$0"; exit $(cat go.$NAME)' {d.urls} 2>&1
		S
	done
	for name in one two; do
		until_seen $name.out '^.t 0. up$'
		until_seen $name.out '^.t 1. up$'
	done
	[ "$(sed -n 's/^.t 0. BERTH_ROLE_.*=//p' one.out two.out | sort -u | wc -l)" = 6 ]
	echo 7 >go.one
	finish one
	[ "$status" = 7 ]
	echo 0 >go.two
	finish two
	[ "$status" = 0 ]
	[ "$(grep -c 'asked 200' two.out)" = 4 ]
	nothing_left n1 n2
}
