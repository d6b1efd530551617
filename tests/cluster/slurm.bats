# SPDX-License-Identifier: BSD-3-Clause
# berth run under a real Slurm, on the cluster of cluster.py.

load support.bash

teardown() { cancel_jobs; }

@test "a batch script: the ranks of both nodes use the fast NIC" {
	batch meet -N2 -w n1,n2 --gpus-per-node=4 <<-'S'
	"$BERTH" run --ranks-per-node 2 -- sh -c \
		'echo "rank $RANK of $WORLD_SIZE on $(hostname) local $LOCAL_RANK node $NODE_RANK at $MASTER_ADDR" \
		"nccl $NCCL_SOCKET_IFNAME gloo $GLOO_SOCKET_IFNAME" \
		"slurm $SLURM_PROCID/$SLURM_NTASKS $SLURM_LOCALID $SLURM_NODEID"'
	S
	[ "$status" = 0 ]
	has '^rank 0 of 4 on n1 local 0 node 0 at 10.9.0.11 nccl hsn0 gloo hsn0 slurm 0/4 0 0$'
	has '^rank 1 of 4 on n1 local 1 node 0 at 10.9.0.11 nccl hsn0 gloo hsn0 slurm 1/4 1 0$'
	has '^rank 2 of 4 on n2 local 0 node 1 at 10.9.0.11 nccl hsn0 gloo hsn0 slurm 2/4 0 1$'
	has '^rank 3 of 4 on n2 local 1 node 1 at 10.9.0.11 nccl hsn0 gloo hsn0 slurm 3/4 1 1$'
	nothing_left n1 n2
}

@test "by default one rank per GPU; only rank 0 can listen on the port" {
	batch default -N2 -w n1,n2 --gpus-per-node=4 <<-'S'
	"$BERTH" run -- sh -c 'echo "$RANK/$WORLD_SIZE $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"'
	S
	[ "$status" = 0 ]
	[ "$(grep -c '/8 0,1,2,3 PCI_BUS_ID' <<<"$output")" = 8 ]
}

@test "salloc on the login node: rank 0 is on the allocation's first node" {
	expect 0 timeout 60 salloc -Q -N2 -w n1,n2 "$BERTH" run --ranks-per-node 1 -- sh -c 'echo "rank $RANK on $(hostname) at $MASTER_ADDR"'
	has '^rank 0 on n1 at 10.9.0.11$'
	has '^rank 1 on n2 at 10.9.0.11$'
	expect 0 timeout 60 salloc -Q -N1 -w n2 "$BERTH" run --ranks-per-node 1 -- sh -c 'echo "rank $RANK on $(hostname) at $MASTER_ADDR"'
	has '^rank 0 on n2 at 127.0.0.1$'
}

# pause JOB [STOP CONTINUE]: suspend the job of pause.sh for longer than --node-timeout, with these commands; it
# must succeed nevertheless.
pause() {
	until_seen "$SHARE/pause.0" .; until_seen "$SHARE/pause.1" .
	${2:-scontrol suspend} "$1"
	within 30 on n1 grep -q "^State:[[:space:]]*T" "/proc/$(<"$SHARE/pause.0")/status"
	sleep 9 # more than twice --node-timeout: no agent gives up
	touch "$SHARE/pause.go"
	${3:-scontrol resume} "$1"
	until_seen "$SHARE/pause.out" '^code '
	cat "$SHARE/pause.out"
	grep -q '^code 0$' "$SHARE/pause.out"
	[ "$(grep -c ends "$SHARE/pause.out")" = 2 ]
	rm "$SHARE"/pause.[01] "$SHARE/pause.go" "$SHARE/pause.out"
}

@test "scontrol suspend or scancel -s STOP for longer than --node-timeout, of a batch job and of salloc: the job continues" {
	submit pause -N2 -w n1,n2 <<-'S'
	"$BERTH" run --ranks-per-node 1 --node-timeout 4s -- bash -c \
		'echo $$ >pause.$RANK; until [ -e pause.go ]; do sleep 0.1; done; echo "rank $RANK ends"'
	echo "code $?"
	S
	pause "$job"
	# Slurm's own pause stops the agents and their ranks, but not the batch script.
	batch_again=$(sbatch --parsable -o "$SHARE/pause.out" -N2 -w n1,n2 "$SHARE/pause.sh")
	pause "$batch_again" 'scancel -s STOP' 'scancel -s CONT'
	salloc -Q -N2 -w n1,n2 bash "$SHARE/pause.sh" >"$SHARE/pause.out" 2>&1 3>&- &
	until_seen "$SHARE/pause.0" .
	pause "$(squeue -h -t R -o %i)"
}

@test "a batch script's umask and soft limits: the ranks of both nodes have them" {
	batch shell -N2 -w n1,n2 <<-'S'
	umask 027; ulimit -S -n 333; ulimit -S -s 4096
	"$BERTH" run -q --ranks-per-node 1 -- sh -c 'echo "$RANK: $(umask) $(ulimit -n) $(ulimit -s)"'
	S
	[ "$status" = 0 ]
	[ "$(grep -cx '[01]: 0027 333 4096' <<<"$output")" = 2 ]
}

@test "files, pipes and here-documents reach rank 0, on one node and on several" {
	head -c 20000000 /dev/urandom >"$SHARE/big"
	for nodes in 1 2; do
		batch stdin -N$nodes <<-'S'
		"$BERTH" run -q --ranks-per-node 1 -- sh -c '[ $RANK = 1 ] || md5sum' <big
		cat big | "$BERTH" run -q --ranks-per-node 1 -- sh -c '[ $RANK = 1 ] || md5sum'
		"$BERTH" run -q --ranks-per-node 1 -- sh -c '[ $RANK = 1 ] || cat' <<'X'
		a here-document
		X
		"$BERTH" run -q --ranks-per-node 1 -- sh -c '[ $RANK = 1 ] || readlink /proc/self/fd/0'
		S
		[ "$status" = 0 ]
		[ "$(grep -cF "$(md5sum <"$SHARE/big")" <<<"$output")" = 2 ]
		has 'a here-document$'
		has '^/dev/null$'
	done
}

