# SPDX-License-Identifier: BSD-3-Clause
# berth exec under other launchers: Debian's mpirun, and the variables that torchrun, PALS, MPICH and
# srun set (none of those is installed here).
# MPI_SUM, HELLO: programs, "" where their library is missing.

load ../support/berth

setup() {
	make_dir
	allow_leaks
	export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}

SAY='echo "is $RANK of $WORLD_SIZE local $LOCAL_RANK of $LOCAL_WORLD_SIZE node ${NODE_RANK-?} at ${MASTER_ADDR-?}:${MASTER_PORT-?} '
SAY+='cores $(sed -n "s/^Cpus_allowed_list:[[:space:]]*//p" /proc/self/status) threads $OMP_NUM_THREADS"'

@test "under mpirun: place, one rendezvous address, own cores" {
	need mpirun
	run mpirun --oversubscribe -n 2 "$BERTH" exec -- sh -c "$SAY"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"is 0 of 2 local 0 of 2 node 0 at 127.0.0.1:"* ]]
	[[ $output == *"is 1 of 2 local 1 of 2 node 0 at 127.0.0.1:"* ]]
	[ "$(grep -o 'at 127.0.0.1:[0-9]*' <<<"$output" | sort -u | wc -l)" -eq 1 ]
	[[ $output == *"no supervision"* ]]
	if [ "$(nproc)" -ge 2 ]; then
		[ "$(grep -o 'cores [0-9,-]*' <<<"$output" | sort -u | wc -l)" -eq 2 ]
	fi
}

@test "--keep-binding keeps mpirun's cores" {
	need mpirun
	[ "$(nproc)" -ge 2 ] || skip "one core"
	run mpirun --oversubscribe --bind-to none -n 2 "$BERTH" exec --keep-binding -- sh -c "$SAY"
	echo "$output"
	[ "$status" -eq 0 ]
	all=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)
	[ "$(grep -c "cores $all threads" <<<"$output")" -eq 2 ]
}

@test "an Open MPI program under berth exec is still one job" {
	need mpirun
	[ -n "$MPI_SUM" ] || skip "built without MPI"
	run mpirun --oversubscribe -n 3 "$BERTH" exec -- "$MPI_SUM"
	echo "$output"
	[ "$status" -eq 0 ]
	[ "$(grep -c 'of 3, sum 6' <<<"$output")" -eq 3 ]
}

@test "libberth in a rank of mpirun exchanges over its PMIx" {
	need mpirun
	[[ " $MODULES " == *" ranks-pmix "* ]] || skip "built without PMIx"
	run mpirun --oversubscribe -n 2 "$BERTH" exec -- "$HELLO"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"rank 1: rank 0 is process"* ]]
}

# NAME=VALUE... -- : variables that all ranks of a launcher share; then those of each rank
torchrun_env="TORCHELASTIC_RUN_ID=r1 TORCHELASTIC_USE_AGENT_STORE=False TORCHELASTIC_RESTART_COUNT=0 "
torchrun_env+="WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511 OMP_NUM_THREADS=7"

@test "under torchrun: torchrun's variables stay" {
	run env $torchrun_env RANK=1 LOCAL_RANK=1 "$BERTH" exec -- sh -c "$SAY"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"is 1 of 2 local 1 of 2 node 0 at 127.0.0.1:29511 cores "*"threads 7"* ]]
}

@test "--dry-run prints the same warnings as a real run" {
	local real topology="$FIXTURES/topo/pci-order-not-numa-order.xml"
	run --separate-stderr env $torchrun_env RANK=0 LOCAL_RANK=0 BERTH_TOPOLOGY="$topology" "$BERTH" exec -- true
	echo "$stderr"
	[ "$status" -eq 0 ]
	[[ $stderr == *"comes from another machine, so ranks are not bound"*"no supervision"* ]]
	real=$stderr
	run --separate-stderr env $torchrun_env RANK=0 LOCAL_RANK=0 BERTH_TOPOLOGY="$topology" "$BERTH" exec --dry-run -- true
	echo "$stderr"
	[ "$status" -eq 0 ]
	[ "$stderr" = "$real" ]
	[[ $output == "rank 0 of 2 (started by torchrun)"* ]]
}

