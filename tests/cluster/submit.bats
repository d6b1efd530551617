# SPDX-License-Identifier: BSD-3-Clause
# berth submit with a real Slurm and the stand-in for PBS.

load support.bash

SAY='echo "rank $RANK of $WORLD_SIZE on $(hostname) at $MASTER_ADDR arguments $*"'

setup() {
	cd "$SHARE" || return
	export HOME=$SHARE/home
	mkdir -p "$HOME/.config/berth"
}

teardown() { cancel_jobs; }

@test "sbatch: a job on two nodes, and a job that runs after it" {
	expect 0 "$BERTH" submit --nodes 2 --gpus-per-node 4 --cpus-per-node 2 --time 0:05:00 --queue all --name mine \
		--output "$SHARE/first.out" -- sh -c "$SAY" sh 'a  b' '*'
	first=${output##* }
	[[ "$output" == "Submitted batch job "* ]]
	expect 0 "$BERTH" submit --after "$first" --output "$SHARE/second.out" -- sh -c "cat $SHARE/first.out; echo after"
	until_seen "$SHARE/second.out" '^after$'
	output=$(cat "$SHARE/second.out")
	echo "$output"
	has '^rank 0 of 8 on n1 at 10.9.0.11 arguments a  b \*$'
	has '^rank 7 of 8 on n2 at 10.9.0.11 arguments a  b \*$'
	scontrol show job "$first" | grep -q 'JobName=mine'
	scontrol show job "$first" | grep -q 'TimeLimit=00:05:00'
	scontrol show job "$first" | grep -q 'NumCPUs=4 '
}

@test "qsub: the stand-in reads the directives" {
	submit_to_pbs
	expect 0 "$BERTH" submit --nodes 2 --gpus-per-node 2 --cpus-per-node 4 --time 5m --queue workq --name mine \
		--output "$SHARE/pbs.out" -- sh -c "$SAY" sh 'a  b' '*'
	job=$output
	until_seen "$SHARE/pbs.out" '^rank 3'
	until_seen "$SHARE/pbs.out" '^rank 0'
	output=$(cat "$SHARE/pbs.out")
	has '^rank 3 of [48] on n[12] at 10.9.0.11 arguments a  b \*$'
	grep -q '"walltime": "00:05:00"' "$CLUSTER/share/pbs/jobs/$job.json"
	grep -q '"select": "2:ncpus=4:ngpus=2:mpiprocs=2"' "$CLUSTER/share/pbs/jobs/$job.json"
}
