# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2034 # variables of the tests
# For the files about the checkpoint directory: checkpoints.bats, checkpoint_lease.bats, checkpoint_faults.bats.
load support

# job DIRECTORY ARGUMENTS: 20 steps per epoch, one rank without MPI
job() {
	timeout 60 "$BUILD/bin/berth-train" convnet --data "$DATA" --batch 32 --epochs 2 --log-every 1000 \
		--ckpt "$@"
}

# names DIRECTORY: its files, without leases
names() { (cd "$1" && ls -A -I '.lease-*' | tr '\n' ' '); }
# steps DIRECTORY: 7 14 21
steps() { (cd "$1" && printf '%s\n' step-*.safetensors | sed 's/step-0*\(.*\).safetensors/\1/' | tr '\n' ' '); }

# lease DIRECTORY: its highest file
lease() { printf '%s\n' "$1"/.lease-* | tail -n 1; }
# holder DIRECTORY: the process that has the lease
holder() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$(lease "$1")"; }

# stalling KIND PATH ARGUMENTS: train in c; while the FIFO flag exists, calls of that KIND on PATH block
stalling() {
	# shellcheck disable=SC2046 # words
	env $(stalls "$1" "$2") timeout 200 "$BUILD/bin/berth-train" linear --data "$DATA" --no-eval --ckpt c "${@:3}"
}