@test "torchrun inside mpirun: torchrun's rank wins" {
	run env $torchrun_env RANK=1 LOCAL_RANK=1 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 \
		"$BERTH" exec -- sh -c "$SAY"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"is 1 of 2"* ]]
}

@test "variables of srun on two nodes" {
	run env SLURM_STEP_ID=0 SLURM_JOB_ID=77 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=5 SLURM_LOCALID=1 \
		SLURM_NODEID=1 'SLURM_STEP_TASKS_PER_NODE=2(x2),1' 'SLURM_STEP_NODELIST=n[07-08],m1' \
		"$BERTH" exec -- sh -c "$SAY"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"is 3 of 5 local 1 of 2 node 1 at n07:"* ]]
}

@test "the number of nodes, which berth exec does not know, is not set" {
	local srun='SLURM_STEP_ID=0 SLURM_JOB_ID=77 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_NNODES=2'
	expect 0 env $srun SLURM_STEP_NUM_NODES=2 'SLURM_STEP_TASKS_PER_NODE=2(x2)' 'SLURM_STEP_NODELIST=n[07-08]' \
		"$BERTH" exec -- sh -c 'echo "$PL_TRAINER_DEVICES ${PL_TRAINER_NUM_NODES-none} ${GROUP_WORLD_SIZE-none} $SLURM_NNODES"'
	[ "${lines[-1]}" = '2 none none 2' ]
}

@test "variables of MPICH and PALS" {
	run env PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 "$BERTH" exec -- sh -c "$SAY"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"is 1 of 2 local 1 of 2 node 0 at 127.0.0.1:"* ]]
	run env PALS_RANKID=4 PMI_SIZE=8 PALS_LOCAL_RANKID=0 PMI_LOCAL_SIZE=4 PALS_NODEID=1 \
		PALS_APID=x "$BERTH" exec -- sh -c "$SAY"
	echo "$output"
	[ "$status" -eq 69 ]
	[[ $output == *"PALS started 8 ranks on several nodes"*"--master-addr ADDRESS"*"--master-addr none"* ]]
}

# Variables of rank 1 of 2 under each launcher, and a name that its processes have.
outer_launchers() {
	cat <<-E
	torchrun|torchrun|$torchrun_env RANK=1 LOCAL_RANK=1
	orted|mpirun|OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2
	palsd|PALS|PALS_RANKID=1 PMI_SIZE=2 PALS_LOCAL_RANKID=1 PMI_LOCAL_SIZE=2 PALS_NODEID=0
	hydra_pmi_proxy|MPICH's mpiexec|PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2
	E
}

@test "several ranks of a launcher that runs do not each start a job: refused with the right line" {
	local by_hand='run --nnodes 1 --node-rank 0 --rdzv-endpoint 127.0.0.1:19876' error
	export BERTH_SECRET_FILE=$DIR/secret
	head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >secret
	chmod 600 secret
	while IFS='|' read -r process name variables; do
		fake "$process" "env $variables \"\$@\"; exit \$?"
		expect 64 "bin/$process" sh -c '"$@"; exit $?' sh "$BERTH" run -n 2 -- touch started
		error="berth: error: $name started this berth run as one of 2 ranks, and each would start a complete job: "
		error+="use berth run -n 2 -- PROGRAM without $name, or put berth exec -- PROGRAM after $name, "
		error+="so that each takes its rank. --nested allows it"
		[[ $output == "$error" ]]
		expect 64 "bin/$process" "$BERTH" train convnet --data synthetic:1x28x28 --steps 1
		[[ $output == *"use berth train -n 2 without $name, or put berth exec -- berth-train after"* ]]
		[ ! -e started ]
		for allowed in 'run --dry-run -n 2 -- true' plan info "$by_hand -- true"; do
			expect 0 "bin/$process" "$BERTH" $allowed
		done
		run "bin/$process" "$BERTH" check
		[[ $output != *"as one of 2 ranks"* ]]
		expect 0 "bin/$process" "$BERTH" run --nested -n 2 -- touch started
		rm started
		# A batch script has such variables of the job in which it was submitted.
		expect 0 env $variables "$BERTH" run -n 2 -- touch started
		rm started
		expect 0 "bin/$process" env WORLD_SIZE=1 PMI_SIZE=1 PMI_LOCAL_SIZE=1 RANK=0 PMI_RANK=0 PALS_RANKID=0 \
			OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 "$BERTH" run -n 2 -- touch started
		rm started
	done < <(outer_launchers)
	expect 64 "$BERTH" run -n 2 -- "$BERTH" run -n 2 -- touch started
	error="this berth run is one of 2 ranks of another berth run, and each would start a complete job: "
	error+="omit one of the two. --nested allows it"
	[[ $output == *"$error"* ]]
	[ ! -e started ]
	expect 0 "$BERTH" run -n 1 -- "$BERTH" run -n 2 -- sh -c 'echo "$RANK of $WORLD_SIZE"'
	[ "$(sort <<<"$output")" = $'0 of 2\n1 of 2' ]
	expect 0 "$BERTH" run -n 2 -- "$BERTH" run --nested -n 2 -- sh -c 'echo "$RANK of $WORLD_SIZE"'
	[ "$(grep -c 'of 2$' <<<"$output")" = 4 ]
}

