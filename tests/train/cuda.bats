#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# The CUDA device in the whole trainer, on a fake GPU (fake-cuda/fake.h).
load support

SMALL=(convnet --data synthetic:3x16x16,n=40,classes=5 --batch 8 --log-every 1 --lr 0.01)

setup_file() {
	export XDG_CACHE_HOME=$BATS_FILE_TMPDIR/cache
	# Keep malloc from filling the gigabyte of workspace in which algorithms are tried.
	export MALLOC_PERTURB_=0
}

FAKE_CUDA=$BUILD/tests/train/fake-cuda

gpu() {
	BERTH_MODULE_PATH=$FAKE_CUDA:$BUILD/lib/modules FAKE_CUDA_STRICT=1 \
		"$BUILD/bin/berth-train" "$@" --device cuda
}

@test "it trains to the CPU's losses and reports the device" {
	run gpu "${SMALL[@]}" --epochs 2 --metrics gpu
	[ "$status" -eq 0 ]
	[[ "$output" =~ "computing on Fake GPU (cuda 0, sm_90, cuDNN 9." ]]
	"$BUILD/bin/berth-train" "${SMALL[@]}" --epochs 2 --metrics cpu --device cpu-reference
	near_rows gpu cpu 1e-3
	# The fastest algorithms are cached for the next run.
	ls "$XDG_CACHE_HOME"/berth/cudnn-*
}

@test "crops and flips equal the CPU's, for batches from the host and for a data set in GPU memory" {
	python3 - <<'PY'
import os, random
random.seed(5)
os.makedirs('cifar')
for name in [f'data_batch_{i}.bin' for i in range(1, 6)] + ['test_batch.bin']:
    row = b''.join(bytes([n % 10]) + random.randbytes(3072) for n in range(40))
    with open('cifar/' + name, 'wb') as file:
        file.write(row * 250)
PY
	run gpu convnet --data cifar10:cifar --batch 16 --steps 4 --log-every 1 --no-eval --metrics gpu --ckpt lives
	[ "$status" -eq 0 ]
	[[ "$output" =~ "the data set (147 MiB) is kept in GPU memory" ]]
	# The data set may use half of the free memory. The bits are the same if that is too little.
	FAKE_CUDA_MIB=250 run gpu convnet --data cifar10:cifar --batch 16 --steps 4 --log-every 1 --no-eval \
		--metrics comes --ckpt comes
	[ "$status" -eq 0 ]
	[[ ! "$output" =~ "is kept in GPU memory" ]]
	cmp lives/model.safetensors comes/model.safetensors
	"$BUILD/bin/berth-train" convnet --data cifar10:cifar --batch 16 --steps 4 --log-every 1 --no-eval \
		--metrics cpu --device cpu-reference
	near_rows gpu cpu 1e-3
}

@test "NVML's readings of the GPU go into the metrics, and null if a reading is missing" {
	ln -s "$FAKE_NVML" libnvidia-ml.so.1
	for as in slow mig driver; do
		LD_LIBRARY_PATH=$PWD BERTH_FAKE_NVML=$as run gpu "${SMALL[@]}" --steps 2 --metrics "$as"
		[ "$status" -eq 0 ]
		[ "$as" = driver ] || [[ ! "$output" =~ "NVML does not find" ]]
	done
	[[ "$output" =~ "NVML does not find this GPU" ]]
	python3 - <<'PY'
import json
def row(name):
    rows = [json.loads(line) for line in open(f'{name}/metrics.jsonl')]
    assert all(('gpu_use' in row) == (row['split'] == 'train') for row in rows), rows
    assert all(row['host_ms'] > 0 for row in rows if row['split'] == 'train')
    return {key: value for key, value in rows[0].items() if key.startswith('gpu')}
assert row('slow') == {'gpu_use': 87, 'gpu_memory_bytes': 40 << 30, 'gpu_power_w': 612.5,
                       'gpu_slow': ['power-cap', 'hw-thermal']}, row('slow')
assert row('mig') == {'gpu_use': None, 'gpu_memory_bytes': 40 << 30, 'gpu_power_w': None, 'gpu_slow': []}, row('mig')
assert row('driver') == {'gpu_use': None, 'gpu_memory_bytes': None, 'gpu_power_w': None, 'gpu_slow': []}, row('driver')
PY
}