@test "some of the allocation's nodes" {
	batch some -N3 <<-'S'
	"$BERTH" run -N 2 --ranks-per-node 1 -- hostname
	S
	[ "$status" = 0 ]
	[ "$(grep -cE '^n[12]$' <<<"$output")" = 2 ]
	hasnt '^n3$'
}

@test "an MPI program over both nodes" {
	[ -n "$MPI_SUM" ] || skip "no MPI"
	batch mpi -N2 -w n1,n2 <<-'S'
	"$BERTH" run --ranks-per-node 2 -- "$MPI_SUM"
	S
	[ "$status" = 0 ]
	has '^MPI rank 0 of 4, sum 10, before me 3$'
	has '^MPI rank 3 of 4, sum 10, before me 2$'
	batch mpi1 -N1 <<-'S'
	"$BERTH" run -n 2 -- "$MPI_SUM"
	S
	[ "$status" = 0 ]
	has '^MPI rank 1 of 2, sum 3, before me 0$'
}

# conf NAME SED: change a copy of the cluster's configuration for srun, and print its path.
conf() {
	sed "$2" "$SLURM_CONF" >"$SHARE/$1.conf"
	cp "$(dirname "$SLURM_CONF")"/{gres,cgroup}.conf "$SHARE/"
	echo "$SHARE/$1.conf"
}

@test "an MPI program if Slurm starts every step under PMIx, and if Slurm has no PMIx" {
	[ -n "$MPI_SUM" ] || skip "no MPI"
	export WITH WITHOUT
	need_slurm_pmix
	WITH=$(conf with s/MpiDefault=none/MpiDefault=pmix/)
	mkdir -p "$SHARE/plugins"
	ln -sf "$(dirname "$(find /usr/lib* -name mpi_pmi2.so | head -1)")"/*.so "$SHARE/plugins/"
	rm "$SHARE"/plugins/mpi_pmix*
	WITHOUT=$(conf without "\$aPluginDir=$SHARE/plugins")
	batch both -N2 -w n1,n2 <<-'S'
	for conf in "$WITH" "$WITHOUT"; do
		export SLURM_CONF=$conf
		"$BERTH" run -q --ranks-per-node 1 -- sh -c 'echo "${SLURM_CONF##*/} $RANK in ${PMIX_NAMESPACE-none}"'
		"$BERTH" run -q --ranks-per-node 2 -- "$MPI_SUM"
		echo "code $?"
	done
	S
	[ "$status" = 0 ]
	# In both cases the agents are the ranks' PMIx servers.
	[ "$(grep -cE '^with(out)?\.conf [01] in ' <<<"$output")" = 4 ]
	hasnt '^with.*in (none|slurm)'
	[ "$(grep -c '^code 0$' <<<"$output")" = 2 ]
	[ "$(grep -c '^MPI rank 3 of 4, sum 10' <<<"$output")" = 2 ]
}

@test "training over two nodes does not use the management NIC" {
	[ -n "$MPI_SUM" ] || skip "no MPI"
	allow_leaks
	slow=$(bytes n1 eth0) fast=$(bytes n1 hsn0)
	batch train -N2 -w n1,n2 <<-'S'
	"$BERTH" train convnet --ranks-per-node 1 --data synthetic:1x28x28,n=1024 --steps 60
	S
	slow=$(($(bytes n1 eth0) - slow)) fast=$(($(bytes n1 hsn0) - fast))
	echo "management $slow bytes, fast $fast bytes"
	[ "$status" = 0 ]
	has 'trained convnet .* 60 steps, 2 ranks'
	[ $fast -gt 10000000 ]
	[ $((slow * 100)) -le $(((slow + fast) * 2)) ]
}

@test "options in the job's environment and other steps do not change what the agents get" {
	batch options -N2 -w n1,n2 -n2 -c2 --mem-per-cpu=50 --gpus-per-node=2 <<-'S'
	srun --overlap -N2 sleep 75 &
	export SLURM_CPU_BIND=map_cpu:0 SLURM_MPI_TYPE=none SLURM_EXACT=1 SLURM_LABELIO=1 SLURM_UNBUFFEREDIO=1
	export SLURM_DISTRIBUTION=cyclic SLURM_NTASKS_PER_NODE=4 SLURM_HINT=nomultithread SLURM_EXPORT_ENV=NONE SLURM_GPUS_PER_TASK=1
	"$BERTH" run --ranks-per-node 1 -- sh -c 'echo "$RANK $SLURM_EXPORT_ENV $SLURM_CPUS_PER_TASK $SLURM_HINT"'
	code=$?
	kill %1; wait
	exit $code
	S
	[ "$status" = 0 ]
	has '^0 NONE 2 nomultithread$'
	has '^1 NONE 2 nomultithread$'
}

@test "the agents get all GPUs of the job on each node, whichever option requested them" {
	# The rank's parent is the agent, whose environment is the one that Slurm gave to the step.
	for row in '--gpus-per-node=2|0,1|0,1' '--ntasks-per-node=2 --gpus-per-task=1|0,1|0,1' \
		'--exclusive|0,1,2,3|0,1,2,3' '-G 5|0,1,2,3|0' '--gres=gpu:h200:3|0,1,2|0,1,2' '-n2||'; do
		IFS='|' read -r options first second <<<"$row"
		# shellcheck disable=SC2086 # several options
		batch gpus -N2 -w n1,n2 $options <<-'S'
		"$BERTH" run --ranks-per-node 1 --report gpus.json -- sh -c \
			'echo "$(hostname) has $(tr "\0" "\n" </proc/$PPID/environ | sed -n s/^CUDA_VISIBLE_DEVICES=//p)"'
		S
		[ "$status" = 0 ]
		has "^n1 has $first$"
		has "^n2 has $second$"
	done
}

