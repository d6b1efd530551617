# SPDX-License-Identifier: BSD-3-Clause
# Bad input and failures: a documented exit code, a message that says what to do, and no lost data.

load support

# refused CODE TEXT ARGUMENTS: exits soon with CODE and prints TEXT, on 1 rank and on 2
refused() {
	local code=$1 words=$2
	shift 2
	for n in 1 2; do
		expect "$code" timeout 60 "$BERTH" train "$@" -n $n
		if [[ "$output" != *$words* ]]; then
			echo "expected '$words' in: $output"
			return 1
		fi
	done
}

# idx DIRECTORY [SIDE]: write 40 training and 10 test images of 28x28, or SIDExSIDE
idx() {
	python3 - "$1" "${2-28}" <<'PY'
import os, struct, sys
os.makedirs(sys.argv[1])
side = int(sys.argv[2])
for name, n in ('train', 40), ('t10k', 10):
    with open(f'{sys.argv[1]}/{name}-images-idx3-ubyte', 'wb') as f:
        f.write(struct.pack('>4I', 0x803, n, side, side) + bytes(i * 7 % 251 for i in range(n * side * side)))
    with open(f'{sys.argv[1]}/{name}-labels-idx1-ubyte', 'wb') as f:
        f.write(struct.pack('>2I', 0x801, n) + bytes(i % 10 for i in range(n)))
PY
}

@test "a directory without data: exit code 66 and what to do" {
	refused 66 'nowhere/train-images-idx3-ubyte is missing' linear --data fashion-mnist:nowhere
	refused 66 'is missing' linear --data mnist:nowhere
	idx half
	rm half/t10k-labels-idx1-ubyte
	refused 66 't10k-labels-idx1-ubyte' linear --data mnist:half
}

