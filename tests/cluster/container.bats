# SPDX-License-Identifier: BSD-3-Clause
# berth run --container under a real Slurm and in jobs of the stand-in for PBS, with Apptainer (APPTAINER; see
# apptainer.sh). The image has a shell and little more; PyTorch is the host's, bound in.

load support.bash
load image.bash

setup_file() {
	# This root lacks a capability that Apptainer would ask for.
	export PATH=$APPTAINER/bin:$PATH APPTAINER_NO_PRIVS=1 IMAGE=$SHARE/image.sif
	image "$SHARE/image"
	apptainer -q build "$IMAGE" "$SHARE/image"
	python3 "$HERE/pbs.py" begin n1 n2 3>&-
}

setup() {
	export HERE
	cd "$SHARE"
}

teardown() {
	cancel_jobs
	for node in n1 n2; do revive "$node"; done
}

@test "Slurm: the same place inside as outside" {
	export SHOWS
	submit place -N2 <<-'S'
	"$BERTH" run --ranks-per-node 2 -- sh -c "$SHOWS" >outside &&
		"$BERTH" run --ranks-per-node 2 --container $IMAGE -- sh -c "$SHOWS" >inside 2>space
	S
	finish place
	[ "$status" = 0 ]
	cat inside
	diff <(sort outside) <(sort inside)
	[ "$(grep -c 'gpu' inside)" = 4 ]
	[ "$(grep -c '^image n[12]$' space)" = 4 ]
	nothing_left n1 n2
}

@test "Slurm: variables arrive as they are; the host's PATH and PYTHONPATH do not, unless --env names them" {
	export PYTHONPATH=/of/host ODD='a  $HOME `id` "q" \n'"'"
	submit variables -N1 <<-'S'
	"$BERTH" run -n 1 --container $IMAGE --env "GIVEN=$ODD" -- sh -c 'printf "<%s>" "$GIVEN" "$PYTHONPATH" "$PATH" "$SLURM_JOB_ID"; echo'
	"$BERTH" run -n 1 --container $IMAGE --env PYTHONPATH=/mine --env PATH=/mine:/bin -- sh -c 'echo "<$PYTHONPATH><$PATH>"'
	S
	finish variables
	[ "$status" = 0 ]
	grep -qxF "<$ODD><></usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin><$job>" variables.out
	has '^</mine></mine:/bin>$'
}

@test "Slurm: DistributedDataParallel on two nodes, over the fast network" {
	/usr/bin/python3 -c 'import torch.distributed' 2>/dev/null || skip 'no PyTorch (Debian: python3-torch)'
	submit ddp -N2 <<-'S'
	"$BERTH" run --ranks-per-node 2 --container $IMAGE --bind /usr:/usr:ro --bind /etc/alternatives --bind "$HERE" -- \
		sh -c 'cat /etc/berth-image; exec /usr/bin/python3 "$0"' "$HERE/ddp.py"
	S
	finish ddp
	[ "$status" = 0 ]
	[ "$(grep -c '^image$' ddp.out)" = 4 ]
	has 'rank 3 of 4 on n2 local 1 at 10.9.0.11 trained'
	nothing_left n1 n2
}

@test "Slurm: each role in an image of its own, and one in that of the job" {
	mkdir -p other/etc
	cp -r image/. other
	echo other >other/etc/berth-image
	submit roles -N2 <<-'S'
	"$BERTH" run --report report --container $IMAGE --role a -N 1 -n 1 -- cat /etc/berth-image : \
		--role b --container other -n 1 -- cat /etc/berth-image
	S
	finish roles
	[ "$status" = 0 ]
	has '^\[a 0\] image$'
	has '^\[b 0\] other$'
	[ "$(grep -c '"image": ' report)" = 2 ]
	grep -q "$SHARE/other" report
}

@test "Slurm: berth train, with the image's berth-train; its checkpoints are outside" {
	mkdir -p work
	export ASAN_OPTIONS=${ASAN_OPTIONS-}:detect_leaks=0 # as in all tests of several ranks over MPI
	for EPOCHS in 1 2; do
		export EPOCHS SHARE
		submit train -N2 -D "$SHARE/work" <<-'S'
		"$BERTH" train linear --data synthetic:8,n=64 --device cpu --epochs $EPOCHS --ckpt "$SHARE/ckpt" --metrics "$SHARE/metrics" \
			--ranks-per-node 2 --container $IMAGE --bind /usr:/usr:ro --bind /etc/alternatives \
			--bind "$BUILD" --env "PATH=$BUILD/bin:/usr/bin:/bin" 2>&1
		S
		finish train
		[ "$status" = 0 ]
		has "epoch $EPOCHS"
		has '^WARNING' && return 1
	done
	has 'resum'
	nothing_left n1 n2
}