@test "several runs at once on two nodes: each its own GPU, also on the second node" {
	batch sweep -N2 -w n1,n2 --gpus-per-node=4 <<-'S'
	rm -f held.* go
	pids=()
	for i in 1 2 3 4 5 6 7 8; do
		"$BERTH" run -n 1 --share no -- sh -c 'echo "$(hostname) ${CUDA_VISIBLE_DEVICES%%,*} $MASTER_ADDR" >held.'$i'.part &&
			mv held.'$i'.part held.'$i'; until [ -e go ]; do sleep 0.1; done' &
		pids+=($!)
	done
	for i in $(seq 300); do [ "$(ls | grep -c '^held.[1-8]$')" = 8 ] && break; sleep 0.1; done
	cat held.[1-8]
	"$BERTH" run -n 1 --share no -- true
	echo "ninth: $?"
	touch go
	for pid in "${pids[@]}"; do wait "$pid"; echo "code $?"; done
	"$BERTH" run -n 2 --ranks-per-node 2 -- sh -c 'echo "again on $(hostname)"'
	S
	[ "$status" = 0 ]
	[ "$(grep -E '^n[12] [0-3] ' <<<"$output" | cut -d' ' -f1,2 | sort -u | wc -l)" = 8 ]
	[ "$(grep -c '^n2 [0-3] 127.0.0.1$' <<<"$output")" = 4 ]
	[ "$(grep -c '^code 0$' <<<"$output")" = 8 ]
	has '^ninth: 69$'
	[ "$(grep -c '^again on n1$' <<<"$output")" = 2 ]
	nothing_left n1 n2
}

@test "runs that wait, started on both nodes at once: each GPU has one run at a time, and all are used" {
	cat >"$SHARE/one.sh" <<-'S'
	exec 8>"gpu.$(hostname).$CUDA_VISIBLE_DEVICES"
	flock -n 8 || echo "clash on $(hostname) $CUDA_VISIBLE_DEVICES"
	sleep 1
	S
	batch queue -N2 -w n1,n2 --gpus-per-node=4 <<-'S'
	rm -f gpu.*
	loop() {
		local pids=() pid
		for i in 1 2 3 4 5 6 7 8 9 10; do "$BERTH" run --wait -n 1 -- sh one.sh & pids+=($!); done
		for pid in "${pids[@]}"; do wait "$pid"; echo "code $?"; done
	}
	export -f loop
	srun -N1 -n1 -w n2 --overlap bash -c loop &
	loop
	wait
	"$BERTH" run --wait -- true
	echo "whole job: $?"
	S
	[ "$status" = 0 ]
	[ "$(grep -c '^code 0$' <<<"$output")" = 20 ]
	hasnt '^clash'
	has '^whole job: 0$'
	[ "$(find "$SHARE" -name 'gpu.n*' | wc -l)" = 8 ]
	nothing_left n1 n2
}

@test "run, exec and info warn if each task sees only its own GPU" {
	batch apart -N1 -w n1 --ntasks-per-node=2 --mem-per-cpu=10 --gpus-per-node=2 <<-'S'
	for options in '--gpus-per-task=1' '--gpu-bind=none' '--gpu-bind=single:1'; do
		echo "= $options"
		# shellcheck disable=SC2086 # one word
		srun $options "$BERTH" exec --master-addr 127.0.0.1 -- true 2>&1 | grep -E 'PER_|VISIBLE|each of'
	done
	echo '= run'
	srun --gpus-per-task=1 "$BERTH" run -- true 2>&1 | grep 'each of'
	echo '= info'
	srun --gpus-per-task=1 "$BERTH" info --json 2>&1 | grep 'each of'
	S
	words='CUDA_VISIBLE_DEVICES is [01] in this task, while SLURM_GPUS_ON_NODE is 2 '
	words+='\(SLURMD_TRES_BIND is (gres/)?gpu:(per_task|single):1\): each of the 2 tasks on this node sees only 1 of its 2 GPUs, '
	words+='.*peer-to-peer.*--gpus-per-node=2 --gpu-bind=none'
	[ "$(grep -cE "^berth: warning: $words" <<<"$output")" = 3 ]
	[ "$(grep -cE "^ *\"$words" <<<"$output")" = 2 ] # one per task
	[ -z "$(sed -n '/^= --gpu-bind=none/,/^= --gpu-bind=single/{/^=/!p}' <<<"$output")" ]
}

@test "unlike nodes: one rank per slot; a user who is not root; a TMPDIR that only one node has" {
	export BERTH_TOPOLOGY=
	batch uneven -n5 -N3 <<-'S'
	"$BERTH" run -- sh -c 'echo "$RANK of $WORLD_SIZE on $(hostname)"'
	S
	[ "$status" = 0 ]
	has '^0 of [45] on n1$'
	[ "$(grep -c 'on n2$' <<<"$output")" = 1 ]
	[ "$(grep -c 'on n3$' <<<"$output")" = 1 ]
	mkdir -p /tmp/only-here
	TMPDIR=/tmp/only-here expect 0 timeout 60 setpriv --reuid=65534 --regid=65534 --clear-groups \
		salloc -Q -N2 -w n1,n2 --chdir=/ "$BERTH" run -n 2 -- sh -c 'echo "$RANK as $(id -u)"'
	has '^0 as 65534$'
	has '^1 as 65534$'
}

