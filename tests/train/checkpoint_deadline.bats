# SPDX-License-Identifier: BSD-3-Clause
# The deadline of a checkpoint directory that does not answer. It lasts a minute.

load checkpoints.bash

@test "a checkpoint directory that does not answer for 60 s: exit code 74 and its name" {
	job c --steps 3 --no-eval
	mkfifo flag
	begin=$SECONDS
	expect 74 stalling stall-open c/latest
	[[ "$output" == *"berth-train: error: c: the file system has not responded for 60 s."* ]]
	[ $((SECONDS - begin)) -ge 60 ]
	[ $((SECONDS - begin)) -le 180 ]
	rm flag
	expect 0 job c --steps 6 --no-eval
}
