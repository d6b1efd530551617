# SPDX-License-Identifier: BSD-3-Clause
# The same command line trains in every environment: under Slurm, in a job of the stand-in for PBS
# through pbs_tmrsh and through mpirun, in OpenPAI's containers, over ssh; and by hand, with the options
# that identify the machine. Two ranks on two nodes get the same result everywhere, with berth's trainer
# and with a PyTorch program.

load support.bash

setup() {
	cd "$SHARE" || return
	export HOME=$SHARE/home
	mkdir -p "$HOME"
	case $BATS_TEST_DESCRIPTION in
	PyTorch*)
		/usr/bin/python3 -c 'import torch.distributed' 2>/dev/null || skip 'no PyTorch (Debian: python3-torch)'
		VERB=run AS=torch
		LINE="run --ranks-per-node 1 -- /usr/bin/python3 $HERE/ddp.py"
		;;
	*)
		[ -n "${MPI_SUM-}" ] || skip "no MPI: the trainer has one rank"
		VERB=train AS=berth
		# Open MPI keeps memory in plug-ins that it has unloaded: under ASan no name is left to suppress.
		LINE="train convnet --ranks-per-node 1 --data synthetic:1x28x28,n=512 --steps 12 --seed 7 "
		LINE+="--env ASAN_OPTIONS=${ASAN_OPTIONS-}:detect_leaks=0"
		;;
	esac
}

# trained NAME: the job has trained on two ranks, with the same result as all other jobs.
trained() {
	output=$(cat "$1.out")
	echo "# $1: $output"
	if [ $AS = torch ]; then
		has '^rank 0 of 2 on n1 local 0 at .* trained'
		has '^rank 1 of 2 on n2 local 0 at .* trained'
		grep -oE 'trained to -?[0-9.]+' "$1.out" | sort -u >"$1.end"
	else
		has 'trained convnet .* 12 steps, 2 ranks'
		# "loss 2.3026  Acc@1 ...": the results, without the speed
		grep -oE '^loss [0-9.]+' "$1.out" >"$1.end"
	fi
	[ -s "$1.end" ]
	cat "$1.end" >>"ends-$AS"
	[ "$(sort -u "ends-$AS" | wc -l)" = 1 ] || { echo "they differ:"; cat "ends-$AS"; return 1; }
}

ended() { within 60 test -s "$1"; } # not -e: the shell creates the file before echo writes to it

in_slurm() {
	rm -f "ends-$AS" slurm.code
	printf '#!/bin/bash\n%s %s; echo $? >slurm.code\n' "$BERTH" "$LINE" >slurm.sh
	sbatch -N2 -o "$SHARE/slurm.out" slurm.sh
	ended slurm.code
	[ "$(cat slurm.code)" = 0 ]
	trained slurm
}

in_pbs() { # NAME VARIABLE
	[ -d "$TOOLS" ] || python3 "$HERE/pbs.py" begin n1 n2 3>&-
	rm -f "$1.code" "$1.out"
	printf 'cd %s\nexport LD_LIBRARY_PATH=%s BERTH_TOPOLOGY=%s %s\n%s %s; echo $? >%s.code\n' \
		"$SHARE" "$LD_LIBRARY_PATH" "$BERTH_TOPOLOGY" "$2" "$BERTH" "$LINE" "$1" >"$1.sh"
	env -u SLURM_CONF "$TOOLS/qsub" -o "$SHARE/$1.out" -l select=2:ncpus=2 -l place=scatter "$1.sh"
	ended "$1.code"
	[ "$(cat "$1.code")" = 0 ]
	trained "$1"
}

by_tm() { in_pbs tm "PATH=$TOOLS:/nothing-else"; }

by_mpirun() {
	need ompi_info
	LINE="${LINE/$VERB/$VERB --launcher mpirun}"
	in_pbs mpirun "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
}

# both NAME VARIABLES: run the command line on n1 and n2; $1 is the machine's number there
both() {
	(umask 077; openssl rand -hex 32 >secret)
	rm -f "$1".n?.code
	for n in 1 2; do
		# shellcheck disable=SC2086 # words
		(on "n$n" env -u SLURM_CONF -C "$SHARE" BERTH_SECRET_FILE="$SHARE/secret" sh -c "$2 exec $BERTH $LINE" sh "$((n - 1))" \
			>"$1.n$n" 2>&1 3>&-; echo $? >"$1.n$n.code") 3>&- &
	done
	ended "$1.n1.code"
	ended "$1.n2.code"
	mv "$1.n1" "$1.out"
	[ "$(cat "$1.n1.code" "$1.n2.code")" = $'0\n0' ]
	trained "$1"
}

by_hand() { # PORT
	LINE="${LINE/$VERB/$VERB --nnodes 2 --node-rank \$1 --rdzv-endpoint n1:$1}"
	both hand ''
}

in_openpai() { # PORT
	local names="PAI_JOB_NAME=j PAI_CURRENT_TASK_ROLE_NAME=w PAI_TASK_INDEX=\$1 PAI_TASK_ROLE_TASK_COUNT_w=2"
	both openpai "export $names PAI_HOST_IP_w_0=10.1.0.11 PAI_HOST_IP_w_1=10.1.0.12 PAI_PORT_LIST_w_0_berth=$1;"
}

by_ssh() {
	[ "$(wc -l <"ends-$AS")" = 5 ] || skip "some of the other jobs could not run"
	mkdir -p fake
	# cluster.py's access to the nodes replaces ssh, which ssh.bats tests
	printf '#!/bin/bash\nhost=${@: -2:1}\nexec python3 %s/cluster.py on "$host" sh -c "${@: -1}"\n' "$HERE" >fake/ssh
	chmod +x fake/ssh
	# shellcheck disable=SC2086 # words
	env -u SLURM_CONF PATH="$SHARE/fake:$PATH" "$BERTH" ${LINE/$VERB/$VERB --hosts n1,n2} >ssh.out 2>&1
	trained ssh
}

@test "Slurm" { in_slurm; }
@test "PBS, through pbs_tmrsh" { by_tm; }
@test "PBS, through mpirun" { by_mpirun; }
@test "by hand" { by_hand 4720; }
@test "OpenPAI" { in_openpai 4721; }
@test "ssh" { by_ssh; }

@test "PyTorch: Slurm" { in_slurm; }
@test "PyTorch: PBS, through pbs_tmrsh" { by_tm; }
@test "PyTorch: PBS, through mpirun" { by_mpirun; }
@test "PyTorch: by hand" { by_hand 4722; }
@test "PyTorch: OpenPAI" { in_openpai 4723; }
@test "PyTorch: ssh" { by_ssh; }
