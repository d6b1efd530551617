# SPDX-License-Identifier: BSD-3-Clause
# The whole trainer on several GPUs over NCCL, on stand-ins for both: each rank has a fake GPU, and the stand-in for
# NCCL ends the ranks if they do not all run the same capture of a collective.

load support

setup_file() {
	export MALLOC_PERTURB_=0 # see cuda.bats
}

# As rank wrapper: a GPU of its own. A variable RANK_n_NAME is NAME on rank n alone.
setup_gpus() {
	cat >gpu <<-'EOF'
		#!/bin/sh
		export FAKE_CUDA_THREADS=1 FAKE_CUDA_GPU=$((RANK + 1))
		for own in $(env | sed -n "s/^RANK_${RANK}_//p"); do export "$own"; done
		exec "$@"
	EOF
	chmod +x gpu
	export LD_LIBRARY_PATH=$BUILD/tests/unit/train/stand-in:${LD_LIBRARY_PATH-}
	export BERTH_MODULE_PATH=$BUILD/tests/train/fake-cuda:$BUILD/lib/modules
	export XDG_CACHE_HOME=$PWD/cache
}

# gpus RANKS OPTIONS: the ranks' standard error goes into the file err
gpus() {
	timeout 100 "$BERTH" run -n "$1" -- ./gpu "$BUILD/bin/berth-train" "${NET[@]}" --device cuda --log-every 1 "${@:2}" 2>err ||
		{ code=$?; cat err; return $code; }
}

NET=(convnet --data "synthetic:3x16x16,n=52,classes=5" --batch 8 --lr 0.01)

# same A B: both trainings ended with the same weights, to the bit
same() {
	cmp "$1/model.safetensors" "$2/model.safetensors"
}

@test "two ranks over NCCL have the bits of two ranks over gloo or MPI" {
	setup_gpus
	gpus 2 --epochs 3 --ckpt nccl
	grep -q '; 2 ranks over nccl (every rank has a GPU)' err
	for comm in gloo mpi; do
		[[ " $MODULES " == *" comm-$comm "* ]] || continue
		gpus 2 --epochs 3 --ckpt "$comm" --comm "$comm"
		same nccl "$comm"
	done
}

@test "full updates are replayed, all others launched call by call: the bits of --no-graph on 2, 4 and 8 ranks" {
	setup_gpus
	for ranks in 2 4 8; do
		for accumulate in 1 3; do
			rm -rf graph direct
			# Per epoch 3 or 1 full updates, and a rest that the ranks share unequally.
			options=(--data "synthetic:3x16x16,n=$((26 * ranks + 1)),classes=5" --no-eval --epochs 3 --accumulate "$accumulate")
			RANK_1_FAKE_CUDA_TRACE=$PWD/trace gpus "$ranks" "${options[@]}" --ckpt graph
			[ "$(grep -c '^graph' trace)" = $((accumulate == 1 ? 8 : 2 * 3)) ]
			gpus "$ranks" "${options[@]}" --ckpt direct --no-graph
			same graph direct
		done
	done
}

@test "an epoch's last batch stays within the workspace of the others, which graphs hold" {
	setup_gpus
	# What cuDNN proposes there needs 48 MiB on the second rank; the full batch needs less.
	RANK_1_FAKE_CUDNN_FAST_MIB=48 gpus 2 --epochs 3 --ckpt graph
	gpus 2 --epochs 3 --ckpt direct --no-graph
	same graph direct
}

@test "a run goes on with fewer and with more ranks, in the middle of an epoch" {
	setup_gpus
	data=(--data "synthetic:3x16x16,n=200,classes=5" --epochs 4)
	for change in '4 3' '3 4' '4 1' '8 6'; do
		read -r before after <<<"$change"
		rm -rf ck direct
		gpus "$before" "${data[@]}" --steps 1 --ckpt ck
		cp -r ck direct
		gpus "$after" "${data[@]}" --ckpt ck
		gpus "$after" "${data[@]}" --ckpt direct --no-graph
		same ck direct
	done
}

@test "if one rank cannot capture, all launch call by call, after one warning" {
	setup_gpus
	# With a full batch of validation samples on each rank.
	data=(--data "synthetic:3x16x16,n=250,classes=5" --epochs 3)
	RANK_1_FAKE_CUDA_NO_GRAPHS=1 gpus 3 "${data[@]}" --ckpt one
	[ "$(grep -c 'CUDA graph' err)" = 1 ]
	local warning='berth-train: warning: rank 1: every rank launches each kernel by itself, which is slower, '
	warning+='because a CUDA graph failed: instantiating'
	grep -q "$warning" err
	FAKE_CUDA_NO_GRAPHS=1 gpus 3 "${data[@]}" --ckpt all
	# The evaluation, which has graphs of its own on each rank, says nothing more.
	[ "$(grep -c 'CUDA graph' err)" = 1 ]
	gpus 3 "${data[@]}" --ckpt none
	same one none
	same all none
	# An option that only some ranks have is named at once.
	# shellcheck disable=SC2016 # expands in the rank
	run env RANK_1_ARGUMENT=--no-graph timeout 100 "$BERTH" run -n 2 -- \
		./gpu sh -c 'exec "$@" $ARGUMENT' sh "$BUILD/bin/berth-train" "${NET[@]}" --device cuda --steps 2
	[ "$status" = 65 ]
	[[ "$output" == *"--no-graph"* ]]
}

