#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# Model files: model.safetensors is written, --init starts from it, with --new-head except for the last layer.
load support.bash

# tensors FILE: name, type, shape and bytes of each tensor, sorted; without berth.*
tensors() {
	python3 - "$1" <<'PY'
import json, struct, sys
data = open(sys.argv[1], 'rb').read()
size = struct.unpack('<Q', data[:8])[0]
for name, entry in sorted(json.loads(data[8:8 + size]).items()):
    if name != '__metadata__' and not name.startswith('berth.'):
        begin, end = (8 + size + at for at in entry['data_offsets'])
        print(name, entry['dtype'], entry['shape'], data[begin:end].hex())
PY
}

@test "a run can start from the model of another" {
	train convnet -n 1 --data $DATA --steps 3 --ckpt a --seed 5
	tensors a/model.safetensors >a.txt
	[ "$(wc -l <a.txt)" = 10 ]
	# A step with learning rate 0 changes nothing.
	for from in a/model.safetensors a/step-00000003.safetensors; do
		rm -rf b
		train convnet -n 2 --data $DATA --steps 1 --lr 0 --ckpt b --init $from
		tensors b/model.safetensors >b.txt
		cmp a.txt b.txt
	done
	# A checkpoint has precedence over --init.
	expect 0 train convnet -n 1 --data $DATA --steps 2 --lr 0 --ckpt b --init a/missing.safetensors
	[[ "$output" == *"resuming from b/step-00000001"* ]]
}

@test "running statistics are kept, and a new head takes other classes" {
	local data=synthetic:3x8x8,n=16
	train resnet18 -n 1 --stem cifar --device cpu-reference --data $data,classes=5 --batch 4 --steps 2 --ckpt a --no-eval
	tensors a/model.safetensors >a.txt
	# 62 parameters, 20 batch norms of two statistics and a count
	[ "$(wc -l <a.txt)" = 122 ]
	grep -q '^bn1.num_batches_tracked I64 \[\] 0200000000000000$' a.txt
	grep -q '^layer4.1.bn2.running_var F32 \[512\]' a.txt

	expect 65 train resnet18 -n 1 --stem cifar --device cpu-reference --data $data,classes=7 --steps 1 --batch 4 \
		--init a/model.safetensors --no-eval
	[[ "$output" == *"fc.weight"*"[5,512]"*"[7,512]"*"--new-head"* ]]

	train resnet18 -n 1 --stem cifar --device cpu-reference --data $data,classes=7 --steps 1 --batch 4 --lr 0 \
		--init a/model.safetensors --new-head --no-eval --ckpt b
	tensors b/model.safetensors >b.txt
	# Weights are the same; statistics have seen one batch more.
	diff <(grep -v '^fc\|running_\|num_batches' a.txt) <(grep -v '^fc\|running_\|num_batches' b.txt)
	grep -q '^fc.weight F32 \[7, 512\]' b.txt
	grep -q '^bn1.num_batches_tracked I64 \[\] 0300000000000000$' b.txt
	! diff -q <(grep running_mean a.txt) <(grep running_mean b.txt) || false
}

@test "files have the permissions that the umask allows" {
	for mask in 077 027 022; do
		rm -rf a m
		(umask $mask; train linear -n 2 --data $DATA --steps 1 --ckpt a --metrics m --report r.json --no-eval)
		for file in a/step-00000001.safetensors a/latest a/model.safetensors m/metrics.jsonl r.json; do
			[ "$(stat -c %a $file)" = $(printf %o $((0666 & ~$mask))) ] || { echo "$mask: $(ls -l $file)"; return 1; }
		done
		rm r.json
	done
}

@test "an unusable --init file is refused" {
	train convnet -n 1 --data $DATA --steps 1 --ckpt a --no-eval
	expect 65 train linear -n 1 --data $DATA --steps 1 --init a/model.safetensors
	[[ "$output" == *"--init"*"conv1.bias"* || "$output" == *"--init"*"conv1.weight"* ]]
	expect 66 train convnet -n 1 --data $DATA --steps 1 --init nowhere.safetensors
	[[ "$output" == *"nowhere.safetensors"* ]]
	head -c 1000 a/model.safetensors >cut.safetensors
	expect 65 train convnet -n 1 --data $DATA --steps 1 --init cut.safetensors
	expect 64 train convnet -n 1 --data $DATA --steps 1 --new-head
	[[ "$output" == *"--init"* ]]
	# Not a checkpoint: berth.state is missing.
	expect 65 train convnet -n 1 --data $DATA --steps 1 --resume a/model.safetensors
}