@test "mpirun -n 2 berth run is refused, mpirun -n 1 berth run is not" {
	need mpirun
	expect 64 mpirun --oversubscribe -n 2 "$BERTH" run -n 2 -- touch started
	[[ $output == *"mpirun started this berth run as one of 2 ranks"* ]]
	[ ! -e started ]
	expect 0 mpirun --oversubscribe -n 1 "$BERTH" run -n 2 -- touch started
	expect 64 mpirun --oversubscribe -n 2 "$BUILD/bin/berth-train" linear --data synthetic:1x28x28,n=64 --steps 1
	local fix="put berth exec -- in front of berth-train, or use berth train -n 2 without mpirun"
	[[ $output == *"mpirun started this berth-train as one of 2 ranks"*"$fix"* ]]
	expect 0 mpirun --oversubscribe -n 1 "$BUILD/bin/berth-train" linear --data synthetic:1x28x28,n=64 --steps 1
}

# PALS on two nodes does not report the address of rank 0.
pals_env="PALS_RANKID=4 PMI_SIZE=8 PALS_LOCAL_RANKID=0 PMI_LOCAL_SIZE=4 PALS_NODEID=1"

@test "several nodes: options or variables set the address of rank 0" {
	at() { # EXPECTED ARGUMENTS...: of env
		local expected=$1
		shift
		run env $pals_env "$@"
		echo "$output"
		[ "$status" -eq 0 ]
		[[ $output == *"is 4 of 8 local 0 of 4 node 1 at $expected cores"* ]]
	}
	at '10.0.0.1:29500' "$BERTH" exec --master-addr 10.0.0.1 --port 29500 -- sh -c "$SAY"
	at '10.0.0.2:29501' MASTER_ADDR=10.0.0.2 MASTER_PORT=29501 "$BERTH" exec -- sh -c "$SAY"
	at '10.0.0.1:29501' MASTER_ADDR=10.0.0.2 MASTER_PORT=29501 "$BERTH" exec --master-addr 10.0.0.1 -- sh -c "$SAY"
	at '?:?' "$BERTH" exec --master-addr none -- sh -c "$SAY"
	run env $pals_env MASTER_ADDR=10.0.0.2 "$BERTH" exec -- true
	echo "$output"
	[ "$status" -eq 69 ]
	[[ $output == *"without a job name"*"--port PORT"* ]]
	run env $pals_env PALS_APID=a1 MASTER_ADDR=fd00::1 "$BERTH" exec --port 29500 -- \
		sh -c 'echo "jax at $JAX_COORDINATOR_ADDRESS"'
	[[ $output == *"jax at [fd00::1]:29500"* ]]
	for wrong in '[fd00::1]' '' 'n1 n2' n1,n2 $'n1\tn2'; do
		run env $pals_env "$BERTH" exec --master-addr "$wrong" --port 1 -- true
		[ "$status" -eq 64 ]
		[[ $output == *"--master-addr '${wrong//$'\t'/ }': expected a bare address or host name, or none"* ]]
	done
	run env $pals_env "$BERTH" exec --master-addr 10.0.0.1 --port 65536 -- true
	[ "$status" -eq 64 ]
}