# The engine of forward, sums, input and weights in each line of the cache; -1: none was chosen.
engines_kept() {
	cut -f 2 cache/berth/cudnn-* | cut -d ' ' -f 7-10 | tr ' ' '\n' | sort -u | tr '\n' ' '
}

@test "engines of cuDNN's graphs are used if they are faster and correct, and cached" {
	export XDG_CACHE_HOME=$PWD/cache
	# Of the allowed engines, number 4 is the fastest correct one; 2 is faster but wrong.
	gpu "${SMALL[@]}" --steps 4 --amp bf16 --metrics fast
	[ "$(engines_kept)" = "-1 4 " ]
	gpu "${SMALL[@]}" --steps 4 --amp bf16 --metrics kept
	near_rows kept fast 1e-6
	# An engine whose name has changed is not the one that was verified.
	before=$(cat cache/berth/cudnn-*)
	[[ "$before" == *" 10"[0-9]* ]]
	sed -i -E 's/ 10([0-9])/ 20\1/g' cache/berth/cudnn-*
	gpu "${SMALL[@]}" --steps 4 --amp bf16 --metrics renamed
	near_rows renamed fast 1e-6
	# So the search was repeated and its result cached.
	[ "$(cat cache/berth/cudnn-*)" = "$before" ]
	rm -r cache
	FAKE_CUDNN_ENGINES=none gpu "${SMALL[@]}" --steps 4 --amp bf16 --metrics none
	[ "$(engines_kept)" = "-1 " ]
	near_rows fast none 0.02
	# Lines of an earlier version, or garbage, are not used as a choice.
	rm -r cache
	mkdir -p cache/berth
	printf 'conv f32 8x3x16x16\t1 0 1 0 1 0\n\0\377\n' > cache/berth/cudnn-91900_Fake_GPU
	FAKE_CUDNN_ENGINES=slow gpu "${SMALL[@]}" --steps 2
	[ "$(engines_kept)" = "-1 " ]
}

@test "float32 stays float32 without --tf32, with cuDNN's algorithms, its engines and cuBLAS" {
	export XDG_CACHE_HOME=$PWD/cache
	"$BUILD/bin/berth-train" "${SMALL[@]}" --steps 4 --no-eval --metrics cpu --device cpu-reference
	for engines in none fast; do
		export FAKE_CUDNN_ENGINES=$engines
		rm -rf cache
		gpu "${SMALL[@]}" --steps 4 --no-eval --metrics full-$engines
		near_rows full-$engines cpu 1e-6
		kept=$(engines_kept)
		rm -r cache
		gpu "${SMALL[@]}" --steps 4 --no-eval --metrics tf32-$engines --tf32
		near_rows tf32-$engines cpu 1e-2
		run near_rows tf32-$engines cpu 1e-6
		[ "$status" -ne 0 ]
		# Engine 2 reports that it uses tensor cores.
		echo "$kept, with --tf32 $(engines_kept)"
		[ "$engines" = none ] || [ "$kept, with --tf32 $(engines_kept)" = "-1 4 , with --tf32 -1 2 " ]
	done
	unset FAKE_CUDNN_ENGINES
	# A linear layer alone: cuBLAS.
	net=(linear --data synthetic:3x16x16,n=40,classes=5 --batch 8 --log-every 1 --lr 0.01 --steps 4 --no-eval)
	"$BUILD/bin/berth-train" "${net[@]}" --metrics linear-cpu --device cpu-reference
	gpu "${net[@]}" --metrics linear
	near_rows linear linear-cpu 1e-6
	gpu "${net[@]}" --metrics linear-tf32 --tf32
	near_rows linear-tf32 linear-cpu 1e-2
	run near_rows linear-tf32 linear-cpu 1e-6
	[ "$status" -ne 0 ]
}