@test "Slurm: a stop signal reaches the program once, and its code is the job's" {
	stops --container "$IMAGE"
}

@test "Slurm: scancel, which signals all processes of a step: the program saves" {
	submit cancel -N2 <<-'S'
	"$BERTH" run --ranks-per-node 2 --container $IMAGE -- sh -c 'trap "" TERM; echo up; until [ -e "$BERTH_STOP_FILE" ]; do sleep 0.1; done
		sleep 1; cat /etc/berth-image; exit 75' 2>&1
	S
	within 30 all_up cancel
	scancel "$job"
	within 30 seen_images
	nothing_left n1 n2
}
seen_images() { [ "$(grep -c '^image$' cancel.out)" = 4 ]; }

@test "Slurm: near the time limit the ranks save, the job is requeued and goes on; --max-restarts starts them in place" {
	rm -f limit.* saved
	submit limit -N2 --requeue --open-mode=append <<-'S'
	turn=${SLURM_RESTART_COUNT:-0}
	[ $turn != 0 ] || export BERTH_END_TIME=$(($(date +%s) + 20))
	"$BERTH" run --requeue --warn-before 15s --max-restarts 1 --ranks-per-node 1 --container $IMAGE -- sh -c '
		echo "turn $0 attempt $BERTH_ATTEMPT rank $RANK of $WORLD_SIZE from $(cat saved 2>/dev/null)"
		: >limit.$0.$BERTH_ATTEMPT.$RANK
		until [ -e limit.$0.$BERTH_ATTEMPT.0 ] && [ -e limit.$0.$BERTH_ATTEMPT.1 ]; do sleep 0.1; done
		[ "$RANK$BERTH_ATTEMPT" != 10 ] || exit 3
		[ $0 = 0 ] || exit 0
		until [ -e "$BERTH_STOP_FILE" ]; do sleep 0.1; done
		[ $RANK != 0 ] || echo "step 7" >saved
		exit 75' $turn 2>&1
	code=$?
	echo "turn $turn: code $code"
	[ $code != 0 ] || touch limit.done
	S
	free_until limit.done "$job"
	finish limit
	for rank in 0 1; do
		has "^turn 0 attempt 1 rank $rank of 2 from $"
		has "^turn 1 attempt 2 rank $rank of 2 from step 7$"
	done
	has '^turn 1: code 0$'
	nothing_left n1 n2
}

@test "Slurm: an agent and a rank are killed: named, and nothing is left" {
	for what in agent runtime; do
		rm -f killed.*
		submit killed -N2 <<-'S'
		"$BERTH" run --ranks-per-node 2 --container $IMAGE -- sh -c 'echo up; exec sleep 79' 2>&1
		S
		within 30 all_up killed
		rank=$(on n2 pgrep -o -f 'Apptainer runtime parent')
		if [ $what = agent ]; then on n2 kill -KILL "$(on n2 ps -o ppid= -p "$rank")"; else on n2 kill -KILL "$rank"; fi
		finish killed
		[ "$status" = "$([ $what = agent ] && echo 76 || echo 137)" ]
		has 'n2'
		nothing_left n1 n2
	done
}

# On n1, outside of any job.
pulls() { on n1 env -C "$SHARE" "$BERTH" run -n 1 --container "docker://127.0.0.1:$port/$1" -- "${@:2}" 3>&-; }
no_pull() { ! on n1 pgrep -f -- --disable-cache; }
images() { find images -name '*.sif' | wc -l; }