@test "srun berth run: one job of the step's tasks, not a job in each task" {
	batch tasks -N2 -n4 -w n1,n2 <<-'S'
	srun --overlap "$BERTH" run --env MARK=7 -- sh -c 'echo "rank $RANK of $WORLD_SIZE local $LOCAL_RANK on $(hostname) mark $MARK"'
	echo "code $?"
	srun --overlap "$BERTH" run --log-dir logs -- hostname
	echo "code $?"
	srun --overlap -N1 -n1 "$BERTH" run -n 2 -- sh -c 'echo "own $RANK of $WORLD_SIZE"'
	export BERTH_SECRET_FILE=$PWD/tasks.secret
	(umask 077; echo 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef >"$BERTH_SECRET_FILE")
	srun --overlap -N2 -n2 sh -c '"$BERTH" run --nnodes 2 --node-rank $SLURM_NODEID --rdzv-endpoint n1:4733 -n 2 -- \
		sh -c "echo by hand \$RANK of \$WORLD_SIZE on \$(hostname)"'
	S
	[ "$status" = 0 ]
	has '^by hand 0 of 2 on n1$'
	has '^by hand 1 of 2 on n2$'
	[ "$(grep -cE '^rank [0-3] of 4 local [0-2] on n[12] mark 7$' <<<"$output")" = 4 ]
	has '^rank 0 of 4 local 0 on n1 mark 7$'
	has '^code 0$'
	has '^berth: error: srun started berth run as one of 4 tasks, .*--log-dir has no effect'
	has '^code 64$'
	has '^own 1 of 2$'
}

@test "srun --pty bash: berth run in that shell starts all ranks" {
	cat >"$SHARE/steps" <<-'S'
	< ready>
	> srun -N2 -n2 -w n1,n2 --pty bash --norc --noediting
	< ready>
	> $BERTH run -q --ranks-per-node 1 -- sh -c 'echo rank $RANK of $WORLD_SIZE on $(hostname)'; echo "code"" $?"
	< code 0
	< ready>
	> $BERTH run -q -n 2 -- sh -c 'echo rank $RANK of $WORLD_SIZE'; echo "code"" $?"
	< code 0
	< ready>
	> exit
	< ready>
	> exit
	S
	expect 0 timeout 120 python3 "$HERE/../support/terminal.py" "$SHARE/steps"
	has 'rank 0 of 2 on n1'
	has 'rank 1 of 2 on n2'
	has 'code 0'
	hasnt 'omit srun'
}

@test "salloc: rank 0 on another node reads the terminal of the login node" {
	cat >"$SHARE/steps" <<-'S'
	< ready>
	> salloc -Q -N2 -w n1,n2 $BERTH run -q --ranks-per-node 1 -- sh -c 'if [ $RANK = 0 ]; then printf "na""me? "; read name
	> echo "go""t $name on $(hostname)"; cat; fi; echo over'
	< name\? 
	> Ada
	< got Ada on n1
	> a line
	< a line\r?\na line
	> \x04\c
	< over
	< ready>
	> salloc -Q -N2 -w n1,n2 $BERTH run -q -n 1 --pty -- bash --norc -i; echo "co""de $?"
	< ready>
	> echo "on"" $(hostname) $(tty)"
	< on n1 /dev/pts/
	> exit 6
	< code 6
	< ready>
	> exit 4
	S
	expect 4 timeout 120 python3 "$HERE/../support/terminal.py" "$SHARE/steps"
}

@test "a rank that fails on the other node ends the job with its code" {
	batch fail -N2 -w n1,n2 <<-'S'
	"$BERTH" run --ranks-per-node 1 --report fail.json -- sh -c '[ $RANK = 1 ] && { echo out of disk >&2; exit 3; }; sleep 75'
	S
	[ "$status" = 3 ]
	has '^berth: error: rank 1 on n2 exited with code 3$'
	grep -q '"by": "program"' "$SHARE/fail.json"
	nothing_left n1 n2
}

@test "scancel ends the ranks on all nodes" {
	submit cancel -N2 -w n1,n2 <<-'S'
	# Slurm signals every process of the step: the loop continues when its sleep is killed first.
	"$BERTH" run --ranks-per-node 1 -- sh -c '
		trap "echo $RANK received SIGTERM; exit 0" TERM
		echo up $RANK
		for i in $(seq 750); do sleep 0.1; done'
	S
	until_seen "$SHARE/cancel.out" 'up 0'
	until_seen "$SHARE/cancel.out" 'up 1'
	scancel --signal=TERM "$job"
	finish cancel
	has '^0 received SIGTERM$'
	has '^1 received SIGTERM$'
	nothing_left n1 n2
}

@test "Slurm kills by itself, so --stop-grace does not count after its signal; after a user's it does" {
	for who in slurm user; do
		submit "$who" -N2 -w n1,n2 <<-'S'
		"$BERTH" run --ranks-per-node 1 --stop-grace 1s --report grace.json -- sh -c '
			trap "stop=1" TERM; echo up $RANK
			until [ "$stop" ]; do sleep 0.1; done
			[ $RANK = 1 ] || for i in $(seq 50); do sleep 0.1; done; exit 75' &
		echo $! >grace.pid
		wait $!
		S
		until_seen "$SHARE/$who.out" 'up 0'
		until_seen "$SHARE/$who.out" 'up 1'
		if [ $who = slurm ]; then
			scancel --signal=TERM "$job"
		else
			on n1 sh -c "kill -TERM $(cat "$SHARE/grace.pid")"
		fi
		finish $who
		if [ $who = slurm ]; then
			[ "$status" = 75 ]
			hasnt 'berth killed'
		else
			[ "$status" = 143 ]
			has 'error: rank 0 had not ended 1 s after SIGTERM, so berth killed it'
		fi
		nothing_left n1 n2
	done
}

@test "ranks that do not end after scancel: named and reported before Slurm kills them" {
	submit stuck -N2 -w n1,n2 <<-'S'
	trap : TERM
	"$BERTH" run --ranks-per-node 1 --report stuck.json -- sh -c 'trap "echo got TERM" TERM; echo up $RANK; while :; do sleep 0.1; done' &
	while kill -0 $!; do wait; done
	S
	until_seen "$SHARE/stuck.out" 'up 0'
	until_seen "$SHARE/stuck.out" 'up 1'
	scancel "$job"
	# KillWait is 5 s in this cluster; berth has asked for it.
	until_seen "$SHARE/stuck.json" 'ranks 0-1 had not ended 3 s after SIGTERM: the scheduler may kill the job now'
	holds "$SHARE/stuck.json" 'r["kind"] == "cancelled" and r["code"] == 143'
	grep 'berth: warning: ranks 0-1 had not ended' "$SHARE/stuck.out"
	nothing_left n1 n2
}

