# SPDX-License-Identifier: BSD-3-Clause
# Stop and resume: the same bits as without a stop. Damaged files are skipped and stay.

load support


# 3 epochs of 20 steps, saved every 7 steps: mostly within an epoch
job() {
	train convnet --data "$DATA" --epochs 3 --ckpt "$DIR/run.$1" --metrics "$DIR/run.$1" "${@:2}"
}

# same A B: the two runs have identical results
same() {
	cmp "run.$1/step-00000060.safetensors" "run.$2/step-00000060.safetensors"
	cmp "run.$1/latest" "run.$2/latest"
	same_rows "run.$1" "run.$2"
}

@test "stop and resume, at an epoch's boundary and within an epoch, on 1 rank and on 2" {
	for n in 1 2; do
		job whole$n -n $n --batch $((32 / n)) --save-every 7 --no-eval
		for step in 20 27 33 47; do
			job part$n -n $n --batch $((32 / n)) --save-every 7 --no-eval --steps $step
		done
		[ "$(cat run.part$n/latest)" = step-00000047.safetensors ]
		job part$n -n $n --batch $((32 / n)) --save-every 7 --no-eval 2>out
		grep -q 'resuming from .*step-00000047.safetensors: step 47' out
		same whole$n part$n
	done
}

@test "the same with accumulated batches, schedules and warm-up by steps and by epochs" {
	more=(--no-eval --save-every 4 --label-smoothing 0.1 --nesterov --weight-decay-on weights)
	for how in "--warmup 17 --schedule step --step-size 1 --gamma 0.7" "--warmup 1e --schedule cosine"; do
		for n in 1 2; do
			rm -rf run.*
			# 7 updates an epoch, the last of 64 samples instead of 96
			# shellcheck disable=SC2206
			rest=(-n $n --batch $((16 / n)) --accumulate 6 "${more[@]}" $how)
			job whole "${rest[@]}"
			for steps in 3 7 13; do
				job part "${rest[@]}" --steps $steps
			done
			job part "${rest[@]}" 2>out
			grep -q 'resuming from .*step-00000013' out
			cmp run.whole/step-00000021.safetensors run.part/step-00000021.safetensors
			same_rows run.whole run.part
		done
	done
}

@test "every rank evaluates with rank 0's running statistics: one rank gets the same from the checkpoint" {
	net=(resnet18 --stem cifar --data synthetic:3x8x8,n=80,classes=5 --batch 5 --epochs 1 --lr 0.01 --ckpt c)
	train "${net[@]}" -n 2 --metrics two
	# Nothing is trained, so the command can be repeated if LeakSanitizer's own tracer has died, as it sometimes does.
	train "${net[@]}" -n 1 --metrics one 2>out ||
		{ cat out; grep -q 'LeakSanitizer has encountered a fatal error' out && train "${net[@]}" -n 1 --metrics one 2>out; }
	grep -q 'nothing to train' out
	python3 - "$(loss two val)" "$(loss one val)" <<'PY'
import sys
two, one = map(float, sys.argv[1:])
assert abs(two - one) < 1e-5 * one, (two, one)
PY
}

@test "the same for a residual network: running statistics and their count, too" {
	net() {
		train resnet18 --stem cifar --device cpu-reference --data synthetic:3x8x8,n=20,classes=5 --accumulate 2 \
			--epochs 2 --no-eval --ckpt "run.$1" --metrics "run.$1" "${@:2}"
	}
	for n in 1 2; do
		rm -rf run.*
		net whole -n $n --batch $((4 / n))
		for steps in 2 4; do
			net part -n $n --batch $((4 / n)) --steps $steps
		done
		net part -n $n --batch $((4 / n))
		cmp run.whole/step-00000006.safetensors run.part/step-00000006.safetensors
		same_rows run.whole run.part
	done
	python3 - <<'PY'
import json, struct
data = open('run.part/step-00000006.safetensors', 'rb').read()
size = struct.unpack('<Q', data[:8])[0]
begin, end = json.loads(data[8:8 + size])['bn1.num_batches_tracked']['data_offsets']
# 2 epochs of 5 batches on each rank: updates of 2, 2 and 1.
assert data[8 + size + begin:8 + size + end] == struct.pack('<q', 10)
PY
}

@test "kill -9 again and again, then resume: the same result as without a kill" {
	# 3 epochs of 200 steps, so that the kills come before the end
	DATA=synthetic:1x16x16,n=6400,classes=5
	job whole -n 2 --batch 16 --save-every 37 --no-eval
	hit=0
	for rows in 5 60 200 333 450; do
		"$BERTH" train convnet --data "$DATA" --epochs 3 --ckpt "$DIR/run.killed" \
			--metrics "$DIR/run.killed" --log-every 1 -n 2 --batch 16 --save-every 37 \
			--no-eval >/dev/null 2>&1 3>&- &
		pid=$!
		wait_for run.killed/metrics.jsonl $rows
		kill -9 $pid || true
		wait $pid || true
		gone
		[ -e run.killed/step-00000600.safetensors ] || hit=$((hit + 1))
	done
	echo "$hit of 5 kills came before the end"
	[ "$hit" -ge 2 ]
	job killed -n 2 --batch 16 --save-every 37 --no-eval
	# Unfinished files of a killed run are not checkpoints and do no harm.
	cmp run.whole/step-00000600.safetensors run.killed/step-00000600.safetensors
	cmp run.whole/latest run.killed/latest
	same_rows run.whole run.killed
}

