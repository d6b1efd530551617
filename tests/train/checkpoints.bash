# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2034 # variables of the tests
# For the files about the checkpoint directory: checkpoints.bats, checkpoint_owner.bats, checkpoint_faults.bats.
load support

# job DIRECTORY ARGUMENTS: 20 steps per epoch, one rank without MPI
job() {
	timeout 60 "$BUILD/bin/berth-train" convnet --data "$DATA" --batch 32 --epochs 2 --log-every 1000 \
		--ckpt "$@"
}

names() { (cd "$1" && ls -A | tr '\n' ' '); }
# steps DIRECTORY: 7 14 21
steps() { (cd "$1" && printf '%s\n' step-*.safetensors | sed 's/step-0*\(.*\).safetensors/\1/' | tr '\n' ' '); }
