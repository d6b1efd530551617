# SPDX-License-Identifier: BSD-3-Clause
# One line, unchanged, trains in every surrounding: under Slurm, in a job of the stand-in for PBS by
# pbs_tmrsh and by mpirun, in OpenPAI's containers; by hand with the options that say which machine
# this is. Two ranks on two nodes come to the same loss everywhere.

load support.bash

LINE='train convnet --ranks-per-node 1 --data synthetic:1x28x28,n=512 --steps 12 --seed 7'
# Open MPI keeps memory in plug-ins that it has unloaded: under ASan no name is left to suppress.
LINE="$LINE --env ASAN_OPTIONS=${ASAN_OPTIONS-}:detect_leaks=0"

setup() {
	[ -n "${MPI_SUM-}" ] || skip "no MPI: the trainer has one rank"
	cd "$SHARE" || return
	export HOME=$SHARE/home
	mkdir -p "$HOME"
}

# trained NAME: the job has, on two ranks; and as all others did.
trained() {
	output=$(cat "$1.out")
	echo "# $1: $output"
	has 'trained convnet .* 12 steps, 2 ranks'
	# "loss 2.3026  Acc@1 ...": what was learned, without the speed
	grep -oE '^loss [0-9.]+' "$1.out" >"$1.loss"
	[ -s "$1.loss" ]
	cat "$1.loss" >>losses
	[ "$(sort -u losses | wc -l)" = 1 ] || { echo "losses differ:"; cat losses; return 1; }
}

ended() { # FILE: until it is there
	for ((i = 0; i < 1200; i++)); do
		[ -e "$1" ] && return 0
		sleep 0.05
	done
	echo "no $1 after 60 s"
	return 1
}

@test "Slurm" {
	rm -f losses
	printf '#!/bin/bash\n%s %s; echo $? >slurm.code\n' "$BERTH" "$LINE" >slurm.sh
	sbatch -N2 -o "$SHARE/slurm.out" slurm.sh
	ended slurm.code
	[ "$(cat slurm.code)" = 0 ]
	trained slurm
}

pbs() { # NAME VARIABLE
	python3 "$HERE/pbs.py" begin n1 n2 3>&-
	printf 'cd %s\nexport LD_LIBRARY_PATH=%s BERTH_TOPOLOGY=%s %s\n%s %s; echo $? >%s.code\n' "$SHARE" "$LD_LIBRARY_PATH" "$BERTH_TOPOLOGY" "$2" "$BERTH" "$LINE" "$1" >"$1.sh"
	env -u SLURM_CONF "$SHARE/pbs/bin/qsub" -o "$SHARE/$1.out" -l select=2:ncpus=2 -l place=scatter "$1.sh"
	ended "$1.code"
	[ "$(cat "$1.code")" = 0 ]
	trained "$1"
}

@test "PBS, by pbs_tmrsh" {
	pbs tm "PATH=$SHARE/pbs/bin:/nothing-else" # no mpirun
}

@test "PBS, by mpirun" {
	command -v ompi_info >/dev/null || skip "no mpirun of Open MPI"
	pbs mpirun "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
}

# both VARIABLE OPTIONS of n1, of n2
both() {
	(umask 077; openssl rand -hex 32 >secret)
	rm -f "$1".n?.code
	for n in 1 2; do
		# shellcheck disable=SC2086 # words
		(on "n$n" env -u SLURM_CONF -C "$SHARE" BERTH_SECRET_FILE="$SHARE/secret" sh -c "$2 exec $BERTH $LINE $3" sh "$((n - 1))" >"$1.n$n" 2>&1 3>&-; echo $? >"$1.n$n.code") 3>&- &
	done
	ended "$1.n1.code"
	ended "$1.n2.code"
	mv "$1.n1" "$1.out"
	[ "$(cat "$1.n1.code" "$1.n2.code")" = $'0\n0' ]
	trained "$1"
}

@test "by hand" {
	LINE="${LINE/train/train --nnodes 2 --node-rank \$1 --head n1:4720}"
	both hand '' ''
}

@test "OpenPAI" {
	both openpai 'export PAI_JOB_NAME=j PAI_CURRENT_TASK_ROLE_NAME=w PAI_TASK_INDEX=$1 PAI_TASK_ROLE_TASK_COUNT_w=2 PAI_HOST_IP_w_0=10.1.0.11 PAI_HOST_IP_w_1=10.1.0.12 PAI_PORT_LIST_w_0_berth=4721;' ''
}

@test "ssh" {
	[ "$(wc -l <losses)" = 5 ] || skip "not all of the others could run"
	mkdir -p fake
	# cluster.py's way to a node in the place of ssh, whose own test is ssh.bats
	printf '#!/bin/bash\nhost=${@: -2:1}\nexec python3 %s/cluster.py on "$host" sh -c "${@: -1}"\n' "$HERE" >fake/ssh
	chmod +x fake/ssh
	# shellcheck disable=SC2086 # words
	env -u SLURM_CONF PATH="$SHARE/fake:$PATH" "$BERTH" ${LINE/train/train --hosts n1,n2} >ssh.out 2>&1
	trained ssh
}
