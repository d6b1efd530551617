# SPDX-License-Identifier: BSD-3-Clause
# The checkpoint directory: which files stay, who owns it, copies on several nodes, failing file
# systems, and the order of an epoch that continues with another number of ranks.

load support

# job DIRECTORY ARGUMENTS: 20 steps per epoch, one rank without MPI
job() {
	timeout 60 "$BUILD/bin/berth-train" convnet --data "$DATA" --batch 32 --epochs 2 --log-every 1000 \
		--ckpt "$@"
}

names() { (cd "$1" && ls -A | tr '\n' ' '); }
# steps DIRECTORY: 7 14 21
steps() { (cd "$1" && printf '%s\n' step-*.safetensors | sed 's/step-0*\(.*\).safetensors/\1/' | tr '\n' ' '); }

# claim DIRECTORY SCHEDULER JOB [HOST BOOT PID STARTED]: write an owner file as that run would
claim() {
	mkdir -p "$1"
	printf '{"format":"berth.owner/1","scheduler":"%s","job":"%s","attempt":0,"host":"%s","boot":"%s","pid":%s,"started":%s,"token":"feed","renewals":3,"renewed":1}\n' \
		"$2" "$3" "${4-far}" "${5-other}" "${6-7}" "${7-1}" >"$1/.owner"
}