@test "one rank measures algorithms for all with its model of GPU, however long it takes" {
	setup_gpus
	searches() { for rank in 0 1 2 3; do grep -c '^search' "trace-$rank" || true; done | xargs; }
	for rank in 0 1 2 3; do export "RANK_${rank}_FAKE_CUDA_TRACE=$PWD/trace-$rank"; done
	# Five times as long as a collective may take: seven searches, of training and evaluation.
	export FAKE_CUDNN_SEARCH_MS=1600 RANK_2_FAKE_CUDA_NAME=Other RANK_3_FAKE_CUDA_NAME=Other
	RANK_2_FAKE_CUDNN_SEARCH_MS=10 gpus 4 --comm-timeout 2s --epochs 2 --ckpt first
	[ "$(searches)" = "7 0 7 0" ]
	gpus 4 --comm-timeout 2s --epochs 2 --ckpt second
	[ "$(searches)" = "0 0 0 0" ]
	same first second
	# A rank that cannot build: all end soon, with its message.
	unset FAKE_CUDNN_SEARCH_MS
	for rank in 0 1; do
		seconds=$SECONDS
		run env "RANK_${rank}_FAKE_CUDA_MIB=8" timeout 60 "$BERTH" run -n 3 -- \
			./gpu "$BUILD/bin/berth-train" "${NET[@]}" --device cuda --steps 2
		echo "$output"
		[ "$status" != 0 ] && [ "$status" != 124 ]
		[ $((SECONDS - seconds)) -lt 45 ]
		[ "$(grep -c '^berth-train: error' <<<"$output")" = 1 ]
		[[ "$output" == *"berth-train: error: rank $rank: "*"GPU memory"* ]]
	done
}

# refused PATTERN RANKS OPTIONS: all ranks end within seconds, with one message from berth-train
refused() {
	local seconds=$SECONDS
	# shellcheck disable=SC2016 # expands in the rank
	run ${BERTH_PREFIX-} timeout 60 "$BERTH" run -n "$2" -- \
		./gpu sh -c 'exec "${TRAINER-$BUILD/bin/berth-train}" "$@"' sh "${NET[@]}" --steps 2 "${@:3}"
	echo "$output"
	[ "$status" = 69 ]
	[ $((SECONDS - seconds)) -lt 45 ]
	[ "$(grep -c '^berth-train: error' <<<"$output")" = 1 ]
	grep -Eq "$1" <<<"$output"
}

@test "a rank without a GPU, or without NCCL: no rank goes on, and the message names rank, node and cause" {
	setup_gpus
	RANK_1_FAKE_CUDA_COUNT=0 refused 'rank 1: no GPU is visible to this process' 3 --device cuda
	RANK_0_FAKE_CUDA_COUNT=0 refused 'rank 0: no GPU is visible to this process' 2 --device cuda
	mkdir -p bin lib/modules
	cp "$BUILD/bin/berth-train" bin
	cp "$BUILD/lib/modules/"{comm-gloo,device-cpu}.so "$BUILD/tests/train/fake-cuda/device-cuda.so" lib/modules
	RANK_1_TRAINER=$PWD/bin/berth-train RANK_1_BERTH_MODULE_PATH='' refused \
		'rank 0 on [^ ]* would communicate over nccl, but rank 1 on [^ ]* gloo \(module comm-nccl.so is not installed' 2 --device cuda
	# --device auto looks for a driver first.
	unshare -m mount -t tmpfs none /proc/driver || skip "cannot pretend that there is a driver"
	pretended() {
		unshare -m sh -c 'mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia && : >/proc/driver/nvidia/version && exec "$@"' sh "$@"
	}
	BERTH_PREFIX=pretended
	RANK_1_FAKE_CUDA_COUNT=0 refused 'rank 0 on [^ ]* would train on cuda, but rank 1 on [^ ]* cpu \(no GPU is visible to this process' 2
	pretended timeout 60 env FAKE_CUDA_COUNT=0 "$BERTH" run -n 2 -- ./gpu "$BUILD/bin/berth-train" "${NET[@]}" --steps 2 2>err
	grep -q 'note: not using a GPU: no GPU is visible to this process' err
}