# With srun --unbuffered about 1 line of 2,000 broke into another one.
@test "BERTH_LOG=debug on three nodes: every line is whole" {
	submit whole -N3 -w n1,n2,n3 <<-'S'
	for i in 1 2 3 4 5 6 7 8; do
		BERTH_LOG=debug "$BERTH" run -q --ranks-per-node 4 -- true 2>>whole.err || exit
	done
	S
	finish whole
	[ "$status" = 0 ]
	[ "$(wc -l <"$SHARE/whole.err")" -gt 1000 ]
	! grep -nvE '^berth: (warning: |[0-9-]+T[0-9:.]+Z n[123] (rank [0-9]+ )?(info|debug) [a-z]+: )' "$SHARE/whole.err" || false
	! grep -n '.berth: 20' "$SHARE/whole.err" || false
}

@test "scancel JOB.0, the step of the agents: cancelled, neither restarted nor requeued; nothing stays on the nodes" {
	submit step -N2 -w n1,n2 <<-'S'
	"$BERTH" run --ranks-per-node 1 --requeue --max-restarts 2 --report step.json -- sh -c 'echo up $RANK; exec sleep 75'
	echo "code $?"
	"$BERTH" run -q --ranks-per-node 1 -- true
	S
	until_seen "$SHARE/step.out" 'up 0'
	until_seen "$SHARE/step.out" 'up 1'
	scancel "$job.0"
	finish step
	[ "$status" = 0 ]
	has '^code 143$'
	local step="\*\*\* STEP $job\.0 ON n[12] CANCELLED AT [-0-9T:]+( DUE to SIGNAL Killed)? \*\*\*"
	has "^berth: error: the agents' job step was cancelled \(scancel\): ($step|Job step aborted)$"
	hasnt 'restarting|trying to requeue'
	holds "$SHARE/step.json" 'r["kind"] == "cancelled" and r["code"] == 143 and len(r["attempts"]) == 1'
	gone() { ! on "$1" sh -c 'ls -d /tmp/berth-* 2>/dev/null'; }
	within 10 gone n1
	within 10 gone n2
}

@test "scontrol requeue while berth runs: Slurm's own requeue is reported, and there is one job" {
	submit own -N2 -w n1,n2 <<-'S'
	[ "${SLURM_RESTART_COUNT-0}" = 0 ] || exit 0
	trap : TERM # otherwise bash ends at once, and Slurm then kills berth
	"$BERTH" run --ranks-per-node 1 --requeue --report own.json -- sh -c 'echo up $RANK; exec sleep 75'
	S
	until_seen "$SHARE/own.out" 'up 0'
	until_seen "$SHARE/own.out" 'up 1'
	scontrol requeue "$job"
	within 30 test -s "$SHARE/own.json"
	holds "$SHARE/own.json" 'r["kind"] == "requeued" and r["next"] == "nothing to do: the scheduler will start the job again"'
	[ "$(squeue -h -o %A | sort -u)" = "$job" ]
	scancel "$job"
}

@test "scontrol update TimeLimit: Slurm is asked again before the ranks are warned" {
	submit limit -N1 -w n1 -t 1 <<-'S'
	export SLURM_JOB_END_TIME=$(($(date +%s) + 60)) # as Slurm 23.02 sets it
	echo begun
	until [ -e limit.moved ]; do sleep 0.1; done
	"$BERTH" run -n 1 --warn-before 60s -- sh -c 'until grep -q "later than" limit.out; do sleep 0.1; done; ls $BERTH_STOP_FILE'
	S
	until_seen "$SHARE/limit.out" begun
	scontrol update JobId="$job" TimeLimit=10
	touch "$SHARE/limit.moved"
	finish limit
	has "^berth: note: the job's time limit is 5[0-9][0-9] s later than before$"
	hasnt 'warned the ranks'
	has 'ls: cannot access'
}

@test "scancel --signal=USR1: each rank gets each signal exactly once" {
	submit once -N2 -w n1,n2 <<-'S'
	cat >once.py <<-'P'
	import os, signal, time
	signal.signal(signal.SIGUSR1, lambda *_: os.write(1, f'rank {os.environ["RANK"]} got it\n'.encode()))
	os.write(1, b'up\n')
	until = time.monotonic() + 30
	while time.monotonic() < until and not os.path.exists('once.end'):
	    time.sleep(0.05)
	P
	rm -f once.end
	"$BERTH" run --ranks-per-node 1 -- python3 once.py
	S
	both() { [ "$(grep -cs "$1" "$SHARE/once.out")" = "$2" ]; }
	within 20 both '^up$' 2
	for count in 2 4; do
		scancel --signal=USR1 "$job"
		within 20 both 'got it$' $count
		sleep 3 # so that the second signal is not mistaken for a duplicate of the first
	done
	touch "$SHARE/once.end"
	finish once
	[ "$status" = 0 ]
	[ "$(grep -c '^rank 0 got it$' <<<"$output")" = 2 ]
	[ "$(grep -c '^rank 1 got it$' <<<"$output")" = 2 ]
}

@test "scancel with SIGKILL leaves no process" {
	submit killed -N2 -w n1,n2 <<-'S'
	"$BERTH" run --ranks-per-node 2 -- sh -c 'trap "" TERM; echo up; sleep 75 & wait; wait'
	S
	until_seen "$SHARE/killed.out" up
	scancel --signal=KILL --full "$job"
	nothing_left n1 n2
}