@test "4, 2, then 3 ranks: each entry of an epoch's order once, except for padding; updates of the same size" {
	net() { train convnet --data synthetic:1x16x16,n=635,classes=5 --epochs 2 --no-eval --batch 8 --ckpt c --log-order o "$@"; }
	net -n 4 --steps 9
	net -n 2 --steps 15 2>out
	grep -q 'the global batch size stays at the checkpoint.s 32 samples: 2 ranks, 2 batches of at most 8 samples each' out
	grep -q 'epoch 1 started on 4 ranks; its remaining 348 samples will run on 2' out
	net -n 3 2>out
	grep -q 'samples: 3 ranks, 2 batches of at most 6 samples each' out
	grep -q 'its remaining 156 samples will run on 3' out
	"$BUILD/bin/berth-train" convnet --data synthetic:1x16x16,n=635,classes=5 --print-order 635 >whole
	python3 - <<'PY'
import collections, glob
seen = collections.defaultdict(dict)
for name in glob.glob('o/rank-*.txt'):
    for line in open(name):
        epoch, step, place, sample = map(int, line.split())
        assert place not in seen[epoch], (epoch, place, 'twice')
        seen[epoch][place] = (step, sample)
order = [int(word) for word in open('whole').read().split()[2:]]
assert len(order) == 635
for epoch, ranks in (0, 4), (1, 3):
    total = -(-635 // ranks) * ranks
    assert sorted(seen[epoch]) == list(range(total)), epoch
    sizes = collections.Counter(step for step, _ in seen[epoch].values())
    assert sorted(sizes.values())[1:] == [32] * 19 and min(sizes.values()) == total - 19 * 32, sizes
    assert {sample for _, sample in seen[epoch].values()} == set(range(635))
assert [seen[0][place][1] for place in range(636)] == order + order[:1]
assert [seen[1][place][1] for place in range(635)] != order
PY
}

@test "on other numbers of ranks the losses are those of an uninterrupted run" {
	net() { train linear --data "$DATA" --epochs 2 --no-eval --batch 8 --ckpt "c.$1" --metrics "m.$1" "${@:2}"; }
	net whole -n 4
	net moved -n 4 --steps 13
	net moved -n 1 --steps 22
	net moved -n 3
	near_rows m.whole m.moved 1e-4
}

@test "--keep: the newest, the best and what latest names stay, and so do damaged and foreign files" {
	job c --save-every 5 --steps 20 --no-eval
	[ "$(steps c)" = "5 10 15 20 " ]
	printf x >>c/step-00000010.safetensors
	echo foreign >c/step-00000003.safetensors
	cp c/step-00000005.safetensors c/step-00000099.safetensors
	cp c/step-00000005.safetensors c/mine.safetensors
	job c --save-every 5 --no-eval --keep 2
	cat c/latest
	[ "$(steps c)" = "3 10 35 40 99 " ]
	[ -e c/mine.safetensors ]
	# The best one by Acc@1 is saved whenever it occurs, and stays.
	timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --batch 32 --epochs 6 --lr 0.4 --keep 1 \
		--save-every 1000 --log-every 1000 --ckpt b --metrics m
	python3 - b <<'PY'
import json, os
rows = [json.loads(line) for line in open('m/metrics.jsonl') if '"val"' in line]
name, word, value = open('b/best').read().split()
best = max(row['acc1'] for row in rows)
step = next(row['step'] for row in rows if row['acc1'] == best)
assert (name, word, float(value)) == (f'step-{step:08}.safetensors', 'Acc@1', best), (name, value, best, step)
assert {file for file in os.listdir('b') if file.startswith('step-')} == {name, 'step-00000120.safetensors'}, os.listdir('b')
PY
	# A best checkpoint that could not be written does not count: the next one that is as good does. An epoch takes
	# milliseconds here, so the failure may be known only after the second evaluation.
	env LD_PRELOAD="$BAD_FS" BERTH_BAD_FS=eio BERTH_BAD_FS_FOLDER=e/step-00000020 \
		ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0" timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" \
		--batch 32 --epochs 3 --lr 0.4 --keep 1 --save-every 1000 --log-every 1000 --ckpt e 2>out
	grep -q 'berth-train: warning: cannot save the checkpoint of step 20:' out
	[[ "$(cat e/best)" =~ ^step-000000(40|60).safetensors\ Acc@1\ 100$ ]]
	expect 64 job c --keep 0
	expect 64 job c --keep some
	expect 64 timeout 60 "$BUILD/bin/berth-train" convnet --data "$DATA" --keep 3
}

@test "unfinished files of killed runs are removed, nothing else" {
	job c --steps 5 --no-eval
	dead=$(sh -c 'echo $$')
	touch c/step-00000004.safetensors.$dead.0 c/latest.$dead.1 c/model.safetensors.$dead.0 c/best.$dead.0 \
		c/.owner.$dead.0 c/step-00000004.safetensors.1 c/notes.$dead.0 c/step-00000004.safetensors.$$.0
	job c --steps 6 --no-eval 2>out
	grep -q 'removed from c: 5 unfinished files of a killed run' out
	[ "$(names c)" = "latest model.safetensors notes.$dead.0 step-00000004.safetensors.1 step-00000004.safetensors.$$.0 step-00000005.safetensors step-00000006.safetensors " ]
}

@test "a directory in use by another run: exit code 73, and the run is named; a killed run's is taken over at once" {
	timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --batch 8 --steps 100000000 --no-eval --ckpt c \
		--metrics m --log-every 50 --save-every 200 >/dev/null 2>&1 3>&- &
	pid=$!
	wait_for m/metrics.jsonl 8
	inner=$(python3 -c 'import json; print(json.load(open("c/.owner"))["pid"])')
	expect 73 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --ckpt c --steps 3
	[[ "$output" == *"--ckpt c is in use by process $inner on $(hostname): that process is running"*"--take-over"* ]]
	# Taken over: the first run notices and ends.
	timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --ckpt c --steps 3 --no-eval --take-over 2>out
	grep -q 'note: taking over --ckpt c from process' out
	kill -KILL $inner || true
	wait $pid || true
	[ ! -e c/.owner ]
	claim c "" "" "$(hostname)" "$(cat /proc/sys/kernel/random/boot_id) $(readlink /proc/self/ns/pid)" 1 77
	expect 0 job d --steps 3 --no-eval
	expect 0 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --ckpt c --steps 3 --no-eval
	[ ! -e c/.owner ]
}

@test "a clock set back and ahead: checkpoints by time continue, and the directory stays owned" {
	export CLOCK_SET_FILE=$DIR/set
	LD_PRELOAD="$CLOCK_SET" ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0" \
		timeout 100 "$BUILD/bin/berth-train" linear --data "$DATA" --batch 8 --steps 100000000 --no-eval --ckpt c \
		--log-every 50 --keep 2 --save-every 1s >out 2>&1 3>&- &
	pid=$!
	saved() { # COUNT: wait for that many more checkpoints
		enough() { [ "$(grep -c '^saved step' out || true)" -ge "$1" ]; }
		within 60 enough $(($(grep -c '^saved step' out || true) + $1)) || { cat out; return 1; }
	}
	saved 1
	for seconds in -100000 100000 0; do
		begin=$(cut -d. -f1 /proc/uptime) before=$(grep -c '^saved step' out)
		echo $seconds >set
		saved 2
		# At most one per second that has passed.
		[ $(($(grep -c '^saved step' out) - before)) -le $(($(cut -d. -f1 /proc/uptime) - begin + 2)) ]
	done
	inner=$(python3 -c 'import json; print(json.load(open("c/.owner"))["pid"])')
	expect 73 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --ckpt c --steps 3
	[[ "$output" == *"that process is running"* ]]
	kill -TERM $inner
	ends 75 $pid
	[ ! -e c/.owner ]
	expect 0 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --batch 8 --no-eval --ckpt c --epochs 1
}

@test "if /proc hides other users' processes (hidepid), such a process counts as alive" {
	unshare -m sh -c 'mount -t proc -o hidepid=2 proc /proc && setpriv --reuid 1 --regid 1 --clear-groups test -x "$0"' \
		"$BUILD/bin/berth-train" 2>/dev/null ||
		skip "no other user can run it where /proc is mounted with hidepid (needs root)"
	claim c "" "" "$(hostname)" "$(cat /proc/sys/kernel/random/boot_id) $(readlink /proc/self/ns/pid)" $$ 77
	chmod 755 .
	chmod 777 c
	expect 73 unshare -m sh -c 'mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid 1 --regid 1 --clear-groups "$@"' sh \
		timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --ckpt c --steps 3 --no-eval
	[[ "$output" == *"--ckpt c is in use by process $$ on "*"that process is running"* ]]
}

@test "a run whose directory was taken over stops at its next save: exit code 73" {
	timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --batch 8 --steps 100000000 --no-eval --ckpt c \
		--metrics m --log-every 50 --save-every 100 >/dev/null 2>err 3>&- &
	pid=$!
	wait_for m/metrics.jsonl 4
	claim c slurm 4711
	ends 73 $pid err
	grep -q 'c was taken over by job 4711 of slurm, process 7 on far' err
	grep -q '"token":"feed"' c/.owner
}

@test "takeover by the same job, by its successor, if the scheduler reports the end; else only after 10 minutes" {
	fake squeue <<'SH'
echo "$*" >>"$DIR/asked"
case $* in
*'-j 1 '*) echo RUNNING ;;
*'-j 2 '*) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1 ;;
*'-j 3 '*) ;;
*'-j 5 '*) sleep 6 ;;
*) echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1 ;;
esac
SH
	export PATH="$DIR/bin:$PATH"
	try() { # CODE TEXT SCHEDULER JOB [NAME=VALUE..]
		claim c "$3" "$4"
		expect "$1" env "${@:5}" timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --ckpt c --steps 3 --no-eval
		echo "$3 $4: $output"
		[[ "$output" == *"$2"* ]]
		[ "$1" = 0 ] || grep -q feed c/.owner
	}
	try 0 '' slurm 1 SLURM_JOB_ID=1 BERTH_ATTEMPT=1
	try 0 '' slurm 1 SLURM_JOB_ID=1 SLURM_RESTART_COUNT=1
	try 0 '' slurm 1 SLURM_JOB_ID=9 BERTH_JOB_BEFORE=5,1
	try 73 'is in use by job 1 of slurm, process 7 on far: its scheduler still lists that job' slurm 1 SLURM_JOB_ID=9 BERTH_JOB_BEFORE=11
	try 73 'its scheduler still lists' slurm 1
	try 0 'taking over --ckpt c from job 2 of slurm, process 7 on far: slurm reports that the job has ended' slurm 2
	try 0 'slurm reports that the job has ended' slurm 3 SLURM_JOB_ID=9
	try 73 'its .owner file was renewed 0 s ago and expires 600 s after' slurm 4
	try 73 'its .owner file was renewed 0 s ago' '' hand-1
	[ "$(wc -l <asked)" -eq 5 ]
	# A takeover may last longer than ranks wait for each other.
	claim c slurm 5
	expect 0 train linear -n 2 --data "$DATA" --ckpt c --steps 3 --no-eval --comm-timeout 3s --take-over
	claim c slurm 5
	expect 0 train linear -n 2 --data "$DATA" --ckpt c --steps 4 --no-eval --comm-timeout 3s
	[[ "$output" == *"slurm reports that the job has ended"* ]]
	claim c '' hand-1
	touch -d '3 hours' c/.owner
	expect 73 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --ckpt c --steps 3
	[[ "$output" == *"in the future: a clock has jumped"*"--take-over"* ]]
	echo '{"torn' >c/.owner
	expect 73 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --ckpt c --steps 3
	[[ "$output" == *"an unknown run"* ]]
	expect 0 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --ckpt c --steps 3 --take-over
	expect 64 timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --steps 3 --take-over
}