@test "a checkpoint goes from the CPU to the GPU and back" {
	"$BUILD/bin/berth-train" "${SMALL[@]}" --no-eval --steps 9 --metrics all --device cpu-reference --ckpt all
	"$BUILD/bin/berth-train" "${SMALL[@]}" --no-eval --steps 3 --metrics parts --device cpu-reference --ckpt parts
	gpu "${SMALL[@]}" --no-eval --steps 6 --metrics parts --ckpt parts
	"$BUILD/bin/berth-train" "${SMALL[@]}" --no-eval --steps 9 --metrics parts --device cpu-reference --ckpt parts
	near_rows parts all 1e-3
}

@test "with and without a CUDA graph, with kernels in launch order or random order: the same bits" {
	gpu "${SMALL[@]}" --epochs 2 --ckpt one
	gpu "${SMALL[@]}" --epochs 2 --ckpt two --no-graph
	FAKE_CUDA_SEED=12345 gpu "${SMALL[@]}" --epochs 2 --ckpt three --deterministic
	cmp one/model.safetensors two/model.safetensors
	cmp one/model.safetensors three/model.safetensors
}

@test "between log lines the host waits for nothing on the GPU" {
	# Waits at the start, at the one log line and at the end are the same for both.
	for steps in 20 60; do
		XDG_CACHE_HOME=/dev/null/none FAKE_CUDNN_ENGINES=none FAKE_CUDA_WAITS=waits-$steps gpu "${SMALL[@]}" \
			--data synthetic:3x16x16,n=480,classes=5 --no-eval \
			--log-every 1000 --steps "$steps" --amp fp16
	done
	read -r waits_20 events_20 < waits-20
	read -r waits_60 events_60 < waits-60
	[ "$waits_20" -gt 0 ]
	[ "$waits_20" -eq "$waits_60" ]
	# Waits for space for a batch, once per step, and for votes that were started five steps before.
	[ $((events_60 - events_20)) -eq $((40 + 5)) ]
}

@test "a run that must stop does so soon, and resumes with the same bits" {
	net=("${SMALL[@]}" --epochs 6 --no-eval --deterministic)
	gpu "${net[@]}" --ckpt whole
	: > stop
	# The vote starts at step 8; its result is known at step 13.
	BERTH_STOP_FILE=$PWD/stop run gpu "${net[@]}" --ckpt parts
	[ "$status" -eq 75 ]
	[ "$(cat parts/latest)" = step-00000013.safetensors ]
	rm stop
	gpu "${net[@]}" --ckpt parts
	cmp whole/model.safetensors parts/model.safetensors
}

@test "a loss that is not finite ends the run at most 12 updates later, however rarely losses are logged" {
	for job in "--batch 8" "--batch 4 --accumulate 2"; do
		rm -rf m
		run gpu "${SMALL[@]}" $job --data synthetic:3x16x16,n=480,classes=5 --lr 1e6 --no-eval --log-every 1000 --metrics m
		[ "$status" -eq 65 ]
		python3 - m/metrics.jsonl "$output" <<'PY'
import json, re, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
named = int(re.search(r'loss of step (\d+) is not finite', sys.argv[2])[1])
assert len(rows) == 1 and named < rows[0]['step'] <= named + 12, (rows, named)
PY
	done
	gpu "${SMALL[@]}" --lr 1e6 --epochs 4 --no-eval --log-every 1000 --on-nan continue
}

@test "a data set in GPU memory is made anew when a run resumes with another --seed" {
	net=("${SMALL[@]}" --epochs 4 --deterministic --save-every 2e)
	gpu "${net[@]}" --seed 3 --ckpt whole
	gpu "${net[@]}" --seed 3 --ckpt parts --steps 10
	run -0 gpu "${net[@]}" --seed 4 --ckpt parts
	[[ "$output" == *"is kept in GPU memory"*"synthetic data keep the checkpoint's seed 3, not --seed 4"* ]]
	cmp whole/model.safetensors parts/model.safetensors
}

@test "training in 16 bits gives nearly the same losses" {
	gpu "${SMALL[@]}" --epochs 2 --metrics full
	for amp in bf16 fp16; do
		run gpu "${SMALL[@]}" --epochs 2 --metrics "$amp" --amp "$amp"
		[ "$status" -eq 0 ]
		[[ "$output" =~ ", $amp" ]]
		near_rows "$amp" full 0.05
	done
}

