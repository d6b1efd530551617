# SPDX-License-Identifier: BSD-3-Clause
# berth train --max-restarts: a killed rank costs the work since the last checkpoint and does not change
# the result.

load support

# ranks PID: the trainers among its descendants
ranks() {
	local child
	for child in $(pgrep -P "$1"); do
		[ "$(cat "/proc/$child/comm")" = berth-train ] && echo "$child"
		ranks "$child"
	done
}

# Long enough to be hit: 200 steps.
JOB=(convnet --data "synthetic:1x28x28,n=3200,classes=5" --epochs 2 -n 2 --batch 16 --no-eval --save-every 10 --deterministic)

# again OPTIONS: the first attempt stops progressing soon after step 20, whose save blocks
again() {
	mkfifo flag
	# shellcheck disable=SC2046 # words
	env $(stalls stall-sync again/step-00000020) "$BERTH" train "${JOB[@]}" --ckpt "$DIR/again" --max-restarts 2 \
		--report report.json "$@" >out 2>err &
	pid=$!
}

@test "a killed rank: the job resumes from the newest checkpoint and ends with the same bits" {
	train "${JOB[@]}" --ckpt "$DIR/whole"
	again
	within 60 test -e flag.stalled
	rm flag # the next attempt saves it
	kill -KILL "$(ranks $pid | tail -1)"
	wait $pid
	cat err
	grep -q 'resuming from .*again/step-00000[0-9]*.safetensors' err
	grep -q 'restarting, 1 of at most 2 times' err
	cmp whole/step-00000200.safetensors again/step-00000200.safetensors
	python3 - <<-'PY'
		import json
		report = json.load(open('report.json'))
		assert report['code'] == 0 and len(report['attempts']) == 2, report
		first, second = report['attempts']
		assert first['signal'] == 9 and first['steps'] >= 10, first
		assert 1 <= second['steps'] <= 190, second
	PY
}

@test "a stopped rank is named with its step, and the training continues" {
	again --hang-timeout 5
	within 60 test -e flag.stalled
	rm flag
	kill -STOP "$(ranks $pid | head -1)"
	until_seen err 'the job hangs: no step and no output for 5 s; rank [01] on .* its process is stopped'
	wait $pid
	[ -e again/step-00000200.safetensors ]
}