# nodes ARGUMENTS: two ranks, each as if alone on a node with its own directory
nodes() {
	train_nodes=(--data "$DATA" --batch 16 --epochs 2 --save-every 5 --log-every 1000 --ckpt c)
	timeout 120 "$BERTH" run -n 2 -- sh -c 'mkdir -p "$0/node$RANK" && cd "$0/node$RANK" && export LOCAL_RANK=0 && exec "$@"' \
		"$DIR" "$BUILD/bin/berth-train" convnet "${train_nodes[@]}" "$@"
}

@test "without a shared directory each node keeps a copy, and all resume from the newest that all have" {
	[[ " $MODULES " == *" comm-mpi "* ]] || skip "built without MPI"
	nodes --steps 25 2>out
	grep -q 'is not a directory that all nodes share: 2 copies of each checkpoint are kept' out
	[ "$(steps node0/c)" = "5 10 15 20 25 " ]
	for step in 05 10 25; do cmp node0/c/step-000000$step.safetensors node1/c/step-000000$step.safetensors; done
	cmp node0/c/latest node1/c/latest
	cp -r node0 whole
	# One copy is damaged on one node, another is missing on the other.
	printf x >>node1/c/step-00000025.safetensors
	rm node0/c/step-00000020.safetensors
	nodes --steps 30 2>out
	grep -q 'rank 1: skipped: .*step-00000025' out
	grep -q 'resuming from c/step-00000015' out
	cmp whole/c/step-00000025.safetensors node0/c/step-00000025.safetensors
	cmp node0/c/step-00000030.safetensors node1/c/step-00000030.safetensors
	# A replaced node has no checkpoints; the first node may be replaced, too.
	for lost in 1 0; do
		rm -r node$lost
		nodes --steps $((40 - 5 * lost)) 2>out
		grep -q "resuming from c/step-000000$((35 - 5 * lost))" out
		cmp node0/c/latest node1/c/latest
		cmp node0/c/step-000000$((40 - 5 * lost)).safetensors node1/c/step-000000$((40 - 5 * lost)).safetensors
	done
	# The same bits as with one directory.
	train convnet -n 2 --data "$DATA" --batch 16 --epochs 2 --ckpt one --steps 25
	cmp one/step-00000025.safetensors whole/c/step-00000025.safetensors
	[ -z "$(find . -name '.writer*' -o -name .owner)" ]
}