@test "the job survives the death of a slurmd, since the agent there is alive" {
	submit slurmd -N2 -w n1,n2 --no-kill <<-'S'
	"$BERTH" run --ranks-per-node 1 -- sh -c 'echo up $RANK; until [ -e slurmd.go ]; do sleep 0.1; done; sleep 3; echo done $RANK'
	S
	until_seen "$SHARE/slurmd.out" 'up 1'
	on n2 sh -c 'kill -9 $(cat /run/berth-cluster/n2/slurmd.pid)'
	touch "$SHARE/slurmd.go"
	finish slurmd
	on n2 slurmd -N n2
	[ "$status" = 0 ]
	has '^done 0$'
	has '^done 1$'
}

@test "a silent node is lost after --node-timeout, and berth names it" {
	submit silent -N2 --no-kill -w n2,n3 <<-'S'
	begun=$(date +%s%N)
	"$BERTH" run --ranks-per-node 1 --node-timeout 4s --report silent.json -- sh -c 'echo up $RANK; exec sleep 75'
	code=$?
	echo "after $((($(date +%s%N) - $(cat cut)) / 1000000)) ms"
	exit $code
	S
	until_seen "$SHARE/silent.out" 'up 1'
	date +%s%N >"$SHARE/cut"
	on n3 ip link set eth0 down
	finish silent
	nothing_left n2 n3
	on n3 ip link set eth0 up
	[ "$status" = 76 ]
	has '^berth: error: node n3 was lost: no heartbeat from its agent for 4 s$'
	ms=$(sed -n 's/^after \([0-9]*\) ms$/\1/p' <<<"$output")
	[ "$ms" -lt 30000 ]
	grep -q '"node": "n3"' "$SHARE/silent.json"
}

@test "ranks cannot start in a working directory that was removed, or that is missing on a node" {
	batch gone -N2 -w n1,n2 <<-S
	$GONE
	S
	gone n2
}

@test "the working directory hangs on one node: the agent starts there, and the rank once it responds" {
	local python
	for python in /usr/bin/python3 python3 none; do
		$python -c 'import fuse' 2>/dev/null || $python -c 'import fusepy' 2>/dev/null && break
	done
	[ $python != none ] && [ -w /dev/fuse ] || skip "no /dev/fuse, or no Python module for FUSE (Debian: python3-fusepy)"
	on n2 mkdir -p /tmp/backing/work /tmp/hung
	on n2 "$python" "$SOURCE/tests/support/faulty_fs.py" /tmp/backing /tmp/hung /tmp/rules 3>&- &
	within 20 on n2 mountpoint -q /tmp/hung
	on n2 sh -c 'echo "stall getattr /work" >/tmp/rules'
	submit hung -N2 -w n1,n2 <<-'S'
	mkdir -p /tmp/hung/work && cd /tmp/hung/work
	"$BERTH" run --ranks-per-node 1 --start-timeout 10s -- sh -c 'echo "in $PWD on $(hostname)"'
	S
	# The ranks start when all agents have connected.
	until_seen "$SHARE/hung.out" 'in /tmp/hung/work on n1'
	on n2 rm /tmp/rules
	finish hung
	on n2 umount /tmp/hung
	[ "$status" = 0 ]
	has '^in /tmp/hung/work on n2$'
}

@test "agents that cannot start: berth is missing on the nodes, or built for another architecture" {
	cp "$BERTH" /tmp/berth-of-login
	expect 76 timeout 60 salloc -Q -N2 -w n1,n2 /tmp/berth-of-login run --ranks-per-node 1 -- hostname
	has 'no agent on n[12]: /tmp/berth-of-login is missing or not executable; install berth in a directory that all nodes share'
	# Its libraries are missing on one node, and the other node waits.
	own_berth
	batch broken -N2 -w n1,n2 <<-'S'
	/tmp/own/berth run --ranks-per-node 1 -- hostname
	S
	[ "$status" = 76 ]
	has 'no agent on n2: /tmp/own/berth cannot run there: berth: error while loading shared libraries: libx.so'
	printf '#!/bin/sh\necho riscv64\n' >"$SHARE/uname"
	chmod +x "$SHARE/uname"
	on n2 mount --bind "$SHARE/uname" /usr/bin/uname
	# An executable of x86_64 on a node of riscv64: here, one of riscv64 on a node of x86_64.
	on n2 cp "$BERTH" /tmp/own/berth
	printf '\363' | on n2 dd of=/tmp/own/berth bs=1 seek=18 conv=notrunc status=none # e_machine
	batch arch -N2 -w n1,n2 <<-'S'
	/tmp/own/berth run --ranks-per-node 1 -- hostname
	S
	on n2 umount /usr/bin/uname
	[ "$status" = 76 ]
	has 'no agent on n2: the node is riscv64, but .* was built for x86_64; build berth on such a node'
}

@test "a firewall on the controller's port: the agent's reason is the last line" {
	command -v nft >/dev/null || skip "no nft (Debian: nftables)"
	mkdir -p "$SHARE/walled"
	cat >"$SHARE/walled/srun" <<-S
	#!/bin/sh
	nft add table inet wall
	nft add chain inet wall in '{ type filter hook input priority 0; }'
	nft add rule inet wall in iifname != lo tcp dport "\${BERTH_AGENT_CONTROLLER##*:}" reject with tcp reset
	exec $(command -v srun) "\$@"
	S
	chmod +x "$SHARE/walled/srun"
	batch wall -N2 -w n1,n2 <<-S
	PATH="$SHARE/walled:\$PATH" "\$BERTH" run --ranks-per-node 1 -- hostname
	S
	on n1 nft delete table inet wall
	[ "$status" = 76 ]
	has '^berth: error: no agent on n2: cannot reach the controller from this node within [0-9]* s: connecting to 10[.].* refused$'
}

# away LINES...: an srun that prints one of these lines per call and fails, and then is the real one.
away() {
	mkdir -p "$SHARE/away"
	printf '%s\n' "$@" >"$SHARE/away/lines"
	cat >"$SHARE/away/srun" <<-S
	#!/bin/sh
	cd $SHARE/away
	[ -s lines ] || exec $(command -v srun) "\$@"
	head -n 1 lines >&2
	sed -i 1d lines
	exit 1
	S
	chmod +x "$SHARE/away/srun"
}

