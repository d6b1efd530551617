# SPDX-License-Identifier: BSD-3-Clause
# jobscripts/slurm, submitted unchanged.

load support.bash

setup() {
	SCRIPTS=$SOURCE/jobscripts/slurm
	export PATH="$(dirname "$BERTH"):$PATH"
	cd "$SHARE"
}

teardown() { cancel_jobs; }

# sends NAME OPTIONS SCRIPT ARGUMENTS...: submit the script and wait for its end.
sends() {
	local name=$1
	shift
	job=$(sbatch --parsable -o "$SHARE/$name-%a.out" "$@")
	within 60 over || true
	output=$(cat "$SHARE/$name-"*.out)
	echo "# $name:"
	echo "$output"
	scontrol -o show job "$job" | tee "$SHARE/$name.end"
}

over() { ! squeue -h -j "$job" -t PENDING,RUNNING,COMPLETING 2>/dev/null | grep -q .; }

SAY='echo "rank $RANK of $WORLD_SIZE on $(hostname) at $MASTER_ADDR arguments $*"'

@test "every script passes shellcheck" {
	need shellcheck
	shellcheck "$SCRIPTS"/*.sh
}

@test "one-node.sh: one rank per GPU; without GPUs one rank per task" {
	sends one --gpus-per-node=2 "$SCRIPTS/one-node.sh" sh -c "$SAY" sh a 'b c'
	has '^rank 3 of 4 on n[12] at 127.0.0.1 arguments a b c$'
	grep -q 'JobState=COMPLETED' "$SHARE/one.end"
}

@test "several-nodes.sh: two nodes, the exit code of the failed rank, and a report" {
	sends several --gpus-per-node=4 "$SCRIPTS/several-nodes.sh" sh -c "$SAY"
	has '^rank 0 of 8 on n1 at 10.9.0.11'
	has '^rank 7 of 8 on n2 at 10.9.0.11'
	grep -q 'JobState=COMPLETED' "$SHARE/several.end"
	sends failing "$SCRIPTS/several-nodes.sh" sh -c '[ $RANK = 5 ] && exit 3; sleep 70'
	has '^exit code 3; cause and next step: berth-[0-9]*.json$'
	grep -q 'JobState=FAILED.* ExitCode=3:0' "$SHARE/failing.end"
	grep -q '"rank": 5' "$SHARE/berth-$job.json"
}

@test "torchrun.sh: PET_ variables for one process per node" {
	mkdir -p fake
	cat >fake/torchrun <<-'S'
	#!/bin/sh
	echo "torchrun $* on $(hostname): $PET_NNODES nodes, $PET_NPROC_PER_NODE workers, node $PET_NODE_RANK, $PET_MASTER_ADDR"
	S
	chmod +x fake/torchrun
	PATH="$SHARE/fake:$PATH" sends torchrun --gpus-per-node=4 "$SCRIPTS/torchrun.sh" train.py --x
	has '^torchrun train.py --x on n1: 2 nodes, 4 workers, node 0, 10.9.0.11$'
	has '^torchrun train.py --x on n2: 2 nodes, 4 workers, node 1, 10.9.0.11$'
}

@test "mpi.sh: as many ranks as tasks" {
	[ -n "$MPI_SUM" ] || skip "no MPI"
	sends mpi --ntasks-per-node=2 "$SCRIPTS/mpi.sh" "$MPI_SUM"
	has '^MPI rank 3 of 4, sum 10, before me 2$'
}

@test "array.sh: each job gets its own number" {
	sends array "$SCRIPTS/array.sh" sh -c "$SAY" sh --seed
	has '^rank 0 of 4 on n[123] at 127.0.0.1 arguments --seed 0$'
	has '^rank 0 of 4 on n[123] at 127.0.0.1 arguments --seed 1$'
}

@test "sweep.sh: one run per line, each on a GPU of its own; a second time only those that failed" {
	printf -- '--lr %s\n' 1 2 3 4 5 6 7 8 9 >lines.txt
	printf '\n--lr 10' >>lines.txt # an empty line, and the last one without an end
	# shellcheck disable=SC2016
	sends sweep --nodes=2 --gpus-per-node=4 "$SCRIPTS/sweep.sh" lines.txt sh -c 'echo "$(hostname) gpu $CUDA_VISIBLE_DEVICES $*"
		[ "$2" != 7 ] || [ -e seven ] || exit 3' sh
	has '^10 runs: 9 ended with code 0, 1 failed$'
	has '^lines.txt.runs/7 +--lr 7 +3 .* rank 0 on n[12] exited with code 3$'
	grep -qE '^n[12] gpu [0-3] --lr 10$' lines.txt.runs/11/rank-0000.log
	touch seven
	sends again --nodes=2 --gpus-per-node=4 "$SCRIPTS/sweep.sh" lines.txt sh -c 'echo "second $*"; exit 0' sh
	has '^10 runs: 10 ended with code 0$'
	[ "$(grep -l second lines.txt.runs/*/rank-0000.log)" = lines.txt.runs/7/rank-0000.log ]
}

@test "server.sh: a program that starts when the server answers" {
	mkdir -p www && touch www/health
	SERVER="python3 -m http.server --directory $SHARE/www {port}" sends server "$SCRIPTS/server.sh" \
		sh -c 'echo "asks $BERTH_ROLE_SERVE_ADDR:$BERTH_ROLE_SERVE_PORT on $(hostname)"' sh
	has '^\[train 0\] asks 10.9.0.11:[0-9]{5} on n2$'
	grep -q 'JobState=COMPLETED' server.end
}

@test "ray.sh: a driver on two nodes of a stand-in for Ray" {
	PATH="$FIXTURES/ray:$PATH" PYTHONPATH=$FIXTURES/ray sends ray "$SCRIPTS/ray.sh" ray status
	[ "$(grep -c ' node_10.9.0.1' <<<"$output")" -eq 2 ]
}

@test "interactive.sh: from the login node" {
	expect 0 timeout 60 bash "$SCRIPTS/interactive.sh" --quiet --nodes=2 -- sh -c "$SAY"
	has '^rank 0 of 8 on n1 at 10.9.0.11'
	expect 64 bash "$SCRIPTS/interactive.sh" --nodes=2
}
