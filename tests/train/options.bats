# SPDX-License-Identifier: BSD-3-Clause
# What the options of berth train do, and which values are refused.

load support

# rates DIRECTORY EXPRESSION: each row's learning rate is EXPRESSION of its step s and epoch e, both from 0
rates() {
	python3 - "$@" <<'PY'
import json, math, sys
rows = [json.loads(line) for line in open(f'{sys.argv[1]}/metrics.jsonl') if '"train"' in line]
assert rows
for row in rows:
    s, e = row['step'] - 1, row['epoch'] - 1
    lr = eval(sys.argv[2])
    assert abs(row['lr'] - lr) <= 1e-12, (row, lr)
PY
}

@test "schedules: the learning rate of every step, also after a stop" {
	job() { train linear -n 1 --data "$DATA" --batch 64 --epochs 6 --lr 0.4 --no-eval --metrics m --ckpt c "$@"; }
	job --schedule step --step-size 2 --gamma 0.5
	rates m '0.4 * 0.5 ** (e // 2)'
	rm -r c
	job --schedule multistep --milestones 1,4 --steps 33
	job --schedule multistep --milestones 1,4
	rates m '0.4 * 0.1 ** ((e >= 1) + (e >= 4))'
	rm -r c
	job --schedule cosine --warmup 2e --steps 7
	job --schedule cosine --warmup 2e
	rates m '0.4 * (0.01 + 0.99 * e / 2) if e < 2 else 0.2 * (1 + math.cos(math.pi * (e - 2) / 4))'
	rm -r c
	job --schedule constant --warmup 25 --warmup-start 0.2 --steps 12
	job --schedule constant --warmup 25 --warmup-start 0.2
	rates m '0.4 * (0.2 + 0.8 * min(s, 25) / 25)'
	[ "$(grep -c '"train"' m/metrics.jsonl)" -eq 60 ]
}

@test "accumulated batches give the losses of one large batch, also in an epoch's smaller last step" {
	for model in linear convnet; do
		train $model -n 1 --data "$DATA" --batch 72 --epochs 2 --metrics $model.1
		train $model -n 1 --data "$DATA" --batch 24 --accumulate 3 --epochs 2 --metrics $model.2
		train $model -n 2 --data "$DATA" --batch 12 --accumulate 3 --epochs 2 --metrics $model.3
		[ "$(grep -c train $model.1/metrics.jsonl)" -eq 18 ]
		near_rows $model.1 $model.2 1e-5
		near_rows $model.1 $model.3 1e-5
	done
}

@test "label smoothing changes the training loss, not the evaluation" {
	for x in 0 0.1 1; do
		train linear -n 1 --data "$DATA" --steps 1 --lr 0 --label-smoothing $x --metrics m$x
	done
	[ "$(loss m0 val)" = "$(loss m0.1 val)" ]
	[ "$(loss m0 train)" != "$(loss m0.1 train)" ]
	# Linear in x between cross-entropy and the mean over all classes.
	python3 -c 'import sys; a, b, c = map(float, sys.argv[1:]); assert abs(0.9 * a + 0.1 * c - b) < 1e-6, (a, b, c)' \
		"$(loss m0 train)" "$(loss m0.1 train)" "$(loss m1 train)"
}

@test "--weight-decay-on weights leaves biases alone" {
	for on in all weights; do
		train convnet -n 1 --data "$DATA" --steps 1 --weight-decay 0.5 --weight-decay-on $on --ckpt $on --no-eval
	done
	train convnet -n 1 --data "$DATA" --steps 1 --weight-decay 0 --ckpt none --no-eval
	python3 - <<'PY'
import json, struct
def tensors(folder):
    data = open(f'{folder}/step-00000001.safetensors', 'rb').read()
    size = struct.unpack('<Q', data[:8])[0]
    return {name: data[slice(*(8 + size + at for at in entry['data_offsets']))]
            for name, entry in json.loads(data[8:8 + size]).items() if not name.startswith(('__', 'berth.'))}
every, weights, none = tensors('all'), tensors('weights'), tensors('none')
assert len(every) == 10
for name in every:
    like = none if name.endswith('bias') else every
    assert weights[name] == like[name] and every[name] != none[name], name
PY
}

@test "--save-every by time: saves at logged steps, on all ranks at once" {
	# 5 steps take more than a millisecond, and less than a day.
	for n in 1 2; do
		"$BERTH" train convnet --device cpu-reference -n $n --data "$DATA" --batch $((32 / n)) --steps 23 --log-every 5 \
			--ckpt c$n --save-every 0.001s
		[ "$(cd c$n; echo step*)" = "$(printf 'step-000000%s.safetensors ' 05 10 15 20 23 | sed 's/ $//')" ]
		"$BERTH" train convnet --device cpu-reference -n $n --data "$DATA" --batch $((32 / n)) --steps 23 --log-every 5 \
			--ckpt d$n --save-every 1d
		[ "$(cd d$n; echo step*)" = step-00000023.safetensors ]
		# Saving does not change what is trained.
		cmp c$n/step-00000023.safetensors d$n/step-00000023.safetensors
	done
}