# bad KIND CODE DIRECTORY: resume in c, a copy of DIRECTORY, on such a file system; it exits with CODE
bad() {
	rm -rf c
	cp -r "$3" c
	expect "$2" env LD_PRELOAD="$BAD_FS" BERTH_BAD_FS="$1" BERTH_BAD_FS_FOLDER=c/step- \
		ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0" \
		timeout 60 "$BUILD/bin/berth-train" convnet --data "$DATA" --batch 32 --epochs 2 --no-eval --log-every 1000 \
		--save-every 6 --ckpt c
	echo "$1: $output"
}

@test "a failing file system costs only the new checkpoint, never an old one, and is reported" {
	[ -e "$BAD_FS" ]
	job old --steps 5 --no-eval
	job whole --no-eval
	for row in 'full|No space left on device' 'eio|Input/output error' 'eio-sync|Input/output error' \
		'eio-close|Input/output error' 'rename|Input/output error' 'read-only|Read-only file system'; do
		code=74
		[ "${row%%|*}" != read-only ] || code=73
		bad "${row%%|*}" $code old
		[[ "$output" == *"berth-train: warning: cannot save the checkpoint of step 6: "*"${row#*|}"*"; earlier checkpoints are unchanged"* ]]
		[[ "${lines[-1]}" == "berth-train: error: "*"${row#*|}"* ]]
		cmp old/step-00000005.safetensors c/step-00000005.safetensors
		[ "$(names c)" = "$(names old)" ]
		[ "$(cat c/latest)" = step-00000005.safetensors ]
	done
	for kind in slow short; do
		bad $kind 0 old
		cmp whole/step-00000040.safetensors c/step-00000040.safetensors
	done
	# After a temporary failure the next save succeeds.
	cp -r old c2
	: >flag
	env LD_PRELOAD="$BAD_FS" BERTH_BAD_FS=eio BERTH_BAD_FS_FOLDER=c2/step-00000006 \
		ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0" \
		"$BUILD/bin/berth-train" convnet --data "$DATA" --batch 32 --epochs 2 --no-eval --log-every 1000 \
		--save-every 6 --ckpt c2 2>out
	grep -q 'berth-train: warning: cannot save the checkpoint of step 6:' out
	[ "$(steps c2)" = "5 12 18 24 30 36 40 " ]
	cmp whole/step-00000040.safetensors c2/step-00000040.safetensors
}

@test "a last step that is not saved because the previous write takes too long: exit code 74" {
	# Two syncs per checkpoint take four seconds: longer than the two that the last save waits.
	expect 74 env LD_PRELOAD="$BAD_FS" BERTH_BAD_FS=slow-sync BERTH_BAD_FS_FOLDER=c/ \
		ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0" \
		timeout 60 "$BUILD/bin/berth-train" convnet --data "$DATA" --batch 32 --epochs 2 --no-eval --log-every 1000 \
		--save-every 6 --steps 7 --comm-timeout 4s --ckpt c
	[[ "$output" == *"step 7 is not saved: the checkpoint of step 6 is still being written to c after 2 s"* ]]
	# The write of step 6 succeeds in the end.
	[ "$(names c)" = "latest step-00000006.safetensors " ]
}

