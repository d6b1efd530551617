#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# The device: how it is reported and chosen, what happens without it, and that runs give the same bits.
load support

SMALL=(--data synthetic:3x8x8,n=40,classes=5 --batch 8 --no-eval)

# fast: is the device on oneDNN built?
fast() {
	[[ " $MODULES " == *" device-cpu "* ]]
}

@test "the device is named, with its library and its threads" {
	fast || skip "device-cpu.so is not built"
	OMP_NUM_THREADS=2 expect 0 "$BUILD/bin/berth-train" linear "${SMALL[@]}" --steps 1
	[[ "$output" =~ computing\ on\ cpu\ \(oneDNN\ [23]\.[0-9.]+,\ (base|avx2|avx512),\ 2\ threads\) ]]
	OMP_NUM_THREADS=1 run "$BUILD/bin/berth-train" linear "${SMALL[@]}" --steps 1 --device cpu
	[[ "$output" =~ ,\ 1\ thread\) ]]
}

@test "idle threads of OpenMP soon sleep, unless the user has set how they wait" {
	fast || skip "device-cpu.so is not built"
	ldd "$BUILD/lib/modules/device-cpu.so" | grep -q libgomp || skip "device-cpu.so uses another OpenMP than GCC's"
	spins() { # VARIABLES...
		expect 0 env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT OMP_DISPLAY_ENV=verbose "$@" \
			"$BUILD/bin/berth-train" linear "${SMALL[@]}" --steps 1 --device cpu
		[[ "$output" =~ GOMP_SPINCOUNT\ =\ \'([0-9]+|INFINITY)\' ]]
	}
	spins
	[ "${BASH_REMATCH[1]}" = 3000 ]
	spins GOMP_SPINCOUNT=7
	[ "${BASH_REMATCH[1]}" = 7 ]
	spins OMP_WAIT_POLICY=passive
	[ "${BASH_REMATCH[1]}" = 0 ]
}

@test "without the module: what is missing, and exit code 69" {
	cp "$BUILD/bin/berth-train" .
	unset BERTH_MODULE_PATH
	for device in auto cpu; do
		expect 69 ./berth-train linear "${SMALL[@]}" --steps 3 --device "$device"
		[[ "$output" == *"berth train needs a GPU or, on CPUs, oneDNN (Debian: libdnnl-dev, then rebuild berth): module device-cpu.so "* ]]
	done
	expect 69 ./berth-train linear "${SMALL[@]}" --steps 3 --device cpu-reference
	[[ "$output" == *"device-cpu-reference.so"* ]]
}

@test "the same seed gives the same bits in each run, with each --cpu-conv" {
	fast || skip "device-cpu.so is not built"
	for conv in auto direct; do
		for run in one two; do
			# At the default of --lr, a rounding is magnified to more than 1e-2 within a few steps.
			expect 0 env OMP_NUM_THREADS=2 "$BUILD/bin/berth-train" resnet18 --stem cifar "${SMALL[@]}" \
				--steps 4 --lr 0.01 --cpu-conv "$conv" --ckpt "$conv.$run" --metrics "$conv.$run"
		done
		cmp "$conv.one/step-00000004.safetensors" "$conv.two/step-00000004.safetensors"
		same_rows "$conv.one" "$conv.two"
	done
	near_rows auto.one direct.one 1e-3
	# Winograd's algorithm is used where there is one.
	[[ ! "$output" =~ avx ]] || expect 1 cmp -s auto.one/step-00000004.safetensors direct.one/step-00000004.safetensors
}

@test "unknown devices and convolution algorithms" {
	expect 64 "$BUILD/bin/berth-train" linear "${SMALL[@]}" --device gpu
	[[ "$output" =~ "unknown device 'gpu'" ]]
	expect 64 "$BUILD/bin/berth-train" linear "${SMALL[@]}" --cpu-conv winograd
	[[ "$output" =~ "expected auto or direct" ]]
}

@test "without a GPU, --device cuda fails with one message, and auto continues without it" {
	[ ! -e /dev/nvidiactl ] || skip "there is an NVIDIA driver here"
	expect 69 "$BUILD/bin/berth-train" linear "${SMALL[@]}" --steps 1 --device cuda
	[ "${#lines[@]}" -eq 1 ]
	if [[ " $MODULES " == *" device-cuda "* ]]; then
		[[ "$output" =~ "the NVIDIA driver is not installed" ]]
	else
		[[ "$output" =~ "device-cuda.so" ]]
	fi
	expect 0 "$BUILD/bin/berth-train" linear "${SMALL[@]}" --steps 1
	[[ ! "$output" =~ "not using a GPU" ]]
}

@test "16-bit training requires a GPU: the CPU refuses it" {
	expect 64 "$BUILD/bin/berth-train" linear "${SMALL[@]}" --steps 1 --device cpu --amp bf16
	[[ "$output" =~ "--amp requires a GPU" ]]
	expect 64 "$BUILD/bin/berth-train" linear "${SMALL[@]}" --steps 1 --amp int8
	[[ "$output" =~ "off, bf16 or fp16" ]]
	expect 64 "$BUILD/bin/berth-train" linear "${SMALL[@]}" --steps 1 --device cpu --tf32
	[[ "$output" =~ "--tf32 requires a GPU" ]]
	expect 64 "$BUILD/bin/berth-train" linear "${SMALL[@]}" --steps 1 --amp fp16 --tf32
	[[ "$output" =~ "--tf32 has no effect with --amp fp16, which multiplies in 16 bits" ]]
}
