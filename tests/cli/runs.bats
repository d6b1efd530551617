# SPDX-License-Identifier: BSD-3-Clause
# Several runs at once: each uses GPUs that no other run of the job uses. The GPUs are those of a topology file;
# two nodes: tests/cluster/slurm.bats.

load ../support/berth

setup() {
	make_dir
	unset BERTH_RUN
	export BERTH_TOPOLOGY="$FIXTURES/topo/locality-machine.xml" # four GPUs
}

# hold NAME RANKS OPTIONS: a run that holds its GPUs until the file NAME.go exists; NAME.RANK is a rank's first GPU.
hold() {
	local name=$1 ranks=$2 rank
	shift 2
	# shellcheck disable=SC2016 # a rank expands it
	"$BERTH" run -n "$ranks" "$@" -- sh -c 'echo "${CUDA_VISIBLE_DEVICES%%,*}" >'"$name"'.part$RANK && mv '"$name"'.part$RANK '"$name"'.$RANK
		until [ -e '"$name"'.go ]; do sleep 0.05; done' 2>"$name.err" 3>&- &
	held=$!
	for ((rank = 0; rank < ranks; rank++)); do wait_for "$name.$rank" 1; done
}

@test "runs at once get different GPUs, and one rank per free GPU by default; too few are shared, or refused" {
	hold a 1
	a=$held
	hold b 2 --gpus-visible own
	b=$held
	[ "$(sort -u a.0 b.0 b.1 | wc -l)" = 3 ]
	expect 0 "$BERTH" run -- sh -c 'echo "$RANK/$WORLD_SIZE on $CUDA_VISIBLE_DEVICES"'
	[[ "$output" == *"berth: note: 3 of 4 GPUs are used by other runs of this job (process "*"; these ranks use the others"* ]]
	grep -qx "0/1 on [0-3]" <<<"$output"
	[ "$(sort -u a.0 b.0 b.1 <(sed -n 's/^0.1 on //p' <<<"$output") | wc -l)" = 4 ]
	expect 69 "$BERTH" run -n 2 --share no -- true
	local used="3 of 4 GPUs are used by other runs of this job (process "
	[[ "$output" == *"$used"*" on $HOST, since "*"), and --share no refuses to share them"* ]]
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
	hold a 4
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

@test "an agent's directory is removed in mid run: it comes back with the claim, and the ranks get their stop file in it" {
	"$BERTH" run -n 2 --gpus-per-rank 2 --stop-grace 30s -- \
		sh -c 'trap "" TERM; : >up.$RANK; until [ -e "$BERTH_STOP_FILE" ]; do sleep 0.05; done; exit 75' 2>err &
	local pid=$!
	within 30 test -e up.0 -a -e up.1
	rm -r "$TMPDIR"/berth-??????
	within 30 grep -q 'was removed while the job ran; it was made again' err
	expect 69 "$BERTH" run -n 1 --share no -- true
	[[ $output == *"--share no refuses to share them"* ]]
	kill -TERM $pid
	ends 75 $pid err
	[ -z "$(find "$TMPDIR" -maxdepth 1 -name 'berth-*')" ]
}

@test "GPUs that cannot be claimed: a note, and the run starts" {
	mkdir "$TMPDIR/berth-claims-$(id -u)"
	expect 0 "$BERTH" run -n 2 -- sh -c 'echo "rank $RANK"'
	grep -qx 'rank 1' <<<"$output"
	local note="other runs of this job may use the same GPUs, because these cannot be claimed: "
	note+="cannot lock $TMPDIR/berth-claims-"
	[[ "$output" == *"$note"*": Is a directory"* ]]
}

# waiter NAME NOTE OPTIONS: a run that waits, and has said so; it then holds its GPUs as hold's.
waiter() {
	local name=$1 note=$2
	shift 2
	# shellcheck disable=SC2016
	"$BERTH" run --wait "$@" -- sh -c 'echo "$CUDA_VISIBLE_DEVICES" >'"$name"'.part$RANK && mv '"$name"'.part$RANK '"$name"'.$RANK
		until [ -e '"$name"'.go ]; do sleep 0.05; done; echo '"$name"' >>order' 2>"$name.err" 3>&- &
	held=$!
	within 30 grep -qs "$note" "$name.err" || { cat "$name.err"; return 1; }
}

@test "--wait: first come, first served, also if a later run would fit; each sees its own GPUs only" {
	hold a 3
	a=$held
	waiter b 'berth: note: waiting for 4 GPUs: 3 of 4 GPUs are used by other runs of this job (process ' -n 4
	b=$held
	waiter c 'berth: note: waiting for 1 GPU: 1 run before this one' -n 1
	c=$held
	waiter d 'berth: note: waiting for 4 GPUs: 2 runs before this one'
	d=$held
	expect 69 "$BERTH" run --wait=1s -n 1 -- true
	[[ "$output" == *"waited for 1 s (--wait): 3 of 4 GPUs are used by other runs"* ]]
	expect 0 "$BERTH" info
	grep -qE "^  GPU [0-3,-]+ +process $a on $HOST, since " <<<"$output"
	[ "$(grep -c '^  nothing yet: it waits  process ' <<<"$output")" = 3 ]
	"$BERTH" info --json >info.json
	[ "$(python3 -c 'import json; print(sorted(len(c.get("uses", [])) for c in json.load(open("info.json"))["runs"]))')" = '[0, 0, 0, 3]' ]
	kill -INT "$d"
	rc=0
	wait "$d" || rc=$?
	[ "$rc" = 130 ]
	[ ! -e b.0 ]
	[ ! -e c.0 ]
	touch a.go
	wait "$a"
	wait_for b.0 1
	[ ! -e c.0 ]
	touch b.go c.go
	wait "$b"
	wait "$c"
	printf 'b\nb\nb\nb\nc\n' | cmp - order
	[[ "$(<c.0)" == ? ]]
	[ -z "$(find "$TMPDIR" -maxdepth 1 -name 'berth-*')" ]
}

@test "--wait: many runs, some of them killed: no GPU is used twice, and nothing is left" {
	pids=()
	for i in $(seq 40); do
		# A lock on a file per GPU shows a second user.
		# shellcheck disable=SC2016
		"$BERTH" run --wait -n $((i % 3 ? 1 : 2)) -- sh -c 'gpu=$(printf %s "$CUDA_VISIBLE_DEVICES" | cut -d, -f$((LOCAL_RANK + 1)))
			exec 8>gpu.$gpu; flock -n 8 || echo "$gpu" >>clashes
			echo $$ >>ranks; sleep 0.2' >out.$i 2>err.$i 3>&- &
		pids+=($!)
	done
	# Kill runs that wait, runs that use GPUs, and agents.
	for i in 3 9 17 33; do
		wait_for ranks $i || true
		kill -KILL "${pids[i]}" "${pids[i / 3]}" 2>/dev/null || true
		guard=$(pgrep -P "${pids[i + 1]}" -x berth-guard | head -n 1)
		[ -z "$guard" ] || pkill -KILL -P "$guard" || true
	done
	ended=0
	for pid in "${pids[@]}"; do ! wait "$pid" 2>/dev/null || ended=$((ended + 1)); done
	[ ! -e clashes ] || { cat clashes; return 1; }
	[ "$ended" -ge 28 ]
	within 30 "$BERTH" run -n 4 --share no -- true
	grep -qh 'note: waiting: [0-9]* runs before this one' err.*
}

@test "--wait without GPUs: as many runs at once as there are slots, on cores of their own" {
	export BERTH_TOPOLOGY="$FIXTURES/topo/no-gpu.xml"
	# shellcheck disable=SC2016
	count=$("$BERTH" run -- sh -c '[ "$RANK" != 0 ] || echo "$WORLD_SIZE"' 2>/dev/null)
	for i in $(seq "$count"); do
		# shellcheck disable=SC2016
		"$BERTH" run --wait -n 1 -- sh -c 'cp "$BERTH_PLAN_FILE" '"$i"'.plan; echo >'"$i"'.0
			until [ -e go ]; do sleep 0.05; done' 2>$i.err 3>&- &
		wait_for $i.0 1 || { cat $i.err; return 1; }
	done
	[ "$(grep -ho '"cpus":[^,]*' ./*.plan | sort -u | wc -l)" = "$count" ]
	expect 69 "$BERTH" run --wait=1s -n 1 -- true
	[[ "$output" == *"waiting for "*" core"*": "*" cores are used by other runs of this job (process "* ]]
	touch go
	expect 0 "$BERTH" run --wait -- true
	wait
}

@test "--min-time: exit code 75 if less is left; --wait and --min-time with bad values" {
	expect 75 "$BERTH" run --end-time +60s --min-time 2m -n 1 -- sh -c 'echo started'
	[[ "$output" == *"berth: note: next: submit the job again: this run has not started"* ]]
	[[ "$output" == *"berth: note: not started: the job's time limit is reached in "*" s, and the run needs 120 s (--min-time)"* ]]
	! grep -qx started <<<"$output" || return 1
	expect 75 "$BERTH" run --end-time +60s --wait --warn-before 2m -n 1 -- true
	[[ "$output" == *"the run needs 120 s (--warn-before)"* ]]
	expect 0 "$BERTH" run --end-time +60s --min-time 10s -n 1 -- true
	for bad in --wait=0 --wait=soon --wait=-5m '--wait=5 m' --min-time=0 --min-time=x --min-time=; do
		expect 64 "$BERTH" run "$bad" -n 1 -- true
		[[ "$output" == *"${bad%%=*}"* ]]
	done
	expect 64 "$BERTH" run --wait 5m -- true
	[[ "$output" == *"--wait 5m: write --wait=5m"* ]]
	expect 64 "$BERTH" run --wait --launcher loopback -N 2 -- true
	[[ "$output" == *"simulated nodes"* ]]
	expect 64 "$BERTH" run --wait --nnodes 2 --node-rank 0 --rdzv-endpoint 127.0.0.1:4000 -- true
	[[ "$output" == *"--wait has no effect on machines on which you start berth run yourself"* ]]
}