@test "an image of a registry: pulled once by two runs, whole after a kill, deleted when there is no room" {
	export APPTAINER_NOHTTPS=1 BERTH_IMAGES=$SHARE/images
	rm -rf images registry.out used
	on n1 python3 "$HERE/registry.py" "$SHARE/image" >registry.out 3>&- &
	registry=$!
	within 10 test -s registry.out
	port=$(head -1 registry.out)

	# The run is killed in a pull: what is there is not taken for the image, and nothing goes on.
	touch image.hold
	pulls one id >killed.out 2>&1 &
	within 20 grep -q layer registry.out
	on n1 pkill -KILL -x berth
	wait $! || code=$?
	[ "$code" = 137 ]
	[ "$(images)" = 0 ]
	within 10 no_pull

	# One run pulls, and the other waits for it.
	pulls one cat /etc/berth-image >one.out 2>&1 &
	one=$!
	pulls one cat /etc/berth-image >two.out 2>&1 &
	within 20 grep -q 'waiting for another run that pulls' one.out two.out
	rm image.hold
	wait $! $one
	[ "$(cat one.out two.out | grep -cx image)" = 2 ]
	[ "$(grep -c layer registry.out)" = 2 ]

	# No room: an image stays while a run uses it.
	export BERTH_IMAGES_GB=0
	mkfifo used
	exec 4<>used
	pulls one sh -c 'echo up; cat used' >one.out 2>&1 4>&- &
	within 20 grep -qx up one.out
	pulls two id 4>&-
	[ "$(images)" = 2 ]
	[ "$(grep -c layer registry.out)" = 3 ]
	exec 4>&-
	wait $!
	pulls three id 2>&1 | grep -c '^berth: note: deleted .* to make room' | grep -x 2
	[ "$(images)" = 1 ]

	port=1
	code=0
	pulls one id >failed.out 2>&1 || code=$?
	cat failed.out
	[ "$code" = 69 ]
	grep -q 'apptainer cannot pull docker://127.0.0.1:1/one (exit code 255); its messages are above' failed.out
	[ "$(images)" = 1 ]
	kill $registry
}

@test "Slurm: MPI ranks of an Open MPI and a PMIx that are newer than the host's" {
	[ -n "${MPI_IMAGE-}" ] || skip 'no image with an Open MPI (long suite)'
	cat >ring.py <<-'P'
	import os
	from mpi4py import MPI
	world = MPI.COMM_WORLD
	size = 8 << 20
	sent, received = bytearray([world.rank]) * size, bytearray(size)
	for step in range(world.size):
	    source = (world.rank - step) % world.size
	    world.Sendrecv([sent, MPI.BYTE], (world.rank + step) % world.size, 0, [received, MPI.BYTE], source, 0)
	    assert received == bytearray([source]) * size
	print('rank', world.rank, 'of', world.size, 'on', os.uname().nodename, MPI.Get_library_version().split(',')[0], flush=True)
	P
	submit mpi -N2 <<-'S'
	"$BERTH" run --ranks-per-node 2 --container "$MPI_IMAGE" -- python3 ring.py 2>&1
	S
	finish mpi
	[ "$status" = 0 ]
	has '^rank 3 of 4 on n2 Open MPI v5'
	nothing_left n1 n2
}

where() {
	export PATH=$(dirname "$BERTH"):$TOOLS:$PATH
	export WHERE='cat /etc/berth-image; echo "$RANK of $WORLD_SIZE on $(hostname) at $MASTER_ADDR, $PBS_JOBID"'
	rm -f script.*
}

@test "jobscripts/slurm/container.sh, submitted unchanged" {
	where
	sbatch --wait -o "$SHARE/script.out" --ntasks-per-node=2 "$SOURCE/jobscripts/slurm/container.sh" \
		sh -c "$WHERE; [ \$RANK != 3 ] || exit 9" || code=$?
	cat script.out
	[ "$code" = 9 ]
	grep -q '^image$' script.out
}

@test "jobscripts/pbs/container.sh, submitted unchanged" {
	where
	export PROGRAM="sh -c '$WHERE'"
	job=$(env -u SLURM_CONF "$TOOLS/qsub" -o "$SHARE/script.out" -l select=2:ncpus=2:mpiprocs=2 \
		-v IMAGE,PROGRAM,PATH,APPTAINER_NO_PRIVS "$SOURCE/jobscripts/pbs/container.sh")
	within 60 grep -q '"code"' "$SHARE/pbs/jobs/$job.json" || true
	output=$(cat script.out)
	echo "$output"
	grep -q '"code": 0' "$SHARE/pbs/jobs/$job.json"
	[ "$(grep -c '^image$' script.out)" = 4 ]
	has '^3 of 4 on n2 at 10.9.0.11, [0-9]*.pbs-head$'
}