@test "resume on another number of ranks: each remaining sample is used once" {
	job moved -n 2 --batch 16 --steps 27 --no-eval
	job moved -n 1 --batch 32 --no-eval 2>out
	grep -q 'step 27' out
	[ "$(cat run.moved/latest)" = step-00000060.safetensors ]
	job whole -n 1 --batch 32 --no-eval
	near_rows run.whole run.moved 1e-3
}

@test "on another number of ranks the current epoch keeps its padding" {
	odd() {
		train convnet --data synthetic:1x16x16,n=635,classes=5 --epochs 2 --no-eval --ckpt "$DIR/run.$1" \
			--metrics "$DIR/run.$1" "${@:2}"
	}
	odd whole -n 2 --batch 16
	odd moved -n 2 --batch 16 --steps 27
	odd moved -n 1 --batch 32
	# The last update of an epoch has 28 samples, one of them used twice, also on one rank.
	near_rows run.whole run.moved 1e-4
}

@test "a damaged or truncated checkpoint is skipped, reported, and never deleted" {
	job good -n 1 --batch 32 --save-every 7 --steps 28 --no-eval
	cp -r run.good run.bad
	# Flip one bit in the middle of the newest one; truncate the one before it.
	python3 - run.bad/step-00000028.safetensors <<'PY'
import sys
data = bytearray(open(sys.argv[1], 'rb').read())
data[len(data) // 2] ^= 4
open(sys.argv[1], 'wb').write(data)
PY
	truncate -s 5000 run.bad/step-00000021.safetensors
	echo 'not ours' >run.bad/step-00000099.safetensors
	cp run.bad/step-00000028.safetensors flipped
	job bad -n 1 --batch 32 --save-every 7 --steps 20 --no-eval 2>out
	cat out
	grep -q 'skipped.*step-00000028.*checksum' out
	grep -q 'skipped.*step-00000021.*truncated' out
	grep -q 'skipped.*step-00000099' out
	grep -q 'resuming from .*step-00000014.safetensors: step 14' out
	cmp flipped run.bad/step-00000028.safetensors
	[ "$(stat -c %s run.bad/step-00000021.safetensors)" = 5000 ]
	[ "$(cat run.bad/step-00000099.safetensors)" = 'not ours' ]
}

@test "if latest names garbage or nothing, the newest usable file is found" {
	job x -n 1 --batch 32 --save-every 7 --steps 14 --no-eval
	for latest in nonsense ../../etc/passwd step-00000013.safetensors ''; do
		echo "$latest" >run.x/latest
		job x -n 1 --batch 32 --save-every 7 --steps 14 --no-eval 2>out
		grep -q 'resuming from .*step-00000014' out
	done
	rm run.x/latest
	job x -n 1 --batch 32 --save-every 7 --steps 14 --no-eval 2>out
	grep -q 'resuming from .*step-00000014' out
}

@test "--resume refuses a checkpoint of another model or shape" {
	job x -n 1 --batch 32 --steps 3 --no-eval
	for other in "linear --data $DATA" "convnet --data synthetic:1x16x16,n=64,classes=4" \
		"convnet --data synthetic:3x16x16,n=64,classes=5"; do
		# shellcheck disable=SC2086
		expect 65 timeout 60 "$BERTH" train $other -n 1 --steps 1 \
			--resume run.x/step-00000003.safetensors
		[[ "$output" == *step-00000003.safetensors* ]]
	done
	expect 66 timeout 60 "$BERTH" train convnet -n 1 --data "$DATA" --resume run.x/step-00000004.safetensors
}

@test "--epochs is the total: a finished run trains nothing; more epochs change a cosine schedule, with a note" {
	job() { expect 0 "$BERTH" train linear -n 2 --data "$DATA" --batch 16 --no-eval --ckpt c --metrics m --lr 0.1 "$@"; }
	job --schedule cosine --epochs 2
	[[ $output != *"schedule cosine now"* ]]
	job --schedule cosine --epochs 2
	[[ $output == *"nothing to train: step 40 is done and the last step is 40"* && $output != *"schedule cosine now"* ]]
	job --schedule cosine --epochs 1
	[[ $output == *"nothing to train"* ]]
	job --schedule cosine --epochs 4
	[[ $output == *"note: schedule cosine now spans 4 epochs instead of 2: the learning rate of epoch 3 is 0.05 instead of 0"* ]]
	[[ $output == *"resuming from c/step-00000040"*"trained linear on $DATA: 80 steps"* ]]
	# The others do not depend on it.
	job --schedule step --epochs 5
	[[ $output == *"trained linear on $DATA: 100 steps"* && $output != *" now spans "* ]]
}