@test "no space: reported at the start and at each save; a read-only directory: exit code 73" {
	job c --steps 5 --no-eval
	preload() {
		env LD_PRELOAD="$BAD_FS" BERTH_BAD_FS="$1" BERTH_BAD_FS_FOLDER=c \
			ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0" "$BUILD/bin/berth-train" convnet --data "$DATA" \
			--batch 32 --epochs 1 --no-eval --log-every 1000 --ckpt c
	}
	expect 74 preload space
	[[ "${lines[*]}" == *"No space left on device: a checkpoint needs 0.1 MB, but 0.0 MB are free"*"in c, 1 checkpoint uses 0.1 MB. Free space there"*"resuming from"* ]]
	[ "$(names c)" = "latest model.safetensors step-00000005.safetensors " ]
	expect 73 preload read-only
	[[ "$output" == *"cannot create c/.owner: Read-only file system"* ]]
	expect 0 job c --steps 6 --no-eval
}

@test "killed in any call that changes the directory: the run resumes and ends with the same bits" {
	job whole --no-eval --save-every 6 --steps 18 --keep 1
	# Every tenth call; kill.py kills at random moments, a thousand times in the full suite.
	for ((n = 1; ; n += 10)); do
		rm -rf c
		code=0
		env LD_PRELOAD="$BAD_FS" BERTH_BAD_FS=kill-$n BERTH_BAD_FS_FOLDER=c/ \
			ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0" "$BUILD/bin/berth-train" convnet --data "$DATA" \
			--batch 32 --epochs 2 --no-eval --log-every 1000 --save-every 6 --steps 18 --keep 1 --ckpt c \
			>/dev/null 2>&1 || code=$?
		[ "$code" -ne 0 ] || break
		[ "$code" -eq 137 ]
		job c --no-eval --save-every 6 --steps 18 --keep 1 >/dev/null 2>&1
		cmp whole/step-00000018.safetensors c/step-00000018.safetensors
		cmp whole/model.safetensors c/model.safetensors
		cmp whole/latest c/latest
		# The kill may have come before an old checkpoint was removed.
		names=$(names c)
		[ "$(names whole)" = "${names/step-00000012.safetensors /}" ]
	done
	echo "there are fewer than $n calls"
	[ "$n" -gt 60 ]
}

# tests/unit/train/test_state.c tests every truncation and every bit of the header.
@test "truncated at any 512th byte, or any bit flipped: never resumed from, reported, kept" {
	job c --steps 5 --save-every 4 --no-eval
	cp c/step-00000005.safetensors whole
	python3 - "$BUILD/bin/berth-train" "$DATA" "${CORRUPTIONS:-8}" <<'PY'
import random, subprocess, sys
program, data, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
whole = open('whole', 'rb').read()
header = 8 + int.from_bytes(whole[:8], 'little')
seed = random.SystemRandom().randrange(10**6)
print(f'seed {seed}')
draw = random.Random(seed)
cuts = list(range(0, len(whole), 512))
rows = [('cut', at) for at in draw.sample(cuts, min(len(cuts), count))]
rows += [('flip', draw.randrange(8 * 8)) for _ in range(count // 4)]
rows += [('flip', draw.randrange(8 * header)) for _ in range(count // 2)]
rows += [('flip', draw.randrange(8 * header, 8 * len(whole))) for _ in range(count // 4)]
for kind, at in rows:
    bytes_ = bytearray(whole)
    if kind == 'cut':
        bytes_ = bytes_[:at]
    else:
        bytes_[at // 8] ^= 1 << at % 8
    with open('c/step-00000005.safetensors', 'wb') as file:
        file.write(bytes_)
    with open('c/latest', 'w') as file:
        file.write('step-00000005.safetensors\n')
    run = subprocess.run([program, 'convnet', '--data', data, '--batch', '32', '--steps', '4', '--no-eval', '--ckpt', 'c'],
                         stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    said = run.stderr
    assert run.returncode == 0, (kind, at, said)
    assert 'skipped: c/step-00000005.safetensors' in said and 'resuming from c/step-00000004' in said, (kind, at, said)
    assert open('c/step-00000005.safetensors', 'rb').read() == bytes(bytes_), (kind, at)
print(f'{len(rows)} damaged files')
PY
}
