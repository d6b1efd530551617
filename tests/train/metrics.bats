# SPDX-License-Identifier: BSD-3-Clause
# metrics.jsonl and TensorBoard's event files: their content at the end, after a stop, and for NaN.

load support

events() {
	python3 "$SOURCE/tests/train/events.py" "$@"
}

@test "each row has its keys, and the event files hold the same" {
	train convnet -n 2 --data "$DATA" --batch 16 --epochs 2 --metrics m
	python3 - <<'PY'
import json
import time
rows = [json.loads(line) for line in open('m/metrics.jsonl')]
times = [row['time'] for row in rows]
assert times == sorted(times) and time.time() - 600 < times[0] and times[-1] <= time.time(), times
assert len(rows) == 42, len(rows)
common = {'split', 'time', 'step', 'epoch', 'loss', 'lr', 'images_per_s', 'data_wait_ms'}
for row in rows:
    own = {'acc1', 'acc5'} if row['split'] == 'val' else set()
    assert row.keys() == common | own, row
    assert row['images_per_s'] > 0 and row['data_wait_ms'] > 0 and row['lr'] > 0
assert [(row['step'], row['epoch']) for row in rows if row['split'] == 'val'] == [(20, 1), (40, 2)]
PY
	expect 0 events m
	[ "$output" = "$(printf 'train: 160 values, 1 sessions\nval: 12 values, 1 sessions')" ]
}

@test "a resumed run starts new event files and purges the steps that it repeats" {
	job() { train linear -n 1 --data "$DATA" --batch 32 --epochs 2 --save-every 15 --metrics m --ckpt c "$@"; }
	# As if killed after step 38: rows and events exist past the checkpoint.
	job --steps 38
	rm c/step-00000038.safetensors
	job 2>out
	grep -q 'resuming from c/step-00000030' out
	expect 0 events m
	[[ "$output" == "train: 160 values, 2 sessions"* ]]
	# A new run in the same directory keeps the old files and purges all their events.
	rm -r c
	job --steps 3
	expect 0 events m
	[ "$output" = "$(printf 'train: 12 values, 3 sessions\nval: 6 values, 3 sessions')" ]
	[ -e m/metrics.jsonl.1 ]
}

@test "TensorBoard itself reads the same values" {
	python3 -c 'import tensorboard' 2>/dev/null || skip "this python3 has no tensorboard"
	train linear -n 1 --data "$DATA" --batch 32 --steps 18 --save-every 7 --metrics m --ckpt c
	rm c/step-00000018.safetensors
	train linear -n 1 --data "$DATA" --batch 32 --steps 25 --metrics m --ckpt c
	events --tensorboard m
}

@test "a finished command that is repeated adds no row, saves nothing, and prints the result again" {
	for n in 1 2; do
		job() { train linear -n $n --data "$DATA" --batch $((32 / n)) --epochs 2 --metrics m$n --ckpt c$n; }
		job >first.txt
		cp m$n/metrics.jsonl rows
		stat -c '%n %i %y' c$n/* >before
		job >second.txt 2>out
		grep -q 'nothing to train' out
		cmp rows m$n/metrics.jsonl
		stat -c '%n %i %y' c$n/* | cmp before
		for line in '^checkpoint ' '^metrics ' '^loss '; do
			[ "$(grep "$line" second.txt | sed 's/ *[0-9]* images.*//')" = "$(grep "$line" first.txt | sed 's/ *[0-9]* images.*//')" ]
		done
		events m$n
		# More epochs resume from there.
		train linear -n $n --data "$DATA" --batch $((32 / n)) --epochs 3 --metrics m$n --ckpt c$n
		[ "$(grep -vc '"split": "checkpoint"' m$n/metrics.jsonl)" -eq 63 ]
		events m$n
	done
}

@test "--on-nan continue logs null, continues to the end, and reports that once" {
	expect 0 timeout 60 "$BERTH" train linear -n 2 --data synthetic:20,n=2000,classes=1 --lr 1e6 --batch 20 \
		--steps 60 --log-every 1 --metrics m --on-nan continue
	[ "$(grep -c 'is not finite; continuing' <<<"$output")" -eq 1 ]
	python3 - "$output" <<'PY'
import json, re, sys
rows = [json.loads(line) for line in open('m/metrics.jsonl') if '"train"' in line]
named = int(re.search(r'loss of step (\d+) is not finite', sys.argv[1])[1])
assert [row['step'] for row in rows] == list(range(1, 61))
assert all((row['loss'] is None) == (row['step'] >= named) for row in rows), (named, rows)
PY
	# Regression: no accuracies.
	python3 - <<'PY'
import json
assert not any(json.loads(line).keys() & {'acc1', 'acc5'} for line in open('m/metrics.jsonl'))
PY
}

@test "directories that cannot be written: exit code 73 before training starts" {
	mkdir m
	: >m/val
	expect 73 timeout 60 "$BERTH" train linear -n 2 --data "$DATA" --steps 2 --metrics m
	[[ "$output" == *"m/val"* ]]
	expect 0 timeout 60 "$BERTH" train linear -n 1 --data "$DATA" --steps 2 --metrics m --no-eval
}
