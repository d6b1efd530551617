# SPDX-License-Identifier: BSD-3-Clause
# Several runs at once: each uses GPUs that no other run of the job uses. The GPUs are those of a topology file;
# two nodes: tests/cluster/slurm.bats.

load ../support/berth

setup() {
	make_dir
	unset BERTH_RUN
	export BERTH_TOPOLOGY="$FIXTURES/topo/locality-machine.xml" # four GPUs
}

# hold NAME OPTIONS: a run that holds its GPUs until the file NAME.go exists; NAME.RANK is its first GPU.
hold() {
	local name=$1
	shift
	# shellcheck disable=SC2016 # a rank expands it
	"$BERTH" run "$@" -- sh -c 'echo "${CUDA_VISIBLE_DEVICES%%,*}" >'"$name"'.part$RANK && mv '"$name"'.part$RANK '"$name"'.$RANK
		until [ -e '"$name"'.go ]; do sleep 0.05; done' 2>"$name.err" 3>&- &
	held=$!
	wait_for "$name.0" 1
}

@test "runs at once get different GPUs, and one rank per free GPU by default; too few are shared, or refused" {
	hold a -n 1
	a=$held
	hold b -n 2 --gpus-visible own
	b=$held
	[ "$(sort -u a.0 b.0 b.1 | wc -l)" = 3 ]
	expect 0 "$BERTH" run -- sh -c 'echo "$RANK/$WORLD_SIZE on $CUDA_VISIBLE_DEVICES"'
	[[ "$output" == *"berth: note: 3 of 4 GPUs are used by other runs of this job (process "*"; these ranks use the others"* ]]
	grep -qx "0/1 on [0-3]" <<<"$output"
	[ "$(sort -u a.0 b.0 b.1 <(sed -n 's/^0.1 on //p' <<<"$output") | wc -l)" = 4 ]
	expect 69 "$BERTH" run -n 2 --share no -- true
	[[ "$output" == *"3 of 4 GPUs are used by other runs of this job (process "*" on $HOST, since "*"), and --share no refuses to share them"* ]]
	expect 0 "$BERTH" run -n 2 -- sh -c 'echo "$RANK on $CUDA_VISIBLE_DEVICES"'
	[[ "$output" == *"berth: warning: 3 of 4 GPUs are used "*"they share GPUs with the other runs"* ]]
	grep -qx '1 on .,.,.,.' <<<"$output"
	expect 64 "$BERTH" run --share maybe -- true
	# A run ends in any way: its GPUs are free.
	kill -KILL "$a"
	wait "$a" || true
	free() { "$BERTH" run -n 2 --share no -- true 2>err; }
	within 30 free || { cat err; return 1; }
	touch b.go
	wait "$b"
	expect 0 "$BERTH" run -n 4 --share no -- true
	[[ "$output" != *"are used by"* ]]
}

@test "controller and agent are killed: no run gets their GPUs before the ranks are gone" {
	hold a -n 4
	guard=$(pgrep -P "$held" -x berth-guard)
	agent=$(pgrep -P "$guard")
	ranks=$(pgrep -P "$agent" sh)
	kill -STOP "$guard" "$agent"
	kill -KILL "$held" "$agent"
	wait "$held" || true
	# shellcheck disable=SC2086 # several
	kill -0 $ranks
	expect 69 "$BERTH" run -n 1 --share no -- true
	kill -CONT "$guard"
	free() { "$BERTH" run -n 4 --share no -- true 2>err; }
	within 30 free || { cat err; return 1; }
	for pid in $ranks; do ! kill -0 "$pid" || return 1; done
}

@test "twenty runs at once on four GPUs: all start, no GPU is used twice while others are free" {
	pids=()
	for i in $(seq 20); do
		# shellcheck disable=SC2016
		"$BERTH" run -n 1 -- sh -c 'date +%s%N; sleep 0.2; date +%s%N; echo "${CUDA_VISIBLE_DEVICES%%,*}"' >out.$i 2>err.$i 3>&- &
		pids+=($!)
	done
	for pid in "${pids[@]}"; do wait "$pid" || { cat err.*; return 1; }; done
	[ "$(cat out.* | wc -l)" = 60 ]
	python3 - <<-'P'
	runs = []
	for i in range(1, 21):
	    begin, end, gpu = open(f'out.{i}').read().split()
	    runs.append((int(begin), int(end), gpu, 'they share GPUs' in open(f'err.{i}').read()))
	clashes = [(a, b) for i, a in enumerate(runs) for b in runs[:i]
	           if a[2] == b[2] and a[0] < b[1] and b[0] < a[1] and not a[3] and not b[3]]
	assert not clashes, clashes
	assert len({r[2] for r in runs}) == 4, runs
	P
	[ -z "$(find "$TMPDIR" -maxdepth 1 -name 'berth-*')" ]
}

@test "a run inside a run uses the outer run's GPUs" {
	expect 0 "$BERTH" run -n 1 --gpus-per-rank 4 -- "$BERTH" run -n 2 --share no -- sh -c 'echo "$RANK of $WORLD_SIZE"'
	grep -qx '1 of 2' <<<"$output"
}

@test "GPUs that cannot be claimed: a note, and the run starts" {
	mkdir "$TMPDIR/berth-claims-$(id -u)"
	expect 0 "$BERTH" run -n 2 -- sh -c 'echo "rank $RANK"'
	grep -qx 'rank 1' <<<"$output"
	[[ "$output" == *"other runs of this job may use the same GPUs, because these cannot be claimed: cannot lock $TMPDIR/berth-claims-"*": Is a directory"* ]]
}