@test "out of GPU memory: reports what is needed, what is free, and what would fit" {
	FAKE_CUDA_MIB=40 run gpu resnet18 --stem cifar --data synthetic:3x32x32,n=600,classes=5 --batch 512 --steps 1
	[ "$status" -eq 69 ]
	[[ "$output" =~ "out of GPU memory" ]]
	[[ "$output" =~ "run nvidia-smi to see which processes use it" ]]
	# With NVML, the message names the processes.
	ln -s "$FAKE_NVML" libnvidia-ml.so.1
	LD_LIBRARY_PATH=$PWD BERTH_FAKE_NVML=held FAKE_CUDA_MIB=40 run gpu resnet18 --stem cifar \
		--data synthetic:3x32x32,n=600,classes=5 --batch 512 --steps 1
	[ "$status" -eq 69 ]
	[[ "$output" =~ "its memory is held by pid "[0-9]+" ("[^,]*", 3072 MiB)" ]]
	FAKE_CUDA_MIB=400 run gpu resnet18 --stem cifar --data synthetic:3x32x32,n=600,classes=5 --batch 512 --steps 1
	[ "$status" -eq 69 ]
	[[ "$output" =~ "training with a batch of 512 needs "[0-9]+" MiB, but only "[0-9]+" of the GPU's 400 MiB are free" ]]
	[[ "$output" =~ "; a batch of "[0-9]+" would fit" ]]
}

@test "the largest batch that is named fits, and a slightly larger one does not" {
	export FAKE_CUDNN_ENGINES=none
	for way in "linear 3x64x64 --no-eval" "linear 3x64x64" "convnet 3x32x32 --no-eval --amp bf16"; do
		read -r model shape options <<< "$way"
		mib=150
		[ "$model" = linear ] || mib=60
		net=("$model" --data "synthetic:$shape,n=3000,classes=5" --steps 2 $options)
		FAKE_CUDA_MIB=$mib run gpu "${net[@]}" --batch 5000
		[ "$status" -eq 69 ]
		[[ "$output" =~ "a batch of "([0-9]+)" would fit" ]]
		fits=${BASH_REMATCH[1]}
		echo "$way: $fits"
		FAKE_CUDA_MIB=$mib gpu "${net[@]}" --batch "$fits"
		# A 64th of all memory stays reserved, and small allocations are rounded up to pages.
		[ "$model" = linear ] || continue
		FAKE_CUDA_MIB=$mib run gpu "${net[@]}" --batch $((fits * 9 / 8))
		[ "$status" -eq 69 ]
	done
}

@test "a cached engine is not used if its workspace does not fit" {
	export XDG_CACHE_HOME=$PWD/cache FAKE_CUDNN_MIB=300
	gpu "${SMALL[@]}" --steps 2 --no-eval --metrics wide
	[[ "$(engines_kept)" == *" 4 "* ]]
	FAKE_CUDA_MIB=150 gpu "${SMALL[@]}" --steps 2 --no-eval --metrics narrow
	# That choice is cached only for runs with so little memory.
	[ "$(grep ' MiB' cache/berth/cudnn-* | cut -f 2 | cut -d ' ' -f 7-10 | tr ' ' '\n' | sort -u)" = -1 ]
	[[ "$(engines_kept)" == *" 4 "* ]]
	near_rows narrow wide 1e-3
}

@test "a GPU of an unsupported architecture, and a rank without a GPU" {
	FAKE_CUDA_MAJOR=7 run gpu "${SMALL[@]}" --steps 1
	[ "$status" -eq 69 ]
	[[ "$output" =~ "compute capability 7.0" ]]
	FAKE_CUDA_COUNT=2 RANK=2 WORLD_SIZE=3 LOCAL_RANK=2 LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=9 \
		run gpu "${SMALL[@]}" --steps 1
	[ "$status" -eq 69 ]
	[[ "$output" =~ "this process sees 2" ]]
	FAKE_CUDA_COUNT=0 run gpu "${SMALL[@]}" --steps 1
	[ "$status" -eq 69 ]
	[[ "$output" =~ "no GPU is visible to this process" ]]
}