@test "srun finds no slurmctld for a while: berth tries again within --start-timeout" {
	away 'srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller (connect failure)' \
		'srun: error: Unable to create step for job 7: Memory required by task is not available'
	batch away -N2 -w n1,n2 <<-'S'
	PATH=$PWD/away:$PATH "$BERTH" run --ranks-per-node 1 -- hostname
	S
	[ "$status" = 0 ]
	has '^n1$' && has '^n2$'
	[ "$(grep -c '^berth: note: srun exited with code 1 .*; trying again$' <<<"$output")" = 2 ]
	# Too late for a second try: the cause is what srun printed.
	away 'srun: error: Unable to contact slurm controller (connect failure)'
	batch late -N2 -w n1,n2 <<-'S'
	PATH=$PWD/away:$PATH "$BERTH" run --start-timeout 1s --ranks-per-node 1 -- hostname
	S
	[ "$status" = 76 ]
	has '^berth: error: no agent on n1: srun exited with code 1 .*Unable to contact slurm controller'
}

@test "a harmless line of srun is not the cause" {
	away 'srun: error: the cause'
	local warning='srun: Warning: task/affinity or task/cgroup plugin is not enabled, '
	warning+='cluster configuration lacks support for cpu binding'
	sed -i "3a echo \"$warning\" >&2" "$SHARE/away/srun"
	batch harmless -N2 -w n1,n2 <<-'S'
	PATH=$PWD/away:$PATH "$BERTH" run --ranks-per-node 1 -- hostname
	S
	[ "$status" = 76 ]
	has '^berth: error: no agent on n1: srun exited with code 1 before all agents connected; its last output: srun: error: the cause'
	hasnt 'cpu binding'
}

@test "srun is missing, srun is refused, or there is no job" {
	batch nosrun -N2 -w n1,n2 <<-'S'
	PATH=/nonexistent "$BERTH" run --ranks-per-node 1 -- /bin/hostname
	S
	[ "$status" = 69 ]
	has '^berth: error: cannot start srun: No such file or directory; is it in PATH\?$'
	batch refused -N2 -w n1,n2 <<-'S'
	SLURM_JOB_ID=4242 SLURM_JOBID=4242 "$BERTH" run --ranks-per-node 1 -- hostname
	S
	[ "$status" = 76 ]
	has '^berth: error: no agent on n1: srun exited with code 1 before all agents connected; its last output: .*srun: error: .*Invalid job id'
	has "Invalid job id.*; its environment sets SLURM_JOB_ID '4242', SLURM_JOB_NODELIST 'n\[1-2\]'\$"
	batch refused -N2 -w n1,n2 --gpus-per-node=2 <<-'S'
	SLURM_JOB_NODELIST='n[1-3]' SLURM_JOB_NUM_NODES=3 SLURM_TASKS_PER_NODE='1(x3)' "$BERTH" run --ranks-per-node 1 -- hostname
	echo "code $?"
	SLURM_GPUS_PER_NODE=9 SLURM_GPUS_ON_NODE=9 "$BERTH" run --ranks-per-node 1 -- hostname
	S
	[ "$status" = 76 ]
	has '^code 76$'
	has "srun: error: Only allocated 2 nodes asked for 3; its environment sets .*SLURM_JOB_NODELIST 'n\[1-3\]'"
	has "(gpu:9 is more than|Invalid generic resource) .*; its environment sets .*SLURM_GPUS_PER_NODE '9', SLURM_GPUS_ON_NODE '9'\$"
	expect 64 "$BERTH" run --launcher srun -- hostname
	has 'launcher srun works only inside a Slurm job'
}

@test "the job ends while berth starts" {
	submit ends -N2 -w n1,n2 <<-'S'
	trap '' TERM
	echo up
	"$BERTH" run --ranks-per-node 1 -- sleep 75
	S
	until_seen "$SHARE/ends.out" up
	sleep 0.3 # at any moment of the start
	scancel "$job"
	nothing_left n1 n2
}

@test "variables that contradict each other: the error names them" {
	batch contradict -N2 -w n1,n2 <<-'S'
	SLURMD_NODENAME=n9 "$BERTH" run -- hostname; echo "code $?"
	SLURM_JOB_NUM_NODES=5 "$BERTH" run -- hostname; echo "code $?"
	S
	has "SLURMD_NODENAME is 'n9', which SLURM_JOB_NODELIST does not list: 'n\\[1-2\\]'"
	has "SLURM_JOB_NUM_NODES is 5, but SLURM_JOB_NODELIST lists 2 nodes"
	[ "$(grep -c '^code 65$' <<<"$output")" = 2 ]
}