@test "rank 0 reports that the port is in use" {
	command -v python3 >/dev/null || skip "no python3"
	exec 4< <(exec python3 -c 'import socket, time
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(); print(s.getsockname()[1], flush=True); time.sleep(60)')
	holder=$!
	read -r port <&4
	run env RANK=0 WORLD_SIZE=1 "$BERTH" exec --port "$port" -- true
	kill "$holder"
	echo "$output"
	[ "$status" -eq 69 ]
	[[ $output == *"cannot use MASTER_PORT $port on rank 0's node"*"--port"* ]]
}

@test "shells between launcher and rank make no difference" {
	ranks() {
		for r in 0 1; do
			env PMI_RANK=$r PMI_SIZE=2 MPI_LOCALRANKID=$r MPI_LOCALNRANKS=2 \
				sh -c '"$BERTH" exec -- sh -c "$0"; true' "$SAY" || return
		done
	}
	run ranks
	echo "$output"
	[ "$status" -eq 0 ]
	[ "$(grep -o 'at 127.0.0.1:[0-9]*' <<<"$output" | sort | uniq -c | awk '{print $1}')" = 2 ]
}

@test "cores outside the launcher's or the user's binding are not used" {
	[ "$(nproc)" -ge 2 ] || skip "one core"
	command -v taskset >/dev/null || skip "no taskset"
	need mpirun
	first=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*\([0-9]*\).*/\1/p' /proc/self/status)
	# taskset around the launcher: all its ranks stay within those cores.
	run taskset -c "$first" mpirun --oversubscribe --bind-to none -n 2 "$BERTH" exec -- sh -c "$SAY"
	echo "$output"
	[ "$status" -eq 0 ]
	[ "$(grep -c "cores $first threads" <<<"$output")" -eq 2 ]
	# By hand, without a launcher that binds: the user's binding holds.
	run taskset -c "$first" env RANK=0 WORLD_SIZE=1 "$BERTH" exec -- sh -c "$SAY"
	[[ $output == *"cores $first threads"* ]]
}

@test "contradictory and missing variables are named" {
	run env OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
		OMPI_COMM_WORLD_LOCAL_SIZE=2 RANK=0 WORLD_SIZE=2 "$BERTH" exec -- true
	[ "$status" -eq 65 ]
	[[ $output == *"mpirun reports rank 1 of 2"*"RANK"* ]]
	run env RANK=1 WORLD_SIZE=2 "$BERTH" exec -- true
	[ "$status" -eq 65 ]
	[[ $output == *"LOCAL_RANK is not"* ]]
	run env RANK=2 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "$BERTH" exec -- true
	[ "$status" -eq 65 ]
	run "$BERTH" exec -- true
	[ "$status" -eq 64 ]
	# A batch script of Slurm 26.05 is no task.
	run env SLURM_JOB_ID=7 SLURM_STEP_ID=-5 SLURM_PROCID=0 SLURM_LOCALID=0 "$BERTH" exec -- true
	[ "$status" -eq 64 ]
	[[ $output == *"no launcher started this process as a rank"* ]]
	run "$BERTH" exec
	[ "$status" -eq 64 ]
}

@test "a missing PROGRAM" {
	run -127 env RANK=0 WORLD_SIZE=1 "$BERTH" exec -- /nonexistent/program
	[[ $output == *"cannot run /nonexistent/program"* ]]
	run env RANK=0 WORLD_SIZE=1 "$BERTH" exec -- /
	[ "$status" -eq 126 ]
}

@test "another machine's topology: plans, but does not bind" {
	run env RANK=0 WORLD_SIZE=1 BERTH_TOPOLOGY=/nonexistent.xml "$BERTH" exec -- true
	[ "$status" -eq 66 ]
	xml=$(find "$FIXTURES/topo" -name '*.xml' | sort | head -1)
	[ -n "$xml" ] || skip "no fixture"
	run env RANK=0 WORLD_SIZE=1 BERTH_TOPOLOGY="$xml" "$BERTH" exec -- sh -c "$SAY"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"ranks are not bound"* ]]
}