@test "a missing or old driver, or an old cuDNN: one message, and auto continues without a GPU" {
	for row in "FAKE_CUDA_DRIVER=0|driver is not installed or not loaded" \
		"FAKE_CUDA_DRIVER=12020|driver is too old: it supports CUDA 12.2, but this build uses CUDA " \
		"FAKE_CUDNN_VERSION=8907|cuDNN 8907 is too old: berth requires 90000 or newer"; do
		export "${row%%|*}"
		run gpu "${SMALL[@]}" --steps 1
		[ "$status" -eq 69 ]
		[ "${#lines[@]}" -eq 1 ]
		[[ "$output" =~ "${row#*|}" ]]
		BERTH_MODULE_PATH=$FAKE_CUDA:$BUILD/lib/modules run "$BUILD/bin/berth-train" "${SMALL[@]}" --steps 1 --no-eval
		[ "$status" -eq 0 ]
		[[ "$output" =~ "computing on cpu" ]]
		row=${row%%=*}
		unset "$row"
	done
}

@test "two ranks over MPI, staged through the host, equal one rank with twice the batch" {
	[[ " $MODULES " == *" comm-mpi "* ]] || skip "comm-mpi.so is not built"
	BERTH_MODULE_PATH=$FAKE_CUDA:$BUILD/lib/modules "$BERTH" train -n 2 "${SMALL[@]}" --batch 4 --steps 6 \
		--metrics two --device cuda --comm mpi
	gpu "${SMALL[@]}" --steps 6 --metrics one
	near_rows two one 1e-3
}

@test "fp16: a resumed run keeps the loss scale and its growth tracker, and ends with the same bits" {
	fp16=("${SMALL[@]}" --amp fp16 --no-eval --deterministic)
	gpu "${fp16[@]}" --steps 9 --ckpt whole
	gpu "${fp16[@]}" --steps 4 --ckpt parts
	gpu "${fp16[@]}" --steps 9 --ckpt parts
	cmp whole/step-00000009.safetensors parts/step-00000009.safetensors
	python3 - <<'PY'
import json
def scaler(name):
    data = open(name, 'rb').read()
    header = json.loads(data[8:8 + int.from_bytes(data[:8], 'little')])
    return json.loads(header['__metadata__']['berth.state'])['scaler']
four, nine = scaler('parts/step-00000004.safetensors'), scaler('parts/step-00000009.safetensors')
print(four, nine)
# The state must differ from a new run's.
assert four != {'scale': 65536.0, 'growth_tracker': 0}
assert nine['growth_tracker'] == four['growth_tracker'] + 5 or nine['scale'] < four['scale']
PY
	gpu "${SMALL[@]}" --no-eval --steps 2 --ckpt plain
	grep -aq 'scaler\\":null' plain/step-00000002.safetensors
}

@test "a candidate that ends the process is tried twice, one that faults once; then nothing is measured" {
	export XDG_CACHE_HOME=$PWD/cache FAKE_CUDNN_BEST=kill
	for start in 1 2; do
		run gpu "${SMALL[@]}" --steps 2
		[ "$status" = 137 ]
	done
	run gpu "${SMALL[@]}" --steps 2
	echo "$output"
	[ "$status" = 0 ]
	[ "$(grep -c 'warning: measuring cuDNN.s candidates has ended an earlier start on this GPU' <<<"$output")" = 1 ]
	file=$(sed -n "s/.*Delete '\(.*\)' to measure again.*/\1/p" <<<"$output")
	rm "$file"
	unset FAKE_CUDNN_BEST
	run gpu "${SMALL[@]}" --steps 2
	[ "$status" = 0 ]
	[[ "$output" != *"measuring cuDNN"* ]]
	rm "$file"
	# After a fault the GPU's memory cannot be freed.
	export FAKE_CUDNN_BEST=fault
	run env BERTH_MODULE_PATH="$FAKE_CUDA:$BUILD/lib/modules" "$BUILD/bin/berth-train" "${SMALL[@]}" --steps 2 --device cuda
	echo "$output"
	[ "$status" = 69 ]
	[[ "$output" == *"failed on Fake GPU while convolution conv1.weight was tuned: "*"Start again: it is remembered, and will not be tried"* ]]
	run gpu "${SMALL[@]}" --steps 2
	[ "$status" = 0 ]
	[[ "$output" == *"measuring cuDNN's candidates has ended"* ]]
}
