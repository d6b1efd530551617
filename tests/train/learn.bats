# SPDX-License-Identifier: BSD-3-Clause
# Training learns, and several ranks learn the same as one.

load support

@test "linear learns synthetic classes, convnet too" {
	for model in linear convnet; do
		train "$model" -n 1 --data synthetic:1x16x16,n=6400,classes=5 --batch 32 --epochs 3 \
			--metrics "$model" >/dev/null
		below "$(loss "$model" val)" 0.2
		below "$(loss "$model" train 20)" 0.2 # one batch may be an unlucky one
	done
}

@test "linear fits a line: the mean square falls to the noise" {
	train linear -n 1 --data synthetic:20,n=2000,classes=1 --batch 20 --epochs 10 --lr 0.01 --metrics m
	# y = X w + 0.1 noise: 0.01 is the best possible loss.
	below "$(loss m val)" 0.015
	below 0.005 "$(loss m val)"
}

@test "2 ranks of half the batch: the losses of 1 rank, step by step" {
	for model in linear convnet; do
		train "$model" -n 1 --data "$DATA" --batch 32 --epochs 1 --metrics "$model.1" --no-eval
		train "$model" -n 2 --data "$DATA" --batch 16 --epochs 1 --metrics "$model.2" --no-eval
		[ "$(wc -l <"$model.1/metrics.jsonl")" -eq 20 ]
		near_rows "$model.1" "$model.2" 1e-5
	done
}

@test "gradients in shared memory and, if that is unavailable, over MPI: the same losses" {
	case " $MODULES " in *comm-mpi*) ;; *) skip "built without MPI" ;; esac
	small="resnet18 --stem cifar -n 2 --data synthetic:3x8x8,n=32,classes=5 --batch 4 --steps 4 --no-eval"
	# mappings: how many ranks map that memory, and how many do not, after the first step of an endless training
	mappings() {
		local pid process with=0 without=0
		rm -rf endless
		"$BERTH" train $small --steps 100000000 --epochs 1000000 --metrics endless --log-every 1 >/dev/null 3>&- &
		pid=$!
		wait_for endless/metrics.jsonl 1
		for process in /proc/[0-9]*; do
			[ "$(readlink "$process/cwd")" = "$DIR" ] && [ "$(cat "$process/comm")" = berth-train ] || continue
			if grep -q berth-gradients "$process/maps"; then with=$((with + 1)); else without=$((without + 1)); fi
		done
		kill -TERM "$pid"
		wait "$pid" || true
		echo "$with $without"
	}
	[ "$(mappings)" = "2 0" ]
	train $small --metrics memory
	# The file size limit is below the 45 MB of gradients.
	[ "$(ulimit -f 20000; mappings)" = "0 2" ]
	(ulimit -f 20000; train $small --metrics mpi)
	same_rows memory mpi
	[ "$(wc -l <mpi/metrics.jsonl)" -eq 4 ]
}

@test "2 ranks count the evaluation exactly: every sample once" {
	train linear -n 1 --data "$DATA" --batch 32 --steps 3 --metrics one >one.txt
	train linear -n 2 --data "$DATA" --batch 16 --steps 3 --metrics two >two.txt
	near_rows one two 1e-5
	python3 - <<'PY'
import json
def val(name):
    return [json.loads(line) for line in open(f'{name}/metrics.jsonl') if '"val"' in line][-1]
assert val('one')['acc1'] == val('two')['acc1'], (val('one'), val('two'))
PY
}

@test "the same command gives the same bits, another seed other bits" {
	for run in a b; do
		train convnet -n 2 --data "$DATA" --batch 16 --steps 8 --seed 3 --ckpt $run --metrics $run
	done
	cmp a/step-00000008.safetensors b/step-00000008.safetensors
	same_rows a b
	train convnet -n 2 --data "$DATA" --batch 16 --steps 8 --seed 4 --ckpt c --metrics c
	[ "$(loss a train)" != "$(loss c train)" ]
}

@test "--print-order prints DistributedSampler's order, padded from its start" {
	train linear -n 1 --data synthetic:4,n=10 --print-order 100 >one.txt
	[ "$(cat one.txt)" = "rank 0: 4 1 7 5 3 9 0 8 6 2" ]
	train linear -n 3 --data synthetic:4,n=10 --print-order 100 >three.txt
	[ "$(cat three.txt)" = "$(printf 'rank 0: 4 5 0 2\nrank 1: 1 3 8 4\nrank 2: 7 9 6 1')" ]
	train linear -n 1 --data synthetic:4,n=10 --seed 1 --print-order 3 >first.txt
	train linear -n 1 --data synthetic:4,n=10 --epoch 1 --print-order 3 >later.txt
	cmp first.txt later.txt
	[ "$(cat later.txt)" = "rank 0: 5 6 1" ]
}
