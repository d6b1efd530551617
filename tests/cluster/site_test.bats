# SPDX-License-Identifier: BSD-3-Clause
# berth site-test with a real Slurm, and with the stand-in for PBS.

load support.bash

setup() {
	cd "$SHARE" || return
	export HOME=$SHARE/home OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
	allow_leaks
	mkdir -p "$HOME/.config/berth"
	RESULTS=$SHARE/site/results
	rm -rf "$SHARE/site"
}

teardown() {
	cat "$SHARE/site/job.log" "$SHARE"/site/logs/{GPUs,requeue}.log 2>/dev/null || true
	cancel_jobs
}

complete() { grep -qs 'passed, .* failed' "$RESULTS" || start_requeued "$1"; }

# verdict VERDICT NAME: the results have this line, once.
verdict() {
	[ "$(grep -cE "^$1 +$2( |\$)" "$RESULTS")" -eq 1 ] || {
		echo "expected one line $1 $2"
		false
	}
}

# what both schedulers have
verdicts() {
	local name gpus=SKIP failed=2
	for name in 'check checkpoint' 'check network' 'check ring' 'PMIx program' 'MPI program' 'checkpoint saved' \
		'checkpoint resumed' requeue; do
		verdict PASS "$name"
	done
	# Simulated: the GPUs, and a NIC that no node of the cluster can use.
	if [[ " $MODULES " == *" device-cuda "* ]]; then gpus=FAIL failed=3; fi
	verdict $gpus GPUs
	verdict FAIL 'check plugin'
	verdict FAIL 'network hsn0x'
	grep -q "[1-9][0-9]* passed, $failed failed, [0-9]* skipped" "$RESULTS"
	echo y | "$BERTH" site-test --out "$SHARE/site" --bundle "$SHARE/site.xml" >"$SHARE/shown"
	cmp "$SHARE/shown" "$SHARE/site.xml"
	grep -q 'name="BerthResult" value="PASS requeue, [0-9]* s"' "$SHARE/site.xml"
	grep -q 'name="BerthNic" value="net hsn0 .* kind slingshot' "$SHARE/site.xml"
	grep -E '\<n[12]\>|10\.[0-9]+\.|/run|berth-cluster' "$SHARE/site.xml" >"$SHARE/names" || true
	cat "$SHARE/names"
	[ ! -s "$SHARE/names" ]
	rm "$SHARE/site.xml"
}

@test "Slurm: one job tries launchers, networks and programs, and is requeued" {
	expect 0 "$BERTH" site-test --out "$SHARE/site" -- --queue all
	within 180 complete "${output##* }"
	verdict PASS 'launcher srun'
	verdict PASS 'launcher mpirun'
	verdict SKIP 'launcher ssh'
	verdicts
}

@test "PBS: the same job" {
	submit_to_pbs "PBS_CONF_FILE=$CLUSTER/share/pbs/pbs.conf ASAN_OPTIONS=$ASAN_OPTIONS"
	expect 0 "$BERTH" site-test --out "$SHARE/site" -- --cpus-per-node 2
	within 180 complete ''
	verdict PASS 'launcher tm'
	verdicts
}
