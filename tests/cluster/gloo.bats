# SPDX-License-Identifier: BSD-3-Clause
# berth train over gloo on several nodes: which network it uses, and how it names a rank that is lost.

load support.bash

teardown() {
	cancel_jobs
	undo
	print_logs
}

# endless NAME OPTIONS: a training on n1 and n2 that never ends by itself, once it has logged some steps
endless() {
	rm -rf "${SHARE:?}/$1"
	submit "$1" -N2 -w n1,n2 <<-S
	"\$BERTH" train linear --comm gloo --ranks-per-node 1 --data synthetic:1x16x16,n=640,classes=5 --steps 100000000 --no-eval \
		--log-every 20 --metrics "$SHARE/$1" --comm-timeout 5s ${*:2}
	S
	wait_for "$SHARE/$1/metrics.jsonl" 3
}

@test "gloo's connections use the fast network alone; a rank on another node that hangs is named with it" {
	endless hangs
	on n1 ss -tnpH state established | awk '/berth-train/ { print $3, $4 }' >"$SHARE/sockets"
	cat "$SHARE/sockets"
	grep -q '^10\.9\.0\.11:[0-9]* 10\.9\.0\.12:' "$SHARE/sockets"
	grep -v '127\.0\.0\.1:' "$SHARE/sockets" | grep -qv '^10\.9\.0\.11:' && return 1
	on n2 kill -STOP "$(on n2 pgrep -x berth-train)"
	finish hangs
	[ "$status" = 76 ]
	has 'rank 0 on n1 waited 5 s in a collective; missing ranks: 1 on n2\.'
}

@test "a node that is cut off: its rank is named with it" {
	endless cut
	on n2 ip link set hsn0 down
	finish cut
	on n2 ip link set hsn0 up
	[ "$status" = 76 ]
	has 'missing ranks: 1 on n2\.'
}

@test "a lost node is replaced by a spare one, and the training continues from its checkpoint" {
	rm -rf "$SHARE/spare" "$SHARE/spare.go"
	submit spare -N3 --no-kill <<-S
	"\$BERTH" train linear --comm gloo --ranks-per-node 1 --spares 1 --max-restarts 1 --data synthetic:1x16x16,n=640,classes=5 \
		--steps 6000 --no-eval --log-every 20 --ckpt "$SHARE/spare" --save-every 100 --metrics "$SHARE/spare" --comm-timeout 20s
	S
	within 60 test -e "$SHARE/spare/latest"
	for process in $(on n2 pgrep -x berth); do on n2 kill -KILL "$process"; done
	finish spare
	[ "$status" = 0 ]
	has 'n2 is excluded \(lost\): spare node n3 replaces it'
	has 'resuming from .*step-0000'
	has '2 ranks over gloo'
	[ -e "$SHARE/spare/step-00006000.safetensors" ]
}