@test "bad input: the error names the variable and the value" {
	on n1 sh -ec "ip link add only1 type veth peer name only1q; ip link set only1q up
		ip link set only1 up; ip address add 10.8.0.11/24 dev only1"
	on n2 sh -ec "ip link add only2 type veth peer name only2q; ip link set only2q up
		ip link set only2 up; ip address add 10.7.0.12/24 dev only2"
	batch bad -N2 -w n1,n2 <<-'S'
	while IFS='|' read -r settings options; do
		[ -n "$settings$options" ] || continue
		# shellcheck disable=SC2086 # several words
		echo "= $(env $settings "$BERTH" run $options -- hostname 2>&1 | grep '^berth:' | tail -1) code ${PIPESTATUS[0]}"
		env $settings "$BERTH" run -q $options -- hostname >/dev/null 2>&1
		echo "= code $? of $settings $options"
	done <<-'ROWS'
		SLURM_JOBID=77|
		SLURM_JOB_NODELIST=n[1-|
		SLURM_JOB_NODELIST=n1,n1|
		SLURM_TASKS_PER_NODE=2(x|
		SLURM_TASKS_PER_NODE=1|
		SLURM_GPUS_ON_NODE=many|
		SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=3|
		SLURM_HET_SIZE=2|
		BERTH_X=1|--iface nosuch0
		BERTH_X=1|--iface only1 --ranks-per-node 1
		BERTH_X=1|--iface only2 --ranks-per-node 1
		BERTH_TOPOLOGY=|--gpus-per-rank 1
	ROWS
	S
	on n1 ip link delete only1
	on n2 ip link delete only2
	while IFS='|' read -r code words; do
		has "^= berth: error: .*$words" || return 1
		has "^= code $code of " || return 1
	done <<-'ROWS'
		65|SLURM_JOB_ID is '[0-9]+', but SLURM_JOBID is '77'
		65|SLURM_JOB_NODELIST: .*n\[1-
		65|SLURM_JOB_NODELIST is 'n1,n1', which lists n1 twice
		65|SLURM_TASKS_PER_NODE is '2\(x', expected counts such as 2\(x3\),1
		65|SLURM_TASKS_PER_NODE is '1', which has counts for 1 node, but SLURM_JOB_NODELIST lists 2
		65|SLURM_GPUS_ON_NODE.*many
		65|SLURM_STEP_NUM_TASKS is 1, but SLURM_STEP_TASKS_PER_NODE is '3'|has counts for 1 node,
		65|SLURM_HET_SIZE is 2, but SLURM_JOB_NODELIST_HET_GROUP_0 is not set
		64|--iface nosuch0: n1 has no such interface
		76|only1
		64|--iface only2: n1 has no such interface
		64|--gpus-per-rank
	ROWS
}

@test "a relative --log-dir is below the job's directory on all nodes" {
	batch logdir -N2 -w n1,n2 <<-'S'
	"$BERTH" run -q --ranks-per-node 1 --log-dir logs-here -- sh -c 'echo "$RANK wrote; $SLURM_STEP_NODELIST $SLURM_STEP_TASKS_PER_NODE"'
	S
	[ "$status" = 0 ]
	grep -qF '1 wrote; n[1-2] 1(x2)' "$SHARE/logs-here/rank-0001.log"
}

@test "settings from a file reach all nodes: a banned interface, a variable" {
	mkdir -p "$SHARE/home/.config/berth"
	echo '{"banned_interfaces": ["hsn*"], "fabric": {"FI_PROVIDER": "mine"}}' >"$SHARE/home/.config/berth/submit.json"
	batch settings -N2 -w n1,n2 <<-'S'
	export HOME=$PWD/home
	"$BERTH" run -q --ranks-per-node 1 -- sh -c 'echo "$RANK of $MASTER_ADDR $NCCL_SOCKET_IFNAME $NCCL_NET $FI_PROVIDER"'
	unset HOME
	"$BERTH" run -q --ranks-per-node 1 -- sh -c 'echo "$RANK without $MASTER_ADDR"'
	S
	[ "$status" = 0 ]
	has '^0 of 10\.1\.0\.11 =eth0 Socket mine$'
	has '^1 of 10\.1\.0\.11 =eth0 Socket mine$'
	has '^1 without 10\.9\.0\.11$'
}

@test "berth info explains the rendezvous address on the first node, in a rank and on the login node" {
	batch info -N2 -w n1,n2 --gpus-per-node=4 -t 7 <<-'S'
	echo "Slurm's own end: ${SLURM_JOB_END_TIME-none}"
	"$BERTH" info -v
	echo ==== in a rank
	"$BERTH" run --per-node -q -- sh -c '[ $RANK = 0 ] || "$BERTH" info -v'
	S
	[ "$status" = 0 ]
	has "^  slurm: SLURM_JOB_ID is set; the nodes come from SLURM_JOB_NODELIST$"
	end='SLURM_JOB_END_TIME' # since Slurm 23.02
	! grep -q '^Slurm.s own end: none$' <<<"$output" || end='scontrol: 4[0-9]+ s left'
	has '^  where     slurm, job [0-9]+$'
	has '^  size      2 nodes, 8 ranks; GPUs here: 4$'
	has '^  network   10\.9\.0\.11 on hsn0 '
	has "^  job [0-9]+, 2 nodes, ends: .* \($end\)\$"
	has '^  n1 +1 +4$'
	has '^  8 ranks, 4 of them on n1$'
	has '^  berth run starts one agent per node with srun:$'
	has '^  srun --nodes=2 --ntasks=2 .* agent'
	has '^  MASTER_ADDR 10.9.0.11 on hsn0, MASTER_PORT a free port'
	has '^  Slingshot: aws-ofi-nccl, libfabric.s cxi; set: '
	has '^  ! berth examined only this node '
	hasnt 'no interface for'
	output=${output#*==== in a rank}
	has '^  SLURM_PROCID +1 +berth '
	hasnt 'SLURM.* user '
	output=$(tr -s ' \n' ' ' <"$SHARE/info.out") # lines are wrapped
	local best='10.9.0.11 on hsn0 \(slingshot, 10 Gb/s\): the best address of n1'
	local others='alternatives: eth0 10.1.0.11 \(management only\) MASTER_ADDR'
	has "$best; before ranks start, berth tests whether all 2 nodes can reach it; $others"
	has "$best that all 2 nodes can reach; $others"
	# On the login node: the job, not the login node.
	expect 0 timeout 30 salloc -Q -N2 -w n1,n2 "$BERTH" info -v
	has "this machine is not n1, the first node"
	has '^  job [0-9]+, 2 nodes, ends: '
	has '^  network   not known here$'
	has '^  srun --nodes=2 --ntasks=2 .* agent'
	[[ "$(tr -s ' \n' ' ' <<<"$output")" == *"To see them: berth run --per-node -- berth info"* ]]
	hasnt '^Plan|rank on login|^Inventory'
	output=$(timeout 30 salloc -Q -N2 -w n1,n2 "$BERTH" info --json)
	python3 -c 'import json, sys; r = json.load(sys.stdin)
assert r["ranks"] is r["plan"] is r["network"] is r["environment"] is None and r["launcher"] == "srun" and r["not_known"], r' <<<"$output"
}
