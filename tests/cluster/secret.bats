# SPDX-License-Identifier: BSD-3-Clause
# A run's secret appears on no command line, in no log and in no file that others can read, whichever
# launcher starts the agents. (pbs.bats: the file that replaces a missing cookie; openmpi5.bats: prterun.)

load support.bash

setup() {
	cd "$SHARE" || return
	export HOME=$SHARE/home
	(umask 077; mkdir -p "$HOME")
	rm -rf go env.* out logs
	RUN="run --ranks-per-node 1 --log-dir $SHARE/logs --report $SHARE/report.json -- sh -c '$WAITS'"
}

teardown() {
	touch "$SHARE/go"
	cancel_jobs
}

# up: wait until both ranks run; to_end: check that the secret stays hidden, and let the ranks end.
up() { until_seen "$SHARE/logs/rank-0000.log" 'up 0' && until_seen "$SHARE/logs/rank-0001.log" 'up 1'; }
to_end() {
	nothing_shown "$@"
	touch go
	until_seen "$SHARE/logs/rank-0001.log" 'rank 1 of 2 ends'
	! grep -rE "$DIGITS${1:+|$1}" "$SHARE/logs" "$SHARE/out" || false
}

runs() { # COUNT PATTERN: wait for that many matching processes
	count() { [ "$(pgrep -cf -- "$2")" = "$1" ]; }
	within 10 count "$@" || { pgrep -af -- "$2"; return 1; }
}

@test "the scan finds a secret on a command line, in a file and in a rank's environment" {
	secret=$(openssl rand -hex 32)
	touch env.0
	on n1 bash -c "exec -a '$BERTH' sleep 70" 3>&- &
	on n2 bash -c "exec -a '$BERTH' sleep 70" 3>&- &
	runs 2 "^$BERTH 70"
	nothing_shown
	on n2 sh -c "sleep 71; : $secret" 3>&- &
	runs 1 '^sleep 71'
	expect 1 nothing_shown
	has 'on a command line'
	on n2 pkill -f 'sleep 71'
	runs 0 'sleep 71'
	echo "x=$secret" >seen
	expect 1 nothing_shown
	has "in a file of .*seen"
	chmod 600 seen
	nothing_shown
	(umask 077; echo "BERTH_AGENT_SECRET=$secret" >env.1)
	expect 1 nothing_shown
	has "in a rank's environment"
	rm seen
	for node in n1 n2; do on "$node" pkill -f 'sleep 70|berth 70'; done
}

@test "srun" {
	printf '#!/bin/bash\n%s %s\n' "$BERTH" "$RUN" >slurm.sh
	sbatch -N2 -w n1,n2 -o "$SHARE/out" slurm.sh
	up
	secret=$(secrets n1)
	[ ${#secret} = 64 ]
	to_end "$secret"
}

in_pbs() { # ENGINE
	[ -d "$TOOLS" ] || python3 "$HERE/pbs.py" begin n1 n2 3>&-
	printf 'cd %s\nexport LD_LIBRARY_PATH=%s BERTH_TOPOLOGY=%s OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n%s %s\n' \
		"$SHARE" "$LD_LIBRARY_PATH" "$BERTH_TOPOLOGY" "$BERTH" "${RUN/run/run --launcher $1}" >job.sh
	env -u SLURM_CONF "$TOOLS/qsub" -o "$SHARE/out" -l select=2:ncpus=2 -l place=scatter job.sh
	up
}

@test "pbs_tmrsh: neither the secret nor the cookie" {
	in_pbs tm
	[ -z "$(secrets n1 n2)" ]
	to_end
}

@test "mpirun" {
	need ompi_info
	in_pbs mpirun
	secret=$(secrets n1)
	[ ${#secret} = 64 ]
	to_end "$secret"
}

@test "ssh: also the agent on this machine" {
	mkdir -p fake
	printf '#!/bin/bash\nhost=${@: -2:1}\nexec python3 %s/cluster.py on "$host" sh -c "${@: -1}"\n' "$HERE" >fake/ssh
	chmod +x fake/ssh
	# berth run is on the login node, so its agent there needs no ssh.
	printf 'exec %s %s\n' "$BERTH" "${RUN/run/run --hosts login,n1}" >ssh.sh
	env -u SLURM_CONF PATH="$SHARE/fake:$PATH" bash ssh.sh >out 2>&1 3>&- &
	up
	# Agents of the test before may take a moment to end.
	hidden() { [ -z "$(secrets login n1)" ]; }
	within 5 hidden
	to_end
}

@test "by hand: only the owner can read the secret file" {
	export BERTH_SECRET_FILE=$SHARE/secret
	(umask 077; openssl rand -hex 32 >secret)
	for n in 1 2; do
		printf 'cd %s; exec %s %s\n' "$SHARE" "$BERTH" "${RUN/run/run --nnodes 2 --node-rank $((n - 1)) --rdzv-endpoint n1:4730}" >"hand$n.sh"
		on "n$n" env -u SLURM_CONF bash "$SHARE/hand$n.sh" >>out 2>&1 3>&- &
	done
	up
	to_end "$(cat secret)"
}
