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
# What the terminal has drawn, without the status lines of each second.
parts = [part for part in text.split('\r\033[K') if part and not re.search(r' elapsed, [a-z ]+$', part)]
lines = ''.join(part for part in parts if '\n' in part).rstrip('\n').split('\n')
# The device, the settings and the note about checkpoints. Then for each epoch: two progress lines,
# and a line that stays.
assert re.match(r'computing on cpu', lines.pop(0)), text
assert re.fullmatch(r'batch (32 on each of 2 ranks|64), lr 0\.01, momentum 0\.9, weight decay 0, schedule constant', lines.pop(0)), text
assert lines.pop(0) == 'berth-train: note: no checkpoints will be saved; set --ckpt to save them', text
assert len(lines) == 2 and all(re.match(r'epoch \d/2  val loss', line) for line in lines), text
steps = [part for part in parts if '  step ' in part or 'val loss' in part]
assert [' val ' in part for part in steps] == [False, False, True] * 2, text
assert all(re.fullmatch(r'epoch \d/2  step \d+/20  loss .* \d+:\d\d left  .* ms', part) for part in steps if ' val ' not in part), text
PY
		grep -q '^loss' results
		# A line that wraps could not be overwritten.
		timeout 60 script -qec "stty cols 50; $program $command 2>&1 >results" /dev/null </dev/null >screen
		python3 - <<'PY'
parts = open('screen', newline='').read().replace('\r\n', '\n').split('\r\033[K')
drawn = [part for part in parts if part and '\n' not in part]
assert all(len(part) < 50 for part in drawn), drawn
drawn = [part for part in drawn if '  loss ' in part]
assert len(drawn) >= 4 and all(len(part) == 49 and 'left' in part for part in drawn), drawn
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

@test "--quiet: the result on standard output, nothing on standard error" {
	"$BERTH" train -q -n 2 convnet --data synthetic:1x28x28,n=64 --steps 2 >out 2>err
	[ ! -s err ]
	grep -q '^trained convnet ' out
	expect 66 "$BERTH" train -q -n 2 convnet --data /nowhere
	[[ $output == *"error: rank 0: --data /nowhere"* ]]
}