@test "plain and gzipped IDX files train the same" {
	idx plain
	idx zipped
	gzip zipped/*
	for kind in plain zipped; do
		train linear -n 1 --data mnist:$kind --batch 8 --epochs 2 --metrics $kind.m
	done
	same_rows plain.m zipped.m
}

@test "truncated, wrong and inconsistent IDX files: exit code 65, and the file is named" {
	idx good
	images=train-images-idx3-ubyte labels=train-labels-idx1-ubyte
	damage() { rm -rf bad; cp -r good bad; }
	damage; truncate -s 20000 bad/$images
	refused 65 "$images holds" linear --data mnist:bad
	damage; truncate -s 7 bad/$images
	refused 65 "$images has 7 bytes, too few" linear --data mnist:bad
	damage; : >bad/$images
	refused 65 "$images" linear --data mnist:bad
	damage; cp bad/$labels bad/$images
	refused 65 'magic' linear --data mnist:bad
	damage; printf '\0\0\b\3\377\377\377\377\377\377\377\377\377\377\377\377' >bad/$images
	refused 65 "$images: dimension" linear --data mnist:bad
	damage; printf '\12' | dd of=bad/$labels bs=1 seek=20 conv=notrunc 2>/dev/null
	refused 65 "$labels: label 12 is 10" linear --data mnist:bad
	damage; cp bad/t10k-labels-idx1-ubyte bad/$labels
	refused 65 '10 labels for 40 images' linear --data mnist:bad
	damage; gzip bad/$images; truncate -s 300 bad/$images.gz
	refused 65 "$images.gz" linear --data mnist:bad
	# A wrong checksum: the message names the file once.
	damage; gzip bad/$images
	printf '\1\2\3\4' | dd of=bad/$images.gz bs=1 seek=$(($(stat -c %s bad/$images.gz) - 8)) conv=notrunc 2>/dev/null
	refused 65 "bad/$images.gz: incorrect data check. Download" linear --data mnist:bad
}

@test "what is not a regular file is refused, and no rank waits for the other end of a FIFO" {
	idx good
	for name in train-images-idx3-ubyte train-labels-idx1-ubyte.gz; do
		rm -rf bad; cp -r good bad; rm bad/${name%.gz}
		mkfifo bad/$name
		refused 66 "bad/$name is not a regular file" linear --data mnist:bad
		rm bad/$name; mkdir bad/$name
		refused 66 "bad/$name is not a regular file" linear --data mnist:bad
	done
	mkfifo fifo
	refused 66 'cannot read fifo: not a regular file' linear --data "$DATA" --init fifo
	refused 66 'cannot read fifo: not a regular file' linear --data "$DATA" --resume fifo
	refused 66 'cannot read /dev/zero: not a regular file' linear --data "$DATA" --init /dev/zero
}

@test "validation images of another size than the training images: exit code 65" {
	idx big
	idx small 14
	cp small/t10k-images-idx3-ubyte big/
	refused 65 'validation samples are 1x14x14, but training samples are 1x28x28' linear --data mnist:big
	train linear -n 1 --data mnist:big --epochs 1 --no-eval
}

@test "unknown model, data, option or value: exit code 64 and the valid ones" {
	refused 64 'convnet' perceptron --data "$DATA"
	refused 64 'synthetic' linear --data cifar
	refused 64 'no-such' linear --no-such
	refused 64 'lr' linear --lr fast
	refused 64 'lr' linear --lr nan
	refused 64 'batch' linear --batch 0
	refused 64 'epochs' linear --epochs -1
	refused 64 'save-every' linear --save-every 3x
	refused 64 'loss' linear --data "$DATA" --loss mse
	refused 64 'device' linear --data "$DATA" --device abacus
	refused 64 'convnet' convnet --data synthetic:1x4x4,n=64
}

@test "a --ckpt that cannot be written: exit code 73 before training starts" {
	: >file
	refused 73 'file' linear --data "$DATA" --ckpt file/ckpt
	refused 73 'file' linear --data "$DATA" --ckpt file
	refused 73 'file' linear --data "$DATA" --metrics file/metrics
}

@test "a loss that is not finite: exit code 65, the step is named, null in the metrics, nothing is saved" {
	for n in 1 2; do
		expect 65 timeout 60 "$BERTH" train linear -n $n --data synthetic:20,n=2000,classes=1 --lr 1e6 \
			--batch 20 --steps 60 --log-every 1 --metrics m$n --ckpt c$n
		[[ "$output" == *"the loss of step "*" is not finite"* ]]
		python3 - m$n/metrics.jsonl "$output" <<'PY'
import json, re, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
bad = [row['step'] for row in rows if row['loss'] is None]
named = int(re.search(r'loss of step (\d+) is not finite', sys.argv[2])[1])
assert bad == [named] and rows[-1]['step'] == named, (bad, named, rows[-1])
PY
		[ -z "$(ls c$n)" ]
	done
}

@test "a loss that is not finite ends the run at that update, however rarely losses are logged" {
	# One rank of two sees the bad loss first: the gradients bring it to the other.
	for job in "-n 1 --batch 20" "-n 2 --batch 10" "-n 2 --batch 5 --accumulate 2"; do
		rm -rf m
		expect 65 timeout 60 "$BERTH" train linear $job --data synthetic:20,n=2000,classes=1 --lr 1e6 \
			--steps 60 --log-every 1000 --no-eval --metrics m
		[[ "$output" == *"the loss of step "*" is not finite"* ]]
		python3 - m/metrics.jsonl "$output" <<'PY'
import json, re, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
named = int(re.search(r'loss of step (\d+) is not finite', sys.argv[2])[1])
assert [row['step'] for row in rows] == [named] and 1 < named < 60, (rows, named)
PY
	done
}

@test "an evaluation loss that is not finite: exit code 65, because the last update may have ruined the weights" {
	# The losses of all three steps are finite.
	job=(linear --data synthetic:20,n=640,classes=1 --lr 1e6 --steps 3 --log-every 1)
	for n in 1 2; do
		expect 65 timeout 60 "$BERTH" train "${job[@]}" -n $n --batch $((8 / n)) --ckpt c$n --metrics m$n
		[[ "$output" == *"the loss of the evaluation after step 3 is not finite"* ]]
		[ -z "$(ls c$n)" ]
		[ "$(grep -c '"train".*"loss": [0-9]' m$n/metrics.jsonl)" -eq 3 ]
		[ "$(grep -c '"val".*"loss": null' m$n/metrics.jsonl)" -eq 1 ]
	done
	expect 0 timeout 60 "$BERTH" train "${job[@]}" -n 1 --batch 8 --ckpt c1 --on-nan continue
	[ -e c1/step-00000003.safetensors ]
}

@test "diverged weights are not saved, however rarely losses are logged" {
	for n in 1 2; do
		expect 65 timeout 60 "$BERTH" train linear -n $n --data synthetic:20,n=2000,classes=1 --lr 1e6 \
			--batch 20 --steps 60 --log-every 1000 --save-every 1 --ckpt c$n
		python3 - "$output" c$n <<'PY'
import os, re, sys
named = int(re.search(r'loss of step (\d+) is not finite', sys.argv[1])[1])
steps = sorted(int(re.search(r'step-(\d+)', name)[1]) for name in os.listdir(sys.argv[2]) if name.startswith('step-'))
assert steps == list(range(1, named)), (named, steps)
PY
	done
}

@test "a full disk while saving: exit code 74; the previous checkpoint stays" {
	mkdir small
	mount -t tmpfs -o size=130k tmpfs small 2>/dev/null || skip "no tmpfs can be mounted here (needs root)"
	idx data
	expect 0 timeout 60 "$BERTH" train linear -n 1 --data mnist:data --batch 8 --steps 2 --ckpt small
	cp small/step-00000002.safetensors kept
	expect 74 timeout 60 "$BERTH" train linear -n 2 --data mnist:data --batch 4 --steps 4 --ckpt small
	local advice="; in small, 1 checkpoint uses 0.1 MB. Free space there (see df -h; you may remove all checkpoints but the newest, "
	advice+="and set --keep 2 to remove older ones automatically), or choose another directory with --ckpt "
	advice+="and pass the newest checkpoint to --resume"
	[[ "$output" == *"No space left on device"*"$advice"* ]]
	[[ "$output" == *"berth: note: known failure: the file system of the checkpoints is full"*"fix: run df -h"* ]]
	cmp kept small/step-00000002.safetensors
	[ "$(cat small/latest)" = step-00000002.safetensors ]
	# No unfinished file is left to fill the disk.
	[ "$(ls -A -I '.lease-*' small | tr '\n' ' ')" = "best latest model.safetensors step-00000002.safetensors " ]
}

@test "a file size limit while saving: exit code 74; the previous checkpoint stays" {
	idx data
	expect 0 timeout 60 "$BUILD/bin/berth-train" linear --data mnist:data --batch 8 --steps 2 --ckpt c
	cp c/step-00000002.safetensors kept
	expect 74 timeout 60 bash -c 'trap "" XFSZ; ulimit -f 8; exec "$@"' sh \
		"$BUILD/bin/berth-train" linear --data mnist:data --batch 8 --steps 4 --ckpt c
	[[ "$output" == *"File too large"* ]]
	cmp kept c/step-00000002.safetensors
	[ "$(cat c/latest)" = step-00000002.safetensors ]
	[ "$(ls -A -I '.lease-*' c | tr '\n' ' ')" = "best latest model.safetensors step-00000002.safetensors " ]
}

@test "berth-train with WORLD_SIZE=2 but no other rank fails soon and reports why" {
	local advice="Use --comm gloo, berth train -n 2 with the same options, or mpirun -n 2 berth exec -- berth-train"
	for comm in auto nccl mpi gloo self; do
		run timeout 60 env RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 \
			"$BUILD/bin/berth-train" linear --data "$DATA" --comm $comm --comm-timeout 5s --steps 2
		echo "$comm: $status $output"
		case $status in
		64 | 65 | 69 | 76) ;;
		*) return 1 ;;
		esac
		[[ "$output" == *2* ]]
		[[ $status != 65 || $comm != mpi || $output == *"$advice" ]]
	done
	expect 65 timeout 60 env RANK=2 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 \
		"$BUILD/bin/berth-train" linear --data "$DATA"
}

@test "a trainer without MPI frees all its memory, after success and after failure" {
	[ -n "$SANITIZED" ] || skip "looks for leaks, which needs a build under ASan"
	export ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=1"
	alone() { run "-$1" timeout 60 "$BUILD/bin/berth-train" "${@:2}"; }
	alone 0 convnet --data "$DATA" --ckpt c --metrics m --steps 25 --save-every 10
	alone 0 convnet --data "$DATA" --ckpt c --metrics m --steps 30
	alone 65 linear --data "$DATA" --resume c/step-00000030.safetensors
	printf damage >>c/step-00000030.safetensors
	alone 0 convnet --data "$DATA" --ckpt c --steps 30
	alone 0 linear --data "$DATA" --print-order 3
	[[ "$MODULES" != *device-cpu* ]] || alone 0 linear --data "$DATA" --device cpu
	alone 65 convnet --data "$DATA" --lr 1e6 --log-every 1
	alone 66 linear --data mnist:nowhere
	alone 64 linear --data nothing
	alone 64 convnet --data synthetic:3x3x3
	alone 64 linear --data "$DATA" --comm nothing
	alone 73 linear --data "$DATA" --ckpt /dev/null/c
}

@test "a rank that hangs is named by those that wait for it, and is ended: exit code 76" {
	timeout 120 "$BERTH" train linear -n 3 --data "$DATA" --steps 100000000 --no-eval --log-every 50 \
		--metrics m --comm-timeout 6s >out 2>err &
	run_pid=$!
	wait_for m/metrics.jsonl 3
	hung=$(trainer_of 1) || { kill "$run_pid"; wait "$run_pid"; return 1; }
	kill -STOP "$hung"
	ends 76 "$run_pid" err
	grep -q 'rank [02] waited 6 s in a collective; missing ranks: 1\.' err
	grep -Eq 'missing ranks: [^.]*[02]' err && return 1
	[ ! -e "/proc/$hung" ]
}
