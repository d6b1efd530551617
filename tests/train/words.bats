# SPDX-License-Identifier: BSD-3-Clause
# Where output goes: results to stdout, messages to stderr, one line of progress on a terminal.

load support

@test "stdout has only the results: loss, accuracies, paths, and what to run next" {
	expect 0 --separate-stderr timeout 60 "$BERTH" train linear -n 2 --data "$DATA" --epochs 2 --log-every 5 \
		--ckpt c --metrics m
	[ "${#lines[@]}" -eq 6 ]
	[ "${lines[0]}" = "trained linear on $DATA: 20 steps, 2 ranks" ]
	[[ "${lines[1]}" =~ ^loss\ [0-9.]+\ \ Acc@1\ [0-9.]+\ %\ \ Acc@5\ [0-9.]+\ %\ \ [0-9]+\ images/s$ ]]
	[ "${lines[2]}" = "checkpoint  c/step-00000020.safetensors" ]
	[ "${lines[3]}" = "metrics     m/metrics.jsonl" ]
	[ "${lines[4]}" = "to view     tensorboard --logdir m" ]
	[ "${lines[5]}" = "to resume   run the same command with --epochs 4" ]
	[[ "$stderr" == *"epoch 1/2  step 5/20  loss "*" left "*"epoch 2/2  val loss "* ]]
	[[ "$stderr" != *$'\r'* ]]
}

@test "the command to run next changes the option that ended the run, and resumes" {
	for rest in "--steps 5" "--steps 5 --epochs 9" "--epochs 1"; do
		rm -rf c
		# shellcheck disable=SC2086
		expect 0 --separate-stderr timeout 60 "$BERTH" train linear -n 1 --data "$DATA" --ckpt c --no-eval $rest
		[[ "${lines[-1]}" =~ ^to\ resume\ \ \ run\ the\ same\ command\ with\ (--[a-z]+\ [0-9]+)$ ]]
		# shellcheck disable=SC2086
		expect 0 timeout 60 "$BERTH" train linear -n 1 --data "$DATA" --ckpt c --no-eval $rest ${BASH_REMATCH[1]}
		[[ "$output" != *"nothing to train"* && "$output" == *"resuming from c/"* ]]
	done
}

@test "a terminal shows one line of progress with the time left, also under berth train" {
	script -qec true /dev/null >/dev/null 2>&1 || skip "script cannot make a terminal here"
	command="linear --data $DATA --epochs 2 --log-every 5"
	for program in "$BERTH train -n 2 --batch 32" "$BUILD/bin/berth-train --batch 64"; do
		timeout 60 script -qec "$program $command 2>&1 >results" /dev/null </dev/null >screen
		python3 - <<'PY'
import re
text = open('screen', newline='').read().replace('\r\n', '\n')
lines = text.rstrip('\n').split('\n')
# The device, the settings and the note about checkpoints. Then for each epoch: two progress lines in
# one, and a line that stays.
assert re.match(r'computing on cpu', lines.pop(0)), text
assert re.fullmatch(r'batch (32 on each of 2 ranks|64), lr 0\.01, momentum 0\.9, weight decay 0, schedule constant', lines.pop(0)), text
assert lines.pop(0) == 'berth-train: note: no checkpoints will be saved; set --ckpt to save them', text
assert len(lines) == 4, lines
for progress, stays in zip(lines[::2], lines[1::2]):
    shown = progress.split('\r\033[K')
    assert shown[0] == '' and len(shown) == 3, shown
    assert all(re.fullmatch(r'epoch \d/2  step \d+/20  loss .* \d+:\d\d left  .* ms', line) for line in shown[1:]), shown
    assert re.match(r'epoch \d/2  val loss', stays), stays
PY
		grep -q '^loss' results
		# A line that wraps could not be overwritten.
		timeout 60 script -qec "stty cols 50; $program $command 2>&1 >results" /dev/null </dev/null >screen
		python3 - <<'PY'
shown = [line.split('\r\033[K') for line in open('screen', newline='').read().replace('\r\n', '\n').split('\n')]
shown = [part for line in shown if len(line) > 1 for part in line[1:]]
assert len(shown) == 4 and all(len(part) == 49 and 'left' in part for part in shown), shown
PY
	done
}

@test "all models are in --help, in the message and in the manual" {
	expect 64 "$BERTH" train
	models=${output#*expected one of: } models=${models%% (*}
	[[ "$models" == convnet,* ]]
	help=$("$BERTH" train --help | tr '\n' ' ')
	for model in ${models//,/}; do
		[[ "$help" == *"$model"* ]]
		grep -q "_${model}_" "$SOURCE/bin/man/berth-train.1.scd"
	done
}