@test "invalid values: exit code 64 and what is expected" {
	while IFS='|' read -r text arguments; do
		# shellcheck disable=SC2086
		expect 64 timeout 60 "$BERTH" train linear -n 2 --data "$DATA" $arguments
		echo "$arguments: $output"
		[[ "${lines[-1]}" == "berth: error: "*"$text"* ]]
		[ "${#lines[@]}" -eq 1 ]
	done <<'ROWS'
--label-smoothing is "1.5": expected a number from 0 to 1|--label-smoothing 1.5
--label-smoothing is "-0.1"|--label-smoothing -0.1
--accumulate is "0"|--accumulate 0
too large|--batch 1000000 --accumulate 100000
unknown schedule 'linear'; expected constant, step, multistep or cosine|--schedule linear
--step-size requires --schedule step; the schedule is|--step-size 3
--step-size is "0"|--schedule step --step-size 0
--gamma requires --schedule step or multistep; the schedule is cosine|--schedule cosine --gamma 0.5
requires --milestones|--schedule multistep
--milestones requires --schedule multistep|--milestones 3,4
ascending|--schedule multistep --milestones 4,3
--warmup is "5s"|--warmup 5s
--warmup-start requires --warmup|--warmup-start 0.1
--warmup-start is "2"|--warmup 5 --warmup-start 2
--weight-decay-on 'bias': expected all or weights|--weight-decay-on bias
--on-nan 'ignore': expected stop or continue|--on-nan ignore
--save-every requires --ckpt|--save-every 10m
--save-every is "0s"|--save-every 0s --ckpt c
--save-every|--save-every 3w --ckpt c
--nesterov requires --momentum|--nesterov --momentum 0
--epoch requires --print-order|--epoch 3
--explain-step was removed|--explain-step
unknown device 'abacus'|--device abacus
unknown communication library 'pigeon'|--comm pigeon
unknown format 'cifar11'|--data cifar11:DIR
--init is empty|--init=
--resume is empty|--resume=
ROWS
	expect 64 timeout 60 "$BERTH" train linear -n 2 --data synthetic:20,n=200,classes=1 --label-smoothing 0.1
	[[ "$output" == *"--label-smoothing requires data with classes"* ]]
}

@test "--save-every TIME saves once per TIME" {
	"$BUILD/bin/berth-train" convnet --data "$DATA" --batch 8 --steps 4000 --no-eval --log-every 1 \
		--save-every 1s --ckpt c --metrics m &
	pid=$! begin=$SECONDS
	within 60 test -s m/metrics.jsonl
	kill -STOP $pid
	sleep 1.1
	kill -CONT $pid
	wait $pid
	saved=$(find c -name 'step-*' | wc -l)
	echo "$saved checkpoints in $((SECONDS - begin)) s"
	# Once because of the pause, once at the end, and at most once per second in between.
	[ "$saved" -ge 2 ]
	[ "$saved" -le $((SECONDS - begin + 3)) ]
}

@test "an error of all ranks is reported once; an error of one rank, by that rank" {
	expect 66 timeout 60 "$BERTH" train linear -n 3 --data mnist:nowhere --report r.json
	[ "$(grep -c '^berth-train: error: ' <<<"$output")" -eq 1 ]
	[[ "$output" == *"berth-train: error: rank 0: nowhere/"* ]]
	grep -q '"rank": 0' r.json
	expect 66 timeout 60 "$BERTH" run -n 3 -- sh -c \
		"[ \$RANK = 1 ] && data=mnist:nowhere; exec '$BUILD/bin/berth-train' linear --data \${data:-$DATA} --steps 2"
	[[ "$output" == *"berth-train: error: rank 1: nowhere/"* ]]
}

@test "the rank that fails ends late, on a busy node: it is still the first cause" {
	expect 66 timeout 60 "$BERTH" run -n 2 -- sh -c \
		"[ \$RANK = 0 ] && exec '$BUILD/bin/berth-train' linear --data $DATA --steps 2
		'$BUILD/bin/berth-train' linear --data mnist:nowhere --steps 2; code=\$?; sleep 3; exit \$code"
	[[ "$output" == *"berth: error: rank 1 "*"exited with code 66"* ]]
}

@test "an option that differs between ranks: exit code 65, the option is named, and no rank waits" {
	while IFS='|' read -r name arguments; do
		expect 65 timeout 60 "$BERTH" run -n 2 -- sh -c \
			"exec '$BUILD/bin/berth-train' linear --data $DATA --batch 16 --epochs 1 $arguments"
		echo "$arguments: $output"
		[[ "$output" == *"the ranks differ in $name: rank "* ]]
		[ "$(grep -c '^berth-train: error: ' <<<"$output")" -eq 1 ]
	done <<'ROWS'
--log-every|--log-every $((5 + RANK))
--steps|--steps $((5 + RANK))
--epochs|--epochs $((1 + RANK))
--accumulate|--accumulate $((1 + RANK))
--no-eval|$([ $RANK = 1 ] && echo --no-eval)
--ckpt|$([ $RANK = 1 ] && echo --ckpt c)
--lr|--lr 0.$((1 + RANK))
--seed|--seed $RANK
--augment|--augment $([ $RANK = 1 ] && echo none || echo flip)
--milestones|--schedule multistep --milestones 3,$((5 + RANK))
--weight-decay-on|--weight-decay-on $([ $RANK = 1 ] && echo all || echo weights)
ROWS
}
