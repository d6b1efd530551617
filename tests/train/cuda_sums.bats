#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# Batch norms whose sums the preceding convolution computes, and which are fused into the next one, in a
# whole network on a fake GPU.
load support

@test "every 16-bit convolution before a batch norm computes its sums, and the loss is the same" {
	export MALLOC_PERTURB_=0 XDG_CACHE_HOME=$PWD/cache BERTH_MODULE_PATH=$BUILD/tests/train/fake-cuda:$BUILD/lib/modules
	local net=("$BUILD/bin/berth-train" resnet18 --stem cifar --data synthetic:3x8x8,n=16,classes=5 --batch 8
		--steps 1 --log-every 1 --no-eval --device cuda --amp bf16)
	"${net[@]}" --metrics fast
	[ "$(cut -f 2 cache/berth/cudnn-* | cut -d ' ' -f 8 | sort -u)" = 4 ]
	FAKE_CUDNN_ENGINES=none XDG_CACHE_HOME=/dev/null/none "${net[@]}" --metrics none
	near_rows fast none 0.01
}

@test "in fp16 batch norms are fused into the next convolution, and the losses are nearly the same" {
	export MALLOC_PERTURB_=0 XDG_CACHE_HOME=$PWD/cache BERTH_MODULE_PATH=$BUILD/tests/train/fake-cuda:$BUILD/lib/modules
	local net=("$BUILD/bin/berth-train" resnet18 --stem cifar --data synthetic:3x8x8,n=16,classes=5 --batch 8
		--steps 2 --log-every 1 --no-eval --device cuda --amp fp16)
	"${net[@]}" --metrics through
	# norm-sums, norm-weights and input-norm of the convolutions that allow it.
	[ "$(grep ' through ' cache/berth/cudnn-* | cut -f 2 | cut -d ' ' -f 11-13 | sort -u)" = "4 4 4" ]
	FAKE_CUDNN_ENGINES=none XDG_CACHE_HOME=/dev/null/none "${net[@]}" --metrics plain
	near_rows through plain 0.02
}

@test "a candidate that hangs ends the start after 30 s, and is not tried for ever" {
	export MALLOC_PERTURB_=0 XDG_CACHE_HOME=$PWD/cache BERTH_MODULE_PATH=$BUILD/tests/train/fake-cuda:$BUILD/lib/modules
	export FAKE_CUDA_THREADS=1 FAKE_CUDNN_BEST=hang
	local net=("$BUILD/bin/berth-train" convnet --data synthetic:3x16x16,n=40,classes=5 --batch 8 --steps 2 --device cuda)
	for start in 1 2; do
		run timeout 120 "${net[@]}"
		[ "$status" = 69 ]
		[[ "$output" == *"did not end within 30 s on Fake GPU while convolution conv1.weight was tuned. Start again"* ]]
	done
	run timeout 120 "${net[@]}"
	[ "$status" = 0 ]
}
