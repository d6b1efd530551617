# SPDX-License-Identifier: BSD-3-Clause
# Little stack and memory, of which sanitizers need more.
load ../support/berth

@test "a small stack: berth's own threads have theirs, and the ranks the limit" {
	unset BERTH_TOPOLOGY # a thread discovers the machine
	run bash -c 'ulimit -Ss 256; "$BERTH" run -n 2 -q -- sh -c "ulimit -Ss"'
	echo "$output"
	[ "$status" -eq 0 ]
	[ "$(grep -cx 256 <<<"$output")" -eq 2 ]
}

@test "a batch that does not fit memory: exit code 69 and what to try" {
	expect 69 sh -c "ulimit -v 4000000; timeout 60 '$BUILD/bin/berth-train' linear --data synthetic:3x224x224,n=10 --batch 1000000"
	[[ "$output" == *"out of memory for batches: 1 x 1000000 samples of 588 KiB; use a smaller --batch"* ]]
}
