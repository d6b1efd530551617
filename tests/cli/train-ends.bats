# SPDX-License-Identifier: BSD-3-Clause
# A training that cannot start, cannot save, or finds checkpoints of another network.

load ../support/berth

setup() {
	make_dir
	allow_leaks
	made="--data synthetic:1x28x28,n=64,classes=10 --batch 8 --no-eval"
}

@test "a directory with checkpoints of another network is refused; --resume never keeps them" {
	"$BERTH" train linear -n 1 $made --steps 3 --ckpt c
	before=$(sha256sum <c/step-00000003.safetensors)
	expect 65 "$BERTH" train convnet -n 1 $made --steps 3 --ckpt c
	[[ "$output" == *"c/step-00000003.safetensors holds linear with 10 classes, but this run trains convnet"*"--resume never"* ]]
	expect 0 "$BERTH" train convnet -n 1 $made --steps 3 --ckpt c --resume never
	[[ "$output" == *"kept as c/step-00000003.safetensors.1"* ]]
	[ "$(sha256sum <c/step-00000003.safetensors.1)" = "$before" ]
	# Its own checkpoint is not foreign.
	expect 0 "$BERTH" train convnet -n 1 $made --steps 3 --ckpt c
	[ ! -e c/step-00000003.safetensors.2 ]
}

@test "an empty directory name is refused, not taken for the root directory" {
	for option in --metrics= --ckpt=; do
		expect 64 "$BERTH" train linear -n 1 $made --steps 1 "$option"
	done
	for report in "" .; do
		expect 73 "$BERTH" run -n 1 --report="$report" -- touch ran
		[ ! -e ran ]
	done
}

@test "ranks with data of different sizes report it and do not wait for each other" {
	case " $MODULES " in *comm-mpi*) ;; *) skip "built without MPI" ;; esac
	run "$BERTH" run -n 2 -- sh -c \
		"exec '$BUILD/bin/berth-train' linear --data synthetic:1x8x8,n=\$((64 + RANK)),classes=3 --steps 2"
	echo "$status: $output"
	[ "$status" -eq 65 ]
	[[ "$output" == *"differ in the number of training samples (--data): rank 0 has 64, rank 1 has 65."* ]]
}

@test "a checkpoint without checksums is skipped; metrics rows after damage stay" {
	"$BERTH" train linear -n 1 $made --steps 2 --ckpt c --metrics m --log-every 1
	head -c 40 /dev/zero >hole
	{ head -n 1 m/metrics.jsonl; cat hole; echo; tail -n +2 m/metrics.jsonl; } >new
	mv new m/metrics.jsonl
	"$BERTH" train linear -n 1 $made --steps 3 --ckpt c --metrics m --log-every 1
	grep -q '"step": 2' m/metrics.jsonl
	! grep -q "$(printf '\\x00')" -P m/metrics.jsonl || false
	rm c/latest c/step-00000002.safetensors
	sed -i 's/berth.header_crc32c/berth.header_crc32d/' c/step-00000003.safetensors
	expect 0 "$BERTH" train linear -n 1 $made --steps 3 --ckpt c
	[[ "$output" == *"skipped"*"the file is damaged"* ]]
}

@test "a run that --steps stopped within an epoch resumes to the same bits" {
	many="--data synthetic:1x8x8,n=64,classes=3 --batch 8 --no-eval --schedule cosine"
	"$BERTH" train linear -n 1 $many --steps 20 --ckpt whole
	"$BERTH" train linear -n 1 $many --steps 5 --ckpt parts
	"$BERTH" train linear -n 1 $many --steps 20 --ckpt parts
	cmp whole/step-00000020.safetensors parts/step-00000020.safetensors
}

@test "the rank that could not start is named, not the one that waited for it" {
	case " $MODULES " in *comm-mpi*) ;; *) skip "built without MPI" ;; esac
	touch file
	expect 73 "$BERTH" train linear -n 2 $made --steps 3 --ckpt file/c --report r.json
	[[ "${lines[-1]}" == "berth: error: rank 0 on "*" exited with code 73" ]]
	grep -q '"rank": 0' r.json
}
