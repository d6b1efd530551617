# SPDX-License-Identifier: BSD-3-Clause
# What remains when a training cannot begin, cannot save, or meets another's checkpoints.

setup() {
	[ -z "$SANITIZED" ] || export ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0"
	cd "$BATS_TEST_TMPDIR"
	made="--data synthetic:1x28x28,n=64,classes=10 --batch 8 --no-eval"
}

@test "a checkpoint of another network is kept when the same step is saved" {
	"$BERTH" train linear -n 1 $made --steps 3 --ckpt c
	before=$(sha256sum <c/step-00000003.safetensors)
	run "$BERTH" train convnet -n 1 $made --steps 3 --ckpt c
	[ "$status" -eq 0 ]
	[[ "$output" == *"kept as c/step-00000003.safetensors.1"* ]]
	[ "$(sha256sum <c/step-00000003.safetensors.1)" = "$before" ]
	# Its own is no foreign one.
	run "$BERTH" train convnet -n 1 $made --steps 3 --ckpt c
	[ "$status" -eq 0 ]
	[ ! -e c/step-00000003.safetensors.2 ]
}

@test "the rank that could not begin is named, not the one that waited for it" {
	case " $MODULES " in *comm-mpi*) ;; *) skip "built without MPI" ;; esac
	touch file
	run "$BERTH" train linear -n 2 $made --steps 3 --ckpt file/c --report r.json
	[ "$status" -eq 73 ]
	[[ "${lines[-1]}" == "berth: rank 0 on "*" ended with code 73" ]]
	grep -q '"rank": 0' r.json
}
